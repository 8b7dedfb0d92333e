"""The pictures of a run's page: confidence beside accuracy, and the cascade; escaped, and on one scale."""

import re
from dataclasses import replace

import numpy as np
import pytest
from run_summaries import comparison, scores, split_facts, stage, summary

from distilcal import Predictions
from distilcal.report.runs.charts import cascade_charts, confidence_charts
from distilcal.report.runs.page import render_runs, render_summary
from distilcal.report.runs.sentences import cascade_sentence, endpoint_sentences, reading
from distilcal.selective import evaluate_cascade

EVIL = "<script>alert('x')</script>"


def pair_of_models(rows=600, seed=0):
    """Predictions of a student, its teacher and the student alone, on dev and test."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(rows, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    ids = [str(i) for i in range(rows)]

    def model(noise):
        return Predictions.from_logits(logits + noise * rng.normal(size=logits.shape), labels, ids=ids)

    models = {"student": model(0.5), "teacher": model(0.05), "alone": model(0.9)}
    halves = {"dev": np.arange(rows // 2), "test": np.arange(rows // 2, rows)}
    return {name: {split: p.select(half) for split, half in halves.items()} for name, p in models.items()}


@pytest.fixture(scope="module")
def cascade():
    models = pair_of_models()
    return evaluate_cascade(models["student"], models["teacher"], models["alone"], max_loss=0.05, costs=(1.0, 10.0), unit="ms")


@pytest.fixture
def runs(tmp_path, cascade):
    classes = [
        {"name": EVIL, "rows": 900, "predicted": 1000, "precision": 0.8, "recall": 0.9, "f1": 0.85},
        {"name": "neg", "rows": 600, "predicted": 500, "precision": 0.7, "recall": 0.6, "f1": 0.64},
    ]
    sets = {"test": split_facts(scores(0.83, 0.9, ece=0.07, beyond=True), scores()),
            "tweets": split_facts(scores(0.7), scores(0.75, 0.68, ece=0.07, beyond=True))}  # fmt: skip
    stages = {
        "teacher": stage(sets, parameters=2_000_000, ms=2.0, spread=(1.9, 2.2)),
        "student": stage(sets, teacher="teacher", spread=(0.9, 1.3), classes=classes, macro_f1=0.745),
        "alone": stage(sets),
        "other": stage(sets, teacher="teacher"),
    }
    for name in stages:
        (tmp_path / name).mkdir()
        (tmp_path / name / "history.json").write_text("[]")
    near = [{"first": "train", "second": "test", "rows": 12, "share": 0.008}]
    compared = [comparison("teacher"), comparison("alone")]
    return summary(stages, compared, ood=["tweets"], folder=tmp_path, cascade=cascade, near_overlaps=near)


def test_confidence_stands_beside_accuracy_on_one_scale(runs):
    home, away = confidence_charts(runs)
    assert [(row["name"], row["state"]) for row in home["rows"]] == [
        ("teacher", "calibrated"), ("student", "as trained"), ("student", "calibrated"), ("alone", "calibrated"),
    ]  # fmt: skip
    assert [row["kind"] for row in home["rows"]] == ["even", "over", "even", "even"]
    assert {row["kind"] for row in away["rows"]} == {"even", "under"}
    assert home["rows"][1]["gap"] == "+7.0"
    assert home["x_ticks"] == away["x_ticks"]
    for row in home["rows"] + away["rows"]:
        places = [row[key] for key in ("low", "accuracy", "high")]
        assert places == sorted(places)
        assert all(home["frame"].x(0) <= place <= home["frame"].x(1) for place in [*places, row["confidence"]])


def test_the_cascade_is_drawn_with_its_chosen_point(runs, cascade):
    [chart] = cascade_charts(runs)
    assert [line["name"] for line in chart["lines"]] == ["alone", "student"]
    check = cascade.splits["test"].checks["loss"]
    share = (chart["mark"]["x"] - 54) / 296
    assert share == pytest.approx(1 - check.coverage, abs=0.02)
    assert chart["message"] == check.message
    assert cascade.sentence in cascade_sentence(runs)


def test_a_cascade_that_is_not_worth_it_has_no_chosen_point(runs, cascade):
    never = replace(cascade, loss=replace(cascade.loss, confidence=None), sentence="do not: nothing can be promised")
    run = replace(runs.main.run, cascade=never)
    main = replace(runs.main, run=run)
    [chart] = cascade_charts(replace(runs, main=main, runs=(run,)))
    assert chart["mark"] is None
    assert chart["message"] == ""


def test_the_page_shows_everything_escaped_and_asks_nothing_of_the_network(runs):
    page = render_runs(runs)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert page.index('id="answer"') < page.index('id="cascade"') < page.index('id="tables"') < page.index('id="classes"')
    assert "0.745" in page
    assert "1.90–2.20" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for reference in re.findall(r'aria-labelledby="([^"]+)"', page):
        assert set(reference.split()) <= set(ids)
    assert "Handing the least confident answers over" in render_summary(runs)


def test_details_name_the_weakest_class_times_and_near_duplicates(runs):
    sentences = list(reading(runs))
    assert "Its macro-F1 is 0.745; its weakest class is 'neg' (precision 0.700, recall 0.600)." in sentences
    assert any("(1.00 ms [0.90, 1.30] against 2.00 ms [1.90, 2.20])" in sentence for sentence in sentences)
    note = "Note: 12 examples of test (0.8%) nearly the same as one in train; figures there may flatter."
    assert note in sentences


def test_endpoints_are_told_with_their_verdicts(runs):
    assert endpoint_sentences(runs) == []
    results = [
        {"metric": "accuracy", "main": 0.8, "control": 0.75, "difference": 0.05, "low": 0.02, "high": 0.08, "better": True},
        {"metric": "ece", "main": 0.05, "control": 0.06, "difference": -0.01, "low": -0.03, "high": 0.01, "better": None},
    ]
    endpoints = {"against": "alone", "state": "calibrated", "splits": ["test", "tweets"], "results": results}
    run = replace(runs.main.run, facts={**runs.main.run.facts, "endpoints": endpoints})
    decided = replace(runs, main=replace(runs.main, run=run))
    [sentence] = endpoint_sentences(decided)
    assert "against alone (mean over test, tweets, each after its temperature)" in sentence
    assert "accuracy +0.050 [+0.020, +0.080], better; ECE -0.010 [-0.030, +0.010], may be chance." in sentence
    assert "fixed beforehand" in render_runs(decided)


def test_runs_of_earlier_versions_have_a_page(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "history.json").write_text("[]")
    old = summary({"model": stage({"test": split_facts(scores())})}, folder=tmp_path)
    page = render_runs(old)
    assert 'id="cascade"' not in page
    assert 'id="classes"' not in page
    assert cascade_sentence(old) == ""
