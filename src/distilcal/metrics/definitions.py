"""The metrics: plain functions ``f(probs, labels, **params) -> float``, listed in ``METRICS`` at the end.

To add one, write a function of ``Rows`` under ``@metric`` and enter it in ``METRICS`` (and in ``CALIBRATION_ERRORS`` if a
perfectly calibrated model scores 0 on it in the limit). Written on the sums that Rows offers, it has bootstrap intervals
and a null value without further work, and the property tests cover it. A plain function of arrays works too, more slowly.

Top-label errors (`ece`, `mce`, `oe`, `rmsce`, `ada_ece`, `ks`, `smooth_ece`, `debiased_ece`) look at the confidence of the
predicted class. Class-wise errors (`sce`, `ace`, `tace`) look at the probability of every class and average over classes.
All errors are fractions, lower is better.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, Protocol

import numpy as np
from numpy.typing import ArrayLike

from distilcal.errors import InputError
from distilcal.metrics import variants
from distilcal.metrics.rows import Closed, Rows
from distilcal.metrics.smooth import residual_histogram, smoothed_error
from distilcal.predictions import FloatArray, IntArray

Params = ParamSpec("Params")


class Metric(Protocol[Params]):
    """A metric as users call it; ``on_rows`` is the same on prepared, possibly resampled rows."""

    __name__: str
    __doc__: str | None
    on_rows: Callable[Concatenate[Rows, Params], FloatArray]

    def __call__(self, probs: ArrayLike, labels: ArrayLike, *args: Params.args, **params: Params.kwargs) -> float: ...


def metric(function: Callable[Concatenate[Rows, Params], FloatArray]) -> Metric[Params]:
    """Turn a function of Rows into ``f(probs, labels, **params) -> float``."""

    @wraps(function)
    def on_arrays(probs: ArrayLike, labels: ArrayLike, *args: Params.args, **params: Params.kwargs) -> float:
        return float(function(Rows(probs, labels), *args, **params))

    described: Metric[Params] = _described(on_arrays, function, ("probs", "labels"))
    return described


def _described(on_arrays: Any, function: Callable[..., Any], arrays: tuple[str, str]) -> Any:
    """Give a wrapper the signature that it really has, and a way to the function behind it."""
    signature = inspect.signature(function)
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in arrays]
    settings = list(signature.parameters.values())[1:]
    on_arrays.__signature__ = signature.replace(parameters=[*first, *settings], return_annotation=float)
    on_arrays.on_rows = function
    return on_arrays


def human_metric(function: Callable[Concatenate[Rows, Params], FloatArray]) -> Metric[Params]:
    """Turn a function of Rows with votes into ``f(probs, label_probs, **params) -> float``."""

    @wraps(function)
    def on_arrays(probs: ArrayLike, label_probs: ArrayLike, *args: Params.args, **params: Params.kwargs) -> float:
        votes = np.asarray(label_probs, dtype=np.float64)
        return float(function(Rows(probs, votes.argmax(axis=-1), votes=votes), *args, **params))

    described: Metric[Params] = _described(on_arrays, function, ("probs", "label_probs"))
    return described


# ---- proper scores and what describes the predictions ------------------------------------------------------------------


@metric
def accuracy(rows: Rows) -> FloatArray:
    """Share of rows whose most probable class is the label. In [0, 1], higher is better; the first class wins a tie.

    >>> accuracy([[0.7, 0.3], [0.6, 0.4]], [0, 1])
    0.5
    """
    return rows.mean(rows.correct.astype(np.float64))


@metric
def confidence(rows: Rows) -> FloatArray:
    """Mean probability of the predicted class. In [1/K, 1]; calibrated in the large when it equals the accuracy.

    >>> round(confidence([[0.7, 0.3], [0.6, 0.4]], [0, 1]), 3)
    0.65
    """
    return rows.mean(rows.confidence)


@metric
def nll(rows: Rows) -> FloatArray:
    """Negative log-likelihood ``mean(-log p_y)`` in nats. In [0, ∞], lower is better; infinite where p_y is exactly 0.

    A proper score: only the true probabilities minimise it. Called on Predictions it is computed from the logits.

    >>> round(nll([[0.7, 0.3], [0.6, 0.4]], [0, 1]), 4)
    0.6365
    """
    return rows.mean(rows.nll)


@metric
def brier(rows: Rows) -> FloatArray:
    """Brier score ``mean(Σ_k (p_k - 1[y=k])²)``: summed over classes, mean over rows. In [0, 2], lower is better.

    Brier 1950. Some libraries divide by K, or look at one class of two; this is the original.

    >>> round(brier([[0.7, 0.3], [0.6, 0.4]], [0, 1]), 4)
    0.45
    """
    # Σ_k (p_k - 1[y=k])² = Σ p² - 2 p_y + 1
    squares = np.einsum("nk,nk->n", rows.probs, rows.probs)
    return np.maximum(rows.mean(squares - 2 * rows.label_scores() + 1), 0.0)


@metric
def entropy(rows: Rows) -> FloatArray:
    """Mean entropy of the predicted distributions ``mean(-Σ_k p_k log p_k)`` in nats. In [0, log K]; P003 follows it.

    >>> round(entropy([[0.5, 0.5], [1.0, 0.0]], [0, 0]), 4)
    0.3466
    """
    return rows.mean(rows.entropy)


# ---- top-label calibration errors --------------------------------------------------------------------------------------


@metric
def ece(rows: Rows, *, bins: int = 15, closed: Closed = "right", variant: Literal["sound", "gce"] = "sound") -> FloatArray:
    """Expected calibration error ``Σ_b n_b/N · |accuracy_b - confidence_b|``, top-label, equal widths. In [0, 1].

    Naeini et al. 2015, Guo et al. 2017. ``closed="right"`` bins are (lo, hi] (P004: 15 bins), ``"left"`` [lo, hi) (P000,
    P001: 10 bins); either way 0 is in the first bin and 1 in the last. ``variant="gce"`` gives 1.0 a bin of its own.

    >>> round(ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.4
    """
    if _is(variant, "gce", of=("sound", "gce")):
        return rows.each(lambda p, y: _top_gap(p, y, bins, variants.width_extra_bin))
    cells = rows.top.width_bins(bins, closed)
    return np.asarray((cells.share * np.abs(cells.gap)).sum(axis=-1))


@metric
def mce(rows: Rows, *, bins: int = 15, closed: Closed = "right") -> FloatArray:
    """Maximum calibration error ``max_b |accuracy_b - confidence_b|`` over bins that hold a row. In [0, 1].

    Naeini et al. 2015. It is ruled by the smallest bins: read it beside their counts.

    >>> round(mce([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.8
    """
    return np.asarray(np.abs(rows.top.width_bins(bins, closed).gap).max(axis=-1))


@metric
def oe(rows: Rows, *, bins: int = 15, closed: Closed = "right") -> FloatArray:
    """Overconfidence error ``Σ_b n_b/N · confidence_b · max(confidence_b - accuracy_b, 0)``. In [0, 1].

    Thulasidasan et al. 2019; the OE columns of P002. Counts only bins that claim more than they keep.

    >>> round(oe([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.2133
    """
    cells = rows.top.width_bins(bins, closed)
    claimed = cells.score / np.maximum(cells.count, 1)
    return np.asarray((cells.share * claimed * np.maximum(cells.gap, 0)).sum(axis=-1))


@metric
def rmsce(rows: Rows, *, bins: int = 15, variant: Literal["sound", "gce"] = "sound") -> FloatArray:
    """Root mean square calibration error ``√(Σ_b n_b/N · (accuracy_b - confidence_b)²)``, top-label, equal mass. In [0, 1].

    Hendrycks et al. 2019, Nixon et al. 2019. Bins hold the same number of rows, as far as equal confidences allow.
    ``variant="gce"`` takes the edges of Google's code.

    >>> round(rmsce([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], bins=1), 4)
    0.1333
    """
    if _is(variant, "gce", of=("sound", "gce")):
        return rows.each(lambda p, y: _top_gap(p, y, bins, variants.mass_gce, squared=True))
    cells = rows.top.sums(rows.top.mass_cuts(bins))
    return np.asarray(np.sqrt((cells.share * cells.gap**2).sum(axis=-1)))


@metric
def ada_ece(rows: Rows, *, bins: int = 15, variant: Literal["sound", "author"] = "sound") -> FloatArray:
    """Adaptive ECE ``Σ_b n_b/N · |accuracy_b - confidence_b|``, top-label, equal mass. In [0, 1].

    Nguyen & O'Connor 2015, Mukhoti et al. 2020; what P004 prints as ACE. The released code (``variant="author"``) puts the
    smallest confidence in no bin; here the first bin is closed on the left, so that every row counts.

    >>> round(ada_ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], bins=1), 4)
    0.1333
    """
    if _is(variant, "author", of=("sound", "author")):
        return rows.each(lambda p, y: _top_gap(p, y, bins, variants.mass_focal))
    top = rows.top
    cuts = top.mass_cuts(bins, edge_in_lower=True)
    return np.asarray(np.abs(top.gaps(cuts)).sum(axis=-1) / top.counts(cuts))


@metric
def ks(rows: Rows, *, variant: Literal["sound", "author"] = "sound") -> FloatArray:
    """Kolmogorov–Smirnov error ``max_t |Σ_{r_i ≤ t} (r_i - c_i)| / N`` over confidences r, outcomes c. In [0, 1].

    Gupta et al. 2021; needs no bins. Rows of equal confidence enter together; ``variant="author"`` adds them one by one in
    the given order, so that its value depends on that order.

    >>> round(ks([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.1667
    """
    if _is(variant, "author", of=("sound", "author")):
        return rows.each(_ks_in_given_order)
    running = np.cumsum(rows.top.sorted_residuals, axis=-1)
    if rows.top.group_ends is not None:
        running = running[..., rows.top.group_ends - 1]
    return np.asarray(np.abs(running).max(axis=-1) / len(rows.probs))


@metric
def smooth_ece(rows: Rows, *, grid: int = 1024) -> FloatArray:
    """Smooth ECE: the bandwidth σ at which the σ-smoothed calibration error equals σ, top-label. In [0, 1].

    ``smECE_σ = ∫ |mean_i K_σ(t, r_i)(c_i - r_i)| dt`` with a Gaussian kernel reflected at 0 and 1; it falls as σ grows, so
    the fixed point is unique. Błasiok & Nakkiran 2024: continuous in the predictions, no bins to choose. Reflection makes
    the smoothing a product of cosine transforms; ``grid`` is their resolution.

    >>> round(smooth_ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 3)
    0.142
    """
    if grid < 16:
        raise InputError(f"a grid of {grid} is too coarse", remedy="give at least 16")
    return smoothed_error(residual_histogram(rows.top, grid) / len(rows.probs))


@metric
def debiased_ece(rows: Rows, *, bins: int = 15, closed: Closed = "right", norm: Literal[1, 2] = 1) -> FloatArray:
    """ECE less what chance alone adds to it, top-label, equal widths. In [0, 1]; 0 when chance explains all of it.

    Kumar et al. 2019. With s_b² = A_b(1 - A_b)/(n_b - 1), the sampling variance of a bin's accuracy A_b (a bin of one row
    has none and is left out):
    ``norm=1``: 2·ECE - Σ n_b/N · E|gap_b + s_b·ε|, ε normal (their simulation, here in closed form);
    ``norm=2``: √Σ n_b/N (gap_b² - s_b²), comparable to a root mean square error. Unlike every other metric it depends on
    how many rows there are: rows said twice are not new evidence, and it would take them for some.

    >>> round(debiased_ece([[0.6, 0.4]] * 10, [0] * 5 + [1] * 5), 4)
    0.0438
    """
    from scipy.special import ndtr

    cells = rows.top.width_bins(bins, closed)
    share, gap = np.where(cells.count > 1, cells.share, 0.0), np.abs(cells.gap)
    rate = cells.hits / np.maximum(cells.count, 1)
    variance = np.clip(rate * (1 - rate), 0, None) / np.maximum(cells.count - 1, 1)
    if _is(norm, 2, of=(1, 2)):
        return np.asarray(np.sqrt(np.maximum((share * (gap**2 - variance)).sum(axis=-1), 0.0)))
    spread = np.sqrt(variance)
    ratio = gap / np.where(spread > 0, spread, 1.0)
    folded = np.where(  # E|N(gap, spread²)|
        spread > 0, spread * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + gap * (2 * ndtr(ratio) - 1), gap
    )
    return np.asarray(np.clip((share * (2 * gap - folded)).sum(axis=-1), 0.0, 1.0))


# ---- class-wise calibration errors -------------------------------------------------------------------------------------


@metric
def sce(
    rows: Rows,
    *,
    bins: int = 15,
    closed: Closed = "right",
    variant: Literal["sound", "author", "focal", "gce"] = "sound",
) -> FloatArray:
    """Static calibration error ``1/K Σ_k Σ_b n_bk/N · |frequency_bk - mean p_bk|``, class-wise, equal widths. In [0, 1].

    Nixon et al. 2019; also called class-wise ECE. All K classes count, absent ones too. Variants of released code:
    ``"author"`` (P004) drops probabilities of exactly 0, ``"focal"`` also stops at the highest label that occurs, ``"gce"``
    gives 1.0 a bin of its own and drops zeros from N.

    >>> round(sce([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.4
    """
    if variant == "sound":
        return class_means(rows, {"sce": {"bins": bins, "closed": closed}})["sce"]
    if _is(variant, "gce", of=("sound", "author", "focal", "gce")):
        return rows.each(lambda p, y: _gce_by_class(p, y, bins, 0.0, variants.width_extra_bin))
    rule = variants.width_open_at_zero

    def plain(probs: FloatArray, labels: IntArray) -> float:
        shown = probs if variant == "author" else probs[:, : labels.max() + 1]
        return float(np.mean([variants.gap_of_class(s, h, bins, rule) for s, h in variants.one_vs_rest(shown, labels)]))

    return rows.each(plain)


@metric
def ace(rows: Rows, *, bins: int = 15, variant: Literal["nixon", "p004", "gce"] = "nixon") -> FloatArray:
    """Adaptive calibration error, class-wise, equal mass: ``1/K Σ_k Σ_r n_rk/N · |frequency_rk - mean p_rk|``. In [0, 1].

    Nixon et al. 2019, whose 1/R is n_r/N when R divides N and no scores are equal; equal scores stay in one bin here and
    weigh what they hold. ``"p004"`` (its repository; the smallest probability of a class is in no bin) and ``"gce"``
    (Google's edges) reproduce released code. The ACE that P004 *prints* is top-label: see `ada_ece`.

    >>> round(ace([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], bins=1), 4)
    0.3333
    """
    if variant == "nixon":
        return class_means(rows, {"ace": {"bins": bins}})["ace"]
    if _is(variant, "gce", of=("nixon", "p004", "gce")):
        return rows.each(lambda p, y: _gce_by_class(p, y, bins, 0.0, variants.mass_gce))
    return rows.each(lambda p, y: _p004_by_class(p, y, bins))


@metric
def tace(
    rows: Rows, *, bins: int = 15, threshold: float = 0.01, variant: Literal["nixon", "p004", "gce"] = "nixon"
) -> FloatArray:
    """Thresholded ACE: `ace` over the probabilities of at least ``threshold``, class-wise, equal mass. In [0, 1].

    Nixon et al. 2019. With many classes most probabilities are near 0 and would fill the bins. A class counts the rows it
    keeps; one that keeps none is left out. ``"p004"`` sets smaller probabilities to 0 and keeps them, ``"gce"`` drops those
    up to the threshold and takes Google's edges.

    >>> round(tace([[0.995, 0.005], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], bins=1), 4)
    0.4575
    """
    if variant == "nixon":
        return class_means(rows, {"tace": {"bins": bins, "threshold": threshold}})["tace"]
    if _is(variant, "gce", of=("nixon", "p004", "gce")):
        return rows.each(lambda p, y: _gce_by_class(p, y, bins, threshold, variants.mass_gce))
    return rows.each(lambda p, y: _p004_by_class(np.where(p < threshold, 0.0, p), y, bins))


# ---- against human votes -----------------------------------------------------------------------------------------------


@human_metric
def human_tv(rows: Rows) -> FloatArray:
    """Mean total variation distance ``½ Σ_k |p_k - v_k|`` to the human votes v. In [0, 1], lower is better.

    Baan et al. 2022, who call it DistCE.

    >>> round(human_tv([[0.9, 0.1]], [[0.6, 0.4]]), 3)
    0.3
    """
    return rows.mean(0.5 * np.abs(rows.probs - _votes(rows)).sum(axis=1))


@human_metric
def human_cross_entropy(rows: Rows) -> FloatArray:
    """Mean cross-entropy ``-Σ_k v_k log p_k`` of the human votes v in nats. In [0, ∞]; least for p = v, where it is H(v).

    >>> round(human_cross_entropy([[0.5, 0.5]], [[0.6, 0.4]]), 4)
    0.6931
    """
    return rows.mean(rows.vote_nll)


@human_metric
def human_ece(rows: Rows, *, bins: int = 15, closed: Closed = "right") -> FloatArray:
    """ECE against the human vote: confidence against the share of votes for the predicted class, equal widths. In [0, 1].

    With one vote per row it is `ece`. Where people disagree, a model that is sure of the majority label is overconfident.

    >>> round(human_ece([[0.9, 0.1]], [[0.6, 0.4]]), 3)
    0.3
    """
    cells = rows.top_votes.width_bins(bins, closed)
    return np.asarray((cells.share * np.abs(cells.gap)).sum(axis=-1))


# ---- parts -------------------------------------------------------------------------------------------------------------


def _is(value: object, wanted: object, *, of: tuple[object, ...]) -> bool:
    if value not in of:
        raise InputError(f"{value!r} is not a variant", remedy="give one of " + ", ".join(repr(v) for v in of))
    return value == wanted


def _votes(rows: Rows) -> FloatArray:
    if rows.votes is None:
        raise InputError("there are no human label distributions", remedy="give label_probs")
    return rows.votes


SOUND_CLASS_WISE = {"sce": "sound", "ace": "nixon", "tace": "nixon"}  # the variants that `class_means` computes
CLASS_CUTS: dict[str, Callable[..., IntArray]] = {
    "sce": lambda question, *, bins, closed, **_: question.width_cuts(bins, closed),
    "ace": lambda question, *, bins, **_: question.mass_cuts(bins),
    "tace": lambda question, *, bins, threshold, **_: question.mass_cuts(bins, above=threshold),
}


def class_means(rows: Rows, wanted: Mapping[str, Mapping[str, Any]]) -> dict[str, FloatArray]:
    """Mean over classes of the weighted mean |gap|, for each wanted cutting; a class that keeps no row is left out.

    One visit to each class serves all of them: its scores are sorted once and need not be kept.
    """
    total = {name: np.asarray(0.0) for name in wanted}
    kept = {name: np.asarray(0.0) for name in wanted}
    for question in rows.by_class():
        for name, params in wanted.items():
            cuts = CLASS_CUTS[name](question, **params)
            count = question.counts(cuts)
            total[name] = total[name] + np.abs(question.gaps(cuts)).sum(axis=-1) / np.maximum(count, 1)
            kept[name] = kept[name] + (count > 0)
    return {name: np.asarray(total[name] / np.maximum(kept[name], 1)) for name in wanted}


def _top_gap(probs: FloatArray, labels: IntArray, bins: int, rule: variants.Rule, *, squared: bool = False) -> float:
    predicted = probs.argmax(axis=1)
    score = probs[np.arange(len(probs)), predicted]
    count, gap = variants.binned_gaps(score, predicted == labels, bins, rule)
    if squared:
        return float(np.sqrt((gap**2 / np.maximum(count, 1)).sum() / len(probs)))
    return float(gap.sum() / len(probs))


def _p004_by_class(probs: FloatArray, labels: IntArray, bins: int) -> float:
    return float(
        np.mean([variants.gap_of_class(s, h, bins, variants.mass_p004) for s, h in variants.one_vs_rest(probs, labels)])
    )


def _gce_by_class(probs: FloatArray, labels: IntArray, bins: int, threshold: float, rule: variants.Rule) -> float:
    errors = [
        variants.gap_of_class(s[s > threshold], h[s > threshold], bins, rule) for s, h in variants.one_vs_rest(probs, labels)
    ]
    return float(np.mean(errors))


def _ks_in_given_order(probs: FloatArray, labels: IntArray) -> float:
    predicted = probs.argmax(axis=1)
    score = probs[np.arange(len(probs)), predicted]
    order = np.argsort(score, kind="stable")
    return float(np.abs(np.cumsum((score - (predicted == labels))[order])).max() / len(probs))


METRICS: dict[str, Metric[...]] = {
    "accuracy": accuracy,
    "confidence": confidence,
    "nll": nll,
    "brier": brier,
    "entropy": entropy,
    "ece": ece,
    "mce": mce,
    "oe": oe,
    "rmsce": rmsce,
    "ada_ece": ada_ece,
    "sce": sce,
    "ace": ace,
    "tace": tace,
    "ks": ks,
    "smooth_ece": smooth_ece,
    "debiased_ece": debiased_ece,
}

# Only where Predictions carry label_probs.
HUMAN_METRICS: dict[str, Metric[...]] = {
    "human_tv": human_tv,
    "human_cross_entropy": human_cross_entropy,
    "human_ece": human_ece,
}

CALIBRATION_ERRORS = ("ece", "mce", "oe", "rmsce", "ada_ece", "sce", "ace", "tace", "ks", "smooth_ece", "debiased_ece")
TOP_LABEL = ("accuracy", "confidence", "ece", "mce", "oe", "rmsce", "ada_ece", "ks", "smooth_ece", "debiased_ece")
HIGHER_IS_BETTER = ("accuracy",)
NO_DIRECTION = ("confidence", "entropy")


def parameters(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """The values of a metric's parameters, defaults included; an unknown one is an error."""
    function = {**METRICS, **HUMAN_METRICS}[name]
    known = {p.name: p.default for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    unknown = set(params) - set(known)
    if unknown:
        raise InputError(f"{name} has no parameter {sorted(unknown)[0]!r}", remedy="it has " + (", ".join(known) or "none"))
    return {**known, **params}


def definition(name: str, params: dict[str, Any]) -> str:
    """In words, what a figure is over: this travels with it into tables and reports."""
    values = parameters(name, params)
    words: list[str] = []
    if name in CALIBRATION_ERRORS:
        words.append("class-wise" if name in ("sce", "ace", "tace") else "top-label")
    if "bins" in values:
        mass = name in ("rmsce", "ada_ece", "ace", "tace")
        words.append(f"{values['bins']} equal-{'mass' if mass else 'width'} bins")
    if "closed" in values and values.get("variant", "sound") == "sound":
        words.append("(lo, hi]" if values["closed"] == "right" else "[lo, hi)")
    if name in CALIBRATION_ERRORS and "bins" in values:
        squared = name == "rmsce" or values.get("norm") == 2
        words.append("largest |gap|" if name == "mce" else "L2 norm" if squared else "L1 norm")
    if "threshold" in values:
        words.append(f"p ≥ {values['threshold']:g}")
    if values.get("variant", "sound") not in ("sound", "nixon"):
        words.append(f"as released code “{values['variant']}”")
    fixed = {
        "accuracy": "share right",
        "confidence": "mean top probability",
        "nll": "nats",
        "brier": "sum over classes",
        "entropy": "nats",
        "ks": "no bins",
        "smooth_ece": "reflected Gaussian kernel, σ = smECE",
        "human_tv": "½ Σ|p - votes|",
        "human_cross_entropy": "nats",
        "human_ece": "confidence against share of votes",
    }
    if name in fixed:
        words.append(fixed[name])
    return ", ".join(words)
