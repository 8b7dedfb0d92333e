"""The answer of a run: whether to use its main model, or what instead, and the figures that decide it.

`decide` reads a `RunSummary` and returns a `RunAnswer`; it computes no metric and writes no words. `answer_sentences` puts the
answer into words.

What counts is the main model as it is used, after its calibration:

- It is *used* if it is better, in NLL or accuracy and worse in neither, than each rival that costs no more: the same network
  trained alone, the baseline, and a teacher that is not larger and whose median time is not longer by `TIME_MARGIN`. *Better*
  is decided by `distilcal.metrics.is_significant`, on the same rows and after correction. Against the control of a recipe's
  endpoints, these decide in place of test.
- Where a rival is better, it is used instead; where nothing is decided, or each is better in one of them, either will do.
- It is not used if it is not measurably better than a constant that always predicts the most frequent class.
- Another domain is left out if its confidence is too high there by `MOST_OVERCONFIDENCE` or if a rival is better there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from distilcal.metrics import Comparison
from distilcal.report.formatting import format_signed, join_listed
from distilcal.report.verdicts import difference_verdict
from distilcal.runs import RunModel, RunSummary
from distilcal.selective import counted

Decision = Literal["use", "either", "avoid", "undecided", "measured"]
Speed = Literal["faster", "alike", "slower"]
DECIDING = ("nll", "accuracy")
MOST_OVERCONFIDENCE = 0.1  # from which the confidence is of no use
MOST_UNKNOWN_LOSS = 0.05  # loss of accuracy to the teacher that the rows must exclude, or show, before a model is used
TELLING_NULL = 0.05  # a calibrated model's ECE by chance, above which too few rows tell nothing
WITHIN = (0.01, 0.02)  # margins in which a student may be called as accurate as its teacher
COSTLY = 0.01  # loss of accuracy that a verdict names first
TIME_MARGIN = 0.9  # ratio of two median times, from which neither is measurably shorter
ALPHA = 0.05  # of the tests against a constant
FRACTIONS = (("half", 0.5), ("a third", 1 / 3), ("a quarter", 0.25))


@dataclass(frozen=True)
class Rival:
    """A model that the main model is compared with before it is used.

    Attributes
    ----------
    model : RunModel
        The rival.
    description : str
        What it is, in words.
    comparison : Comparison
        The main model (``b``) against it (``a``) on test.
    endpoints : sequence of mapping
        What the recipe's endpoints found, if it is their control: a mapping with ``metric`` and ``better`` for each of those
        that decide. They were fixed beforehand, so they do in place of test.
    """

    model: RunModel
    description: str
    comparison: Comparison
    endpoints: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class ConfidenceGap:
    """Mean confidence against accuracy on a split.

    Attributes
    ----------
    split : str
        The split.
    gap : float
        Mean confidence less accuracy.
    ece : float
        The expected calibration error.
    null : float or None
        What a perfectly calibrated model would show.
    verdict : str
        "too high" or "too low" if ECE is beyond chance and the confidence is outside the interval of the accuracy; "in places"
        if only ECE is beyond chance; "unknown" if there are too few rows to tell; else "calibrated".
    """

    split: str
    gap: float
    ece: float
    null: float | None
    verdict: str


@dataclass(frozen=True)
class RunAnswer:
    """Whether to use the main model of a run.

    Attributes
    ----------
    decision : {"use", "either", "avoid", "undecided", "measured"}
        "either": some rival is neither better nor worse, or better in one metric and worse in the other; "undecided": without
        a rival, the test rows tell too little about the accuracy against the teacher's; "measured": there is nothing to compare
        with.
    main : RunModel
        The model.
    rival : Rival or None
        What to use instead, or as well, or the rival that was beaten and is most alike.
    constant : str or None
        The class that a constant would predict, if the model is not measurably better than it.
    teacher : Comparison or None
        The model against its teacher on test.
    time : float or None
        Time per example as a share of the teacher's, where both are known.
    speed : {"faster", "alike", "slower"}
        Which of them is measurably shorter: by `TIME_MARGIN` and beyond the spread of the measurements. "faster" where the
        teacher's time is not known: a teacher that is not at hand costs more than a model that is.
    is_smaller : bool
        Whether it is smaller than its teacher, as far as is known.
    home : ConfidenceGap
        Its confidence on test.
    away : tuple of ConfidenceGap
        Its confidence in other domains.
    left_out : mapping of str to str
        Domains where it should not be used, with the reason.
    is_calibrated : bool
        Whether all this is about calibrated predictions; runs of earlier versions hold comparisons as trained only.
    """

    decision: Decision
    main: RunModel
    rival: Rival | None
    constant: str | None
    teacher: Comparison | None
    time: float | None
    speed: Speed
    is_smaller: bool
    home: ConfidenceGap
    away: tuple[ConfidenceGap, ...]
    left_out: Mapping[str, str]
    is_calibrated: bool


# ---- decision ----------------------------------------------------------------------------------------------------------


def decide(summary: RunSummary) -> RunAnswer | None:
    """Decide whether to use the main model.

    Parameters
    ----------
    summary : RunSummary
        One or several runs; the answer is about the main model of the first.

    Returns
    -------
    RunAnswer or None
        None if the model was not evaluated on test.
    """
    main = summary.main
    home = confidence_gap(main, "test", used_state(main, "test"))
    if home is None:
        return None
    calibrated = "test" in summary.calibrated_comparisons
    comparisons = summary.calibrated_comparisons["test"] if calibrated else summary.comparisons
    teacher = _model(summary, main.facts["teacher"])
    time, speed = _relative_time(main, teacher)
    is_smaller = teacher is not None and _is_smaller(main, teacher)
    is_cheap = not is_smaller and time is not None and time >= TIME_MARGIN
    rivals = _rivals(summary, comparisons, teacher if is_cheap else None)
    constant = _unbeaten_constant(main)
    against_teacher = None if teacher is None else _comparison_with(comparisons, teacher.title)
    decision, rival = _decision(rivals, against_teacher)
    if constant is not None:
        decision, rival = "avoid", _best([rival for rival in rivals if _winner(rival) == "a"])
    gaps = [confidence_gap(main, split, used_state(main, split)) for split in summary.sets[1:]]
    away = tuple(gap for gap in gaps if gap is not None)
    return RunAnswer(
        decision=decision,
        main=main,
        rival=rival,
        constant=constant,
        teacher=against_teacher,
        time=time,
        speed=speed,
        is_smaller=is_smaller,
        home=home,
        away=away,
        left_out=_left_out(summary, away, rivals),
        is_calibrated=calibrated,
    )


def _model(summary: RunSummary, stage: str | None) -> RunModel | None:
    """The model of a stage in the run of the main model."""
    return next((m for m in summary.models if m.run is summary.main.run and m.stage == stage), None)


def _comparison_with(comparisons: Sequence[Comparison], title: str) -> Comparison | None:
    return next((c for c in comparisons if c.a == title), None)


def _rivals(summary: RunSummary, comparisons: Sequence[Comparison], cheap_teacher: RunModel | None) -> list[Rival]:
    found = [
        (_alone(summary), "the same network trained alone"),
        (_model(summary, summary.main.run.facts.get("baseline")), "TF-IDF with logistic regression"),
        (cheap_teacher, "its teacher, which is not larger and not measurably slower"),
    ]
    endpoints = summary.main.run.facts.get("endpoints") or {"against": None}
    rivals = []
    for model, description in found:
        comparison = None if model is None else _comparison_with(comparisons, model.title)
        if model is not None and comparison is not None:
            deciding = _deciding_endpoints(endpoints["results"]) if model.stage == endpoints["against"] else ()
            rivals.append(Rival(model, description, comparison, deciding))
    return rivals


def main_rivals(summary: RunSummary) -> list[RunModel]:
    """Return the models that a reader compares first: the teacher, the main model, the same network alone, the baseline.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.

    Returns
    -------
    list of RunModel
        Those that there are; then the main models of other runs.
    """
    main = summary.main
    first = [_model(summary, main.facts["teacher"]), main, _alone(summary), _model(summary, main.run.facts.get("baseline"))]
    others = [m for m in summary.models if m.run is not main.run and m.stage == m.run.main]
    return [model for model in (*first, *others) if model is not None]


def _alone(summary: RunSummary) -> RunModel | None:
    """The main model's network trained without a teacher."""
    main, facts = summary.main, summary.main.run.facts
    if not main.facts["teacher"]:
        return None
    teachers = {stage["teacher"] for stage in facts["stages"].values()}
    alike = [
        model
        for model in summary.models
        if model.run is main.run
        and not model.facts["teacher"]
        and model.stage not in teachers
        and model.stage != facts.get("baseline")
        and model.facts["parameters"] == main.facts["parameters"] is not None
    ]
    return next((model for model in alike if model.stage == "alone"), alike[0] if alike else None)


def _is_smaller(main: RunModel, other: RunModel) -> bool:
    sizes = main.facts["parameters"], other.facts["parameters"]
    return None in sizes or sizes[0] < sizes[1]


def _relative_time(main: RunModel, teacher: RunModel | None) -> tuple[float | None, Speed]:
    """The median time per example as a share of the teacher's, and which is measurably shorter."""
    own, others = main.facts["ms_per_example"], None if teacher is None else teacher.facts["ms_per_example"]
    if not own or not others:
        return None, "faster"
    own_low, own_high = main.facts.get("ms_spread") or (own, own)
    assert teacher is not None
    others_low, others_high = teacher.facts.get("ms_spread") or (others, others)
    if own < TIME_MARGIN * others and own_high < others_low:
        return own / others, "faster"
    if others < TIME_MARGIN * own and others_high < own_low:
        return own / others, "slower"
    return own / others, "alike"


def _decision(rivals: Sequence[Rival], teacher: Comparison | None) -> tuple[Decision, Rival | None]:
    """The decision and the rival that it rests on."""
    if not rivals and teacher is None:
        return "measured", None
    if not rivals and teacher is not None:
        is_told = difference_verdict(teacher, "accuracy") == "worse" or teacher["accuracy"].low >= -MOST_UNKNOWN_LOSS
        return ("use" if is_told else "undecided"), None
    better = [rival for rival in rivals if _winner(rival) == "a"]
    if better:
        return "avoid", _best(better)
    unbeaten = [rival for rival in rivals if _winner(rival) != "b"]
    if unbeaten:
        return "either", unbeaten[-1]  # the baseline before the network alone: it costs least
    return "use", rivals[0]


def _winner(rival: Rival) -> str:
    """Which is better beyond chance: the rival "a", the main model "b", "both" if each is in some metric, or ""."""
    if rival.endpoints:
        return _side({{True: "better", False: "worse", None: ""}[endpoint["better"]] for endpoint in rival.endpoints})
    return _better(rival.comparison)


def _deciding_endpoints(results: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """NLL and accuracy, as on test; where they are no endpoints, all that there are."""
    return [endpoint for endpoint in results if endpoint["metric"] in DECIDING] or results


def _better(comparison: Comparison) -> str:
    """The same, of a comparison and its deciding metrics."""
    return _side({difference_verdict(comparison, name) for name in DECIDING if name in comparison.differences})


def _side(verdicts: set[str]) -> str:
    if {"better", "worse"} <= verdicts:
        return "both"
    if "better" in verdicts:
        return "b"
    return "a" if "worse" in verdicts else ""


def _best(rivals: Sequence[Rival]) -> Rival | None:
    """The rival with the lowest NLL."""
    return min(rivals, key=lambda rival: rival.comparison["nll"].a, default=None)


def _unbeaten_constant(main: RunModel) -> str | None:
    """The most frequent class of test, if the model is not measurably better than always predicting it.

    It is better if it is more accurate (exact McNemar test), or as accurate and its predictions of that class follow the labels
    (Fisher's exact test). Runs of earlier versions have no counts by class: nothing is claimed of them.
    """
    from scipy.stats import binomtest, fisher_exact

    classes = [entry for entry in main.facts.get("classes") or [] if entry["rows"]]
    if not classes:
        return None
    most = max(classes, key=lambda entry: entry["rows"])
    right = {entry["name"]: round(entry["recall"] * entry["rows"]) for entry in classes}
    found = right[most["name"]]
    gains, losses = sum(right.values()) - found, most["rows"] - found  # rows that only the model, or the constant, has right
    if gains + losses and binomtest(gains, gains + losses).pvalue < ALPHA:
        return None if gains > losses else most["name"]
    false_alarms = most["predicted"] - found
    told = sum(entry["rows"] for entry in classes) - most["rows"] - false_alarms
    association = fisher_exact([[found, losses], [false_alarms, told]], alternative="greater")
    return None if association.pvalue < ALPHA else most["name"]


def used_state(model: RunModel, split: str) -> str:
    """Return the state in which the predictions of a model are used.

    Parameters
    ----------
    model : RunModel
        The model.
    split : str
        The split.

    Returns
    -------
    {"calibrated", "given"}
        As trained where nothing was calibrated.
    """
    return "given" if model.metric(split, "accuracy", "calibrated") is None else "calibrated"


def confidence_gap(model: RunModel, split: str, state: str) -> ConfidenceGap | None:
    """Return the mean confidence of a model against its accuracy, and whether they differ beyond chance.

    Parameters
    ----------
    model : RunModel
        The model.
    split : str
        The split.
    state : {"calibrated", "given"}
        Whether calibrated or as trained.

    Returns
    -------
    ConfidenceGap or None
        None if the model was not evaluated there.
    """
    accuracy, confidence, ece = (model.metric(split, name, state) for name in ("accuracy", "confidence", "ece"))
    if accuracy is None or confidence is None or ece is None:
        return None
    gap = confidence["value"] - accuracy["value"]
    if not ece["beyond_chance"]:
        verdict = "unknown" if ece["null"] is None or ece["null"] > TELLING_NULL else "calibrated"
    elif accuracy["low"] <= confidence["value"] <= accuracy["high"]:
        verdict = "in places"
    else:
        verdict = "too high" if gap > 0 else "too low"
    return ConfidenceGap(split, gap, ece["value"], ece["null"], verdict)


def _left_out(summary: RunSummary, away: Sequence[ConfidenceGap], rivals: Sequence[Rival]) -> dict[str, str]:
    """Other domains where the model should not be used, with the reason in words."""
    reasons = {}
    for gap in away:
        of_domain = summary.calibrated_comparisons.get(gap.split, ())
        compared = [(rival, _comparison_with(of_domain, rival.model.title)) for rival in rivals]
        better = [rival.model.title for rival, comparison in compared if comparison is not None and _better(comparison) == "a"]
        if gap.verdict == "too high" and gap.gap >= MOST_OVERCONFIDENCE:
            reasons[gap.split] = f"its confidence is {_points(gap.gap)} too high there"
        elif better:
            reasons[gap.split] = f"{join_listed(better)} {'is' if len(better) == 1 else 'are'} better there"
    return reasons


# ---- words -------------------------------------------------------------------------------------------------------------


def answer_sentences(answer: RunAnswer) -> list[str]:
    """Return the answer in one or two sentences that need no statistics to be read.

    Parameters
    ----------
    answer : RunAnswer
        What `decide` returned.

    Returns
    -------
    list of str
        The verdict with what it rests on, then the comparison that decided it.
    """
    name, rival = answer.main.title, answer.rival
    if answer.decision == "use":
        verdict, parts = _use_words(answer)
        sentences = [f"{verdict}: {_listed_facts(answer, parts)}."]
        if rival is not None and rival.endpoints:
            of = f"{rival.model.title} ({rival.description})"
            sentences.append(f"It is better than {of} by the endpoints that were fixed beforehand.")
        elif rival is not None:
            of = f"{rival.model.title} ({rival.description}; {_state_words(answer)})"
            sentences.append(f"It is better than {of}: {_decided_words(rival.comparison)}.")
        return sentences
    facts = f"{name}: {_listed_facts(answer, [*_time_words(answer), *_teacher_words(answer)])}."
    if answer.decision == "measured":
        return [facts]
    if answer.decision == "undecided":
        return ["The test rows are too few to decide.", facts]
    if answer.constant is not None:
        instead = f"; {rival.model.title} is better" if rival is not None else ""
        return [f"Do not use {name}: it is not measurably better than always predicting {answer.constant!r}{instead}."]
    assert rival is not None
    where = " on test" if rival.endpoints else ""  # which are about the other domains, too
    against = f"{name} against {rival.model.title}{where}, {_state_words(answer)}: {_difference_words(rival.comparison)}."
    if answer.decision == "avoid":
        return [f"Do not use {name}: {rival.model.title}, {rival.description}, is better.", against, facts]
    return [f"Use {name} or {rival.model.title}, {rival.description}: {_tie_words(name, rival)}.", against, facts]


def _tie_words(name: str, rival: Rival) -> str:
    if _winner(rival) != "both":
        return "neither is better beyond chance"
    if rival.endpoints:
        return "each is better by some of the endpoints that were fixed beforehand"
    accurate, likely = name, rival.model.title
    if difference_verdict(rival.comparison, "accuracy") == "worse":
        accurate, likely = likely, accurate
    return f"{accurate} is more accurate, {likely} has the better NLL; neither is better in both"


def _use_words(answer: RunAnswer) -> tuple[str, list[str]]:
    """The verdict, and what is said of time and accuracy beside it."""
    verdict = f"Use {answer.main.title}"
    if answer.home.verdict == "too high" and answer.home.gap >= MOST_OVERCONFIDENCE:
        verdict += " for its answers, not for its confidence"
    elif answer.left_out and len(answer.left_out) == len(answer.away):
        verdict += " at home only"
    elif answer.left_out:
        verdict += f", but not on {join_listed(list(answer.left_out))}"
    if answer.teacher is not None:
        loss = answer.teacher["accuracy"]
        if difference_verdict(answer.teacher, "accuracy") == "worse" and loss.high < -COSTLY:
            price = f"{_points(-loss.difference)} of accuracy ({_range(-loss.high, -loss.low)})"
            return f"{verdict} if {_gain_words(answer)} is worth {price} to you", []
    return verdict, [*_time_words(answer), *_teacher_words(answer)]


def _gain_words(answer: RunAnswer) -> str:
    """What the model has over a teacher that is more accurate."""
    if answer.time is None:
        return "a model of your own"
    if answer.speed == "faster":
        return _time_share(answer.time)
    return "a smaller model" if answer.is_smaller else f"perhaps {_time_share(answer.time)}"


def _listed_facts(answer: RunAnswer, parts: Sequence[str]) -> str:
    accuracy = answer.main.metric("test", "accuracy", used_state(answer.main, "test"))
    assert accuracy is not None
    first = [*parts, *([] if parts else [_accuracy_words(accuracy)]), _home_words(answer.home)]
    away = [words for words in (_away_words(gap) for gap in answer.away if gap.split not in answer.left_out) if words]
    for reason in dict.fromkeys(answer.left_out.values()):
        splits = [split for split in answer.left_out if answer.left_out[split] == reason]
        away.append(f"not on {join_listed(splits)}: {reason}")
    return "; ".join([", ".join(first), *away])


def _accuracy_words(accuracy: Mapping[str, Any]) -> str:
    return f"{accuracy['value']:.1%} right on test ({accuracy['low']:.1%} to {accuracy['high']:.1%})"


def _time_words(answer: RunAnswer) -> list[str]:
    if answer.time is None:
        return []
    share = _time_share(answer.time)
    return [f"not measurably faster than its teacher (median: {share})" if answer.speed == "alike" else share]


def _time_share(time: float) -> str:
    for word, fraction in FRACTIONS:
        if abs(time / fraction - 1) < 0.1:
            return f"{word} of its teacher's time"
    share = f"{time:.0%}" if time >= 0.01 else "less than 1%"
    return f"{share} of its teacher's time"


def _teacher_words(answer: RunAnswer) -> list[str]:
    """Its accuracy against the teacher's, never closer than the interval tells."""
    if answer.teacher is None:
        return []
    change = answer.teacher["accuracy"]
    words = difference_verdict(answer.teacher, "accuracy")
    if words == "better":
        return [f"{_points(change.difference)} more accurate than its teacher ({_range(change.low, change.high)})"]
    if words != "worse":
        margin = next((margin for margin in WITHIN if change.low >= -margin), None)
        if margin is not None:
            return [f"as accurate as its teacher within {counted(round(100 * margin), 'point')}"]
    direction, low, high = ("less", -change.high, -change.low) if change.difference <= 0 else ("more", change.low, change.high)
    text = f"{_points(abs(change.difference))} {direction} accurate than its teacher ({_range(low, high)})"
    return [text if words == "worse" else f"{text}, {words}"]


def _home_words(gap: ConfidenceGap) -> str:
    chance = "" if gap.null is None else f", chance alone {gap.null:.3f}"
    if gap.verdict == "calibrated":
        return "calibrated at home"
    if gap.verdict == "unknown":
        return "too few test rows to tell whether it is calibrated"
    if gap.verdict == "in places":
        return f"not quite calibrated at home (ECE {gap.ece:.3f}{chance})"
    return f"its confidence is {_points(abs(gap.gap))} {gap.verdict} at home"


def _away_words(gap: ConfidenceGap) -> str:
    if gap.verdict in ("too high", "too low"):
        return f"on {gap.split} its confidence is {_points(abs(gap.gap))} {gap.verdict}"
    return f"on {gap.split} its ECE is {gap.ece:.3f}, beyond chance" if gap.verdict == "in places" else ""


def _state_words(answer: RunAnswer) -> str:
    return "each calibrated on dev" if answer.is_calibrated else "both as trained"


def _decided_words(comparison: Comparison) -> str:
    """The differences that decided for the main model."""
    parts = []
    accuracy, nll = comparison["accuracy"], comparison["nll"]
    if difference_verdict(comparison, "accuracy") == "better":
        parts.append(f"{_points(accuracy.difference)} more accurate ({_range(accuracy.low, accuracy.high)})")
    if difference_verdict(comparison, "nll") == "better":
        parts.append(f"NLL {-nll.difference:.3f} lower ({-nll.high:.3f} to {-nll.low:.3f})")
    return ", ".join(parts)


def _difference_words(comparison: Comparison) -> str:
    """Both deciding differences, each with its verdict."""
    accuracy, nll = comparison["accuracy"], comparison["nll"]
    change, low, high = (format_signed(100 * value, 1) for value in (accuracy.difference, accuracy.low, accuracy.high))
    parts = [f"accuracy {change} points ({low} to {high}), {difference_verdict(comparison, 'accuracy')}"]
    if math.isfinite(nll.difference):
        change, low, high = (format_signed(value) for value in (nll.difference, nll.low, nll.high))
        parts.append(f"NLL {change} ({low} to {high}), {difference_verdict(comparison, 'nll')}")
    return "; ".join(parts)


def _points(share: float) -> str:
    text = f"{100 * share:.1f}"
    return f"{text} {'point' if text == '1.0' else 'points'}"


def _range(low: float, high: float) -> str:
    return " to ".join(format_signed(100 * bound, 1).removeprefix("+") for bound in (low, high))
