"""Rows: the predictions a metric looks at, once or in many resamples at a time.

Every calibration error compares a score with a yes/no outcome of each row ("is the predicted class right?", "is it class k?").
``Binary`` holds one such question with its rows sorted by score, so that a bin is a run of positions between two *cuts* and
the sums of a bin are sums over a run. A metric written on these sums works unchanged on

- the rows as they are (results without a leading axis),
- R bootstrap resamples, held as how often each row was drawn: ``weights`` (R, N),
- R sets of labels drawn from the predicted probabilities: ``draws`` (R, N),

the last two giving R values at the cost of R sums, not of R sorts. Cuts never separate equal scores, so no result depends
on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilcal.errors import InputError
from distilcal.predictions import ROW_SUM_TOLERANCE, FloatArray, IntArray, Predictions, unmasked_array

Closed = Literal["right", "left"]
MOST_BINS = 10_000  # a resample takes a number for each of them


@dataclass(frozen=True)
class Bins:
    """Sums over the rows of each bin.

    Attributes
    ----------
    count : array (..., bins)
        Number of rows.
    score : array (..., bins)
        Sum of their scores.
    hits : array (..., bins)
        Number of rows whose outcome is yes.
    """

    count: FloatArray
    score: FloatArray
    hits: FloatArray

    @property
    def gap(self) -> FloatArray:
        """Mean score minus share of hits in each bin, 0 in an empty one: positive is overconfident."""
        return (self.score - self.hits) / np.maximum(self.count, 1)

    @property
    def share(self) -> FloatArray:
        """Share of all rows in each bin."""
        share: FloatArray = self.count / self.count.sum(axis=-1, keepdims=True)
        return share


def width_edges(bins: int) -> FloatArray:
    """Return the edges of equal-width bins on [0, 1].

    Parameters
    ----------
    bins : int
        Number of bins, from 1 to 10,000.

    Returns
    -------
    array (bins + 1,)

    Examples
    --------
    >>> width_edges(4).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if not isinstance(bins, (int, np.integer)) or bins < 1:
        raise InputError(f"the number of bins is {bins}", remedy="give a whole number, at least one")
    if bins > MOST_BINS:
        raise InputError(f"{bins:,} bins, expected at most {MOST_BINS:,}", remedy="15 are enough for most uses")
    return np.arange(bins + 1) / bins  # each edge correctly rounded; linspace puts 6/10 at 0.6000000000000001


def run_sums(values: FloatArray, cuts: IntArray) -> FloatArray:
    """Sum values between consecutive cuts.

    Parameters
    ----------
    values : array (..., N)
        The values.
    cuts : array of int (..., B + 1)
        Rising positions in 0 … N.

    Returns
    -------
    array (..., B)
        The sums of ``values[cuts[b]:cuts[b + 1]]``; 0 for an empty run.

    Examples
    --------
    >>> run_sums(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 1, 1, 4])).tolist()
    [1.0, 0.0, 9.0]
    """
    n = values.shape[-1]
    flat = np.ascontiguousarray(values).reshape(-1)
    resamples = len(flat) // n if n else 1
    cuts = np.broadcast_to(cuts, (resamples, cuts.shape[-1]))
    # reduceat sums from each start to the next, so the rows before the first cut and after the last are runs as well.
    starts = np.concatenate([np.zeros((resamples, 1), cuts.dtype), cuts], axis=1)
    ends = np.concatenate([cuts, np.full((resamples, 1), n, cuts.dtype)], axis=1)
    filled = ends > starts
    sums = np.zeros(starts.shape)
    offset = (np.arange(resamples) * n)[:, None]
    sums[filled] = np.add.reduceat(flat, (starts + offset)[filled])
    return sums[:, 1:-1].reshape(*values.shape[:-1], -1)


class Binary:
    """A score and a yes/no outcome for each row, sorted by score.

    Parameters
    ----------
    scores : array (N,)
        The score of each row, in [0, 1].
    hits : array (N,) or (R, N)
        Whether the outcome is yes (or a share of human votes); (R, N) for R sets of drawn labels.
    weights : array (R, N), optional
        How often each of R bootstrap resamples holds each row.
    base : Binary, optional
        The same question on the rows as they are, whose sorting is shared.
    """

    def __init__(
        self, scores: FloatArray, hits: NDArray[Any], *, weights: NDArray[Any] | None = None, base: Binary | None = None
    ):
        self.scores = scores
        self.hits = hits
        self.weights = weights
        self.base = base
        self._width_bins: dict[tuple[int, str], Bins] = {}

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """The rows in the order of their scores."""
        return self.base.order if self.base is not None else np.argsort(self.scores).astype(np.int32)

    @cached_property
    def sorted(self) -> FloatArray:
        """The scores, rising."""
        if self.base is not None:
            return self.base.sorted
        return self.scores[self.order] if "order" in self.__dict__ else np.sort(self.scores)

    @cached_property
    def group_ends(self) -> IntArray | None:
        """Positions after each run of equal scores; None where no two are equal."""
        if self.base is not None:
            return self.base.group_ends
        rises = self.sorted[1:] != self.sorted[:-1]
        return None if rises.all() else np.append(np.flatnonzero(rises) + 1, len(self.sorted))

    @cached_property
    def _run_end(self) -> IntArray:
        """For each position the end of its run of equal scores."""
        if self.base is not None:
            return self.base._run_end
        if self.group_ends is None:
            return np.arange(1, len(self.sorted) + 1)
        return np.repeat(self.group_ends, np.diff(self.group_ends, prepend=0))

    @cached_property
    def _sorted_hit_scores(self) -> FloatArray:
        return np.sort(self.scores[self.hits])

    @cached_property
    def _drawn_hits(self) -> tuple[IntArray, IntArray]:
        draw, row = np.nonzero(self.hits)
        return draw, row

    @cached_property
    def _sorted_weights(self) -> IntArray:
        assert self.weights is not None
        return np.take(self.weights, self.order, axis=1)

    @cached_property
    def _cumulative_weights(self) -> IntArray:
        return np.cumsum(self._sorted_weights, axis=1, dtype=np.int64)

    @cached_property
    def sorted_residuals(self) -> FloatArray:
        """Hit minus score of each row, times its weight, sorted by score: (N,) or (R, N)."""
        if self.base is None or self.weights is None:
            residuals: FloatArray = np.take(self.hits, self.order, axis=-1) - self.sorted
            return residuals
        return self._sorted_weights * self.base.sorted_residuals

    # ---- where to cut --------------------------------------------------------------------------------------------------

    def width_cuts(self, bins: int, closed: Closed) -> IntArray:
        """Return the cuts of equal-width bins.

        Parameters
        ----------
        bins : int
            Number of bins.
        closed : {"right", "left"}
            Whether bins are (lo, hi] or [lo, hi); either way 0 is in the first and 1 in the last.

        Returns
        -------
        array of int (bins + 1,)
        """
        if closed not in ("right", "left"):
            raise InputError(f"unknown closed={closed!r}", remedy='choose "right" or "left"')
        inner = np.searchsorted(self.sorted, width_edges(bins)[1:-1], side=closed)
        return np.concatenate([[0], inner, [len(self.sorted)]])

    def mass_cuts(self, bins: int, *, above: float | None = None, edge_in_lower: bool = False) -> IntArray:
        """Return the cuts of equal-mass bins: after ⌈b·n/B⌉ rows each, moved up past equal scores.

        Parameters
        ----------
        bins : int
            Number of bins.
        above : float, optional
            Leaves out lower scores.
        edge_in_lower : bool
            Cut after ⌊b·n/B⌋ + 1 rows, where the edges of AdaECE are.

        Returns
        -------
        array of int (bins + 1,) or (R, bins + 1)
        """
        width_edges(bins)
        first = 0 if above is None else int(np.searchsorted(self.sorted, above))
        n = len(self.sorted)
        if self.weights is None:
            if first == n:
                return np.full(bins + 1, n)
            targets = _rows_below(np.array(n - first), bins, edge_in_lower) + first  # (B - 1,)
            inner = np.searchsorted(self.sorted, self.sorted[np.maximum(targets, first + 1) - 1], side="right")
            return np.concatenate([[first], inner, [n]])
        cumulative = self._cumulative_weights
        before = cumulative[:, first - 1] if first else np.zeros(len(cumulative), np.int64)
        targets = np.maximum(_rows_below(cumulative[:, -1] - before, bins, edge_in_lower), 1) + before[:, None]
        cuts = np.empty((len(cumulative), bins + 1), np.int64)
        cuts[:, 0], cuts[:, -1] = first, n
        for r in range(len(cumulative)):  # over resamples, not over examples
            cuts[r, 1:-1] = np.searchsorted(cumulative[r], targets[r])
        cuts[:, 1:-1] = self._run_end[np.minimum(cuts[:, 1:-1], n - 1)]
        return np.minimum(cuts, n)

    # ---- what lies between ---------------------------------------------------------------------------------------------

    def sums(self, cuts: IntArray) -> Bins:
        """Return the sums of every bin, for cuts (B + 1,) or (R, B + 1)."""
        if self.weights is not None:
            assert self.base is not None
            weights = self._sorted_weights.astype(np.float64)
            score = run_sums(weights * self.sorted, cuts)
            return Bins(run_sums(weights, cuts), score, score + run_sums(self.sorted_residuals, cuts))
        count = np.diff(cuts).astype(np.float64)
        return Bins(count, run_sums(self.sorted, cuts), self._hits(cuts))

    def width_bins(self, bins: int, closed: Closed) -> Bins:
        """Return the sums over equal-width bins; they are kept, because several metrics need the same ones."""
        key = (bins, closed)
        if key not in self._width_bins:
            self._width_bins[key] = self.sums(self.width_cuts(bins, closed))
        return self._width_bins[key]

    def gaps(self, cuts: IntArray) -> FloatArray:
        """Return hits minus scores of every bin: all that a mean absolute error needs."""
        if self.weights is not None:
            return run_sums(self.sorted_residuals, cuts)
        return self._hits(cuts) - run_sums(self.sorted, cuts)

    def counts(self, cuts: IntArray) -> FloatArray:
        """Return the number of rows between the first and the last cut: (), or (R,) in resamples."""
        if self.weights is None:
            return np.asarray(cuts[-1] - cuts[0], dtype=np.float64)
        first = cuts[..., 0].flat[0]
        cumulative = self._cumulative_weights
        left_out = cumulative[:, first - 1] if first else 0
        return (cumulative[:, -1] - left_out).astype(np.float64)

    def _hits(self, cuts: IntArray) -> FloatArray:
        """Return the number of hits of every bin."""
        if self.hits.ndim == 2:
            return self._hits_of_draws(cuts)
        if self.hits.dtype != bool:  # shares of human votes
            return run_sums(np.take(self.hits, self.order), cuts)
        # Cuts are between distinct scores, so the hits below a cut are those with a lower score than the row above it.
        n = len(self.sorted)
        below = np.searchsorted(self._sorted_hit_scores, self.sorted[np.minimum(cuts, n - 1)])
        return np.diff(np.where(cuts < n, below, len(self._sorted_hit_scores))).astype(np.float64)

    def _hits_of_draws(self, cuts: IntArray) -> FloatArray:
        """Return the number of hits of every bin for each set of drawn labels: (R, B)."""
        bins, draws = len(cuts) - 1, len(self.hits)
        bin_of_row = np.full(len(self.order), -1)
        bin_of_row[self.order[cuts[0] : cuts[-1]]] = np.repeat(np.arange(bins), np.diff(cuts))
        draw, row = self._drawn_hits
        in_a_bin = bin_of_row[row] >= 0
        flat = draw[in_a_bin] * bins + bin_of_row[row[in_a_bin]]
        return np.bincount(flat, minlength=draws * bins).reshape(draws, -1).astype(np.float64)


def _rows_below(n: IntArray, bins: int, edge_in_lower: bool) -> IntArray:
    """Return how many of ``n`` (...) rows are below each inner cut: (..., B - 1), in integers, without rounding errors."""
    steps: IntArray = n[..., None] * np.arange(1, bins)
    if edge_in_lower:
        return np.minimum(steps // bins + 1, n[..., None])
    return -(-steps // bins)


class Rows:
    """Probabilities and labels, as they are or resampled, with everything that several metrics share.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    nll, entropy, vote_nll : array (N,), optional
        Values of each row that are already computed, from logits; by default they are computed from the probabilities.
    votes : array (N, K), optional
        Shares of human votes.
    predicted, confidence : array (N,), optional
        The predicted class and its probability.
    weights : array (R, N), optional
        How often each of R bootstrap resamples holds each row.
    draws : array (R, N), optional
        R sets of labels drawn from the probabilities.
    base : Rows, optional
        The rows as they are, whose sorting is shared.
    checked : bool
        Whether the arrays are known to be valid.

    Examples
    --------
    >>> rows = Rows([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    >>> rows.mean(rows.confidence).round(3).item()
    0.8
    """

    def __init__(
        self,
        probs: ArrayLike,
        labels: ArrayLike,
        *,
        nll: FloatArray | None = None,
        entropy: FloatArray | None = None,
        votes: FloatArray | None = None,
        predicted: IntArray | None = None,
        confidence: FloatArray | None = None,
        vote_nll: FloatArray | None = None,
        weights: NDArray[Any] | None = None,
        draws: NDArray[Any] | None = None,
        base: Rows | None = None,
        checked: bool = False,
    ):
        if not checked and base is None:
            probs, labels = _number_array(probs), unmasked_array(labels, "labels")
        self.probs: FloatArray = np.asarray(probs, dtype=np.float64)  # (N, K); half precision is raised here
        if not checked and base is None:
            _check(self.probs, np.asarray(labels))
        self.labels: IntArray = np.asarray(labels, dtype=np.int64)  # (N,)
        self._nll, self._entropy, self.votes, self._predicted = nll, entropy, votes, predicted
        self._confidence, self._vote_nll = confidence, vote_nll
        self.weights = weights
        self.draws = draws
        self.base = base

    @classmethod
    def of(cls, predictions: Predictions) -> Rows:
        """Return the rows of Predictions, with NLL and entropy computed from the logits."""
        return cls(
            predictions.probs,
            predictions.labels,
            nll=predictions.row_nll,
            entropy=predictions.row_entropy,
            votes=predictions.label_probs,
            predicted=predictions.predicted,
            confidence=predictions.confidence,
            vote_nll=predictions.row_vote_nll,
            checked=True,
        )

    def resampled(self, weights: NDArray[Any]) -> Rows:
        """Return R bootstrap resamples of these rows, for weights (R, N)."""
        return self._child(weights=weights)

    def relabelled(self, draws: NDArray[Any]) -> Rows:
        """Return these rows with R other sets of labels (R, N)."""
        return self._child(draws=draws)

    def _child(self, *, weights: NDArray[Any] | None = None, draws: NDArray[Any] | None = None) -> Rows:
        return Rows(
            self.probs,
            self.labels,
            nll=self.nll,
            entropy=self.entropy,
            votes=self.votes,
            predicted=self.predicted,
            confidence=self.confidence,
            vote_nll=None if self.votes is None else self.vote_nll,
            base=self,
            weights=weights,
            draws=draws,
        )

    @cached_property
    def totals(self) -> IntArray:
        """The number of rows: (), or (R,) in resamples, which may differ in size if whole clusters are drawn."""
        if self.weights is None:
            return np.asarray(len(self.probs))
        return np.asarray(self.weights.sum(axis=1, dtype=np.int64))

    @cached_property
    def predicted(self) -> IntArray:
        """The most probable class of each row, (N,)."""
        return self.probs.argmax(axis=1) if self._predicted is None else self._predicted

    @cached_property
    def confidence(self) -> FloatArray:
        """The probability of the predicted class, (N,)."""
        return self.probs[np.arange(len(self.probs)), self.predicted] if self._confidence is None else self._confidence

    def label_scores(self) -> FloatArray:
        """Return the probability of each label: (N,), or (R, N) for drawn labels."""
        if self.draws is None:
            return self.probs[np.arange(len(self.probs)), self.labels]
        return np.take_along_axis(self.probs, self.draws.T, axis=1).T

    @cached_property
    def nll(self) -> FloatArray:
        """The negative log-likelihood of each label: (N,), or (R, N) for drawn labels."""
        if self._nll is not None and self.draws is None:
            return self._nll
        with np.errstate(divide="ignore"):
            return np.abs(np.log(self.label_scores()))  # abs: -log 1 is 0, not -0

    @cached_property
    def entropy(self) -> FloatArray:
        """The entropy of each predicted distribution, (N,)."""
        if self._entropy is not None:
            return self._entropy
        from scipy.special import entr

        entropy: FloatArray = entr(self.probs).sum(axis=1)
        return entropy

    @cached_property
    def vote_nll(self) -> FloatArray:
        """Cross-entropy of each row's human votes (N,)."""
        if self._vote_nll is not None:
            return self._vote_nll
        if self.votes is None:
            raise InputError("there are no human label distributions", remedy="give label_probs")
        from scipy.special import xlogy

        nll: FloatArray = -xlogy(self.votes, self.probs).sum(axis=1)
        return nll

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the predicted class is the label: (N,), or (R, N) for drawn labels."""
        correct: NDArray[np.bool_] = self.predicted == (self.labels if self.draws is None else self.draws)
        return correct

    @cached_property
    def top(self) -> Binary:
        """Is the predicted class right? Scored by its probability."""
        base = None if self.base is None else self.base.top
        question = Binary(self.confidence, self.correct, weights=self.weights, base=base)
        _ = question.order  # some metric will need it, and sorting once with the order is cheaper than sorting twice
        return question

    @cached_property
    def top_votes(self) -> Binary:
        """What share of the human votes has the predicted class? Scored by its probability."""
        if self.votes is None:
            raise InputError("there are no human label distributions", remedy="give label_probs")
        base = None if self.base is None else self.base.top_votes
        return Binary(self.confidence, self.votes[np.arange(len(self.probs)), self.predicted], weights=self.weights, base=base)

    def by_class(self) -> Iterator[Binary]:
        """Yield for each class k the question "Is it class k?", scored by its probability; none is kept in memory."""
        labels = self.labels if self.draws is None else self.draws
        bases = [None] * self.probs.shape[1] if self.base is None else self.base._kept_classes
        for k, base in enumerate(bases):
            yield Binary(self.probs[:, k], labels == k, weights=self.weights, base=base)

    @cached_property
    def _kept_classes(self) -> list[Binary]:
        """The questions of ``by_class`` kept with their sorting, for resamples that come back to it."""
        return list(self.by_class())

    def mean(self, values: FloatArray) -> FloatArray:
        """Return the mean of values (N,) or (R, N) over the rows: (), or (R,) over resamples or draws."""
        if self.weights is None:
            return np.asarray(values.mean(axis=-1))
        infinite = ~np.isfinite(values)  # an infinite NLL counts in the resamples that hold its row, and only there
        total = self.weights @ np.where(infinite, 0.0, values)
        if infinite.any():
            total = np.where(self.weights[:, infinite].any(axis=1), np.inf, total)
        return np.asarray(total / self.weights.sum(axis=1))

    def each(self, function: Callable[[FloatArray, IntArray], float]) -> FloatArray:
        """Call a function of (probs, labels) on every resample by copying rows: for what cannot be written in sums."""
        if self.weights is not None:
            all_rows = np.arange(len(self.probs))
            resamples = (np.repeat(all_rows, weights) for weights in self.weights)
            return np.array([function(self.probs[rows], self.labels[rows]) for rows in resamples])
        if self.draws is not None:
            return np.array([function(self.probs, draw) for draw in self.draws])
        return np.asarray(function(self.probs, self.labels))


def _number_array(probs: ArrayLike) -> NDArray[Any]:
    try:
        array = unmasked_array(probs, "probabilities")
        array = array.astype(np.float64) if array.dtype.kind == "O" else array
    except InputError:
        raise
    except (TypeError, ValueError):
        array = np.array("")  # rows of different lengths, or anything
    if array.dtype.kind not in "fiu":
        raise InputError(
            f"expected an array of probabilities, got {type(probs).__name__}",
            remedy="give probabilities (N, K); those of Predictions are predictions.probs",
        )
    return array


def _check(probs: FloatArray, labels: NDArray[Any]) -> None:
    if probs.ndim != 2 or probs.shape[1] < 2 or labels.shape != probs.shape[:1] or not len(labels):
        raise InputError(
            f"probabilities {probs.shape} and labels {labels.shape} do not match",
            remedy="give probabilities (N, K) with at least two classes and labels (N,), N at least 1",
        )
    if labels.dtype.kind not in "iub":
        raise InputError(f"labels of type {labels.dtype} are not class indices")
    if not (probs.min() >= 0.0 and probs.max() <= 1.001):  # false for NaN as well
        raise InputError("probabilities lie outside [0, 1]", remedy="logits go through Predictions.from_logits(…).probs")
    off = np.abs(probs.sum(axis=1) - 1) > ROW_SUM_TOLERANCE
    if off.any():
        raise InputError(
            f"probabilities sum to {probs[off][0].sum():.6g}", row=int(np.argmax(off)), remedy="rows must sum to 1"
        )
    if labels.min() < 0 or labels.max() >= probs.shape[1]:
        raise InputError(f"labels are not all between 0 and {probs.shape[1] - 1}")
