"""The answer of a run: decided from figures by one function, then put into words."""

import numpy as np
import pytest
from run_summaries import comparison, scores, split_facts, stage, summary

from distilcal.report.runs.answer import answer_sentences, decide
from distilcal.report.runs.page import render_runs, render_summary

GAIN = {"accuracy": (0.031, 0.012, 0.050), "nll": (-0.051, -0.07, -0.03)}
LOSS = {"accuracy": (-0.021, -0.040, -0.002), "nll": (0.04, 0.02, 0.06)}
NOTHING = {"accuracy": (0.004, -0.009, 0.017), "nll": (-0.004, -0.02, 0.01)}
CLOSE = {"accuracy": (-0.002, -0.008, 0.004), "nll": (0.0, -0.01, 0.01)}


def run(against, *, home=None, away=None, times=(1.0, 2.0), spreads=((0.9, 1.1), (1.9, 2.1)), **more):
    """A run with a teacher, the student, alone and the baseline, compared as given after calibration."""
    home = scores() if home is None else home
    away = away or {}
    sets = {"test": split_facts(scores(), home), **{name: split_facts(scores(), s) for name, s in away.items()}}
    parameters = more.pop("parameters", (1_000_000, 2_000_000))
    stages = {
        "teacher": stage(sets, parameters=parameters[1], ms=times[1], spread=spreads[1]),
        "student": stage(sets, teacher="teacher", parameters=parameters[0], ms=times[0], spread=spreads[0],
                         classes=more.pop("classes", [])),
        "alone": stage(sets, parameters=parameters[0], ms=times[0], spread=spreads[0]),
        "tfidf": stage(sets, parameters=None, ms=0.1),
    }  # fmt: skip
    elsewhere = more.pop("elsewhere", {})
    compared = {"test": tuple(comparison(name, **values) for name, values in against.items())}
    for split, values_of in elsewhere.items():
        compared[split] = tuple(comparison(name, **values) for name, values in values_of.items())
    return summary(stages, compared["test"], ood=list(away), calibrated_comparisons=compared, baseline="tfidf", **more)


def words(runs):
    return " ".join(answer_sentences(decide(runs)))


def test_a_winner_is_used_and_what_it_rests_on_is_named():
    away = {"tweets": scores(0.75, 0.82, ece=0.08, beyond=True), "nyt": scores(0.8)}
    runs = run({"teacher": CLOSE, "alone": GAIN, "tfidf": GAIN}, away=away)
    answer = decide(runs)
    assert answer.decision == "use"
    assert answer.rival.model.title == "alone"
    assert answer_sentences(answer) == [
        "Use student: half of its teacher's time, as accurate as its teacher within 1 point, calibrated at home; "
        "on tweets its confidence is 7.0 points too high.",
        "It is better than alone (the same network trained alone; each calibrated on dev): 3.1 points more accurate "
        "(1.2 to 5.0), NLL 0.051 lower (0.030 to 0.070).",
    ]


def test_what_alone_or_the_baseline_does_better_is_used_instead():
    runs = run({"teacher": CLOSE, "alone": LOSS, "tfidf": GAIN})
    assert decide(runs).decision == "avoid"
    assert words(runs).startswith(
        "Do not use student: alone, the same network trained alone, is better. student against alone, each calibrated on dev: "
        "accuracy -2.1 points (-4.0 to -0.2), worse; NLL +0.040 (+0.020 to +0.060), worse."
    )
    assert decide(run({"teacher": CLOSE, "alone": GAIN, "tfidf": LOSS})).rival.model.title == "tfidf"


def test_no_gain_beyond_chance_is_no_win():
    runs = run({"teacher": CLOSE, "alone": NOTHING, "tfidf": GAIN})
    assert decide(runs).decision == "either"
    assert words(runs).startswith("Use student or alone, the same network trained alone: neither is better beyond chance.")
    assert "each calibrated on dev: accuracy +0.4 points (-0.9 to +1.7), may be chance; NLL -0.004" in words(runs)
    assert decide(run({"teacher": CLOSE, "alone": GAIN, "tfidf": NOTHING})).rival.model.title == "tfidf"


def endpoints(*better, against="alone"):
    """Endpoints of a recipe that found these verdicts on accuracy, NLL and ECE."""
    results = [
        {"metric": metric, "main": 0.8, "control": 0.7, "difference": 0.1, "low": 0.05, "high": 0.15, "better": verdict}
        for metric, verdict in zip(("accuracy", "nll", "ece"), better, strict=True)
    ]
    return {"against": against, "state": "calibrated", "splits": ["test", "tweets"], "results": results}


@pytest.mark.parametrize(
    ("better", "on_test", "decision"),
    [
        ((True, True, None), NOTHING, "use"),
        ((True, None, False), NOTHING, "use"),  # ECE is a part of NLL: it is shown, and decides nothing
        ((True, False, None), GAIN, "either"),  # better in one, worse in another
        ((None, None, None), GAIN, "either"),
        ((None, False, None), GAIN, "avoid"),
    ],
)
def test_endpoints_that_were_fixed_beforehand_decide_about_their_control(better, on_test, decision):
    runs = run({"teacher": CLOSE, "alone": on_test, "tfidf": GAIN}, endpoints=endpoints(*better))
    answer = decide(runs)
    assert answer.decision == decision
    assert answer.rival.model.title == "alone"
    said = words(runs)
    if decision == "use":
        assert said.endswith(
            "It is better than alone (the same network trained alone) by the endpoints that were fixed beforehand."
        )
    else:
        assert "student against alone on test, each calibrated on dev: accuracy +" in said
    assert ("each is better by some of the endpoints" in said) == (set(better[:2]) == {True, False})


def test_endpoints_decide_about_no_other_rival():
    found = endpoints(True, True, True)
    assert decide(run({"teacher": CLOSE, "alone": NOTHING, "tfidf": LOSS}, endpoints=found)).rival.model.title == "tfidf"
    other = endpoints(True, True, True, against="teacher")
    assert decide(run({"teacher": CLOSE, "alone": NOTHING, "tfidf": GAIN}, endpoints=other)).decision == "either"


def test_a_gain_that_the_correction_takes_back_is_no_win():
    corrected = {"accuracy": (0.02, 0.002, 0.04, 0.08), "nll": (-0.004, -0.02, 0.01)}
    runs = run({"teacher": CLOSE, "alone": corrected, "tfidf": GAIN})
    assert decide(runs).decision == "either"
    assert "not beyond chance after correcting for 4 comparisons" in words(runs)


def test_better_in_one_metric_and_worse_in_the_other_decides_nothing():
    mixed = {"accuracy": GAIN["accuracy"], "nll": LOSS["nll"]}
    runs = run({"teacher": CLOSE, "alone": mixed})
    assert decide(runs).decision == "either"
    assert words(runs).startswith(
        "Use student or alone, the same network trained alone: student is more accurate, alone has the better NLL; "
        "neither is better in both. student against alone"
    )
    mixed = {"accuracy": LOSS["accuracy"], "nll": GAIN["nll"]}
    assert "alone is more accurate, student has the better NLL;" in words(run({"teacher": CLOSE, "alone": mixed}))


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        ((-0.002, -0.008, 0.004), "as accurate as its teacher within 1 point"),
        ((-0.008, -0.019, 0.004), "as accurate as its teacher within 2 points"),
        ((-0.012, -0.028, 0.004), "1.2 points less accurate than its teacher (-0.4 to 2.8), may be chance"),
        ((-0.010, -0.018, -0.002), "1.0 point less accurate than its teacher (0.2 to 1.8)"),
        ((0.015, 0.003, 0.027), "1.5 points more accurate than its teacher (0.3 to 2.7)"),
        ((-0.031, -0.045, -0.02), "if half of its teacher's time is worth 3.1 points of accuracy (2.0 to 4.5) to you"),
    ],
)
def test_accuracy_against_the_teacher_is_never_closer_than_its_interval(accuracy, expected):
    assert expected in words(run({"teacher": {"accuracy": accuracy}, "alone": GAIN, "tfidf": GAIN}))


@pytest.mark.parametrize(
    ("times", "spreads", "expected"),
    [
        ((1.0, 2.0), ((0.9, 1.1), (1.9, 2.1)), "Use student: half of its teacher's time"),
        ((1.6, 2.0), (None, None), "Use student: 80% of its teacher's time"),
        ((1.0, 2.0), ((0.9, 2.2), (1.9, 2.1)), "not measurably faster than its teacher (median: half of its teacher's time)"),
        (
            (1.9, 2.0),
            ((1.89, 1.91), (1.99, 2.01)),
            "not measurably faster than its teacher (median: 95% of its teacher's time)",
        ),
        ((3.0, 2.0), ((2.9, 3.1), (1.9, 2.1)), "Use student: 150% of its teacher's time"),
        ((3.0, 2.0), ((1.9, 3.1), (1.9, 2.1)), "not measurably faster than its teacher (median: 150% of its teacher's time)"),
    ],
)
def test_times_are_told_apart_by_their_medians_and_spreads(times, spreads, expected):
    assert expected in words(run({"teacher": CLOSE, "alone": GAIN}, times=times, spreads=spreads))


def test_a_teacher_that_costs_no_more_is_a_rival():
    same = {"times": (2.0, 2.0), "spreads": ((1.9, 2.1), (1.9, 2.1)), "parameters": (1_000, 1_000)}
    runs = run({"teacher": LOSS, "alone": GAIN}, **same)
    assert decide(runs).rival.model.title == "teacher"
    assert "Do not use student: teacher, its teacher, which is not larger and not measurably slower, is better." in words(runs)


def test_a_teacher_of_the_same_size_that_takes_longer_is_no_rival():
    longer = {"times": (1.0, 2.0), "spreads": ((0.9, 2.2), (1.9, 2.1)), "parameters": (1_000, 1_000)}
    costly = {"accuracy": (-0.031, -0.045, -0.02)}
    runs = run({"teacher": costly, "alone": GAIN}, **longer)
    assert words(runs).startswith("Use student if perhaps half of its teacher's time is worth 3.1 points of accuracy")
    longer["parameters"] = (1_000, 2_000)
    assert "Use student if a smaller model is worth" in words(run({"teacher": costly, "alone": GAIN}, **longer))


def test_domains_are_left_out_where_confidence_or_accuracy_fails():
    wrong = scores(0.6, 0.74, ece=0.15, beyond=True)
    both = {"teacher": CLOSE, "alone": GAIN}
    at_home = run(both, away={"tweets": wrong})
    assert words(at_home).startswith("Use student at home only: ")
    assert "not on tweets: its confidence is 14.0 points too high there" in words(at_home)
    elsewhere = {"nyt": {"alone": LOSS}, "amazon": {"alone": GAIN}}
    partly = run(both, away={"nyt": scores(0.8), "amazon": scores(0.8)}, elsewhere=elsewhere)
    assert words(partly).startswith("Use student, but not on nyt: ")
    assert "not on nyt: alone is better there" in words(partly)
    elsewhere["amazon"] = {"alone": LOSS}
    nowhere = run(both, away={"nyt": scores(0.8), "amazon": scores(0.8)}, elsewhere=elsewhere)
    assert "not on nyt and amazon: alone is better there" in words(nowhere)


def test_confidence_at_home_is_told_apart_from_chance():
    both = {"teacher": CLOSE, "alone": GAIN}
    assert "not quite calibrated at home (ECE 0.050, chance alone 0.020)" in words(
        run(both, home=scores(ece=0.05, beyond=True))
    )
    low = scores(0.83, 0.78, ece=0.06, beyond=True)
    assert "its confidence is 5.0 points too low at home" in words(run(both, home=low))
    useless = scores(0.7, 0.88, ece=0.18, beyond=True)
    assert words(run(both, home=useless)).startswith("Use student for its answers, not for its confidence: ")
    few = scores()
    few["ece"]["null"] = 0.09
    assert "too few test rows to tell whether it is calibrated" in words(run(both, home=few))


def of_two_classes(rows, right):
    """The counts of two classes with these rows, of which so many are predicted right."""
    predicted = (right[0] + rows[1] - right[1], right[1] + rows[0] - right[0])
    return [
        {"name": name, "rows": rows[k], "predicted": predicted[k], "recall": right[k] / rows[k]}
        for k, name in enumerate(("ham", "spam"))
    ]


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        ((900, 100), (900, 0)),  # the constant itself
        ((900, 100), (880, 3)),  # predictions that do not follow the labels
        ((900, 100), (500, 70)),  # they do, but far more is lost than gained
        ((900, 100), (895, 2)),
    ],
)
def test_a_model_that_is_not_better_than_a_constant_is_not_used(rows, right):
    runs = run({"teacher": CLOSE, "alone": GAIN, "tfidf": LOSS}, classes=of_two_classes(rows, right))
    assert words(runs) == "Do not use student: it is not measurably better than always predicting 'ham'; tfidf is better."


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        ((900, 100), (875, 40)),  # 91.5 %, with an interval that reaches below 90 %
        ((980, 20), (975, 10)),  # hardly more accurate, but half of what is rare is found
        ((900, 100), (850, 50)),  # as accurate
    ],
)
def test_a_model_that_is_better_than_a_constant_is_used(rows, right):
    home = scores(sum(right) / sum(rows), half=0.018)
    runs = run({"teacher": CLOSE, "alone": GAIN, "tfidf": GAIN}, home=home, classes=of_two_classes(rows, right))
    assert decide(runs).decision == "use"
    assert decide(runs).constant is None


def test_better_among_the_other_classes_is_better_than_a_constant():
    """Whether a row is of the most frequent class is guessed, but the others are told from one another."""
    classes = [{"name": "a", "rows": 400, "predicted": 400, "recall": 0.4}]
    classes += [{"name": name, "rows": 300, "predicted": 300, "recall": 0.6} for name in ("b", "c")]
    classes.append({"name": "d", "rows": 0, "predicted": 0, "recall": None})
    assert decide(run({"teacher": CLOSE, "alone": GAIN}, classes=classes)).constant is None
    for entry in classes[1:3]:
        entry["recall"] = 0.3
    assert decide(run({"teacher": CLOSE, "alone": GAIN}, classes=classes)).constant == "a"


def test_without_a_rival_the_teacher_decides_or_nothing_does():
    sets = {"test": split_facts(scores(), scores())}
    stages = {"teacher": stage(sets, parameters=None, ms=None), "student": stage(sets, teacher="teacher")}
    wide = {"accuracy": (-0.05, -0.17, 0.08)}
    undecided = summary(stages, [], calibrated_comparisons={"test": (comparison("teacher", **wide),)})
    assert words(undecided).startswith("The test rows are too few to decide. student: ")
    used = summary(stages, [], calibrated_comparisons={"test": (comparison("teacher", **CLOSE),)})
    assert words(used) == "Use student: as accurate as its teacher within 1 point, calibrated at home."
    costly = summary(stages, [], calibrated_comparisons={"test": (comparison("teacher", accuracy=(-0.1, -0.12, -0.08)),)})
    assert "if a model of your own is worth 10.0 points of accuracy" in words(costly)
    lone = summary({"model": stage(sets)})
    assert words(lone) == "model: 83.0% right on test (81.0% to 85.0%), calibrated at home."
    assert decide(summary({"model": stage({})})) is None


def test_runs_of_earlier_versions_are_answered_as_trained():
    sets = {"test": split_facts(scores())}
    stages = {"teacher": stage(sets, ms=2.0), "student": stage(sets, teacher="teacher"), "alone": stage(sets)}
    runs = summary(stages, [comparison("teacher", **CLOSE), comparison("alone", **GAIN)])
    assert "(the same network trained alone; both as trained)" in words(runs)


def test_random_answers_never_contradict_their_comparisons():
    rng = np.random.default_rng(0)
    for _ in range(300):
        against = {}
        for name in ("teacher", "alone", "tfidf"):
            values = {}
            for metric in ("accuracy", "nll"):
                middle, half = rng.normal() / 50, rng.uniform(0, 0.04)
                values[metric] = (middle, middle - half, middle + half)
            against[name] = values
        runs = run(against)
        answer, text = decide(runs), words(runs)
        rivals = [c for c in runs.calibrated_comparisons["test"] if c.a != "teacher"]
        better = [{c[metric].better for metric in ("accuracy", "nll")} for c in rivals]
        if answer.decision == "use":
            assert all("b" in sides and "a" not in sides for sides in better)
        if answer.decision == "avoid":
            assert any("a" in sides and "b" not in sides for sides in better)
        teacher = runs.calibrated_comparisons["test"][0]["accuracy"]
        if "as accurate as its teacher within 1 point" in text:
            assert teacher.low >= -0.01
        if "more accurate than its teacher (" in text and "may be chance" not in text.split("; ")[0]:
            assert teacher.low > 0 or answer.decision != "use"


def test_the_answer_and_warnings_come_first_on_the_page(tmp_path):
    runs = run({"teacher": CLOSE, "alone": GAIN}, warnings=["student predicts <one> class for all rows."], folder=tmp_path)
    for name in ("teacher", "student", "alone", "tfidf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "history.json").write_text("[]")
    for page in (render_runs(runs), render_summary(runs)):
        places = [page.index("student predicts &lt;one&gt; class"), page.index("Use student: "), page.index("<table")]
        assert places == sorted(places)
