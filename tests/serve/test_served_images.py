"""Images come as PNG or JPEG in base64, of one size, and never larger than what the service can hold."""

import base64
import struct
import sys
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from served import post, server_in_thread

from distilcal.data.image_source import read_pictures
from distilcal.errors import MissingDependencyError
from distilcal.inference import Student
from distilcal.serve import create_app
from distilcal.serve.images import decode_images


class Brightness:
    def compute_logits(self, data, on_progress=None):
        mean = data.inputs.pixels.mean(axis=(1, 2, 3)) / 255
        return np.stack([0.5 - mean, mean - 0.5], axis=1)


def bright_student():
    return Student(Brightness(), ("dark", "light"), "images")


def encoded(value, size=(8, 8), mode="RGB", kind="PNG"):
    file = BytesIO()
    Image.new(mode, size, value).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def png_header(width, height):
    """The start of a PNG that claims to be of this size."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return base64.b64encode(content).decode()


@pytest.fixture(scope="module")
def url():
    with server_in_thread(bright_student()) as url:
        yield url


def test_images_are_read(url):
    images = [encoded((10, 10, 10)), encoded(250, mode="L"), encoded((250, 250, 250), kind="JPEG")]
    status, _, content = post(f"{url}/predict", {"images": images})
    assert status == 200
    assert [answer["label"] for answer in content["predictions"]] == ["dark", "light", "light"]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (["no base64!"], "images[0] is no PNG or JPEG image in base64"),
        ([""], "images[0] is no PNG or JPEG"),
        ([encoded(0), base64.b64encode(b"plain text").decode()], "images[1] is no PNG or JPEG"),
        ([encoded(0, kind="GIF", mode="L")], "images[0] is no PNG or JPEG"),
        ([encoded(0)[:40]], "images[0] is no PNG or JPEG"),
        ([encoded(0), encoded(0, size=(8, 9))], "images[1] has 8 × 9 pixels where the first has 8 × 8"),
        ([encoded(0, size=(5000, 5000), mode="1")], "more than 16,000,000 pixels"),
        ([png_header(2**31 - 1, 2**31 - 1)], "images[0] is no PNG or JPEG"),
        ([encoded(0, size=(3000, 3000), mode="1")] * 2, "the images up to images[1] have more than 16,000,000 pixels"),
        ([5], "images[0]: expected a PNG or JPEG image in base64"),
    ],
)
def test_what_is_no_image_is_refused(url, images, message):
    status, _, content = post(f"{url}/predict", {"images": images})
    assert status == 422
    assert message in content["error"]


def test_greys_of_16_bits_keep_their_brightness(tmp_path):
    """Over HTTP and from a folder; Pillow would make all but the darkest white."""
    greys = np.array([[0, 256, 257], [32896, 65278, 65535]], dtype=np.uint16)
    Image.fromarray(greys).save(tmp_path / "a.png")
    expected = np.repeat([[[0], [0], [1]], [[128], [254], [255]]], 3, axis=2)
    np.testing.assert_array_equal(decode_images([base64.b64encode((tmp_path / "a.png").read_bytes()).decode()])[0], expected)
    np.testing.assert_array_equal(read_pictures(tmp_path).inputs.pixels[0], expected)


def test_pillow_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match="pip install pillow"):
        create_app(bright_student())
