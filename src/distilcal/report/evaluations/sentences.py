"""A ModelEvaluation in plain words: what it means and what to do next. Each sentence must be true of every input."""

from __future__ import annotations

import math
from collections.abc import Iterator

from distilcal.calibrate import FITS, Calibrator, Temperature
from distilcal.evaluation import ModelEvaluation, SetEvaluation, ThresholdCheck
from distilcal.metrics import Comparison
from distilcal.report.verdicts import winner
from distilcal.selective import counted, in_percent

FEW_ROWS = 100  # below, what chance alone gives is so large that little can be told


def reading(a: ModelEvaluation) -> Iterator[str]:
    """Yield the result in plain words, a sentence for each question.

    Parameters
    ----------
    a : ModelEvaluation
        The evaluation.

    Yields
    ------
    str
        A sentence on calibration, its repair, the threshold, data out of domain or the comparison, in this order.
    """
    yield _calibration_sentence(a.test)
    if a.calibrated is not None and a.calibrator is not None:
        yield _repair_sentence(a.test, a.calibrated, a.calibrator)
    if a.overlap is not None and a.overlap.rows:
        chance = f"by chance about {a.overlap.by_chance:,.0f} of {a.overlap.total:,} would be"
        shared = f"{a.overlap.share:.1%} of the rows of {a.test.name} are in {a.calibrated_on} too"
        yield f"Beware: {shared} ({chance}), so this flatters."
    yield _threshold_sentence(a)
    away = a.checks[-len(a.ood) :] if a.ood else ()
    for (before, after), check in zip(a.ood, away, strict=True):
        yield _shift_sentence(a.calibrated or a.test, after or before, calibrated=after is not None)
        if a.threshold.reached:
            yield _check_sentence(a, check)
    if a.comparison is not None:
        yield _comparison_sentence(a.comparison)


def next_steps(a: ModelEvaluation) -> Iterator[str]:
    """Yield what to do next, most useful first.

    Parameters
    ----------
    a : ModelEvaluation
        The evaluation.

    Yields
    ------
    str
        A sentence for each step.
    """
    bare = not a.test.classes
    if a.calibrator is None and not bare:
        if a.test.evaluation["ece"].beyond_chance:
            yield "Give predictions on a development split with --calib to fit a temperature and see what it fixes."
        yield "Choose the threshold on a development split (--calib): chosen on the test rows it flatters itself."
    elif bare:
        yield "Give the probability of every class to calibrate: confidences alone can be measured, not calibrated."
    elif a.calibrated is not None and a.calibrator is not None:
        yield from _calibration_steps(a.test, a.calibrated, a.calibrator)
    if not a.ood:
        yield "Try it on data from elsewhere with --ood: calibration at home says little about calibration away."
    broken = [check.name for check in a.checks[-len(a.ood) :] if check.accuracy < a.threshold.target_accuracy] if a.ood else []
    if broken:
        yield f"Do not use the threshold on {', '.join(broken)} as it is: choose one on labelled rows from there."
    if a.test.evaluation.rows < 1000:
        yield f"Measure on more rows: with {counted(a.test.evaluation.rows)} the intervals are wide."


def _calibration_steps(before: SetEvaluation, after: SetEvaluation, calibrator: Calibrator) -> Iterator[str]:
    others = ", ".join(m for m in FITS if m != calibrator.kind)
    effect = _effect(before, after)
    if effect == "nothing to fix":
        yield "These rows show nothing to fix: keep the predictions as they are."
        return
    if effect in ("worse", "no help"):
        yield f"Do not use this calibration; keep the predictions as they are, or try --method with one of {others}."
        return
    if isinstance(calibrator, Temperature):
        yield (
            f"Divide the logits by {calibrator.value:.4g} before the softmax (of probabilities take the logarithm first), "
            "or keep the fit with --save-calibrator."
        )
    else:
        yield "Keep the fit with --save-calibrator and apply it with distilcal.calibrate.load_calibrator."
    if after.evaluation["ece"].beyond_chance:
        yield f"Some miscalibration is left: try --method with one of {others}."


def _effect(before: SetEvaluation, after: SetEvaluation) -> str:
    """What a calibration did. Worse is told by the Brier score: proper as NLL is, but one impossible label is not all of it."""
    if after.value("brier") > before.value("brier") + 0.0005:
        return "worse"
    if before.evaluation["ece"].beyond_chance is False:
        return "nothing to fix"
    return "helps" if after.value("ece") <= before.value("ece") - 0.0005 else "no help"


def _calibration_sentence(report: SetEvaluation) -> str:
    claimed, kept = report.value("confidence"), report.value("accuracy")
    ece = report.evaluation["ece"]
    facts = f"it claims {claimed:.1%} and gets {kept:.1%} right on {counted(report.evaluation.rows)}"
    if ece.beyond_chance is False:
        return f"No miscalibration can be told from chance: {facts}; ECE {ece.value:.3f}{_against_chance(ece.null)}."
    return f"{_direction(report).capitalize()}: {facts}; ECE {ece.value:.3f}{_against_chance(ece.null)}."


def _direction(report: SetEvaluation) -> str:
    """Over- or underconfident by how much, or both in places."""
    off = (report.value("confidence") - report.value("accuracy")) * 100
    if abs(off) >= 0.6 * report.value("ece") * 100:
        return f"{'over' if off > 0 else 'under'}confident by {abs(off):.1f} points"
    return "overconfident in places and underconfident in others, which nearly cancels on the whole"


def _against_chance(null: float | None) -> str:
    return "" if null is None else f", where chance alone gives {null:.3f}"


def _repair_sentence(before: SetEvaluation, after: SetEvaluation, calibrator: Calibrator) -> str:
    name = (
        f"Temperature {calibrator.value:.3g}"
        if isinstance(calibrator, Temperature)
        else f"{calibrator.kind.title()} calibration"
    )
    first, last = before.evaluation["ece"], after.evaluation["ece"]
    moved = f"ECE {first.value:.3f} → {last.value:.3f}"
    change = after.value("accuracy") - before.value("accuracy")
    if abs(change) >= 0.0005:
        moved += f", accuracy {before.value('accuracy'):.1%} → {after.value('accuracy'):.1%}"
    note = f" ({calibrator.fit.message})" if calibrator.fit.message and not calibrator.fit.converged else ""
    effect = _effect(before, after)
    if effect == "worse":
        return f"{name} makes it worse: {moved}, Brier score {before.value('brier'):.3f} → {after.value('brier'):.3f}{note}."
    if effect == "nothing to fix":
        return f"{name} has nothing to fix that could be told from chance: {moved}{note}."
    if effect == "no help":
        return f"{name} does not help here: {moved}{note}."
    if last.beyond_chance is False:
        return f"{name} fixes all of it that can be told from chance: {moved}{note}."
    fixed = (first.value - last.value) / max(first.value - (last.null or 0.0), 1e-12)
    return f"{name} fixes {'most' if fixed > 0.5 else 'some'} of it: {moved}{note}."


def _threshold_sentence(a: ModelEvaluation) -> str:
    limit = a.threshold
    if limit.confidence is None:
        return limit.message[0].upper() + limit.message[1:] + "."
    accept = f"Accept above {limit.confidence:.3f} for {in_percent(limit.target_accuracy)} accuracy"
    if a.calibrated is None:
        return (
            f"{accept}: {limit.to_human:.0%} go to a human (chosen on these same rows; {limit.accuracy:.1%} of the accepted "
            "are right)."
        )
    return f"{accept} (chosen on {a.threshold_on}): on {a.checks[0].name} {_outcome(a.checks[0])}."


def _outcome(check: ThresholdCheck) -> str:
    if math.isnan(check.accuracy):
        return "nothing is accepted"
    return f"{check.accuracy:.1%} of the accepted are right and {1 - check.coverage:.0%} go to a human"


def _check_sentence(a: ModelEvaluation, check: ThresholdCheck) -> str:
    kept = math.isnan(check.accuracy) or check.accuracy >= a.threshold.target_accuracy
    return f"With that threshold {_outcome(check)} there{'' if kept else ': it does not hold'}."


def _shift_sentence(home: SetEvaluation, away: SetEvaluation, *, calibrated: bool) -> str:
    fall = (home.value("accuracy") - away.value("accuracy")) * 100
    moves = "stays" if abs(fall) < 0.05 else f"{'falls' if fall > 0 else 'rises'} by {abs(fall):.1f} points"
    where = f"On {away.name} accuracy {moves} {'at' if moves == 'stays' else 'to'} {away.value('accuracy'):.1%}"
    what = "calibrated" if calibrated else "uncalibrated"
    ece = f"ECE {away.value('ece'):.3f}"
    if away.evaluation["ece"].beyond_chance is False:
        if away.evaluation.rows < FEW_ROWS:
            return f"{where}; {counted(away.evaluation.rows)} cannot tell whether the {what} confidence follows."
        return f"{where} and the {what} confidence follows: {ece}, no more than chance."
    return f"{where}, and the {what} confidence is {_direction(away)} there ({ece} against {home.value('ece'):.3f} at home)."


def _comparison_sentence(c: Comparison) -> str:
    metrics: dict[str, list[str]] = {}
    for name in c.differences:
        metrics.setdefault(winner(c, name), []).append(name)
    where = f"As given, on the {counted(c.rows)} they share,"
    if set(metrics) == {"–"}:
        return f"{where} {c.a} and {c.b} cannot be told apart on any metric."
    parts = [f"{name} is better on {', '.join(metrics[name])}" for name in (c.a, c.b) if name in metrics]
    if "differs" in metrics:
        parts.append(f"they differ in {', '.join(metrics['differs'])}")
    rest = f"; other differences are not beyond chance, corrected for {len(c.differences)} metrics" if "–" in metrics else ""
    return f"{where} {' and '.join(parts)}{rest}."
