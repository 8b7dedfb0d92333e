"""A student answers with the same calibrated probabilities from its run, its saved folder and its .onnx, and over HTTP."""

import csv

import numpy as np
import pytest
from served import fetch, post, server_in_thread
from shell import command
from tiny import sentences

import distilcal as dc

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sources(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipped")
    student = dc.load(run)
    student.save_pretrained(folder / "saved")
    student.export_onnx(folder / "student.onnx")
    return {"run": run, "saved": folder / "saved", "onnx": folder / "student.onnx"}


@pytest.mark.parametrize("kind", ["run", "saved", "onnx"])
def test_the_same_answers_everywhere(run, sources, kind, tmp_path):
    texts, _ = sentences(40, 9)
    student = dc.load(run)
    probs = student.predict_proba(texts)
    lowest = student.threshold(student.required_accuracy).confidence
    assert lowest is not None
    clear = np.abs(probs.max(axis=1) - lowest) > 1e-4

    with server_in_thread(dc.load(sources[kind]), threads=2) as url:
        status, _, content = post(f"{url}/predict", {"texts": texts})
        health = fetch(f"{url}/health")[2]
    assert status == 200
    served = np.array([list(answer["probabilities"].values()) for answer in content["predictions"]])
    np.testing.assert_allclose(served, probs, atol=1e-5)
    handed_over = np.array([answer["hand_over"] for answer in content["predictions"]])
    assert (handed_over == (probs.max(axis=1) < lowest))[clear].all()
    assert content["accuracy"] == student.required_accuracy == 0.7
    assert content["threshold"] == pytest.approx(lowest, abs=1e-4)
    assert health["calibration"] == "temperature"

    with open(tmp_path / "new.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    command("predict", sources[kind], tmp_path / "new.csv", "-o", tmp_path / "out.csv", "--probs")
    with open(tmp_path / "out.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    written = np.array([[float(row[f"prob_{name}"]) for name in student.classes] for row in rows])
    np.testing.assert_allclose(written, probs, atol=2e-5)
