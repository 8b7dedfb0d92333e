"""Thresholds with a promise beside those of other libraries: how much they keep, and how often the promise breaks.

python benchmarks/bench_cascade.py                      # 500 draws of every cell
python benchmarks/bench_cascade.py --draws 20           # does it run?
python benchmarks/bench_cascade.py --outputs FOLDER     # real predictions, where DISTILCAL_DATA does not say where they are
python benchmarks/bench_cascade.py --json cells.json    # stores every finished cell; started again, it computes the others

Every cell draws labelled rows from a pool of predictions whose labels are all known, lets each library choose what the student
keeps, and looks in the pool whether the promise holds. All are asked for the same accuracy with 95 % confidence. The first
library of a cell is ours; what it keeps more than another is the mean over the same draws, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.calibrate import fit_temperature
from distilcal.predictions import Predictions
from distilcal.selective import (
    label_rounds,
    labelled_threshold,
    next_rows,
    output_threshold,
    rounds_threshold,
    threshold,
    to_label,
)

Array = NDArray[Any]
LABELS = 500
ROUND = 10  # labels at a time, as BARGAIN_P has it
ERROR = 0.05
ACCURACIES = (0.85, 0.9, 0.95)
RECORDS = ("lenet-5_cifar10_test", "wideresnet-16-4_cifar100_test", "densenet-bc-100_cifar100_test")
TEXTS = (("mnli", "logits_roberta_base_seed0"), ("snli", "logits_roberta_base_seed0"))


@dataclass(frozen=True)
class Cell:
    """One library in one setting."""

    promise: str
    pool: str
    accuracy: float
    library: str
    kept: float  # mean share of the pool that the student answers
    broken: float  # share of the draws in which the promise is broken
    refused: float  # share of the draws in which nothing is kept
    draws: int
    ahead: float  # mean share that our first method keeps more, in the same draws; 0 for itself
    ahead_error: float  # half its 95 % interval
    broken_unlabelled: float  # as broken, looking only at kept rows whose labels were not asked for


@dataclass(frozen=True)
class Pool:
    """Predictions whose labels are all known, most confident first."""

    name: str
    confidence: Array
    correct: Array

    def kept_above(self, limit: float | None) -> Array:
        return np.zeros(len(self.correct), bool) if limit is None else self.confidence >= limit

    def drawn(self, rows: Array) -> Predictions:
        return Predictions.from_confidences(self.confidence[rows], self.correct[rows])


# ---- the libraries: each gets a pool, the required accuracy and a generator, and returns which rows the student keeps ------


def ours_accepted(pool: Pool, accuracy: float, rows: Array, rng: np.random.Generator) -> Array:
    return pool.kept_above(threshold(pool.drawn(rows), accuracy).confidence)


def mixle_accepted(pool: Pool, accuracy: float, rows: Array, rng: np.random.Generator) -> Array:
    from mixle.task.calibrate import selective_risk_threshold

    return pool.kept_above(selective_risk_threshold(pool.confidence[rows], pool.correct[rows], alpha=1 - accuracy, delta=ERROR))


def ours_chosen(pool: Pool, accuracy: float, rows: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    everything = Predictions.from_confidences(pool.confidence, np.ones(len(pool.correct)))
    plan = to_label(everything, LABELS, accuracy, seed=int(rng.integers(2**31)))
    return pool.kept_above(labelled_threshold(plan, np.where(pool.correct[plan.rows], 0, 1)).confidence), plan.rows


def ours_rounds(pool: Pool, accuracy: float, rows: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    everything = Predictions.from_confidences(pool.confidence, np.ones(len(pool.correct)))
    plan = label_rounds(everything, LABELS, accuracy, seed=int(rng.integers(2**31)))
    labels: dict[int, int] = {}
    while len(asked := next_rows(plan, labels, ROUND)):
        labels |= dict(zip(asked.tolist(), np.where(pool.correct[asked], 0, 1).tolist(), strict=True))
    return pool.kept_above(rounds_threshold(plan, labels).confidence), np.array(list(labels))


def bargain_chosen(pool: Pool, accuracy: float, rows: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    from BARGAIN import BARGAIN_P

    proxy, oracle = bargain_models(pool)
    method = BARGAIN_P(proxy, oracle, delta=ERROR, target=accuracy, budget=LABELS, seed=int(rng.integers(2**31)))
    kept = np.zeros(len(pool.correct), bool)
    kept[np.asarray(method.process(list(range(len(kept)))), dtype=int)] = True
    return kept, np.flatnonzero(oracle.asked)


def ours_output(pool: Pool, accuracy: float, rows: Array, rng: np.random.Generator) -> Array:
    kept = pool.kept_above(output_threshold(pool.drawn(rows), accuracy).confidence)
    kept[rows] = False  # their labels are known: the student need not answer them
    return kept


def janus_output(pool: Pool, accuracy: float, rows: Array, rng: np.random.Generator) -> Array:
    from janus.metrics import round_confidence

    rounded = np.array([round_confidence(float(c)) for c in pool.confidence[rows]])
    limit = janus_threshold(rounded, pool.correct[rows], accuracy)
    near = np.flatnonzero(np.abs(pool.confidence - limit) < 0.02)  # the others are rounded to the same side of it
    kept = pool.confidence >= limit
    kept[near] = [round_confidence(float(c)) >= limit for c in pool.confidence[near]]
    kept[rows] = False
    return kept


def janus_threshold(rounded: Array, correct: Array, accuracy: float) -> float:
    """The threshold that janus' sweep and choice end at, from cumulative sums: its own loops take twenty times as long."""
    if correct.sum() / len(correct) >= accuracy:
        return -np.inf  # never escalate
    levels, level = np.unique(rounded, return_inverse=True)
    kept_wrong = np.bincount(level, ~correct, len(levels))[::-1].cumsum()[::-1]
    reached = (len(correct) - kept_wrong) / len(correct) >= accuracy
    escalated = np.append(0, np.bincount(level).cumsum()[:-1])
    cheaper = reached & (len(correct) + 40 * escalated < 40 * len(correct))  # than to escalate without asking the student
    return float(levels[np.argmax(cheaper)]) if cheaper.any() else np.inf


def check_janus() -> None:
    """Compare the threshold with that of janus' own functions."""
    from janus.metrics import round_confidence
    from janus.sweep import Row, choose, sweep

    rng = np.random.default_rng(0)
    for accuracy in (*ACCURACIES, *ACCURACIES, 0.7, 0.99):
        confidence = 1 - 0.5 * rng.beta(0.8, 1.5, 300)
        correct = rng.random(300) < confidence - rng.uniform(0, 0.2)
        seen = [Row(float(c), bool(right), True, 1.0, 40.0) for c, right in zip(confidence, correct, strict=True)]
        point, _, _ = choose(sweep(seen), target_accuracy=accuracy)
        own = {"always_primary": -np.inf, "always_fallback": np.inf}.get(point.rule, point.threshold)
        assert own == janus_threshold(np.array([round_confidence(float(c)) for c in confidence]), correct, accuracy)


def bargain_output(pool: Pool, accuracy: float, rows: Array, rng: np.random.Generator) -> Array:
    from BARGAIN import BARGAIN_A

    proxy, oracle = bargain_models(pool)
    seed = int(rng.integers(2**31))
    method = BARGAIN_A(proxy, oracle, target=accuracy, delta=ERROR, verbose=False, seed=seed)
    _, by_oracle = method.process(list(range(len(pool.correct))), return_oracle_usage=True)
    return ~np.asarray(by_oracle, dtype=bool)


def bargain_models(pool: Pool) -> tuple[Any, Any]:
    """The proxy and the oracle that BARGAIN asks: arrays in place of its threads, which would only add waiting."""
    from BARGAIN import Oracle, Proxy

    class ArrayProxy(Proxy):
        def get_preds_and_scores(self, indxs: Any, data_records: Any) -> tuple[Array, Array]:
            rows = np.asarray(data_records, dtype=int)
            return np.ones(len(rows)), pool.confidence[rows]

    class ArrayOracle(Oracle):
        asked = np.zeros(len(pool.correct), bool)

        def get_pred(self, data_records: Any, indxs: Any = None) -> Array:
            self.asked[np.asarray(data_records, dtype=int)] = True
            return pool.correct[np.asarray(data_records, dtype=int)].astype(float)

        def is_answer_correct(self, data_indxs: Any, data_records: Any, proxy_output_at_indxs: Any) -> Array:
            return pool.correct[np.asarray(data_records, dtype=int)].astype(float)

    return ArrayProxy(verbose=False), ArrayOracle(verbose=False)


def betting_passes(obs: Array, m: float, alpha: float, without_replacement: bool, N: int, *, above: bool) -> bool:
    """BARGAIN's betting test, whose own loop takes seconds: the same numbers from cumulative sums."""
    assert without_replacement
    count = np.arange(1, len(obs) + 1)
    before = np.append(0.0, np.cumsum(obs)[:-1])
    mean = (0.5 + before) / count
    variance = (0.25 + before * (1 - mean) ** 2 + (count - 1 - before) * mean**2) / count
    stake = np.sqrt(2 * np.log(2 / alpha) / (count * np.log(count + 1) * variance))
    if above:
        expected = (N * m - before) / (N - (count - 1))
        growth = 1 + np.minimum(stake, 0.75 / expected) * (obs - expected)
    else:
        expected = np.append(m, ((N * m - before[1:]) / (N - (count[:-1] - 1))))
        growth = 1 - np.minimum(stake, 0.75 / (1 - expected[-1])) * (obs - expected)
    return not bool((np.cumprod(growth) >= 1 / alpha).any())


def speed_up_bargain() -> None:
    """Put the fast test into BARGAIN, after a comparison with its own."""
    from BARGAIN.bounds import betting_bounds
    from BARGAIN.process import BARGAIN_A, BARGAIN_P  # noqa: F401

    rng = np.random.default_rng(0)
    tests = {"test_if_true_mean_is_above_m": True, "test_if_true_mean_is_below_m": False}
    for name, above in tests.items():
        own = getattr(betting_bounds, name)

        def fast(
            obs: Array, m: float, alpha: float, without_replacement: bool, N: int, fixed_sample_size: bool, above: bool = above
        ) -> bool:
            return betting_passes(obs, m, alpha, without_replacement, N, above=above)

        for _ in range(300):
            obs = (rng.random(int(rng.integers(2, 200))) < rng.uniform(0.6, 1)).astype(float)
            options = {"alpha": ERROR, "without_replacement": True, "N": 400, "fixed_sample_size": False}
            target = float(rng.uniform(0.7, 0.95))
            assert own(obs, target, **options) == fast(obs, target, **options)
        for module in (sys.modules["BARGAIN.process.BARGAIN_A"], sys.modules["BARGAIN.process.BARGAIN_P"]):
            setattr(module, name, fast)


# A method returns what is kept; with the rows that it had labelled where it chose them itself.
Method = Callable[[Pool, float, Array, np.random.Generator], Any]
ACCEPTED: dict[str, Method] = {"distilcal threshold": ours_accepted, "mixle selective_risk_threshold": mixle_accepted}
CHOSEN: dict[str, Method] = {
    "distilcal label_rounds": ours_rounds,
    "distilcal to_label": ours_chosen,
    "bargain BARGAIN_P": bargain_chosen,
}
OUTPUT: dict[str, Method] = {
    "distilcal output_threshold": ours_output,
    "bargain BARGAIN_A": bargain_output,
    "janus-decide": janus_output,
}


PROMISES: list[tuple[str, str, dict[str, Method], dict[str, bool]]] = [
    ("accepted", "accepted", ACCEPTED, {"replace": True}),
    ("accepted", "accepted, split", ACCEPTED, {"replace": False, "rest": True}),
    ("chosen", "accepted, rows chosen", CHOSEN, {"replace": False}),
    ("output", "whole output", OUTPUT, {"replace": False}),
]


# ---- pools -------------------------------------------------------------------------------------------------------------


def simulated_pools() -> list[Pool]:
    """A calibrated classifier, and one whose confidences are too high in its most confident part."""
    rng = np.random.default_rng(0)
    confidence = 1 - 0.5 * rng.beta(0.8, 1.5, 8000)
    too_high = np.where(confidence > 0.9, confidence - 0.4 * (confidence - 0.9), confidence)
    return [
        as_pool("simulated, calibrated", confidence, rng.random(8000) < confidence),
        as_pool("simulated, too confident", confidence, rng.random(8000) < too_high),
    ]


def real_pools(folder: Path) -> list[Pool]:
    """Test outputs of networks, divided by a temperature that was fitted on other rows."""
    pools = []
    for task, column in TEXTS:
        splits = {}
        for split in ("dev", "test"):
            with np.load(folder / f"{task}_{split}.npz") as arrays:
                splits[split] = Predictions.from_logits(arrays[column], arrays["labels"], name=split)
        calibrated = fit_temperature(splits["dev"])(splits["test"])
        pools.append(as_pool(f"{task.upper()}, RoBERTa", calibrated.confidence, calibrated.correct))
    for record in RECORDS:
        with np.load(folder / f"{record}.npz") as arrays:
            rows = Predictions.from_logits(arrays["logprobs"].astype(np.float64), arrays["labels"], name="rows")
        order = np.random.default_rng(0).permutation(len(rows))
        calibrated = fit_temperature(rows.select(order[:2000]))(rows.select(order[2000:]))
        network, data, _ = record.rsplit("_", 2)
        pools.append(as_pool(f"{data}, {network}", calibrated.confidence, calibrated.correct))
    return pools


def as_pool(name: str, confidence: Array, correct: Array) -> Pool:
    order = np.argsort(-confidence, kind="stable")
    return Pool(name, confidence[order], correct[order])


# ---- the cells -----------------------------------------------------------------------------------------------------------


def measure(
    promise: str, methods: dict[str, Method], pool: Pool, accuracy: float, draws: int, *, replace: bool, rest: bool = False
) -> list[Cell]:
    """Let every library choose in the same draws; ``rest`` looks at the rows that were not drawn only."""
    kept_shares: dict[str, list[float]] = {library: [] for library in methods}
    broken: dict[str, int] = dict.fromkeys(methods, 0)
    broken_unlabelled: dict[str, int] = dict.fromkeys(methods, 0)
    n = len(pool.correct)
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        rows = rng.choice(n, LABELS, replace=replace)
        looked_at = np.ones(n, bool)
        looked_at[rows] = not rest
        for library, method in methods.items():
            kept = method(pool, accuracy, rows, np.random.default_rng(draw))
            answered = np.ones(n, bool)  # by the student: not the rows whose labels were asked for
            if isinstance(kept, tuple):
                answered[kept[1]] = False
                kept = kept[0]
            kept = kept & looked_at
            everything = int(looked_at.sum()) if methods is OUTPUT else None
            broken[library] += is_broken(pool, kept, accuracy, everything)
            broken_unlabelled[library] += is_broken(pool, kept & answered, accuracy, everything)
            kept_shares[library].append((kept & answered).sum() / looked_at.sum())
    shares = {library: np.array(values) for library, values in kept_shares.items()}
    ours = next(iter(shares.values()))
    return [
        Cell(
            promise=promise,
            pool=pool.name,
            accuracy=accuracy,
            library=library,
            kept=float(share.mean()),
            broken=broken[library] / draws,
            refused=float(np.mean(share == 0)),
            draws=draws,
            ahead=float((ours - share).mean()),
            ahead_error=float(1.96 * (ours - share).std() / np.sqrt(draws)),
            broken_unlabelled=broken_unlabelled[library] / draws,
        )
        for library, share in shares.items()
    ]


def is_broken(pool: Pool, kept: Array, accuracy: float, of: int | None) -> bool:
    """Whether too many of the kept rows are wrong, among themselves or among ``of`` rows."""
    wrong = int((kept & ~pool.correct).sum())
    return wrong > (1 - accuracy) * (int(kept.sum()) if of is None else of) + 1e-9


def possible(pool: Pool, accuracy: float, *, whole: bool) -> bool:
    """Whether a promise is neither free nor out of reach for everybody."""
    right = np.cumsum(pool.correct) / np.arange(1, len(pool.correct) + 1)
    if whole:
        return bool(pool.correct.mean() < accuracy)
    return bool(right[-1] < accuracy and (right[LABELS:] >= accuracy).any())


def table(cells: Sequence[Cell]) -> str:
    lines = [
        "| promise | predictions | A | library | kept | broken | refused | we keep more |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        limit = ERROR + 1.645 * np.sqrt(ERROR * (1 - ERROR) / cell.draws)  # what chance adds to 5 %
        mark = " **!**" if cell.broken > limit else ""
        lines.append(
            f"| {cell.promise} | {cell.pool} | {cell.accuracy} | {cell.library} | {cell.kept:.3f} | {cell.broken:.3f}{mark} | "
            f"{cell.refused:.2f} | {cell.ahead:+.3f} ± {cell.ahead_error:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--outputs", type=Path, default=Path(os.environ.get("DISTILCAL_DATA", ".")) / "model_outputs")
    parser.add_argument("--only", nargs="*", default=["accepted", "chosen", "output"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pools = simulated_pools()
    if arguments.outputs.is_dir():
        pools += real_pools(arguments.outputs)
    speed_up_bargain()
    check_janus()
    cells: list[Cell] = []
    if arguments.json and arguments.json.exists():
        cells = [Cell(**stored) for stored in json.loads(arguments.json.read_text())]
        assert all(cell.draws == arguments.draws for cell in cells), "the stored cells have another number of draws"
    done = {(cell.promise, cell.pool, cell.accuracy) for cell in cells}
    for pool in pools:
        for accuracy in ACCURACIES:
            for name, promise, methods, options in PROMISES:
                if name not in arguments.only or (promise, pool.name, accuracy) in done:
                    continue
                if not possible(pool, accuracy, whole=methods is OUTPUT):
                    continue
                cells += measure(promise, methods, pool, accuracy, arguments.draws, **options)
                print(f"{promise}: {pool.name}, A = {accuracy}: done", file=sys.stderr, flush=True)
                if arguments.json:
                    arguments.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=1))
    cells.sort(key=lambda cell: cell.promise)
    print(table(cells))


if __name__ == "__main__":
    main()
