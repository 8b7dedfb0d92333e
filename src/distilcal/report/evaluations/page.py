"""A ModelEvaluation as one self-contained HTML page: no script, no external request, light and dark, wide and narrow.

Here the numbers are turned into shapes in chart coordinates; ``page.html.jinja`` lays them out. Jinja escapes all text, so
class names and file names from the user's files stay text.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from distilcal import __version__
from distilcal.evaluation import ModelEvaluation, SetEvaluation, ThresholdCheck
from distilcal.metrics import CALIBRATION_ERRORS, HUMAN_METRICS, METRICS, Reliability
from distilcal.report.charts.frame import Frame
from distilcal.report.charts.scales import Axis, round_step, unit_axis
from distilcal.report.evaluations.sentences import FEW_ROWS, next_steps, reading
from distilcal.report.evaluations.terminal import SHIFT_METRICS
from distilcal.report.html import render_template, write_text
from distilcal.report.verdicts import winner
from distilcal.selective import counted

MOST_CLASSES = 200
CURVE_POINTS = 240


CHART = Frame()
COUNTS = Frame(top=288.0, height=60.0)


def write_page(evaluation: ModelEvaluation, path: Path) -> None:
    """Write an evaluation as a self-contained HTML page, atomically.

    Parameters
    ----------
    evaluation : ModelEvaluation
        The evaluation.
    path : Path
        The file to write; an existing one is replaced.

    Raises
    ------
    InputError
        If no file can be written there.
    """
    write_text(render(evaluation), path)


def render(evaluation: ModelEvaluation) -> str:
    """Return an evaluation as a self-contained HTML page.

    Parameters
    ----------
    evaluation : ModelEvaluation
        The evaluation.

    Returns
    -------
    str
        The HTML, with all text escaped; of the classes it lists the ``MOST_CLASSES`` with the largest errors.
    """
    a = evaluation
    sets = [_titled(a.test, a.calibrated, "in domain"), *(_titled(x, y, "out of domain") for x, y in a.ood)]
    worst = sorted(a.test.classes, key=lambda row: -row.error)
    return render_template(
        "page.html.jinja",
        a=a,
        reading=list(reading(a)),
        next_steps=list(next_steps(a)),
        chart=CHART,
        counts=COUNTS,
        unit_x=CHART.x_ticks(unit_axis()),
        unit_y=CHART.y_ticks(unit_axis()),
        sets=sets,
        curves=_risk_chart(a),
        definitions=_definitions(a),
        shift_metrics=[name for name in SHIFT_METRICS if name in a.test.evaluation.metrics],
        classes=worst[:MOST_CLASSES],
        left_out=len(worst) - len(worst[:MOST_CLASSES]),
        errors=CALIBRATION_ERRORS,
        checks=a.checks,
        few=FEW_ROWS,
        calibrated_errors={} if a.calibrated is None else {row.name: row.error for row in a.calibrated.classes},
        check_at_home=_check_at_home(a),
        winner=winner,
        version=__version__,
    )


def _titled(before: SetEvaluation, after: SetEvaluation | None, where: str) -> dict[str, Any]:
    diagrams = [("as given" if after is not None else "", before)]
    if after is not None:
        diagrams.append(("calibrated", after))
    return {
        "name": before.name,
        "where": where,
        "before": before,
        "after": after,
        "diagrams": [
            {
                "state": state,
                **reliability_chart(report.reliability),
                "evaluation": report.evaluation,
                "ece": report.evaluation["ece"],
            }
            for state, report in diagrams
        ],
    }


def reliability_chart(diagram: Reliability) -> dict[str, Any]:
    """Return the shapes of a reliability diagram and of the counts below it, in chart coordinates.

    Parameters
    ----------
    diagram : Reliability
        The bins, with their counts, accuracies and intervals.

    Returns
    -------
    dict
        ``marks`` (with whiskers) and ``rows`` (of the table) for bins that are not empty, ``bars`` (rows and mistakes) for
        all bins, ``most`` (largest count, at least 1), ``bins`` (their number) and ``level`` (of the intervals).
    """
    r = diagram
    most = max(int(r.count.max()), 1)
    marks, bars = [], []
    for i, count in enumerate(r.count.tolist()):
        left, right = CHART.x(float(r.lower[i])), CHART.x(float(r.upper[i]))
        wrong = int(r.wrong[i])
        bars.append(
            {
                "x": left + 0.6,
                "width": round(right - left - 1.2, 2),
                "top": COUNTS.y(count / most),
                "wrong_top": COUNTS.y(wrong / most),
                "bottom": COUNTS.y(0),
                "title": f"{r.lower[i]:.3f} to {r.upper[i]:.3f}: {counted(count)}, {wrong:,} wrong",
            }
        )
        if count:
            marks.append(
                {
                    "x": CHART.x(float(r.confidence[i])),
                    "y": CHART.y(float(r.accuracy[i])),
                    "on_line": CHART.y(float(r.confidence[i])),
                    "low": CHART.y(float(r.low[i])),
                    "high": CHART.y(float(r.high[i])),
                    "radius": round(2.5 + 3.5 * math.sqrt(count / most), 2),
                    "title": f"confidence {r.confidence[i]:.3f}, accuracy {r.accuracy[i]:.3f} "
                    f"[{r.low[i]:.3f}, {r.high[i]:.3f}], {counted(count)}",
                }
            )
    before, after = "(]" if r.closed == "right" else "[)"
    rows = [
        {
            "range": f"{before}{r.lower[i]:.3f}, {r.upper[i]:.3f}{after}",
            "count": int(r.count[i]),
            "confidence": float(r.confidence[i]),
            "accuracy": float(r.accuracy[i]),
            "low": float(r.low[i]),
            "high": float(r.high[i]),
        }
        for i in np.flatnonzero(r.count)
    ]
    return {"marks": marks, "bars": bars, "most": most, "rows": rows, "bins": len(r.count), "level": r.level}


def _risk_chart(a: ModelEvaluation) -> dict[str, Any]:
    """Risk over coverage of the scores that the threshold is for, of a perfect ranking, and the threshold itself."""
    report = a.calibrated or a.test
    curve = report.curve
    n = report.evaluation.rows
    mistakes = round(float(curve.risk[-1]) * n)
    top = max(float(curve.risk[np.searchsorted(curve.coverage, 0.02) :].max()), 1 - a.threshold.target_accuracy, 0.01) * 1.1
    keep = np.unique(np.linspace(0, len(curve.coverage) - 1, CURVE_POINTS).round().astype(int))

    def place(coverage: float, risk: float) -> str:
        return f"{CHART.x(coverage)},{CHART.y(min(risk / top, 1.0))}"

    # From the left edge: the first point alone, of many equal confidences, would be no line.
    line = " ".join([place(0.0, float(curve.risk[0])), *(place(float(curve.coverage[i]), float(curve.risk[i])) for i in keep)])
    accepted = np.unique(np.linspace(1, n, 80).round())
    best = " ".join(place(float(k / n), max(0.0, (k - (n - mistakes)) / k)) for k in accepted)
    mark = None
    check = _check_at_home(a)
    if a.threshold.confidence is not None:
        coverage, right = (a.threshold.coverage, a.threshold.accuracy) if check is None else (check.coverage, check.accuracy)
        if not math.isnan(right):
            mark = {"x": CHART.x(coverage), "y": CHART.y(min((1 - right) / top, 1.0)), "coverage": coverage}
    axis = Axis(0.0, top, tuple(np.arange(0, top + 1e-9, round_step(top / 5)).round(6).tolist()), percent=True)
    return {
        "line": line,
        "best": best,
        "mark": mark,
        "wanted": CHART.y(min((1 - a.threshold.target_accuracy) / top, 1.0)),
        "ticks": CHART.y_ticks(axis),
        "report": report,
    }


def _check_at_home(a: ModelEvaluation) -> ThresholdCheck | None:
    return a.checks[0] if a.calibrated is not None and a.checks else None


def _definitions(a: ModelEvaluation) -> list[dict[str, str]]:
    definitions = []
    for name, figure in a.test.evaluation.metrics.items():
        function = {**METRICS, **HUMAN_METRICS}[name]
        first = (function.__doc__ or "").strip().split("\n\n")[0]
        definitions.append({"name": name, "text": " ".join(first.replace("`", "").split()), "here": figure.definition})
    return definitions
