"""The claims of a paper, checked on what a study measured: comparisons with their controls and premises, and verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distilcal.metrics import holm
from distilcal.study.analysis import StudyResults, finite_or_none
from distilcal.study.claim_settings import COMPARED, ClaimPair, ClaimSettings, PremiseSettings, claim_pairs
from distilcal.study.inference import (
    VERDICTS,
    Estimate,
    Sample,
    combine_comparisons,
    combine_controls,
    corrected_intervals,
    decide,
    estimate_each,
    paired_difference,
)
from distilcal.study.places import PlaceSettings, merge_places
from distilcal.study.schema import claim_places, pair_premises, premise_place

SAME_MODEL = "both are the same model here"


@dataclass
class ClaimPart:
    """One comparison of a claim: its first method with the paper's other method, or with a control."""

    pair: ClaimPair
    other: str
    place: PlaceSettings
    difference: Sample | None
    unmet: list[str] = field(default_factory=list)

    @property
    def is_control(self) -> bool:
        """Whether it is not the paper's own comparison."""
        return self.other != self.pair.second


def check_claims(results: StudyResults) -> list[dict[str, Any]]:
    """Check the claims of a study: a verdict on each comparison, and one on the whole.

    Variances over seeds are moderated over all differences of one metric. Holm's method corrects the comparisons of a claim.
    Comparisons of the same models count once.

    Parameters
    ----------
    results : StudyResults
        The study that was run.

    Returns
    -------
    list of dict
        The claims as ``results.json`` holds them.
    """
    claims = results.study.claims
    units_of = [_distinct_units(results, claim) for claim in claims]
    estimates = _estimates(claims, units_of)
    return [_claim(results, claim, units, estimates) for claim, units in zip(claims, units_of, strict=True)]


def spread_of_differences(results: StudyResults) -> dict[str, dict[str, float]]:
    """Return how much the compared differences vary, for planning other studies: metric → its spreads.

    Parameters
    ----------
    results : StudyResults
        The study that was run.

    Returns
    -------
    dict of str to dict
        ``seeds``, the standard deviation over seeds (missing with one seed), and ``rows``, that of one example, each the root
        of the mean variance over ``comparisons`` distinct comparisons.
    """
    spreads: dict[str, dict[str, float]] = {}
    units_of = [_distinct_units(results, claim) for claim in results.study.claims]
    for metric, samples in _distinct_differences(results.study.claims, units_of).items():
        rows = np.mean([sample.draws.mean(axis=0).var() * sample.examples for sample in samples.values()])
        spread = {"rows": math.sqrt(rows), "comparisons": len(samples)}
        over_seeds = [sample.values.var(ddof=1) for sample in samples.values() if len(sample.seeds) > 1]
        if over_seeds:
            spread["seeds"] = math.sqrt(np.mean(over_seeds))
        spreads[metric] = spread
    return spreads


# ---- comparisons -------------------------------------------------------------------------------------------------------


def _distinct_units(results: StudyResults, claim: ClaimSettings) -> list[list[ClaimPart]]:
    """The comparisons of a claim, each with its controls; those of models that were compared before are left out."""
    units: list[list[ClaimPart]] = []
    seen: set[tuple[bytes, ...]] = set()
    for pair in claim_pairs(claim):
        for place in claim_places(results.study, claim):
            methods = (pair.first, *pair.others)
            places = [merge_places(place, PlaceSettings(method=method, metric=claim.metric)) for method in methods]
            samples = [results.sample(one) for one in places]
            if all(sample is not None for sample in samples):
                content = tuple(sample.content for sample in samples if sample is not None)
                if content in seen:
                    continue
                seen.add(content)
            unmet = [text for premise in pair_premises(claim, pair) if (text := _unmet(results, premise, place))]
            units.append(
                [
                    _part(pair, other, place, samples[0], sample, unmet)
                    for other, sample in zip(pair.others, samples[1:], strict=True)
                ]
            )
    return units


def _part(
    pair: ClaimPair, other: str, place: PlaceSettings, first: Sample | None, second: Sample | None, unmet: list[str]
) -> ClaimPart:
    if first is None or second is None:
        return ClaimPart(pair, other, place, None, list(unmet))
    difference = paired_difference(first, second)
    same = [SAME_MODEL] if first.content == second.content else []
    return ClaimPart(pair, other, place, difference, [*unmet, *same])


def _unmet(results: StudyResults, premise: PremiseSettings, place: PlaceSettings) -> str:
    """What speaks against a premise in a place; empty if it is met."""
    where = premise_place(premise, place)

    def mean(method: str, metric: str) -> float:
        sample = results.sample(merge_places(where, PlaceSettings(method=method, metric=metric)))
        return math.nan if sample is None else float(sample.values.mean())

    metric = "accuracy"
    if premise.kind == "overconfident":
        surplus = mean(premise.method, "confidence") - mean(premise.method, "accuracy")
    elif premise.kind == "above_chance":
        chance = results.chance(merge_places(where, PlaceSettings(method=premise.method)))
        surplus = mean(premise.method, "accuracy") - chance
    else:
        metric, is_higher = COMPARED.get(premise.kind, (premise.metric, premise.kind == "higher"))
        surplus = mean(premise.method, metric) - mean(premise.than, metric)
        if not is_higher:
            surplus = -surplus
    settings = results.study.metrics[metric]
    if math.isnan(surplus):
        return f"not known whether {premise.text}"
    if surplus > premise.by / settings.unit:
        return ""
    margin = f" by more than {premise.by:g}" if premise.by else ""
    return f"not so that {premise.text}{margin}: {surplus * settings.unit:+.{settings.digits}f}"


# ---- verdicts ----------------------------------------------------------------------------------------------------------


def _distinct_differences(
    claims: Sequence[ClaimSettings], units_of: Sequence[Sequence[Sequence[ClaimPart]]]
) -> dict[str, dict[bytes, Sample]]:
    """The differences of all claims by metric and content, each once."""
    by_metric: dict[str, dict[bytes, Sample]] = {}
    for claim, units in zip(claims, units_of, strict=True):
        for part in _parts(units):
            if part.difference is not None and SAME_MODEL not in part.unmet:
                by_metric.setdefault(claim.metric, {})[part.difference.content] = part.difference
    return by_metric


def _estimates(
    claims: Sequence[ClaimSettings], units_of: Sequence[Sequence[Sequence[ClaimPart]]]
) -> dict[str, dict[bytes, Estimate]]:
    """The differences of all claims by metric and content, with variances that are moderated over the metric."""
    return {
        metric: dict(zip(samples, estimate_each(list(samples.values())), strict=True))
        for metric, samples in _distinct_differences(claims, units_of).items()
    }


def _parts(units: Sequence[Sequence[ClaimPart]]) -> Iterator[ClaimPart]:
    for unit in units:
        yield from unit


def _claim(
    results: StudyResults,
    claim: ClaimSettings,
    units: Sequence[Sequence[ClaimPart]],
    estimates: dict[str, dict[bytes, Estimate]],
) -> dict[str, Any]:
    metric = results.study.metrics[claim.metric]
    shown_delta = claim.delta if claim.delta is not None else metric.delta
    delta = None if shown_delta is None else shown_delta / metric.unit
    of_metric = estimates.get(claim.metric, {})
    # By content: a control that comes with several comparisons of the same first method is one test.
    known: dict[bytes, Estimate] = {}
    parts = list(_parts(units))
    for part in parts:
        if part.difference is not None and not part.unmet:
            known[part.difference.content] = of_metric[part.difference.content]
    intervals = dict(zip(known, corrected_intervals(list(known.values()), delta), strict=True))
    p_values = dict(zip(known, holm([estimate.p_value() for estimate in known.values()]), strict=True))
    entries = []
    for part in parts:
        tested = b"" if part.difference is None or part.unmet else part.difference.content
        interval = intervals.get(tested)
        verdict = decide(interval, expects_higher=claim.expects_higher, delta=delta, unmet=part.unmet)
        entry = _entry(claim, part, known.get(tested), interval, verdict)
        entries.append(entry | {"p": p_values.get(tested, 1.0), "percent": metric.percent, "digits": metric.digits})
    by_unit = [combine_controls([entry["verdict"] for entry in some]) for some in _regrouped(entries, units)]
    total = len(claim_pairs(claim)) * len(claim_places(results.study, claim))
    verdict, need = combine_comparisons(by_unit, claim.at_least / total if claim.at_least else 1.0)
    counts = Counter(by_unit)
    return {
        "text": claim.text,
        "verdict": verdict,
        "need": need,
        "metric": claim.metric,
        "delta": delta,
        "controls": list(dict.fromkeys(part.other for part in parts if part.is_control)),
        "premises": list(dict.fromkeys(premise.text for premise in claim.premises)),
        "counts": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        "equal": total - len(units),
        "percent": metric.percent,
        "digits": metric.digits,
        "parts": entries,
    }


def _entry(
    claim: ClaimSettings, part: ClaimPart, estimate: Estimate | None, interval: tuple[float, float] | None, verdict: str
) -> dict[str, Any]:
    """One comparison as ``results.json`` holds it, without its p-value."""
    where = f"{part.place.task}, {part.place.set}" if part.place.set else part.place.task
    value = None if part.difference is None else float(part.difference.values.mean())
    low, high = interval if interval is not None else (math.nan, math.nan)
    return {
        "what": f"{part.pair.first} {'above' if claim.expects_higher else 'below'} {part.other}, {where}",
        "control": part.is_control,
        "value": finite_or_none(estimate.value if estimate is not None else value),
        "low": finite_or_none(low),
        "high": finite_or_none(high),
        "verdict": verdict,
        "unmet": list(part.unmet),
    }


def _regrouped(entries: Sequence[dict[str, Any]], units: Sequence[Sequence[ClaimPart]]) -> Iterator[Sequence[dict[str, Any]]]:
    """The entries of each unit in turn."""
    start = 0
    for unit in units:
        yield entries[start : start + len(unit)]
        start += len(unit)
