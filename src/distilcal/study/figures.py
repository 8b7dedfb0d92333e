"""The charts of a study: their series, read from its results, as the report draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.io.atomic import open_npz
from distilcal.metrics import binomial_interval, reliability
from distilcal.predictions import Predictions
from distilcal.study.analysis import StudyResults, interval
from distilcal.study.places import PlaceSettings, merge_places
from distilcal.study.schema import FOLLOWED_ON_TRAIN, FigureSettings

MAP_POINTS = 3000  # examples drawn in a data map; with more, single points can no longer be seen
Series = dict[str, Any]  # "name", "points", and for a scatter chart "labels"


def build_charts(results: StudyResults, figure: FigureSettings) -> list[dict[str, Any]]:
    """Build the charts of a figure, as ``results.json`` stores them and `distilcal.report` draws them.

    Parameters
    ----------
    results : StudyResults
        The results of the study's jobs.
    figure : FigureSettings
        The kind of the figure, its methods, places and metrics.

    Returns
    -------
    list of dict
        One chart for the kinds scatter, line, bars and training; one for each place for reliability; one for each method and
        place for projection and map. A chart has ``name``, ``title``, ``note``, ``kind``, the titles ``x`` and ``y`` of its
        axes, ``diagonal`` and ``series``; one with bars also has ``groups``, the names of its places or
        of the ``x`` of its points.
    """
    if figure.kind == "scatter":
        return [_scatter_chart(results, figure)]
    if figure.kind == "line":
        series = _point_series(results, figure, ()) if figure.points else _line_series(results, figure)
        return [_chart(figure, x=figure.x, y=_axis_title(results, figure.y), series=series)]
    if figure.kind == "bars":
        return [_bar_chart(results, figure)]
    if figure.kind == "training":
        series = [one for place in figure.places for one in _training_series(results, figure, place)]
        where = "on dev" if figure.split == "dev" else "on training batches"
        return [_chart(figure, kind="line", x="epoch", y=f"{figure.y} {where}", series=series)]
    if figure.kind == "reliability":
        return _reliability_charts(results, figure)
    return _charts_by_method(results, figure)


# ---- charts ------------------------------------------------------------------------------------------------------------


def _chart(figure: FigureSettings, **values: Any) -> dict[str, Any]:
    """A chart with the figure's own name, title, note and kind where ``values`` has no other."""
    defaults = {"name": figure.name, "title": figure.title, "note": figure.note, "kind": figure.kind, "diagonal": False}
    return {**defaults, **values}


def _scatter_chart(results: StudyResults, figure: FigureSettings) -> dict[str, Any]:
    metrics = {results.study.metrics[name].metric for name in (figure.x, figure.y)}
    return _chart(
        figure,
        x=_axis_title(results, figure.x),
        y=_axis_title(results, figure.y),
        diagonal=metrics == {"accuracy", "confidence"},
        series=_scatter_series(results, figure),
    )


def _bar_chart(results: StudyResults, figure: FigureSettings) -> dict[str, Any]:
    """Groups of bars: for each place one bar for each method, or as the figure's points say."""
    if figure.points:
        groups = list(dict.fromkeys(str(point.x) for point in figure.points))
        series = _point_series(results, figure, groups)
    else:
        groups = [_place_title(place) for place in figure.places]
        series = _bar_series(results, figure)
    return _chart(figure, x="", y=_axis_title(results, figure.y), groups=groups, series=series)


def _reliability_charts(results: StudyResults, figure: FigureSettings) -> list[dict[str, Any]]:
    """One chart for each place, with a series for each method that has predictions there."""
    charts = []
    for place in figure.places:
        place_title = _place_title(place)
        series = [_reliability_series(results, method, place) for method in figure.methods]
        chart = _chart(
            figure,
            name=f"{figure.name}-{_file_name(place_title)}",
            title=f"{figure.title}: {place_title}",
            x="confidence",
            y="accuracy",
            diagonal=True,
            series=[one for one in series if one is not None],
        )
        charts.append(chart)
    if len(charts) == 1:
        charts[0]["name"] = figure.name
    return charts


def _charts_by_method(results: StudyResults, figure: FigureSettings) -> list[dict[str, Any]]:
    """Projections or data maps: one chart for each method and place."""
    is_map = figure.kind == "map"
    note = figure.note
    if is_map and not note:
        note = f"at most {MAP_POINTS:,} examples are drawn"
    charts = []
    for method in figure.methods:
        for place in figure.places:
            subject = f"{method}, {_place_title(place)}" if len(figure.places) > 1 else method
            series = _map_series(results, method, place) if is_map else _projection_series(results, figure, method, place)
            chart = _chart(
                figure,
                name=f"{figure.name}-{_file_name(subject)}",
                title=f"{figure.title}: {subject}",
                note=note,
                x="variability" if is_map else "",
                y="confidence" if is_map else "",
                series=series,
            )
            charts.append(chart)
    return charts


def _place_title(place: PlaceSettings) -> str:
    return place.name or place.set or place.task


def _file_name(title: str) -> str:
    """A title in lower case with single hyphens for everything that is neither letter nor digit."""
    characters = [character if character.isalnum() else "-" for character in title.lower()]
    return "-".join(filter(None, "".join(characters).split("-")))


def _unit_factor(results: StudyResults, metric: str) -> float:
    """By what a metric is multiplied where it is shown: 100 for percentages."""
    return 100.0 if results.study.metrics[metric].percent else 1.0


def _axis_title(results: StudyResults, metric: str) -> str:
    return f"{metric} (%)" if results.study.metrics[metric].percent else metric


# ---- series ------------------------------------------------------------------------------------------------------------


def _scatter_series(results: StudyResults, figure: FigureSettings) -> list[Series]:
    series = []
    for method in figure.methods:
        points, labels = [], []
        for place in figure.places:
            x, x_std = _mean_and_std(results, place, method, figure.x)
            y, y_std = _mean_and_std(results, place, method, figure.y)
            if not math.isfinite(x) or not math.isfinite(y):
                continue
            point = [x, y]
            if math.isfinite(x_std) and math.isfinite(y_std):
                point += [y - y_std, y + y_std, x - x_std, x + x_std]
            points.append(point)
            labels.append(_place_title(place))
        series.append({"name": method, "points": points, "labels": labels})
    return series


def _mean_and_std(results: StudyResults, place: PlaceSettings, method: str, metric: str) -> tuple[float, float]:
    """Mean and standard deviation of a metric over seeds in the unit of its axis; NaN for what is not known."""
    sample = results.sample(merge_places(place, PlaceSettings(method=method, metric=metric)))
    if sample is None:
        return math.nan, math.nan
    factor = _unit_factor(results, metric)
    std = float(sample.values.std(ddof=1)) if len(sample.values) > 1 else math.nan
    return float(sample.values.mean()) * factor, std * factor


def _point_series(results: StudyResults, figure: FigureSettings, groups: Sequence[str]) -> list[Series]:
    """The series that the figure's points name, in every place; a point lies at its number, or at that of its group."""
    series = []
    for place in figure.places:
        for name in dict.fromkeys(point.series for point in figure.points):
            own = [point for point in figure.points if point.series == name]
            places = [merge_places(place, PlaceSettings(method=point.method)) for point in own]
            across = [groups.index(str(point.x)) if groups else float(point.x) for point in own]
            title = f"{name}, {_place_title(place)}" if len(figure.places) > 1 else name
            series.append({"name": title, "points": _points_with_intervals(results, places, across, figure.y)})
    return series


def _line_series(results: StudyResults, figure: FigureSettings) -> list[Series]:
    series = []
    for place in figure.places:
        places = [merge_places(place, PlaceSettings(method=method)) for method in figure.methods]
        points = _points_with_intervals(results, places, figure.values, figure.y)
        series.append({"name": _place_title(place), "points": points})
    return series


def _bar_series(results: StudyResults, figure: FigureSettings) -> list[Series]:
    """A bar in the group of every place for each method."""
    series = []
    for method in figure.methods:
        places = [merge_places(place, PlaceSettings(method=method)) for place in figure.places]
        series.append({"name": method, "points": _points_with_intervals(results, places, range(len(places)), figure.y)})
    return series


def _points_with_intervals(
    results: StudyResults, places: Sequence[PlaceSettings], across: Sequence[float], metric: str
) -> list[list[float]]:
    """A number on the x axis, the mean over seeds and its interval for each place that has a result."""
    factor = _unit_factor(results, metric)
    points = []
    for place, x in zip(places, across, strict=True):
        sample = results.sample(merge_places(place, PlaceSettings(metric=metric)))
        if sample is None:
            continue
        mean_and_bounds = [value * factor for value in interval(sample)]
        if all(map(math.isfinite, mean_and_bounds)):
            points.append([x, *mean_and_bounds])
    return points


def _training_series(results: StudyResults, figure: FigureSettings, place: PlaceSettings) -> list[Series]:
    """The mean over seeds at every moment that all seeds reached, for each method."""
    series = []
    for method in figure.methods:
        jobs = [results.job(method, place.task, seed) for seed in results.study.seeds]
        courses = [_course(job, figure) for job in jobs if job is not None]
        length = min(map(len, courses), default=0)
        points = []
        if length:
            mean = np.mean([course[:length] for course in courses], axis=0)
            points = [[float(epoch), float(value)] for epoch, value in mean]
        series.append({"name": method, "points": points})
    return series


def _course(job: Mapping[str, Any], figure: FigureSettings) -> list[tuple[float, float]]:
    """Epochs and values of a metric while a model trained."""
    if figure.split == "dev":
        return [(float(number), epoch["dev"][figure.y]) for number, epoch in enumerate(job["epochs"], start=1)]
    term, sign = FOLLOWED_ON_TRAIN[figure.y]
    course = []
    for number, epoch in enumerate(job["epochs"][: job["best"] + 1]):
        values = epoch.get("followed", {}).get(term, [])
        course += [(number + (part + 0.5) / len(values), sign * value) for part, value in enumerate(values)]
    return course


def _reliability_series(results: StudyResults, method: str, place: PlaceSettings) -> Series | None:
    """The bins of all seeds' predictions together; their intervals are those of one seed's rows, which all seeds share."""
    by_seed = results.predictions(merge_places(place, PlaceSettings(method=method)))
    if not by_seed:
        return None
    probs = np.concatenate([predictions.probs for predictions in by_seed])
    labels = np.concatenate([predictions.labels for predictions in by_seed])
    diagram = reliability(Predictions.from_probs(probs, labels, classes=by_seed[0].classes), bins=10)
    rows_of_one_seed = np.maximum(diagram.count / len(by_seed), 1e-9)
    low, high = binomial_interval(np.nan_to_num(diagram.accuracy) * rows_of_one_seed, rows_of_one_seed)
    points = np.stack([diagram.confidence, diagram.accuracy, low, high, diagram.count], axis=1)
    return {"name": method, "points": points[diagram.count > 0].astype(float).tolist()}


def _projection_series(results: StudyResults, figure: FigureSettings, method: str, place: PlaceSettings) -> list[Series]:
    """Features of three classes on the plane through their output weights, as Müller et al. (2019) draw them."""
    folder = results.folder(method, place.task, results.study.seeds[0])
    if folder is None or not (folder / "features.npz").exists():
        return []
    with open_npz(folder / "features.npz") as arrays:
        features, classes = arrays["features"].astype(np.float64), arrays["classes"].astype(str)
        weights, named = arrays["weights"].astype(np.float64), arrays["weight_classes"].astype(str).tolist()
    templates = weights[[named.index(name) for name in figure.classes]]  # (3, D)
    projected = project_on_templates(features.reshape(len(features), -1), templates)
    series = []
    for name in figure.classes:
        own = projected[classes == name]
        series.append({"name": name, "points": own.round(5).tolist(), "centre": own.mean(axis=0).round(5).tolist()})
    return series


def project_on_templates(features: NDArray[np.float64], templates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Project features on the plane through three points, which is where the logits of three classes are compared.

    Parameters
    ----------
    features : array of shape (N, D)
        Penultimate activations.
    templates : array of shape (3, D)
        The weights of three classes in the last layer.

    Returns
    -------
    array of shape (N, 2)
        Places in the plane; its origin is the mean of the templates, its first axis points from the first template to the
        second, and the third lies above it.

    Examples
    --------
    >>> templates = np.array([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [0.0, 3.0, 1.0]])
    >>> (project_on_templates(templates, templates) + [2 / 3, 1]).round(6).tolist()
    [[0.0, 0.0], [2.0, 0.0], [0.0, 3.0]]
    """
    plane, triangle = np.linalg.qr((templates[1:] - templates[0]).T)  # (D, 2), (2, 2)
    plane = plane * np.where(np.diag(triangle) < 0, -1.0, 1.0)  # QR leaves the signs open
    return np.asarray((features - templates.mean(axis=0)) @ plane)


def _map_series(results: StudyResults, method: str, place: PlaceSettings) -> list[Series]:
    """Variability, confidence and correctness of the training examples, of a sample where there are many."""
    folder = results.folder(method, place.task, results.study.seeds[0])
    if folder is None or not (folder / "map.npz").exists():
        return []
    with open_npz(folder / "map.npz") as arrays:
        variability, confidence = arrays["variability"], arrays["confidence"]
        correctness = arrays["correctness"] / max(float(arrays["epochs"]), 1.0)
    rows = np.random.default_rng(0).permutation(len(correctness))[:MAP_POINTS]
    points = np.stack([variability, confidence, correctness], axis=1)[rows]
    return [{"name": method, "points": points.round(4).tolist()}]
