"""Selective prediction: accept confident predictions, hand the others to a teacher or a human.

``risk_coverage`` shows the trade-off, ``aurc`` sums it up, ``threshold`` chooses a confidence above which predictions have a
required accuracy, with a guarantee that holds for any classifier. ``cascade`` shows what a student and its teacher give
together for every share that is handed over; ``output_threshold`` and ``loss_threshold`` make promises about the pair, and
``check_promise`` checks any promise on other rows; ``evaluate_cascade`` does all of it.
Where labels are few, ``to_label`` picks the rows that are worth one; ``label_rounds`` does it in rounds and keeps more.
"""

from distilcal.selective.bounds import paired_rate_interval
from distilcal.selective.cascades import Cascade, CascadePoint, cascade, check_costs
from distilcal.selective.curves import RiskCoverage, area_under, aurc, excess_area, excess_aurc, risk_coverage
from distilcal.selective.evaluation import CascadeEvaluation, CascadeSplit, evaluate_cascade
from distilcal.selective.formatting import counted, in_percent
from distilcal.selective.labelling import LabelPlan, labelled_threshold, to_label
from distilcal.selective.promises import (
    CascadeThreshold,
    PromiseCheck,
    check_promise,
    in_points,
    loss_threshold,
    output_threshold,
)
from distilcal.selective.rounds import LabelRounds, label_rounds, next_rows, rounds_threshold, stopping_bounds
from distilcal.selective.thresholds import SEARCH_STARTS, Threshold, threshold

__all__ = [
    "SEARCH_STARTS",
    "Cascade",
    "CascadeEvaluation",
    "CascadePoint",
    "CascadeSplit",
    "CascadeThreshold",
    "LabelPlan",
    "LabelRounds",
    "PromiseCheck",
    "RiskCoverage",
    "Threshold",
    "area_under",
    "aurc",
    "cascade",
    "check_costs",
    "check_promise",
    "counted",
    "evaluate_cascade",
    "excess_area",
    "excess_aurc",
    "in_percent",
    "in_points",
    "label_rounds",
    "labelled_threshold",
    "loss_threshold",
    "next_rows",
    "output_threshold",
    "paired_rate_interval",
    "risk_coverage",
    "rounds_threshold",
    "stopping_bounds",
    "threshold",
    "to_label",
]
