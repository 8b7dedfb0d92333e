"""How distilcal's metrics and its temperature fit compare with peers, as ratios: a machine's seconds say little elsewhere.

Each question is a function that returns rows of one table; ``QUESTIONS`` lists them, ``peers.py`` the other libraries.
Both sides of a ratio take turns on one thread and count their best time. A peer that is missing or fails is a row that
says so.
"""

from __future__ import annotations

import os

# Read when the libraries load: one thread each, or the ratios would depend on the number of cores.
os.environ.update({f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")})

import argparse
import json
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from peers import (
    FIT_PEERS,
    METRIC_PEERS,
    Array,
    OfArrays,
    kumar_ece,
    netcal_ece,
    relplot_smooth,
    smooth_ece_by_integration,
    torchmetrics_error,
)
from scipy.special import log_softmax, softmax

from distilcal import Predictions
from distilcal.calibrate import fit_temperature
from distilcal.metrics import METRICS, ece, evaluate, smooth_ece

Call = Callable[[], Any]
AGREES = 5e-6  # what sums in float32 leave between two equal figures


@dataclass(frozen=True)
class Sizes:
    """Rows × classes of each question."""

    wide: tuple[int, int] = (50_000, 100)
    narrow: tuple[int, int] = (200_000, 10)
    fit: tuple[int, int] = (10_000, 100)
    growing: tuple[int, ...] = (100_000, 1_000_000, 5_000_000)  # rows of 10 classes
    resampled: tuple[int, int] = (10_000, 10)
    replicates: int = 1000
    single_calls: int = 50  # of evaluate without intervals, scaled up to one per replicate
    metrics: tuple[int, int] = (100_000, 10)
    repetitions: int = 9


QUICK = Sizes((5_000, 100), (20_000, 10), (2_000, 100), (10_000, 50_000, 200_000), (2_000, 10), 100, 10, (10_000, 10), 3)


@dataclass(frozen=True)
class Row:
    """One line of the table; a target is the largest ratio that meets it."""

    question: str
    ours: str = "–"
    reference: str = "–"
    ratio: float | None = None
    target: float | None = None
    remark: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.ratio is None or self.target is None else self.ratio <= self.target


# ---- measuring ---------------------------------------------------------------------------------------------------------


def synthetic(size: tuple[int, int]) -> tuple[Array, Array]:
    """Logits (N, K) and labels (N,): underconfident where unsure, overconfident where sure, so that no gap is constant."""
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2.0, size=size)
    labels = (1.4 * logits + rng.gumbel(size=size)).argmax(axis=1)
    mislabelled = rng.random(len(labels)) < 0.25
    labels[mislabelled] = rng.integers(0, size[1], mislabelled.sum())
    return logits, labels


def evaluation(logits: Array, labels: Array, intervals: int | None = None) -> Call:
    """A call that evaluates all metrics from scratch: Predictions keep their softmax, so each call makes its own."""
    return lambda: evaluate(Predictions.from_logits(logits, labels), intervals=intervals)


def fastest(*calls: Call, repetitions: int) -> list[float]:
    """Best time of each call in seconds; they take turns, so that a noisy moment hits all of them."""
    for call in calls:
        call()  # the first call imports, compiles and touches memory
    best = [np.inf] * len(calls)
    for _ in range(repetitions):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def timed(
    question: str,
    ours: Call,
    theirs: Call,
    repetitions: int,
    *,
    scale: float = 1.0,  # of the reference's time
    target: float | None = None,
    remark: Callable[[], str] = str,
) -> Row:
    try:
        our_time, their_time = fastest(ours, theirs, repetitions=repetitions)
        shown = [f"{1e3 * seconds:,.1f} ms" for seconds in (our_time, scale * their_time)]
        return Row(question, *shown, our_time / (scale * their_time), target, remark())
    except Exception as error:  # whatever a peer raises is a finding
        return Row(question, target=target, remark=failure(error))


def failure(error: Exception) -> str:
    return f"not measured: {type(error).__name__}: {str(error).partition('. ')[0]}"


def agreement(ours: float, theirs: float, why: str) -> str:
    verdict = "agrees" if abs(ours - theirs) <= AGREES else "differs"
    return f"{verdict}, Δ = {ours - theirs:+.1e}" + (f"; {why}" if why else "")


def by(size: tuple[int, int]) -> str:
    return f"{size[0]:,} × {size[1]}"


# ---- the questions -----------------------------------------------------------------------------------------------------


def all_metrics(sizes: Sizes) -> list[Row]:
    logits, labels = synthetic(sizes.wide)
    probs = softmax(logits, axis=1)
    question = f"{len(METRICS)} metrics, {by(sizes.wide)}, / one numpy.sort"
    rows = [timed(question, evaluation(logits, labels), lambda: np.sort(probs, axis=0), sizes.repetitions, target=3.0)]
    logits, labels = synthetic(sizes.narrow)
    columns, single = softmax(logits, axis=1), logits.astype(np.float32)

    def against_torchmetrics(given: str, ours: Array, theirs: Array, target: float | None) -> Row:
        def reference() -> None:
            for _ in range(2):
                torchmetrics_error(theirs, labels)
            np.sort(columns, axis=0)

        question = f"{len(METRICS)} metrics, {by(sizes.narrow)}, / (2 torchmetrics ECE + numpy.sort), {given}"
        return timed(question, evaluation(ours, labels), reference, sizes.repetitions, target=target)

    # Like with like is the target: both sides start from the same logits.
    rows.append(against_torchmetrics("both given logits", logits, logits, 1.0))
    rows.append(against_torchmetrics("both given float32 logits", single, single, None))
    rows.append(against_torchmetrics("torchmetrics given probabilities", logits, columns, None))
    return rows


def temperature(sizes: Sizes) -> list[Row]:
    logits, labels = synthetic(sizes.fit)

    def fit() -> float:
        return fit_temperature(Predictions.from_logits(logits, labels)).value

    def nll(temperature: float) -> float:
        return -log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels].mean()

    def against(peer: str, fit_peer: OfArrays, target: float | None) -> Row:
        def same_optimum() -> str:
            ours, theirs = fit(), fit_peer(logits, labels)
            return f"T = {ours:.6f}, ΔT = {ours - theirs:+.1e}, ΔNLL = {nll(ours) - nll(theirs):+.1e}"

        call = lambda: fit_peer(logits, labels)  # noqa: E731
        return timed(named + peer, fit, call, sizes.repetitions, target=target, remark=same_optimum)

    named = f"fit_temperature, {by(sizes.fit)}, / "
    one_pass = lambda: log_softmax(logits, axis=1)  # noqa: E731
    return [
        timed(named + "one scipy log_softmax", fit, one_pass, sizes.repetitions, target=15.0),
        *(against(*peer) for peer in FIT_PEERS),
    ]


def memory(sizes: Sizes) -> list[Row]:
    rows = []
    for size in (sizes.wide, sizes.narrow):
        logits, labels = synthetic(size)
        evaluation(logits[:100], labels[:100])()  # what it imports is not counted
        tracemalloc.start()
        evaluation(logits, labels)()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        question = f"peak extra memory of {len(METRICS)} metrics, {by(size)}, / the float64 logits"
        rows.append(Row(question, f"{peak / 1e6:.1f} MB", f"{logits.nbytes / 1e6:.1f} MB", peak / logits.nbytes, 2.0))
    return rows


def growth(sizes: Sizes) -> list[Row]:
    smallest, *larger = [evaluation(*synthetic((rows, 10))) for rows in sizes.growing]
    # After the largest, the smallest gets fresh pages from the system as the largest always does: that is like for like.
    # Called at once again it reuses its memory, which is faster and has nothing to do with the number of rows.
    cold, warm, *times = fastest(smallest, smallest, *larger, repetitions=max(5, sizes.repetitions // 2))
    per_row = [1e9 * seconds / rows for seconds, rows in zip((cold, *times), sizes.growing, strict=True)]  # ns
    question = f"time per row of {len(METRICS)} metrics, {sizes.growing[-1]:,} / {sizes.growing[0]:,} rows × 10"
    remark = ", ".join(f"{ns:.0f} ns at {rows:,}" for ns, rows in zip(per_row, sizes.growing, strict=True))
    remark += f"; log N grows {np.log(sizes.growing[-1]) / np.log(sizes.growing[0]):.2f}-fold"
    remark += f"; {per_row[-1] * sizes.growing[0] / (1e9 * warm):.2f} against {sizes.growing[0]:,} rows in memory used before"
    return [Row(question, f"{per_row[-1]:.0f} ns", f"{per_row[0]:.0f} ns", per_row[-1] / per_row[0], 2.0, remark)]


def intervals(sizes: Sizes) -> list[Row]:
    logits, labels = synthetic(sizes.resampled)
    once = evaluation(logits, labels)
    return [
        timed(
            f"{sizes.replicates} resamples of {len(METRICS)} metrics, {by(sizes.resampled)}, / as many evaluations",
            evaluation(logits, labels, sizes.replicates),
            lambda: [once() for _ in range(sizes.single_calls)],
            max(3, sizes.repetitions // 3),
            scale=sizes.replicates / sizes.single_calls,
            target=1 / 3,
            remark=lambda: f"{sizes.single_calls} evaluations timed and scaled; ours include the null values",
        )
    ]


def single_metrics(sizes: Sizes) -> list[Row]:
    logits, labels = synthetic(sizes.metrics)
    probs = softmax(logits, axis=1)

    def against(name: str, params: dict[str, Any], peer: str, figure: OfArrays, why: str) -> Row:
        ours, theirs = (lambda: METRICS[name](probs, labels, **params)), (lambda: figure(probs, labels))
        question = ", ".join([name, *(f"{key}={value}" for key, value in params.items()), by(sizes.metrics), f"/ {peer}"])
        return timed(question, ours, theirs, sizes.repetitions, remark=lambda: agreement(ours(), theirs(), why))

    return [against(*peer) for peer in METRIC_PEERS]


def known_values(sizes: Sizes) -> list[Row]:
    """Which side is right, where the figure can be had another way."""
    rng = np.random.default_rng(1)
    percent = np.where(rng.random(20_000) < 0.5, 10 * rng.integers(5, 11, 20_000), rng.integers(50, 101, 20_000))
    edges = np.stack([percent, 100 - percent, 0 * percent], axis=1) / 100  # more than half lie on edges of 10 bins
    # Gaps change sign from bin to bin, so that a row in the wrong bin shows.
    right = rng.random(len(percent)) < percent / 100 + np.where(percent // 10 % 2, 0.1, -0.1)
    y = np.where(right, 0, rng.integers(1, 3, len(percent)))

    def binned(cell: Array, score: Array, hits: Array) -> float:
        return float(np.abs(np.bincount(cell, score) - np.bincount(cell, hits)).sum() / len(cell))

    upper = binned((percent - 1) // 10, percent, 100 * right) / 100  # in whole numbers: rounding cannot move an edge
    lower = binned(np.minimum(percent // 10, 9), percent, 100 * right) / 100
    unit = rng.random((20_000, 3))  # logits that happen to lie in [0, 1]
    sure = softmax(unit, axis=1)
    drawn = (unit + rng.gumbel(size=unit.shape)).argmax(axis=1)
    plain = binned(np.ceil(15 * sure.max(axis=1)).astype(int), sure.max(axis=1), sure.argmax(axis=1) == drawn)
    logits, labels = synthetic((500, 10))
    few = softmax(logits, axis=1)
    smooth = smooth_ece_by_integration(few, labels)
    kumar, netcal, torchmetrics = (lambda f=f: f(edges, y, bins=10) for f in (kumar_ece, netcal_ece, torchmetrics_error))
    left = lambda: ece(edges, y, bins=10, closed="left")  # noqa: E731
    return [
        valued("ece on edges, (lo, hi], uncertainty-calibration", lambda: ece(edges, y, bins=10), kumar, upper, ""),
        valued("ece on edges, [lo, hi), netcal", left, netcal, lower, "0.6 and 0.7 lie below the edges of its linspace"),
        valued("ece on edges, [lo, hi), torchmetrics", left, torchmetrics, lower, "it gives 1.0 a bin of its own"),
        valued("ece of logits within [0, 1], torchmetrics", lambda: ece(sure, drawn), lambda: torchmetrics_error(unit, drawn),
               plain, "it takes them for probabilities"),
        valued("smooth_ece of 500 rows, relplot", lambda: smooth_ece(few, labels), lambda: relplot_smooth(few, labels),
               smooth, "its σ is a multiple of 1/1024, its mesh coarse"),
    ]  # fmt: skip


def valued(question: str, ours: Call, theirs: Call, exact: float, why: str) -> Row:
    """A row of values, not of times."""
    question = f"value: {question}"
    try:
        a, b = ours(), theirs()
    except Exception as error:
        return Row(question, remark=failure(error))
    remark = f"exact {exact:.7f}: ours {a - exact:+.1e}, theirs {b - exact:+.1e}" + (f"; {why}" if why else "")
    return Row(question, f"{a:.7f}", f"{b:.7f}", remark=remark)


QUESTIONS = (all_metrics, temperature, memory, growth, intervals, single_metrics, known_values)


# ---- the table ---------------------------------------------------------------------------------------------------------


def table(rows: Iterable[Row]) -> str:
    """A Markdown table that is aligned in a terminal as well."""
    cells = [("question", "distilcal", "reference", "ratio", "target", "met", "remark")]
    for row in rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
        target = "–" if row.target is None else f"≤ {row.target:.3g}"
        met = {True: "yes", False: "NO", None: "–"}[row.met]
        cells.append((row.question, row.ours, row.reference, ratio, target, met, row.remark))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths[-1] = 0  # remarks may be ragged
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "---|" * len(widths), *lines[1:]])


PEERS_HERE = ("torch", "torchmetrics", "netcal", "uncertainty-calibration", "probmetrics", "relplot", "scikit-learn")


def versions(names: Iterable[str] = ("numpy", "scipy", *PEERS_HERE)) -> dict[str, str]:
    """What of these is installed, and in which version."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure distilcal against its peers, in ratios.")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="small sizes; targets are not judged")
    how.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed or could not be measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE as well")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # peers warn about themselves
    sizes = QUICK if arguments.quick else Sizes()
    rows: list[Row] = []
    for question in QUESTIONS:
        print(f"{question.__name__} …", file=sys.stderr)
        rows += [replace(row, target=None) if arguments.quick else row for row in question(sizes)]
    print(", ".join(f"{name} {number}" for name, number in versions().items()))
    print("QUICK: small sizes, targets not judged.\n" if arguments.quick else "A target is the largest ratio that meets it.\n")
    print(table(rows))
    if arguments.json:
        report = {"quick": arguments.quick, "versions": versions(), "rows": [{**asdict(row), "met": row.met} for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(arguments.strict and any(row.target is not None and not row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
