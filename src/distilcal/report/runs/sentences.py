"""Runs in sentences: what the results of the main model say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from distilcal.metrics import Comparison
from distilcal.report.formatting import format_number, format_signed
from distilcal.report.verdicts import MAY_BE_CHANCE, difference_verdict
from distilcal.runs import RunModel, RunSummary
from distilcal.selective import counted

METRIC_TITLES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}


def reading(summary: RunSummary) -> Iterator[str]:
    """Yield what the results of the main model say, in sentences.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.

    Yields
    ------
    str
        Accuracy and ECE on test, each comparison, the figures out of domain, and examples that splits share; nothing if the
        main model was not evaluated on test.
    """
    main = summary.main
    if main.metric("test", "accuracy") is None or main.metric("test", "ece") is None:
        return
    yield _test_sentence(main)
    yield from _class_sentence(main)
    yield from _comparison_sentences(summary)
    yield from _domain_sentences(summary)
    for overlap in main.run.facts["overlaps"]:
        yield f"Note: {_overlap_text(overlap)} also in {overlap['first']}; figures there may flatter."
    for overlap in main.run.facts.get("near_overlaps", []):
        yield f"Note: {_overlap_text(overlap)} nearly the same as one in {overlap['first']}; figures there may flatter."


def run_warnings(summary: RunSummary) -> list[str]:
    """Return the warnings of all runs, which a report shows before anything else.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.

    Returns
    -------
    list of str
        Sentences; with several runs they begin with the name of the run.
    """
    warnings = []
    for run in summary.runs:
        prefix = f"{run.facts['name']}: " if len(summary.runs) > 1 else ""
        warnings += [f"{prefix}{warning}" for warning in run.facts.get("warnings", [])]
    return warnings


def cascade_sentence(summary: RunSummary) -> str:
    """Return what the main model and its teacher give together, in one sentence.

    Parameters
    ----------
    summary : RunSummary
        One or several runs; the cascade is that of the first.

    Returns
    -------
    str
        An empty string without a cascade.
    """
    cascade = summary.main.run.cascade
    if cascade is None:
        return ""
    return f"Handing the least confident answers over to {cascade.teacher}: {cascade.sentence}."


def endpoint_sentences(summary: RunSummary) -> list[str]:
    """Return what the recipe's endpoints decided, in one sentence.

    Parameters
    ----------
    summary : RunSummary
        One or several runs; the endpoints are those of the first.

    Returns
    -------
    list of str
        Empty if the recipe fixed none.
    """
    endpoints = summary.main.run.facts.get("endpoints")
    if endpoints is None:
        return []
    state = "each after its temperature" if endpoints["state"] == "calibrated" else "as trained"
    differences = []
    for result in endpoints["results"]:
        verdict = {True: "better", False: "worse", None: MAY_BE_CHANCE}[result["better"]]
        interval = f"[{format_signed(result['low'])}, {format_signed(result['high'])}]"
        title = METRIC_TITLES.get(result["metric"], result["metric"])
        differences.append(f"{title} {format_signed(result['difference'])} {interval}, {verdict}")
    what = f"mean over {', '.join(endpoints['splits'])}, {state}"
    return [f"Endpoints, fixed beforehand, against {endpoints['against']} ({what}): {'; '.join(differences)}."]


def _overlap_text(overlap: Mapping[str, Any]) -> str:
    return f"{counted(overlap['rows'], 'example')} of {overlap['second']} ({overlap['share']:.1%})"


def _test_sentence(main: RunModel) -> str:
    accuracy, ece = main.metric("test", "accuracy"), main.metric("test", "ece")
    assert accuracy is not None
    assert ece is not None
    calibrated_ece = main.metric("test", "ece", "calibrated")
    interval = f"{accuracy['low']:.1%} to {accuracy['high']:.1%}"
    text = f"{main.title} is right on {accuracy['value']:.1%} of test ({interval}). Its ECE is {ece['value']:.3f} as trained"
    if calibrated_ece is not None:
        text += f" and {calibrated_ece['value']:.3f} after calibration on dev"
    if ece["null"] is not None:
        text += f"; chance alone would show {ece['null']:.3f}"
    return f"{text}."


def _comparison_sentences(summary: RunSummary) -> Iterator[str]:
    main = summary.main
    models = {model.title: model for model in summary.models}
    for comparison in summary.comparisons:
        other = models[comparison.a]
        size = _ratio(main.facts["parameters"], other.facts["parameters"])
        time = _ratio(main.facts["ms_per_example"], other.facts["ms_per_example"])
        is_teacher = other.stage == main.facts["teacher"] and other.run is main.run
        if is_teacher and size and time:
            times = " against ".join(_milliseconds(model) for model in (main, other))
            yield f"It has {size:.0%} of its teacher's parameters and takes {time:.0%} of its time per example ({times})."
        # The NLL of labels without a confidence is infinite.
        compared = [name for name in METRIC_TITLES if math.isfinite(comparison[name].difference)]
        differences = "; ".join(_difference_text(comparison, name) for name in compared)
        yield f"Against {comparison.a} ({other.role}), on the same rows: {differences}."


def _domain_sentences(summary: RunSummary) -> Iterator[str]:
    """The range of ECE and accuracy out of domain."""
    eces: dict[str, float] = {}
    accuracies: list[float] = []
    for split in summary.sets[1:]:
        ece, accuracy = summary.main.metric(split, "ece"), summary.main.metric(split, "accuracy")
        if ece is not None and accuracy is not None:
            eces[split] = ece["value"]
            accuracies.append(accuracy["value"])
    if not eces:
        return
    best, worst = min(eces, key=eces.__getitem__), max(eces, key=eces.__getitem__)
    ece_range = f"{eces[worst]:.3f} ({worst})"
    accuracy_range = f"{min(accuracies):.1%}"
    if len(eces) > 1:
        ece_range = f"{eces[best]:.3f} ({best}) to {ece_range}"
        accuracy_range += f" to {max(accuracies):.1%}"
    yield f"Out of domain its ECE is {ece_range}, its accuracy {accuracy_range}."


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def _milliseconds(model: RunModel) -> str:
    spread = model.facts.get("ms_spread")  # missing in runs of earlier versions
    range_text = f" [{spread[0]:.2f}, {spread[1]:.2f}]" if spread else ""
    return f"{model.facts['ms_per_example']:.2f} ms{range_text}"


def _class_sentence(main: RunModel) -> Iterator[str]:
    """Macro-F1 and the class with the lowest F1."""
    classes = [entry for entry in main.facts.get("classes") or [] if entry["rows"]]
    if not classes or main.facts.get("macro_f1") is None:
        return
    worst = min(classes, key=lambda entry: entry["f1"] or 0.0)
    scores = f"precision {format_number(worst['precision'])}, recall {format_number(worst['recall'])}"
    yield f"Its macro-F1 is {main.facts['macro_f1']:.3f}; its weakest class is {worst['name']!r} ({scores})."


def _difference_text(comparison: Comparison, name: str) -> str:
    difference = comparison[name]
    interval = f"[{format_signed(difference.low)}, {format_signed(difference.high)}]"
    words = difference_verdict(comparison, name)
    return f"{METRIC_TITLES[name]} {format_signed(difference.difference)} {interval}, {words}"
