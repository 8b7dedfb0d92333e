"""What a study could see before it is run: for each claim, the smallest difference that its design detects.

The spread of a difference over seeds and rows is taken from results of the same study, of whatever scale and seeds, where there
are any. Otherwise it is ``USUAL_SPREAD``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import special

from distilcal.config.schema import DataSettings
from distilcal.data.splits import BENCHMARK_PREFIX
from distilcal.errors import DistilcalError, InputError, MissingDependencyError
from distilcal.io.atomic import read_json
from distilcal.study.claim_settings import ClaimSettings, claim_pairs
from distilcal.study.expand import Graph
from distilcal.study.inference import LEVEL, Estimate, prior_freedom
from distilcal.study.places import PlaceSettings
from distilcal.study.schema import Study, claim_places, splits_of, task_recipe
from distilcal.study.sizes import expected_sizes, sources_on_hub

POWER = 0.8
UNKNOWN_ROWS = 1000  # of a test set that cannot be read and has no limit
SEEDS_PER_ROW = 1.7 / math.sqrt(1500)  # spread over seeds relative to that of one row, where it was not measured

# Standard deviations of a paired difference over seeds and of one row. Measured in the first five studies at scale small: rows
# are medians of 40 to 255 comparisons of models with one seed, seeds √2 times the median standard deviation of 384 (accuracy)
# and 600 (ECE) cells with three seeds. Those of NLL, Brier, AURC and confidence are priors, and where no seeds stand the
# relation of both is that of ECE and accuracy.
USUAL_SPREAD: dict[str, dict[str, float]] = {
    "accuracy": {"rows": 0.31, "seeds": 0.0127},
    "ece": {"rows": 0.40, "seeds": 0.0183},
    "ada_ece": {"rows": 0.42},
    "sce": {"rows": 0.038},
    "oe": {"rows": 0.12},
    "entropy": {"rows": 0.077},
    "nll": {"rows": 0.6},
    "brier": {"rows": 0.4},
    "aurc": {"rows": 0.3},
    "confidence": {"rows": 0.15},
}
ModelPair = tuple[Any, ...]  # two models, and where and how they are compared
USUAL = "usual spreads of the studies at scale small"


@dataclass(frozen=True)
class ClaimPower:
    """What a design can see of a claim.

    Attributes
    ----------
    text, metric : str
        The claim, and the metric that it compares.
    comparisons : int
        Distinct comparisons, controls included: those of the same models count once.
    rows : (int, int)
        Examples (or their sources) of the smallest and the largest set.
    smallest : (float, float) or None
        The smallest difference that a comparison detects with a power of 80 % on the largest and on the smallest set; None if
        nothing is known of the spread of the metric.
    equivalence : float or None
        The smallest δ for which "no effect above δ" can be shown with that power if there is no difference.
    delta : float or None
        The δ of the claim.
    percent, digits
        How tables show the metric.
    """

    text: str
    metric: str
    comparisons: int
    rows: tuple[int, int]
    smallest: tuple[float, float] | None
    equivalence: float | None
    delta: float | None
    percent: bool
    digits: int


@dataclass(frozen=True)
class DesignPower:
    """What a design can see: its claims, where the spreads come from, and the tasks whose data cannot be read."""

    claims: tuple[ClaimPower, ...]
    source: str
    unread: dict[str, str]


def design_power(study: Study, graph: Graph, results: Path | None = None) -> DesignPower:
    """Return the smallest difference that each claim of a study could see. Reads the data, trains nothing.

    Parameters
    ----------
    study : Study
        The study at one scale.
    graph : Graph
        Its jobs.
    results : Path, optional
        Folder in which results of the study may be, as ``NAME-*/results.json``; the newest with most seeds is used.

    Returns
    -------
    DesignPower
    """
    spread, source = known_spread(study, results)
    sizes, unread = _sizes(study)
    pooled: dict[str, set[ModelPair]] = {}  # by metric: variances are moderated over all claims
    for claim in study.claims:
        pooled.setdefault(claim.metric, set()).update(_distinct(study, graph, claim))
    claims = [_claim_power(study, graph, claim, spread, sizes, len(pooled[claim.metric])) for claim in study.claims]
    return DesignPower(tuple(claims), source, unread)


def known_spread(study: Study, results: Path | None) -> tuple[dict[str, dict[str, float]], str]:
    """Return the spreads of a study's metrics, and where they come from.

    Parameters
    ----------
    study : Study
        The study.
    results : Path or None
        Folder in which results of the study may be.

    Returns
    -------
    spread : dict of str to dict
        Metric of the study → ``rows`` and ``seeds``; metrics of which nothing is known are missing.
    source : str
    """
    spread = {}
    for name, metric in study.metrics.items():
        usual = USUAL_SPREAD.get(metric.metric)
        if usual is not None:
            spread[name] = {"seeds": usual["rows"] * SEEDS_PER_ROW, **usual}
    best = _best_results(study, results)
    if best is None:
        return spread, USUAL
    path, found = best
    for name, measured in found["spread"].items():
        if name in study.metrics:
            spread[name] = {"seeds": measured["rows"] * SEEDS_PER_ROW, **measured}
    seeds = len(found["seeds"])
    return spread, f"{path} (scale {found['scale']}, {seeds} seed{'s' if seeds > 1 else ''})"


def detectable(
    spread: Mapping[str, float], rows: int, seeds: int, comparisons: int, *, pooled: int = 0, alpha: float = 1 - LEVEL
) -> float:
    """Return the smallest difference that one of several comparisons detects with a power of 80 %.

    It is the half-width of the interval at Holm's first step, with spreads over seeds that are alike in all comparisons, and
    0.84 standard errors.

    Parameters
    ----------
    spread : mapping
        ``rows``, the standard deviation of one row, and ``seeds``, that over seeds.
    rows, seeds, comparisons : int
        The design.
    pooled : int
        Comparisons over which variances are moderated; 0: these.
    alpha : float
        Level of all comparisons together; twice as much for tests of equivalence.

    Returns
    -------
    float

    Examples
    --------
    >>> spread = {"rows": 0.4, "seeds": 0.02}
    >>> few, many = (detectable(spread, 1500, seeds, comparisons=12) for seeds in (3, 10))
    >>> many < few
    True
    """
    row_variance = spread["rows"] ** 2 / rows
    if seeds == 1:
        estimate = Estimate(0.0, row_variance)
    else:
        estimate = Estimate(0.0, row_variance, spread["seeds"] ** 2 / seeds, _freedom(seeds, pooled or comparisons))
    error = math.sqrt(estimate.row_variance + estimate.seed_variance)
    return estimate.half_width(alpha / comparisons) + float(special.ndtri(POWER)) * error


def _freedom(seeds: int, comparisons: int) -> float:
    """Degrees of freedom of moderated variances if those of all comparisons are alike."""
    freedom = seeds - 1
    excess = float(special.polygamma(1, freedom / 2)) * math.sqrt(2 / max(comparisons - 1, 0.25))
    return float(min(freedom + prior_freedom(excess), freedom * comparisons))


def _best_results(study: Study, results: Path | None) -> tuple[Path, dict[str, Any]] | None:
    """The results of the study with most seeds, the newest of these; None if there are none."""
    candidates = []
    for path in results.glob(f"{study.name}-*/results.json") if results is not None else ():
        try:
            found = read_json(path)
        except (DistilcalError, OSError):
            continue
        if isinstance(found, dict) and found.get("spread"):
            candidates.append((len(found["seeds"]), path.stat().st_mtime, path, found))
    if not candidates:
        return None
    *_, path, found = max(candidates, key=lambda candidate: candidate[:2])
    return path, found


def _sizes(study: Study) -> tuple[dict[tuple[str, str], int], dict[str, str]]:
    """Independent rows of every split of every task, and why tasks could not be read; of these the stated sizes are taken."""
    from distilcal.study.job import cached_splits, row_sources

    sizes: dict[tuple[str, str], int] = {}
    unread: dict[str, str] = {}
    for task, settings in study.tasks.items():
        data = task_recipe(study, task).data
        on_hub = sources_on_hub(data)
        if on_hub:
            unread[task] = f"{', '.join(on_hub)} would come from the hub"
        else:
            try:
                splits = cached_splits(data)
            except (InputError, MissingDependencyError) as error:
                unread[task] = str(error)
        if task in unread:
            sizes |= {(task, split): size for split, size in _stated_sizes(data).items()}
            continue
        for part in splits:
            sources = row_sources(part, settings.cluster)
            sizes[task, part.name] = len(part) if sources is None else len(set(sources.tolist()))
    return sizes, unread


def _stated_sizes(data: DataSettings) -> dict[str, int]:
    """Rows of the splits of data that cannot be read, as the catalogue has them, up to the limit of the settings."""
    stated = expected_sizes(data)
    names = {f"ood {i}": source.removeprefix(BENCHMARK_PREFIX).partition("@")[0] for i, source in enumerate(data.ood)}
    return {
        names.get(split, split): min(size, data.limit_test or size) for split, (_, size) in stated.items() if split != "train"
    }


def _rows(study: Study, place: PlaceSettings, sizes: Mapping[tuple[str, str], int]) -> int:
    """Independent rows of a place; versions of the same examples, corruptions among them, are not more than the test set."""
    limit = task_recipe(study, place.task).data.limit_test or UNKNOWN_ROWS
    of_test = sizes.get((place.task, "test"), limit)
    return min(sizes.get((place.task, split), of_test) for split in splits_of(study, place))


def _distinct(study: Study, graph: Graph, claim: ClaimSettings) -> set[ModelPair]:
    """The comparisons of a claim as the models of the first seed, where they are compared and how; equal ones are one."""
    distinct = set()
    for place in claim_places(study, claim):
        for pair in claim_pairs(claim):
            for other in pair.others:
                models = [graph.cells.get((method, place.task, study.seeds[0]), "") for method in (pair.first, other)]
                scaled = [study.methods[method].scaled for method in (pair.first, other)]
                distinct.add((*models, *scaled, splits_of(study, place), place.scaled))
    return distinct


def _claim_power(
    study: Study,
    graph: Graph,
    claim: ClaimSettings,
    spreads: Mapping[str, Mapping[str, float]],
    sizes: Mapping[tuple[str, str], int],
    pooled: int,
) -> ClaimPower:
    metric = study.metrics[claim.metric]
    rows = {_rows(study, place, sizes) for place in claim_places(study, claim)}
    count, seeds = len(_distinct(study, graph, claim)), len(study.seeds)
    spread = spreads.get(claim.metric)
    delta = claim.delta if claim.delta is not None else metric.delta
    smallest = equivalence = None
    if spread is not None:
        best, worst = (detectable(spread, number, seeds, count, pooled=pooled) for number in (max(rows), min(rows)))
        smallest = best, worst
        equivalence = detectable(spread, min(rows), seeds, count, pooled=pooled, alpha=2 * (1 - LEVEL))
    return ClaimPower(
        text=claim.text,
        metric=claim.metric,
        comparisons=count,
        rows=(min(rows), max(rows)),
        smallest=smallest,
        equivalence=equivalence,
        delta=None if delta is None else delta / metric.unit,
        percent=metric.percent,
        digits=metric.digits,
    )
