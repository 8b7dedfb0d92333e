"""Metrics of calibration and what goes with them, NumPy only.

``METRICS`` lists plain functions ``f(probs, labels, **params) -> float``; ``evaluate`` gives all of them with intervals,
null values and definitions; ``compare`` tests two sets of predictions against each other; ``reliability`` gives the bins
behind a reliability diagram.
"""

from distilcal.metrics.bootstrap import (
    Comparison,
    Difference,
    Evaluation,
    MetricValue,
    OnProgress,
    compare,
    evaluate,
    replicates,
)
from distilcal.metrics.class_wise import ace, sce, tace
from distilcal.metrics.decorator import metric
from distilcal.metrics.definitions import (
    ALL_METRICS,
    CALIBRATION_ERRORS,
    HIGHER_IS_BETTER,
    HUMAN_METRICS,
    METRICS,
    NO_DIRECTION,
    TOP_LABEL,
    UPPER_LIMIT,
    definition,
    parameters,
)
from distilcal.metrics.human import human_cross_entropy, human_ece, human_tv
from distilcal.metrics.intervals import binomial_interval, holm, is_significant, paired_interval
from distilcal.metrics.ranking import aurc
from distilcal.metrics.reliability_diagram import Reliability, reliability
from distilcal.metrics.rows import Closed
from distilcal.metrics.scores import accuracy, brier, confidence, entropy, nll
from distilcal.metrics.top_label import ada_ece, debiased_ece, ece, ks, mce, oe, rmsce, smooth_ece

__all__ = [
    "ALL_METRICS",
    "CALIBRATION_ERRORS",
    "HIGHER_IS_BETTER",
    "HUMAN_METRICS",
    "METRICS",
    "NO_DIRECTION",
    "TOP_LABEL",
    "UPPER_LIMIT",
    "Closed",
    "Comparison",
    "Difference",
    "Evaluation",
    "MetricValue",
    "OnProgress",
    "Reliability",
    "accuracy",
    "ace",
    "ada_ece",
    "aurc",
    "binomial_interval",
    "brier",
    "compare",
    "confidence",
    "debiased_ece",
    "definition",
    "ece",
    "entropy",
    "evaluate",
    "holm",
    "human_cross_entropy",
    "human_ece",
    "human_tv",
    "is_significant",
    "ks",
    "mce",
    "metric",
    "nll",
    "oe",
    "paired_interval",
    "parameters",
    "reliability",
    "replicates",
    "rmsce",
    "sce",
    "smooth_ece",
    "tace",
]
