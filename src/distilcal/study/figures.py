"""The series of a study's figures, as the report draws them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distilcal.io.atomic import open_npz
from distilcal.metrics import binomial_interval, reliability
from distilcal.predictions import Predictions
from distilcal.study.analysis import StudyResults, interval
from distilcal.study.schema import FigureSettings, PlaceSettings, place_of

DOTS = 3000  # of a map; more than that are one blot


def drawn(findings: StudyResults, figure: FigureSettings) -> list[dict[str, Any]]:
    """The series of a figure; a projection or map of several methods is several figures."""
    base = {"name": figure.name, "title": figure.title, "note": figure.note, "kind": figure.kind, "diagonal": False}
    study = findings.study
    if figure.kind == "scatter":
        diagonal = {study.metrics[m].metric for m in (figure.x, figure.y)} == {"accuracy", "confidence"}
        named = {"x": _axis(findings, figure.x), "y": _axis(findings, figure.y)}
        return [{**base, **named, "diagonal": diagonal, "series": _scatter(findings, figure)}]
    if figure.kind == "line":
        return [{**base, "x": figure.x, "y": _axis(findings, figure.y), "series": _line(findings, figure)}]
    if figure.kind == "training":
        series = [s for place in figure.places for s in _training(findings, figure, place)]
        return [{**base, "kind": "line", "x": "epoch", "y": f"{figure.y} on dev", "series": series}]
    if figure.kind == "reliability":
        made = []
        for place in figure.places:
            where = _place_words(place)
            series = [s for method in figure.methods if (s := _reliability(findings, method, place)) is not None]
            named = {"name": f"{figure.name}-{_file_name(where)}", "title": f"{figure.title}: {where}"}
            made.append({**base, **named, "x": "confidence", "y": "accuracy", "diagonal": True, "series": series})
        return made if len(made) > 1 else [{**made[0], "name": figure.name}] if made else []
    read = _projection if figure.kind == "projection" else _map
    made = []
    for method in figure.methods:
        for place in figure.places:
            series = read(findings, figure, method, place)
            words = f"{method}, {_place_words(place)}" if len(figure.places) > 1 else method
            named = {"name": f"{figure.name}-{_file_name(words)}", "title": f"{figure.title}: {words}"}
            axes = ("", "") if figure.kind == "projection" else ("variability", "confidence")
            note = figure.note or (f"at most {DOTS:,} examples are drawn" if figure.kind == "map" else "")
            made.append({**base, **named, "note": note, "x": axes[0], "y": axes[1], "series": series})
    return made


def _place_words(place: PlaceSettings) -> str:
    return place.name or place.set or place.task


def _file_name(words: str) -> str:
    kept = "".join(c if c.isalnum() else "-" for c in words.lower())
    return "-".join(filter(None, kept.split("-")))


def _shown(findings: StudyResults, metric: str) -> float:
    return 100.0 if findings.study.metrics[metric].percent else 1.0


def _axis(findings: StudyResults, metric: str) -> str:
    return f"{metric} (%)" if findings.study.metrics[metric].percent else metric


def _scatter(findings: StudyResults, figure: FigureSettings) -> list[dict[str, Any]]:
    series = []
    for method in figure.methods:
        points, labels = [], []
        for place in figure.places:
            pair = [findings.sample(place_of(place, PlaceSettings(method=method, metric=m))) for m in (figure.x, figure.y)]
            if all(sample is not None for sample in pair):
                both = [interval(s)[0] * _shown(findings, m) for s, m in zip(pair, (figure.x, figure.y), strict=True) if s]
                if all(map(math.isfinite, both)):
                    points.append(both)
                    labels.append(_place_words(place))
        series.append({"name": method, "points": points, "labels": labels})
    return series


def _line(findings: StudyResults, figure: FigureSettings) -> list[dict[str, Any]]:
    series = []
    for place in figure.places:
        points = []
        for method, x in zip(figure.methods, figure.values, strict=True):
            sample = findings.sample(place_of(place, PlaceSettings(method=method, metric=figure.y)))
            if sample is not None:
                y = [value * _shown(findings, figure.y) for value in interval(sample)]
                if all(map(math.isfinite, y)):
                    points.append([x, *y])
        series.append({"name": _place_words(place), "points": points})
    return series


def _training(findings: StudyResults, figure: FigureSettings, place: PlaceSettings) -> list[dict[str, Any]]:
    series = []
    for method in figure.methods:
        jobs = [findings.job(method, place.task, seed) for seed in findings.study.seeds]
        courses = [[epoch["dev"][figure.y] for epoch in job["epochs"]] for job in jobs if job is not None]
        length = min(map(len, courses), default=0)
        mean = np.mean([course[:length] for course in courses], axis=0) if length else np.zeros(0)
        series.append({"name": method, "points": [[i + 1, float(y)] for i, y in enumerate(mean)]})
    return series


def _reliability(findings: StudyResults, method: str, place: PlaceSettings) -> dict[str, Any] | None:
    """The bins of all seeds' predictions together; their intervals are those of one seed's rows, which all seeds share."""
    said = findings.predictions(place_of(place, PlaceSettings(method=method)))
    if not said:
        return None
    probs, labels = (np.concatenate([getattr(p, name) for p in said]) for name in ("probs", "labels"))
    found = reliability(Predictions.from_probs(probs, labels, classes=said[0].classes), bins=10)
    there = found.count > 0
    rows = np.maximum(found.count / len(said), 1e-9)
    low, high = binomial_interval(np.nan_to_num(found.accuracy) * rows, rows)
    columns = [found.confidence, found.accuracy, low, high, found.count]
    return {"name": method, "points": [list(map(float, row)) for row in np.stack(columns, axis=1)[there]]}


def _projection(findings: StudyResults, figure: FigureSettings, method: str, place: PlaceSettings) -> list[dict[str, Any]]:
    """Features of three classes on the plane through their means."""
    folder = findings.folder(method, place.task, findings.study.seeds[0])
    if folder is None or not (folder / "features.npz").exists():
        return []
    with open_npz(folder / "features.npz") as found:
        features, names = found["features"].astype(np.float64), found["classes"].astype(str)
    features = features.reshape(len(features), -1)
    centres = np.stack([features[names == name].mean(axis=0) for name in figure.classes])
    plane, _ = np.linalg.qr((centres[1:] - centres[0]).T)  # (D, 2)
    flat = (features - centres.mean(axis=0)) @ plane
    return [{"name": name, "points": flat[names == name].round(5).tolist()} for name in figure.classes]


def _map(findings: StudyResults, figure: FigureSettings, method: str, place: PlaceSettings) -> list[dict[str, Any]]:
    folder = findings.folder(method, place.task, findings.study.seeds[0])
    if folder is None or not (folder / "map.npz").exists():
        return []
    with open_npz(folder / "map.npz") as found:
        columns = [found[name] for name in ("variability", "confidence", "correctness")]
        share = columns[2] / max(float(found["epochs"]), 1.0)
    rows = np.random.default_rng(0).permutation(len(share))[:DOTS]
    return [{"name": method, "points": np.stack([columns[0], columns[1], share], axis=1)[rows].round(4).tolist()}]
