"""Endpoints of a run: fixed in the recipe, measured from its predictions."""

import json

import numpy as np
import pytest
from run_cases import FAST
from shell import command

from distilcal import Predictions
from distilcal.calibrate import fit_temperature
from distilcal.config.schema import EndpointSettings
from distilcal.errors import InputError
from distilcal.metrics import METRICS
from distilcal.pipeline.endpoints import evaluate_endpoints


@pytest.fixture(scope="module")
def facts(place):
    command("distill", "--train", place / "train.csv", "--teacher", place / "encoder", "--ood", place / "other.csv", *FAST,
            "--out", place / "decided", "--store", place / "store", "--set", "endpoints.against=alone")  # fmt: skip
    return json.loads((place / "decided" / "metrics.json").read_text())


def test_a_run_measures_its_endpoints(place, facts):
    endpoints = facts["endpoints"]
    assert (endpoints["against"], endpoints["state"], endpoints["splits"]) == ("alone", "calibrated", ["test", "other"])
    assert [result["metric"] for result in endpoints["results"]] == ["accuracy", "nll", "ece"]
    for result in endpoints["results"]:
        for key, stage in (("main", "student"), ("control", "alone")):
            folder = place / "decided" / stage / "predictions"
            temperature = fit_temperature(Predictions.load(folder / "dev.npz"))
            scaled = [temperature(Predictions.load(folder / f"{split}.npz")) for split in ("test", "other")]
            expected = np.mean([METRICS[result["metric"]](scores.probs, scores.labels) for scores in scaled])
            assert result[key] == pytest.approx(expected)


def test_endpoints_as_trained_and_over_runs(place, facts):
    folders = [place / "run", place / "decided"]
    settings = EndpointSettings(metrics=("accuracy",), state="given")
    [twice] = evaluate_endpoints(folders, "student", ["test", "other"], settings)
    expected = np.mean([facts["stages"]["student"]["sets"][split]["given"]["accuracy"]["value"] for split in ("test", "other")])
    assert twice.main == pytest.approx(expected)
    with pytest.raises(InputError, match="teacher has no predictions on elsewhere"):
        evaluate_endpoints(folders, "teacher", ["elsewhere"], settings)


def test_a_control_that_is_no_stage_is_refused(place):
    refused = command("distill", "--train", place / "train.csv", "--teacher", place / "encoder", *FAST, "--out", place / "no",
                      "--store", place / "store", "--set", "endpoints.against=alnoe", code=2)  # fmt: skip
    assert "endpoints.against: there is no stage 'alnoe'" in refused.stderr
