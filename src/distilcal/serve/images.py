"""Images in requests: PNG or JPEG in base64, decoded within limits."""

from __future__ import annotations

import base64
import binascii
import warnings
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.image_source import as_rgb
from distilcal.errors import InputError, MissingDependencyError

MAX_PIXELS = 16_000_000  # of all images of a request: a small file can hold a very large image
FORMATS = ("PNG", "JPEG")


def check_pillow() -> None:
    """Raise a MissingDependencyError if Pillow, which decodes images, is not installed."""
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError:
        raise MissingDependencyError("serving a model of images needs Pillow", remedy="pip install pillow") from None


def decode_images(images: list[str]) -> NDArray[np.uint8]:
    """Return images as pixels.

    Parameters
    ----------
    images : list of str
        PNG or JPEG files in base64.

    Returns
    -------
    array of uint8, shape (N, H, W, 3)

    Raises
    ------
    InputError
        If one is no image, they have different sizes, or have more than ``MAX_PIXELS`` pixels together.
    """
    decoded: list[NDArray[np.uint8]] = []
    left = MAX_PIXELS
    for row, text in enumerate(images):
        pixels = _decode(text, row, left)
        left -= pixels.shape[0] * pixels.shape[1]
        if pixels.shape != (decoded or [pixels])[0].shape:
            raise InputError(
                f"images[{row}] has {_size(pixels)} pixels where the first has {_size(decoded[0])}",
                remedy="send images of the size that the model reads",
            )
        decoded.append(pixels)
    return np.stack(decoded)


def _decode(text: str, row: int, max_pixels: int) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        content = base64.b64decode(text, validate=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is checked below
            image: Any = Image.open(BytesIO(content), formats=FORMATS)
        if image.width * image.height > max_pixels:
            raise InputError(f"the images up to images[{row}] have more than {MAX_PIXELS:,} pixels", remedy="send fewer")
        return np.asarray(as_rgb(image))
    except InputError:
        raise
    except (binascii.Error, OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError):
        # What Pillow raises for files that are damaged, of other formats, or far too large.
        raise InputError(f"images[{row}] is no PNG or JPEG image in base64", remedy="encode the content of the file") from None


def _size(pixels: NDArray[np.uint8]) -> str:
    return f"{pixels.shape[1]} × {pixels.shape[0]}"
