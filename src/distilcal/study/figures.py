"""The charts of a study: their series, read from its results, as the report draws them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distilcal.io.atomic import open_npz
from distilcal.metrics import binomial_interval, reliability
from distilcal.predictions import Predictions
from distilcal.study.analysis import StudyResults, interval
from distilcal.study.schema import FigureSettings, PlaceSettings, merge_places

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
        One chart for the kinds scatter, line and training; one for each place for reliability; one for each method and place
        for projection and map. A chart has ``name``, ``title``, ``note``, ``kind``, the titles ``x`` and ``y`` of its axes,
        ``diagonal`` and ``series``.
    """
    if figure.kind == "scatter":
        return [_scatter_chart(results, figure)]
    if figure.kind == "line":
        return [_chart(figure, x=figure.x, y=_axis_title(results, figure.y), series=_line_series(results, figure))]
    if figure.kind == "training":
        series = [one for place in figure.places for one in _training_series(results, figure, place)]
        return [_chart(figure, kind="line", x="epoch", y=f"{figure.y} on dev", series=series)]
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
            x = _mean(results, place, method, figure.x)
            y = _mean(results, place, method, figure.y)
            if math.isfinite(x) and math.isfinite(y):
                points.append([x, y])
                labels.append(_place_title(place))
        series.append({"name": method, "points": points, "labels": labels})
    return series


def _mean(results: StudyResults, place: PlaceSettings, method: str, metric: str) -> float:
    """The mean of a metric over seeds in the unit of its axis; NaN if there is no result."""
    sample = results.sample(merge_places(place, PlaceSettings(method=method, metric=metric)))
    return math.nan if sample is None else interval(sample)[0] * _unit_factor(results, metric)


def _line_series(results: StudyResults, figure: FigureSettings) -> list[Series]:
    series = []
    factor = _unit_factor(results, figure.y)
    for place in figure.places:
        points = []
        for method, x in zip(figure.methods, figure.values, strict=True):
            sample = results.sample(merge_places(place, PlaceSettings(method=method, metric=figure.y)))
            if sample is None:
                continue
            mean_and_bounds = [value * factor for value in interval(sample)]
            if all(map(math.isfinite, mean_and_bounds)):
                points.append([x, *mean_and_bounds])
        series.append({"name": _place_title(place), "points": points})
    return series


def _training_series(results: StudyResults, figure: FigureSettings, place: PlaceSettings) -> list[Series]:
    """The mean over seeds after every epoch that all seeds reached, for each method."""
    series = []
    for method in figure.methods:
        jobs = [results.job(method, place.task, seed) for seed in results.study.seeds]
        histories = [[epoch["dev"][figure.y] for epoch in job["epochs"]] for job in jobs if job is not None]
        epochs = min(map(len, histories), default=0)
        points = []
        if epochs:
            mean = np.mean([history[:epochs] for history in histories], axis=0)
            points = [[epoch, float(value)] for epoch, value in enumerate(mean, start=1)]
        series.append({"name": method, "points": points})
    return series


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
    """Features of three classes on the plane through their means."""
    folder = results.folder(method, place.task, results.study.seeds[0])
    if folder is None or not (folder / "features.npz").exists():
        return []
    with open_npz(folder / "features.npz") as arrays:
        features, classes = arrays["features"].astype(np.float64), arrays["classes"].astype(str)
    features = features.reshape(len(features), -1)  # (N, D)
    centres = np.stack([features[classes == name].mean(axis=0) for name in figure.classes])
    plane, _ = np.linalg.qr((centres[1:] - centres[0]).T)  # (D, 2)
    projected = (features - centres.mean(axis=0)) @ plane  # (N, 2)
    return [{"name": name, "points": projected[classes == name].round(5).tolist()} for name in figure.classes]


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
