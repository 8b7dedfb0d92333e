"""Selective prediction: accept confident predictions, hand the others to a teacher or a human.

``risk_coverage`` shows the trade-off, ``aurc`` sums it up, ``threshold`` chooses a confidence above which predictions have a
required accuracy, with a guarantee that holds for any classifier. ``cascade`` shows what a student and its teacher give
together for every share that is handed over.
"""

from distilcal.selective.bounds import paired_rate_interval
from distilcal.selective.cascades import Cascade, CascadePoint, cascade, check_costs
from distilcal.selective.curves import RiskCoverage, area_under, aurc, excess_area, excess_aurc, risk_coverage
from distilcal.selective.formatting import counted, in_percent
from distilcal.selective.thresholds import SEARCH_STARTS, Threshold, threshold

__all__ = [
    "SEARCH_STARTS",
    "Cascade",
    "CascadePoint",
    "RiskCoverage",
    "Threshold",
    "area_under",
    "aurc",
    "cascade",
    "check_costs",
    "counted",
    "excess_area",
    "excess_aurc",
    "in_percent",
    "paired_rate_interval",
    "risk_coverage",
    "threshold",
]
