"""An Assessment in plain words: what it means and what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator

from distilcal.assess import Assessment, SetReport
from distilcal.calibrate import FITS, Calibrator, Temperature
from distilcal.metrics import Comparison


def reading(a: Assessment) -> Iterator[str]:
    """The result in plain words, a sentence for each question."""
    yield _calibration_sentence(a.test)
    if a.calibrated is not None and a.calibrator is not None:
        yield _repair_sentence(a.test, a.calibrated, a.calibrator)
    if a.overlap > 0:
        yield f"Beware: {a.overlap:.1%} of the rows of {a.test.name} are in {a.calibrated_on} too, so this flatters."
    yield _threshold_sentence(a)
    for before, after in a.ood:
        yield _shift_sentence(a.calibrated or a.test, after or before, calibrated=after is not None)
    if a.comparison is not None:
        yield _comparison_sentence(a.comparison)


def _calibration_sentence(report: SetReport) -> str:
    claimed, kept = report.value("confidence"), report.value("accuracy")
    ece = report.evaluation["ece"]
    off = (claimed - kept) * 100
    facts = f"it claims {claimed:.1%} and gets {kept:.1%} right on {report.evaluation.rows:,} rows"
    if ece.beyond_chance is False:
        return (
            f"No miscalibration can be told from chance: {facts}; ECE {ece.value:.3f}, where chance alone gives {ece.null:.3f}."
        )
    if abs(off) >= 0.6 * ece.value * 100:
        kind = "Overconfident" if off > 0 else "Underconfident"
        return f"{kind} by {abs(off):.1f} points: {facts}; ECE {ece.value:.3f}{_against_chance(ece.null)}."
    return (
        f"Overconfident in places and underconfident in others, which nearly cancels on the whole: {facts}; "
        f"ECE {ece.value:.3f}{_against_chance(ece.null)}."
    )


def _against_chance(null: float | None) -> str:
    return "" if null is None else f", where chance alone gives {null:.3f}"


def _repair_sentence(before: SetReport, after: SetReport, calibrator: Calibrator) -> str:
    name = (
        f"Temperature {calibrator.value:.2f}"
        if isinstance(calibrator, Temperature)
        else f"{calibrator.kind.title()} calibration"
    )
    first, last = before.evaluation["ece"], after.evaluation["ece"]
    moved = f"ECE {first.value:.3f} → {last.value:.3f}"
    note = f" ({calibrator.fit.message})" if calibrator.fit.message and not calibrator.fit.converged else ""
    if last.value >= first.value:
        return f"{name} does not help here: {moved}{note}."
    if last.beyond_chance is False:
        return f"{name} fixes all of it that can be told from chance: {moved}{note}."
    floor = last.null or 0.0
    fixed = (first.value - last.value) / max(first.value - floor, 1e-12)
    return f"{name} fixes {'most' if fixed > 0.5 else 'some'} of it: {moved}{note}."


def _threshold_sentence(a: Assessment) -> str:
    limit = a.threshold
    if limit.confidence is None:
        return limit.message[0].upper() + limit.message[1:] + "."
    here = a.checks[0] if a.calibrated is not None else None
    if here is None:
        return (
            f"Accept above {limit.confidence:.3f} for {limit.wanted:.0%} accuracy: {limit.to_human:.0%} go to a human "
            f"(chosen on these same rows; {limit.accuracy:.1%} of the accepted are right)."
        )
    got = "nothing is accepted" if math.isnan(here.accuracy) else f"{here.accuracy:.1%} of the accepted are right"
    return (
        f"Accept above {limit.confidence:.3f} for {limit.wanted:.0%} accuracy (chosen on {a.threshold_on}): on {here.name} "
        f"{got} and {1 - here.coverage:.0%} go to a human."
    )


def _shift_sentence(home: SetReport, away: SetReport, *, calibrated: bool) -> str:
    fall = (home.value("accuracy") - away.value("accuracy")) * 100
    off = (away.value("confidence") - away.value("accuracy")) * 100
    what = "calibrated" if calibrated else "uncalibrated"
    level = f"accuracy {'falls' if fall >= 0 else 'rises'} by {abs(fall):.1f} points to {away.value('accuracy'):.1%}"
    if away.evaluation["ece"].beyond_chance is False:
        return f"On {away.name} {level} and the {what} confidence follows: ECE {away.value('ece'):.3f}, no more than chance."
    kind = "overconfident" if off > 0 else "underconfident"
    return (
        f"On {away.name} {level}, and the {what} confidence is {kind} by {abs(off):.1f} points there "
        f"(ECE {away.value('ece'):.3f} against {home.value('ece'):.3f} at home)."
    )


def _comparison_sentence(c: Comparison) -> str:
    def listed(side: str) -> str:
        return ", ".join(name for name, d in c.differences.items() if d.better == side)

    better_a, better_b = listed("a"), listed("b")
    if not better_a and not better_b:
        return f"On the {c.rows:,} rows they share, {c.a} and {c.b} cannot be told apart on any metric."
    parts = [f"{name} is better on {what}" for name, what in ((c.a, better_a), (c.b, better_b)) if what]
    return f"On the {c.rows:,} rows they share, {' and '.join(parts)}; other differences may be chance."


def next_steps(a: Assessment) -> Iterator[str]:
    if a.calibrated is None:
        if a.test.evaluation["ece"].beyond_chance is not False:
            yield "Give predictions on a development split with --calib to fit a temperature and see what it mends."
        yield "Choose the threshold on a development split (--calib): chosen on the test rows it flatters itself."
    elif a.calibrator is not None:
        if isinstance(a.calibrator, Temperature):
            yield f"Divide the logits by {a.calibrator.value:.4g} before the softmax, or keep the fit with --save-calibrator."
        else:
            yield "Keep the fit with --save-calibrator and apply it with distilcal.calibrate.load_calibrator."
        if a.calibrated.evaluation["ece"].beyond_chance:
            methods = ", ".join(m for m in FITS if m != a.calibrator.kind)
            yield f"Some miscalibration is left: try --method with one of {methods}."
    if not a.ood:
        yield "Try it on data from elsewhere with --ood: calibration at home says little about calibration away."
    elif any((after or before).evaluation["ece"].beyond_chance for before, after in a.ood):
        yield "Do not use the threshold on the shifted data as it is: choose one on labelled rows from there."
    if a.test.evaluation.rows < 1000:
        yield f"Measure on more rows: with {a.test.evaluation.rows:,} the intervals are wide and chance alone gives an error."
