"""A student of pictures answers alike from its run, its saved folder and its .onnx, from a folder and over HTTP."""

import base64
import csv

import numpy as np
import pytest
from served import post, server_in_thread
from shell import command

import distilcal as dc

pytestmark = pytest.mark.slow
Image = pytest.importorskip("PIL.Image")

KINDS = [
    ("RGB", "png"),
    ("L", "png"),
    ("RGBA", "png"),
    ("P", "png"),
    ("I;16", "png"),
    ("RGB", "jpg"),
    ("L", "jpg"),
    ("1", "png"),
]


def draw(path, mode, bright, rng):
    """A picture of light or dark noise in this mode."""
    grey = np.clip(rng.normal(190 if bright else 60, 40, (16, 16)), 0, 255)
    if mode == "I;16":
        picture = Image.fromarray((grey * 257).astype(np.uint16))
    else:
        colours = np.clip(grey[..., None] + rng.normal(0, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
        picture = Image.fromarray(colours).convert(mode)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i in range(240):
        mode, suffix = KINDS[i % len(KINDS)]
        draw(folder / "train" / ("light" if i % 3 else "dark") / f"{i}.{suffix}", mode, i % 3, rng)
    for i, (mode, suffix) in enumerate(KINDS * 2):
        draw(folder / "new" / f"{i:02}.{suffix}", mode, i % 2, rng)
    networks = ["--teacher", "resnet8", "--student", "resnet8", "--no-alone"]
    where = ["--out", folder / "run", "--store", folder / "store"]
    command("distill", "--train", folder / "train", *networks, "--epochs", "1", "--batch", "16", *where)
    student = dc.load(folder / "run")
    student.save_pretrained(folder / "saved")
    student.export_onnx(folder / "student.onnx")
    return folder


@pytest.mark.parametrize("kind", ["run", "saved", "student.onnx"])
def test_pictures_have_the_same_answers_everywhere(pictures, kind, tmp_path):
    new = sorted((pictures / "new").iterdir())
    source = pictures / kind
    student = dc.load(source)
    command("predict", pictures / "run", pictures / "new", "-o", tmp_path / "first.csv", "--probs")
    command("predict", source, pictures / "new", "-o", tmp_path / "out.csv", "--probs")
    first, written = (read(tmp_path / name, student.classes) for name in ("first.csv", "out.csv"))
    np.testing.assert_allclose(written, first, atol=2e-5)
    with server_in_thread(student, threads=2) as url:
        images = [base64.b64encode(path.read_bytes()).decode() for path in new]
        status, _, content = post(f"{url}/predict", {"images": images})
    assert status == 200
    served = np.array([[answer["probabilities"][name] for name in student.classes] for answer in content["predictions"]])
    np.testing.assert_allclose(served, first, atol=2e-5)


def read(path, classes):
    with open(path, encoding="utf-8") as file:
        return np.array([[float(row[f"prob_{name}"]) for name in classes] for row in csv.DictReader(file)])
