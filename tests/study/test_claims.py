"""Claims on what a study measured: controls, premises, equal models, and what is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distilcal.errors import InputError
from distilcal.study.analysis import StudyResults
from distilcal.study.claim_settings import ClaimSettings, PremiseSettings, claim_pairs
from distilcal.study.claims import SAME_MODEL, check_claims, spread_of_differences
from distilcal.study.expand import expand
from distilcal.study.schema import required_measurements
from distilcal.study.selection import select
from distilcal.study.validation import checked_study

HOME = ({"task": "near", "set": "home"},)


@pytest.fixture(scope="module")
def check(finished_study):
    """A function that checks claims on the finished tiny study."""
    folder, study, outcome, _ = finished_study
    graph = expand(study)

    def checked(*claims, **changes):
        changed = study.replace(claims=claims, **changes)
        return check_claims(StudyResults(changed, graph, outcome, folder / "store"))

    return checked


def claim(**changes):
    settings = {"text": "Large is better", "metric": "accuracy", "higher": "Large", "than": "Alone", "places": HOME, **changes}
    return ClaimSettings(**settings)


def test_a_claim_that_is_turned_round_turns_its_verdict(check):
    said, other = check(claim(), claim(higher="", lower="Large"))
    turned = {"holds": "fails", "fails": "holds", "undecided": "undecided"}
    assert turned[said["verdict"]] == other["verdict"]
    assert said["parts"][0]["value"] == other["parts"][0]["value"]


def test_a_control_is_compared_too_and_counts_once_with_its_comparison(check):
    (found,) = check(claim(control=["Taught", "Alone"]))
    assert [(part["what"], part["control"]) for part in found["parts"]] == [
        ("Large above Alone, near, home", False),
        ("Large above Taught, near, home", True),
    ]
    assert found["controls"] == ["Taught"]
    assert found["need"] == "all of 1"
    assert sum(found["counts"].values()) == 1
    both = ClaimSettings(text="x", metric="ece", pairs=[["Large", "Alone", "Taught"], ["Taught", "Alone"]])
    assert [pair.others for pair in claim_pairs(both)] == [("Alone", "Taught"), ("Alone",)]


def test_a_control_of_several_comparisons_is_one_test(check):
    """Written with every pair or with the first one, it asks for the same width of all intervals."""
    with_each = [["Large", "Alone", "Taught"], ["Large", "Taught, T 4", "Taught"]]
    with_first = [["Large", "Alone", "Taught"], ["Large", "Taught, T 4"]]
    tests = []
    for pairs in (with_each, with_first):
        (found,) = check(claim(metric="nll", higher="", than="", pairs=pairs))
        tests.append({part["what"]: (part["low"], part["high"], part["p"]) for part in found["parts"]})
    assert tests[0] == tests[1]
    assert len(tests[0]) == 3


def test_the_same_models_count_once_and_a_model_is_not_compared_with_itself(check):
    pairs = [["Large", "Taught"], ["Large", "Taught, T 1"]]  # T is 1 unless it is set
    (found,) = check(claim(higher="", than="", pairs=pairs, direction="higher"))
    assert (len(found["parts"]), found["equal"], found["need"]) == (1, 1, "all of 1")
    (same,) = check(claim(higher="Taught", than="Taught, T 1"))
    assert same["verdict"] == "premise not met"
    assert same["parts"][0]["unmet"] == [SAME_MODEL]


def test_models_of_equal_figures_are_not_the_same_model(finished_study, monkeypatch):
    """Two models can have every replicate of their accuracy in common; what they predict tells them apart."""
    folder, study, outcome, _ = finished_study
    results = StudyResults(study, expand(study), outcome, folder / "store")
    measured = results.sample

    def equal_figures(place):
        sample = measured(place)
        return replace(sample, values=np.zeros_like(sample.values), draws=np.zeros_like(sample.draws))

    monkeypatch.setattr(results, "sample", equal_figures)
    pairs = [["Large", "Taught"], ["Large", "Alone"], ["Large", "Taught, T 1"]]
    results.study = study.replace(claims=(claim(higher="", than="", pairs=pairs, direction="higher"),))
    (found,) = check_claims(results)
    assert (len(found["parts"]), found["equal"]) == (2, 1)
    assert not any(part["unmet"] for part in found["parts"])


@pytest.mark.parametrize(
    ("premise", "is_met"),
    [
        ({"above_chance": "Alone"}, True),
        ({"above_chance": "Alone", "by": 90}, False),
        ({"better": "Large", "than": "Large"}, False),
        ({"higher": "Large", "than": "Alone", "metric": "confidence", "by": 99}, False),
        ({"lower": "Large", "than": "Alone", "metric": "nll", "of": "Taught"}, True),  # not about this comparison
    ],
)
def test_a_comparison_whose_premise_is_not_met_says_nothing(check, premise, is_met):
    pairs = [["Large", "Alone"], ["Taught", "Alone"]] if "of" in premise else [["Large", "Alone"]]
    settings = {"higher": "", "than": "", "direction": "higher", "pairs": pairs, "premises": [premise]}
    (found,) = check(claim(**settings))
    part = found["parts"][0]
    assert (part["verdict"] != "premise not met") == is_met
    assert (part["unmet"] == []) == is_met
    assert (part["low"] is not None) == is_met
    if not is_met:
        assert part["unmet"][0].startswith("not so that ")


def test_overconfidence_and_calibration_are_read_from_the_measurements(check, finished_study):
    folder, study, outcome, _ = finished_study
    results = StudyResults(study, expand(study), outcome, folder / "store")
    from distilcal.study.places import PlaceSettings

    def mean(method, metric):
        return results.sample(PlaceSettings(method=method, task="near", set="home", metric=metric)).values.mean()

    (found,) = check(claim(premises=[{"overconfident": "Alone"}]))
    assert bool(found["parts"][0]["unmet"]) == (mean("Alone", "confidence") <= mean("Alone", "accuracy"))
    (found,) = check(claim(premises=[{"calibrated": "Large", "than": "Alone"}]))
    assert bool(found["parts"][0]["unmet"]) == (mean("Large", "ece") >= mean("Alone", "ece"))


def test_delta_is_in_the_unit_of_the_tables(check, finished_study):
    (wide,) = check(claim(delta=80))
    assert wide["delta"] == pytest.approx(0.8)
    assert wide["verdict"] == "no effect above δ"
    metrics = {**finished_study[1].metrics}
    metrics["accuracy"] = metrics["accuracy"].replace(delta=90)
    (of_metric,) = check(claim(), metrics=metrics)
    assert of_metric["delta"] == pytest.approx(0.9)
    (none,) = check(claim())
    assert none["delta"] is None
    assert none["verdict"] != "no effect above δ"


def test_the_spread_of_differences_is_kept_for_planning(check, finished_study):
    folder, study, outcome, _ = finished_study
    spread = spread_of_differences(StudyResults(study, expand(study), outcome, folder / "store"))
    assert set(spread) == {"accuracy"}
    assert spread["accuracy"]["comparisons"] == 1
    assert 0.05 < spread["accuracy"]["rows"] < 1
    assert spread["accuracy"]["seeds"] >= 0


def test_methods_of_premises_and_controls_are_measured(finished_study):
    study = finished_study[1].replace(
        tables=[], figures=[], claims=[claim(control=["Taught"], premises=[{"overconfident": "Taught, T 4", "set": "away"}])]
    )
    required = required_measurements(study)
    assert {method for method, _ in required} == {"Large", "Alone", "Taught", "Taught, T 4"}
    assert list(required["Taught, T 4", "near"].sets) == ["other"]
    assert list(required["Taught", "near"].sets) == ["test"]
    assert not select(study, methods=["Large", "Alone"]).claims  # without its control it would be another claim


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"control": ["Taugt"]}, "there is no method 'Taugt'; did you mean Taught"),
        ({"control": ["Large"]}, "compares 'Large' with itself"),
        ({"delta": 0}, "delta = 0, expected"),
        ({"premises": [{"overconfident": "Taugt"}]}, "there is no method 'Taugt'"),
        ({"premises": [{"lower": "Large", "than": "Alone", "metric": "eec"}]}, "there is no metric 'eec'; did you mean ece"),
        ({"premises": [{"overconfident": "Large", "of": "Taught"}]}, "no comparison begins with 'Taught'"),
        ({"premises": [{"overconfident": "Large", "set": "far"}]}, "has no set 'far'"),
        ({"premises": [{"better": "Large"}]}, "premise better = 'Large' with than = ''; name the other method"),
        ({"premises": [{"overconfident": "Large", "than": "Alone"}]}, "leave out than"),
        ({"premises": [{"lower": "Large", "than": "Alone"}]}, "name the metric"),
        ({"premises": [{}]}, "got none"),
        ({"premises": [{"better": "Large", "calibrated": "Large", "than": "Alone"}]}, "got better and calibrated"),
    ],
)
def test_what_is_wrong_with_a_claim_is_said_before_anything_runs(finished_study, changes, words):
    with pytest.raises(InputError) as error:
        checked_study(finished_study[1].replace(claims=[claim(**changes)]))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "words"), [("cluster", "rows", "cluster = 'rows'"), ("sets", {"x": []}, "names no split")]
)
def test_what_is_wrong_with_a_task_is_said(finished_study, key, value, words):
    with pytest.raises(InputError, match=words):
        finished_study[1].tasks["near"].replace(**{key: value})


def test_premises_read_as_sentences():
    texts = [
        PremiseSettings(better="Teacher", than="Student").text,
        PremiseSettings(calibrated="Teacher MDCA", than="Teacher").text,
        PremiseSettings(overconfident="NLL").text,
        PremiseSettings(above_chance="NLL").text,
    ]
    assert texts == [
        "Teacher has a higher accuracy than Student",
        "Teacher MDCA has a lower ece than Teacher",
        "NLL is overconfident",
        "NLL is more accurate than chance",
    ]
