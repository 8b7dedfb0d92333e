"""The tiny study of tests/study_cases.py as files, and finished."""

from __future__ import annotations

import pytest
from study_cases import STUDY, InProcessExecutor, blobs

from distilcal.pipeline.stage import Stage
from distilcal.study.loading import load_study
from distilcal.study.run import run_study


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the tiny study and its data."""
    folder = tmp_path_factory.mktemp("studies")
    blobs(folder / "train.npz", 500, 0)
    blobs(folder / "other.npz", 150, 1, shift=0.7)
    text = STUDY.replace("TRAIN", str(folder / "train.npz")).replace("OTHER", str(folder / "other.npz"))
    (folder / "tiny.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def finished_study(place, tmp_path_factory):
    """The tiny study, run in this process, and the sets that each stage predicted: (folder, study, outcome, predicted)."""
    folder = tmp_path_factory.mktemp("whole")
    predicted = []
    real = Stage.predictions

    def predictions(self, data):
        predicted.append((self.key, data.name))
        return real(self, data)

    Stage.predictions = predictions
    try:
        study = load_study(str(place / "tiny.toml"))
        outcome = run_study(study, folder / "out", folder / "store", InProcessExecutor())
    finally:
        Stage.predictions = real
    return folder, study, outcome, predicted
