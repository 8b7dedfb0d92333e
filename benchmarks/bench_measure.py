"""How distilcal's metrics and its temperature fit compare with peers, as ratios: a machine's seconds say little elsewhere.

Each question is a function that returns rows of one table; ``QUESTIONS`` lists them. To compare one more metric with a
peer, add a line to ``PEERS``. Both sides of a ratio take turns on one thread and count their best time. A peer that is
missing or fails is a row that says so.
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
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_softmax, softmax

from distilcal import Predictions
from distilcal.calibrate import fit_temperature
from distilcal.metrics import METRICS, ece, evaluate, smooth_ece

Array = NDArray[Any]
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


# ---- the peers ---------------------------------------------------------------------------------------------------------


def torch_tensors(*arrays: Array) -> list[Any]:
    torch = import_module("torch")
    torch.set_num_threads(1)
    return [torch.from_numpy(array) for array in arrays]


def torchmetrics_error(scores: Array, labels: Array, bins: int = 15, norm: str = "l1") -> float:
    classification = import_module("torchmetrics.functional.classification")
    call = classification.multiclass_calibration_error
    return float(call(*torch_tensors(scores, labels), num_classes=scores.shape[1], n_bins=bins, norm=norm))


def probmetrics_error(name: str, probs: Array, labels: Array) -> float:
    metric = getattr(import_module("probmetrics.metrics"), name)()
    return float(metric.compute_from_labels_probs(*torch_tensors(labels, probs)))


def kumar_debiased_square(probs: Array, labels: Array) -> float:
    peer = import_module("calibration.utils")
    return peer.lower_bound_scaling_ce(probs, labels, p=2, binning_scheme=peer.get_equal_prob_bins, mode="top-label")


def relplot_error(probs: Array, labels: Array) -> float:
    return import_module("relplot").smECE(probs.max(axis=1), (probs.argmax(axis=1) == labels).astype(float))


# Metric, its parameters, the peer, the peer's figure, and what to know when the two differ.
PEERS: list[tuple[str, dict[str, Any], str, Callable[[Array, Array], float], str]] = [
    ("ece", {}, "torchmetrics", torchmetrics_error, "it sums in float32"),
    ("mce", {}, "torchmetrics", lambda p, y: torchmetrics_error(p, y, norm="max"), "it sums in float32"),
    ("ece", {}, "netcal", lambda p, y: import_module("netcal.metrics").ECE(15).measure(p, y), ""),
    ("ece", {}, "uncertainty-calibration", lambda p, y: import_module("calibration").get_ece(p, y), ""),
    ("ece", {}, "probmetrics", lambda p, y: probmetrics_error("CalibrationError", p, y), "it calls torchmetrics"),
    ("ada_ece", {}, "uncertainty-calibration", lambda p, y: import_module("calibration").get_ece_em(p, y),
     "equal-mass edges a row apart: ours are those of AdaECE's authors"),
    ("ace", {}, "uncertainty-calibration",
     lambda p, y: import_module("calibration").get_calibration_error(p, y, p=1, debias=False),
     "rows left over when bins do not divide N are placed otherwise"),
    ("debiased_ece", {}, "uncertainty-calibration", lambda p, y: import_module("calibration").get_ece(p, y, debias=True), ""),
    ("debiased_ece", {"norm": 2}, "uncertainty-calibration", kumar_debiased_square, "it counts a bin of one row as 0"),
    ("smooth_ece", {}, "relplot", relplot_error, "it finds σ to 1/1024 only"),
    ("ks", {}, "probmetrics", lambda p, y: probmetrics_error("KolmogorovSmirnovCalibrationMetric", p, y),
     "it is for two classes, and here compares the probability of class 1 with the label's number"),
    ("brier", {}, "scikit-learn", lambda p, y: import_module("sklearn.metrics").brier_score_loss(y, p), ""),
    ("nll", {}, "scikit-learn", lambda p, y: import_module("sklearn.metrics").log_loss(y, p), ""),
]  # fmt: skip


def sklearn_solver(logits: Array, labels: Array) -> float:
    return 1 / import_module("sklearn.calibration")._TemperatureScaling().fit(logits, labels).beta_


def sklearn_calibrated(logits: Array, labels: Array) -> float:
    base = import_module("sklearn.base")

    class Given(base.ClassifierMixin, base.BaseEstimator):  # a classifier whose scores are its inputs
        classes_ = np.unique(labels)
        fit = lambda self, scores, labels: self  # noqa: E731
        predict = lambda self, scores: self.classes_[scores.argmax(axis=1)]  # noqa: E731
        decision_function = lambda self, scores: scores  # noqa: E731

    frozen = import_module("sklearn.frozen").FrozenEstimator(Given())
    fitted = import_module("sklearn.calibration").CalibratedClassifierCV(frozen, method="temperature").fit(logits, labels)
    return 1 / fitted.calibrated_classifiers_[0].calibrators[0].beta_


def probmetrics_bisection(logits: Array, labels: Array) -> float:
    calibrator = import_module("probmetrics.calibrators.temperature_scaling").TemperatureScalingCalibrator()
    scores, targets = torch_tensors(logits, labels)
    calibrator.fit_torch(import_module("probmetrics.distributions").CategoricalLogits(scores), targets)
    return 1 / float(calibrator.invtemp_)


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

    def against(peer: str, fit_peer: Callable[[Array, Array], float], target: float | None) -> Row:
        def same_optimum() -> str:
            ours, theirs = fit(), fit_peer(logits, labels)
            return f"T = {ours:.6f}, ΔT = {ours - theirs:+.1e}, ΔNLL = {nll(ours) - nll(theirs):+.1e}"

        call = lambda: fit_peer(logits, labels)  # noqa: E731
        return timed(named + peer, fit, call, sizes.repetitions, target=target, remark=same_optimum)

    named = f"fit_temperature, {by(sizes.fit)}, / "
    one_pass = lambda: log_softmax(logits, axis=1)  # noqa: E731
    return [
        timed(named + "one scipy log_softmax", fit, one_pass, sizes.repetitions, target=15.0),
        against("scikit-learn's solver", sklearn_solver, 1 / 5),
        against("scikit-learn's CalibratedClassifierCV", sklearn_calibrated, None),
        against("probmetrics' bisection", probmetrics_bisection, None),
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
    calls = [evaluation(*synthetic((rows, 10))) for rows in sizes.growing]
    times = fastest(*calls, repetitions=max(3, sizes.repetitions // 3))
    per_row = [1e9 * seconds / rows for seconds, rows in zip(times, sizes.growing, strict=True)]  # ns
    question = f"time per row of {len(METRICS)} metrics, {sizes.growing[-1]:,} / {sizes.growing[0]:,} rows × 10"
    remark = ", ".join(f"{ns:.0f} ns at {rows:,}" for ns, rows in zip(per_row, sizes.growing, strict=True))
    remark += f"; log N alone grows {np.log(sizes.growing[-1]) / np.log(sizes.growing[0]):.2f}-fold"
    return [Row(question, f"{per_row[-1]:.0f} ns", f"{per_row[0]:.0f} ns", per_row[-1] / per_row[0], 1.5, remark)]


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

    def against(name: str, params: dict[str, Any], peer: str, figure: Callable[[Array, Array], float], why: str) -> Row:
        ours, theirs = (lambda: METRICS[name](probs, labels, **params)), (lambda: figure(probs, labels))
        question = ", ".join([name, *(f"{key}={value}" for key, value in params.items()), by(sizes.metrics), f"/ {peer}"])
        return timed(question, ours, theirs, sizes.repetitions, remark=lambda: agreement(ours(), theirs(), why))

    return [against(*peer) for peer in PEERS]


def known_values(sizes: Sizes) -> list[Row]:
    """Which side is right, where the figure can be had another way; a row's reference is that figure."""
    rng = np.random.default_rng(1)
    percent = np.where(rng.random(20_000) < 0.5, 10 * rng.integers(5, 11, 20_000), rng.integers(50, 101, 20_000))
    probs = np.stack([percent, 100 - percent, 0 * percent], axis=1) / 100  # half of them on the edges of 10 bins
    # Gaps change sign from bin to bin, so that a row in the wrong bin shows.
    right = rng.random(len(percent)) < percent / 100 + np.where(percent // 10 % 2, 0.1, -0.1)
    labels = np.where(right, 0, rng.integers(1, 3, len(percent)))

    def ece_in_whole_numbers(cell: Array) -> float:
        return np.abs(np.bincount(cell, percent) - 100 * np.bincount(cell, right)).sum() / (100 * len(percent))

    upper, lower = ece_in_whole_numbers((percent - 1) // 10), ece_in_whole_numbers(np.minimum(percent // 10, 9))
    unit = rng.random((20_000, 3))  # logits that happen to lie in [0, 1]
    drawn = (unit + rng.gumbel(size=unit.shape)).argmax(axis=1)
    logits, few_labels = synthetic((500, 10))
    few = softmax(logits, axis=1)
    exact = smooth_ece_by_integration(few.max(axis=1), few.argmax(axis=1) == few_labels)
    on_edges = {"(": "ece with scores on edges, (lo, hi]: ", "[": "ece with scores on edges, [lo, hi): "}
    return [
        valued(on_edges["("] + "distilcal", lambda: ece(probs, labels, bins=10), upper),
        valued(on_edges["("] + "uncertainty-calibration",
               lambda: import_module("calibration").get_ece(probs, labels, num_bins=10), upper),
        valued(on_edges["["] + "distilcal", lambda: ece(probs, labels, bins=10, closed="left"), lower),
        valued(on_edges["["] + "netcal", lambda: import_module("netcal.metrics").ECE(10).measure(probs, labels), lower,
               "its edges are linspace's, where 0.6 < 0.6000000000000001"),
        valued(on_edges["["] + "torchmetrics", lambda: torchmetrics_error(probs, labels, bins=10), lower,
               "1.0 has a bin of its own, edges are float32"),
        valued("ece of logits within [0, 1]: torchmetrics", lambda: torchmetrics_error(unit, drawn),
               ece(softmax(unit, axis=1), drawn), "it takes them for probabilities"),
        valued("smooth_ece by integration: distilcal", lambda: smooth_ece(few, few_labels), exact),
        valued("smooth_ece by integration: relplot", lambda: relplot_error(few, few_labels), exact, "σ to 1/1024 only"),
    ]  # fmt: skip


def valued(question: str, call: Callable[[], float], known: float, why: str = "") -> Row:
    try:
        return Row(question, f"{call():.7f}", f"{known:.7f}", remark=agreement(call(), known, why))
    except Exception as error:
        return Row(question, remark=failure(error))


def smooth_ece_by_integration(confidence: Array, right: Array, points: int = 4000) -> float:
    """Smooth ECE as it is defined: the kernel of every row and its mirror images, without histogram or transform."""
    at = (np.arange(points) + 0.5) / points
    images = np.concatenate([sign * confidence + 2 * turn for turn in (-2, -1, 0, 1, 2) for sign in (1, -1)])
    residuals = np.tile(right - confidence, 10) / len(confidence)

    def excess(sigma: float) -> float:
        near = (images > -9 * sigma) & (images < 1 + 9 * sigma)
        kernels = np.exp(-(((at[:, None] - images[near]) / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi))
        return np.abs(kernels @ residuals[near]).mean() - sigma

    return brentq(excess, 1e-3, 0.5, xtol=1e-9)


QUESTIONS = (all_metrics, temperature, memory, growth, intervals, single_metrics, known_values)


# ---- the table ---------------------------------------------------------------------------------------------------------


def table(rows: Iterable[Row], judged: bool) -> str:
    """A Markdown table that is aligned in a terminal as well."""
    cells = [("question", "distilcal", "reference", "ratio", "target", "met", "remark")]
    for row in rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
        target = "–" if row.target is None or not judged else f"≤ {row.target:.3g}"
        met = {True: "yes", False: "NO", None: "–"}[row.met if judged else None]
        cells.append((row.question, row.ours, row.reference, ratio, target, met, row.remark))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)][:-1] + [0]  # remarks may be ragged
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "---|" * len(widths), *lines[1:]])


def versions() -> dict[str, str]:
    peers = ("torch", "torchmetrics", "netcal", "uncertainty-calibration", "probmetrics", "relplot", "scikit-learn")
    found = {}
    for name in ("numpy", "scipy", *peers):
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
        rows += question(sizes)
    print(", ".join(f"{name} {number}" for name, number in versions().items()))
    print("QUICK: small sizes, targets not judged.\n" if arguments.quick else "A target is the largest ratio that meets it.\n")
    print(table(rows, judged=not arguments.quick))
    if arguments.json:
        report = {"quick": arguments.quick, "versions": versions(), "rows": [{**asdict(row), "met": row.met} for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(arguments.strict and any(row.target is not None and not row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
