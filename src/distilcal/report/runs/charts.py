"""The charts of a run's page, as shapes in chart coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from distilcal.report.charts.frame import Frame
from distilcal.report.charts.scales import Axis, axis_of
from distilcal.report.charts.svg import polyline_points, truncate
from distilcal.report.evaluations.page import CHART, reliability_chart
from distilcal.report.runs.answer import confidence_gap, main_rivals, used_state
from distilcal.report.runs.tables import STATES, domain
from distilcal.runs import RunModel, RunSummary
from distilcal.selective import CascadeEvaluation

NAME_ROOM, ROW_HEIGHT = 116.0, 34.0  # of a model in the chart of confidence and accuracy
LABEL_HEIGHT, DIGIT_WIDTH = 11.0, 7.0  # of the number beside a point, in chart coordinates
POINT_RADIUS = 4.5
# Where the number of a point may stand, as steps from the point to the number's lower left corner, best first: around the
# point, then in columns above and below it.
LABEL_STEPS = (
    *((7, -5), (7, 13), (-14, -5), (-14, 13), (-3, -9), (-3, 18), (10, 4), (-17, 4)),
    *((across, -5 - LABEL_HEIGHT * row) for row in range(1, 20) for across in (7, -14)),
    *((across, 13 + LABEL_HEIGHT * row) for row in range(1, 20) for across in (7, -14)),
)


def confidence_charts(summary: RunSummary) -> list[dict[str, Any]]:
    """Return a chart for every split: accuracy with its interval beside mean confidence, for the models that count most.

    Models are shown as they are used, calibrated where they were calibrated; the main model also as trained.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.

    Returns
    -------
    list of dict
        ``name``, ``where``, ``frame``, ``rows`` and ``x_ticks``, all on one scale; splits without any model are left out.
    """
    of_splits = {split: _confidence_rows(summary, split) for split in summary.sets}
    values = [row[key] for rows in of_splits.values() for row in rows for key in ("low", "high", "confidence")]
    axis = axis_of([*values, min(max(values, default=1.0), 1.0)], percent=True)
    charts = []
    for split, rows in of_splits.items():
        if rows:
            frame = Frame(left=NAME_ROOM, top=10.0, width=196.0, height=ROW_HEIGHT * len(rows))
            places = [_confidence_places(row, frame, axis, i) for i, row in enumerate(rows)]
            ticks = frame.x_ticks(axis)
            charts.append({"name": split, "where": domain(split), "frame": frame, "rows": places, "x_ticks": ticks})
    return charts


def _confidence_rows(summary: RunSummary, split: str) -> list[dict[str, Any]]:
    rows = []
    for model in main_rivals(summary):
        used = used_state(model, split)
        states = list(dict.fromkeys(["given", used])) if model is summary.main else [used]
        for state in states:
            accuracy, confidence = model.metric(split, "accuracy", state), model.metric(split, "confidence", state)
            gap = confidence_gap(model, split, state)
            if accuracy is None or confidence is None or gap is None:
                continue
            rows.append({"model": model, "state": STATES[state], "gap": gap, "main": model is summary.main,
                         "low": accuracy["low"], "high": accuracy["high"], "accuracy": accuracy["value"],
                         "confidence": confidence["value"]})  # fmt: skip
    return rows


def _confidence_places(row: dict[str, Any], frame: Frame, axis: Axis, i: int) -> dict[str, Any]:
    gap = row["gap"]
    name = row["model"].title
    verdict = {"calibrated": "no more than chance", "unknown": "too few rows to tell"}.get(gap.verdict, gap.verdict)
    return {
        "name": truncate(name, NAME_ROOM - 12, size=11.5),
        "state": row["state"],
        "main": row["main"],
        "kind": {"too high": "over", "too low": "under"}.get(gap.verdict, "even"),
        "gap": f"{100 * gap.gap:+.1f}",
        "y": round(frame.top + ROW_HEIGHT * (i + 0.5), 2),
        **{key: frame.x(axis.share(row[key])) for key in ("low", "high", "accuracy", "confidence")},
        "title": f"{name}, {row['state']}: accuracy {row['accuracy']:.1%} ({row['low']:.1%} to {row['high']:.1%}), "
        f"mean confidence {row['confidence']:.1%}: {verdict}",
    }


def cascade_charts(summary: RunSummary) -> list[dict[str, Any]]:
    """Return a chart for every split: accuracy over the share that the teacher answers, for the student and for it alone.

    Parameters
    ----------
    summary : RunSummary
        One or several runs; the cascade is that of the first.

    Returns
    -------
    list of dict
        ``name``, ``where``, ``lines`` with bands, ``mark`` (the chosen point, or None), ``message`` of its promise, ``x_ticks``
        and ``y_ticks``; empty without a cascade.
    """
    evaluation = summary.main.run.cascade
    if evaluation is None:
        return []
    return [_cascade_chart(evaluation, split) for split in summary.sets if split in evaluation.splits]


def _cascade_chart(evaluation: CascadeEvaluation, name: str) -> dict[str, Any]:
    split = evaluation.splits[name]
    curves = [curve for curve in (split.alone, split.cascade) if curve is not None]
    bounds = [bound for curve in curves for bound in (*curve.accuracy_low.tolist(), *curve.accuracy_high.tolist())]
    axis = axis_of(bounds, percent=True)

    def points(xs: Iterable[float], ys: Iterable[float]) -> str:
        return polyline_points((CHART.x(x), CHART.y(axis.share(y))) for x, y in zip(xs, ys, strict=True))

    lines = []
    for curve in curves:
        share = curve.handed_over.tolist()
        low, high = curve.accuracy_low.tolist(), curve.accuracy_high.tolist()
        lines.append(
            {
                "name": curve.student,
                "main": curve is split.cascade,
                "points": points(share, curve.accuracy.tolist()),
                "band": points([*share, *reversed(share)], [*low, *reversed(high)]),
                "title": f"{curve.student}: {curve.student_alone.accuracy:.1%} with nothing handed over, "
                f"{curve.nearest(0.2).accuracy:.1%} with a fifth, {curve.teacher_alone.accuracy:.1%} with everything",
            }
        )
    check = split.checks.get("loss")
    mark = None
    if check is not None and evaluation.loss.reached:
        point = split.cascade.nearest(1 - check.coverage)
        title = f"chosen on dev: {point.handed_over:.0%} handed over, accuracy {point.accuracy:.1%}"
        mark = {"x": CHART.x(point.handed_over), "y": CHART.y(axis.share(point.accuracy)), "title": title}
    return {
        "name": name,
        "where": domain(name),
        "lines": lines,
        "mark": mark,
        "teacher": CHART.y(axis.share(split.cascade.teacher_alone.accuracy)),
        "message": "" if check is None or mark is None else check.message,
        "x_ticks": CHART.x_ticks(Axis(0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), percent=True)),
        "y_ticks": CHART.y_ticks(axis),
    }


def scatter_chart(summary: RunSummary, split: str) -> dict[str, Any]:
    """Return the chart of accuracy against ECE on a split, as trained (filled) and calibrated (open), with intervals.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.
    split : str
        The split.

    Returns
    -------
    dict
        ``name``, ``where``, ``points`` (empty if no model was evaluated there), ``x_ticks`` and ``y_ticks``.
    """
    evaluated = []
    for model in summary.models:
        for state in STATES:
            accuracy, ece = model.metric(split, "accuracy", state), model.metric(split, "ece", state)
            if accuracy is not None and ece is not None:
                evaluated.append((model, state, accuracy, ece))
    if not evaluated:
        return {"name": split, "points": [], "x_ticks": [], "y_ticks": []}
    x_axis = axis_of([0.0, *(ece["high"] for _, _, _, ece in evaluated)], zero=True)
    bounds = [accuracy[bound] for _, _, accuracy, _ in evaluated for bound in ("low", "high")]
    y_axis = axis_of(bounds, percent=True)
    points = [
        {
            "number": model.number,
            "open": state == "calibrated",
            "main": model is summary.main,
            "x": CHART.x(x_axis.share(ece["value"])),
            "y": CHART.y(y_axis.share(accuracy["value"])),
            "left": CHART.x(x_axis.share(ece["low"])),
            "right": CHART.x(x_axis.share(ece["high"])),
            "low": CHART.y(y_axis.share(accuracy["low"])),
            "high": CHART.y(y_axis.share(accuracy["high"])),
            "title": f"{model.title}, {STATES[state]}: accuracy {accuracy['value']:.3f}, ECE {ece['value']:.3f}",
        }
        for model, state, accuracy, ece in evaluated
    ]
    place_numbers(points)
    return {
        "name": split,
        "where": domain(split),
        "points": points,
        "x_ticks": CHART.x_ticks(x_axis),
        "y_ticks": CHART.y_ticks(y_axis),
    }


def place_numbers(points: Sequence[dict[str, Any]]) -> None:
    """Set ``label_x`` and ``label_y`` of every point, so that no number hides a point or another number.

    Each number takes the first free place near its point; where none is free, it stands at the upper right.

    Parameters
    ----------
    points : sequence of dict
        ``number``, ``x`` and ``y`` of each point, in chart coordinates.
    """
    occupied = [
        _box(point["x"] - POINT_RADIUS, point["y"] + POINT_RADIUS, 2 * POINT_RADIUS, 2 * POINT_RADIUS) for point in points
    ]
    for point in points:
        width = DIGIT_WIDTH * len(str(point["number"]))
        for across, down in LABEL_STEPS:
            x, y = point["x"] + across, point["y"] + down
            box = _box(x, y, width, LABEL_HEIGHT)
            inside = CHART.x(0) <= x <= CHART.x(1) - width and CHART.y(1) + LABEL_HEIGHT <= y <= CHART.y(0)
            if inside and not any(_overlap(box, other) for other in occupied):
                break
        else:
            x, y = point["x"] + 7, point["y"] - 5
            box = _box(x, y, width, LABEL_HEIGHT)
        occupied.append(box)
        point["label_x"], point["label_y"] = round(x, 2), round(y, 2)


def _box(left: float, bottom: float, width: float, height: float) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a rectangle; y grows downwards."""
    return left, bottom - height, left + width, bottom


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def training_chart(summary: RunSummary, metric: str, title: str) -> dict[str, Any]:
    """Return the chart of a metric on dev after every epoch, one line per trained model.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.
    metric : str
        A key of ``dev`` in the histories.
    title : str
        Title of the chart.

    Returns
    -------
    dict
        ``title``, ``lines`` (empty if nothing was trained), ``x_ticks`` and ``y_ticks``.
    """
    histories: list[tuple[RunModel, list[float]]] = []
    for model in summary.models:
        values = [epoch["dev"][metric] for epoch in model.run.history(model.stage)]
        if values:
            histories.append((model, values))
    if not histories:
        return {"title": title, "lines": []}
    epochs = max(len(values) for _, values in histories)
    ticks = [tick for tick in axis_of(range(1, epochs + 1), whole=True).ticks if 1 <= tick <= epochs]
    x_axis = Axis(0.5, epochs + 0.5, tuple(ticks))
    y_axis = axis_of([value for _, values in histories for value in values])
    lines = []
    for model, values in histories:
        dots = [
            {
                "x": CHART.x(x_axis.share(epoch)),
                "y": CHART.y(y_axis.share(value)),
                "title": f"{model.title}, epoch {epoch}: {value:.4f}",
            }
            for epoch, value in enumerate(values, start=1)
        ]
        points = " ".join(f"{dot['x']},{dot['y']}" for dot in dots)
        lines.append({"number": model.number, "main": model is summary.main, "points": points, "dots": dots})
    place_line_numbers(lines)
    return {"title": title, "lines": lines, "x_ticks": CHART.x_ticks(x_axis), "y_ticks": CHART.y_ticks(y_axis)}


def place_line_numbers(lines: Sequence[dict[str, Any]]) -> None:
    """Set ``label_x`` and ``label_y`` of every line: right of its end, below the numbers that are already there.

    Parameters
    ----------
    lines : sequence of dict
        Lines whose ``dots`` have ``x`` and ``y``, in chart coordinates.
    """
    placed: list[tuple[float, float]] = []
    for line in sorted(lines, key=lambda line: float(line["dots"][-1]["y"])):
        end = line["dots"][-1]
        x, y = end["x"] + 6, end["y"] + 4
        for other_x, other_y in placed:
            if abs(other_x - x) < 2 * DIGIT_WIDTH:
                y = max(y, other_y + LABEL_HEIGHT)
        placed.append((x, y))
        line["label_x"], line["label_y"] = round(x, 2), round(y, 2)


def reliability_diagrams(summary: RunSummary) -> Iterator[dict[str, Any]]:
    """Yield the reliability diagrams: every model on test, and the main one elsewhere, as trained and calibrated.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.

    Yields
    ------
    dict
        ``set`` (name and domain) and ``diagram`` (state, shapes and ECE).
    """
    selected = [(model, "test", "given") for model in summary.models]
    for split in summary.sets:
        for state in STATES:
            if (split, state) != ("test", "given"):
                selected.append((summary.main, split, state))
    for model, split, state in selected:
        diagram = model.run.diagrams.get(model.stage, {}).get(split, {}).get(state)
        ece = model.metric(split, "ece", state)
        if diagram is None or ece is None:
            continue
        yield {
            "set": {"name": f"{model.title} on {split}", "where": domain(split)},
            "diagram": {"state": STATES[state], **reliability_chart(diagram), "ece": ece},
        }
