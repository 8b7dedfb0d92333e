"""What other libraries say of the same predictions: functions of (probs, labels) or (logits, labels), listed at the end.

To compare one more, add a line to ``METRIC_PEERS`` or ``FIT_PEERS``. Each peer is imported by the call that needs it, so
that one which is missing costs its own rows only.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

Array = NDArray[Any]
OfArrays = Callable[[Array, Array], float]


def torch_tensors(*arrays: Array) -> list[Any]:
    torch = import_module("torch")
    torch.set_num_threads(1)
    return [torch.from_numpy(array) for array in arrays]


# ---- metrics of (probs, labels) ----------------------------------------------------------------------------------------


def torchmetrics_error(scores: Array, labels: Array, bins: int = 15, norm: str = "l1") -> float:
    error = import_module("torchmetrics.functional.classification").multiclass_calibration_error
    return float(error(*torch_tensors(scores, labels), num_classes=scores.shape[1], n_bins=bins, norm=norm))


def netcal_ece(probs: Array, labels: Array, bins: int = 15) -> float:
    return float(import_module("netcal.metrics").ECE(bins).measure(probs, labels))


def kumar_ece(probs: Array, labels: Array, bins: int = 15, debias: bool = False) -> float:
    return float(import_module("calibration").get_ece(probs, labels, num_bins=bins, debias=debias))


def kumar_equal_mass(probs: Array, labels: Array) -> float:
    return float(import_module("calibration").get_ece_em(probs, labels))


def kumar_marginal(probs: Array, labels: Array) -> float:
    return float(import_module("calibration").get_calibration_error(probs, labels, p=1, debias=False))


def kumar_debiased_square(probs: Array, labels: Array) -> float:
    peer = import_module("calibration.utils")
    return float(peer.lower_bound_scaling_ce(probs, labels, p=2, binning_scheme=peer.get_equal_prob_bins, mode="top-label"))


def relplot_smooth(probs: Array, labels: Array) -> float:
    return float(import_module("relplot").smECE(probs.max(axis=1), (probs.argmax(axis=1) == labels).astype(float)))


def smooth_ece_by_integration(probs: Array, labels: Array, points: int = 4000) -> float:
    """Smooth ECE as it is defined: the kernel of every row with its mirror images, without histogram or transform."""
    confidence = probs.max(axis=1)
    at = (np.arange(points) + 0.5) / points
    images = np.concatenate([sign * confidence + 2 * turn for turn in (-2, -1, 0, 1, 2) for sign in (1, -1)])
    residuals = np.tile((probs.argmax(axis=1) == labels) - confidence, 10) / len(labels)

    def excess(sigma: float) -> float:
        near = (images > -9 * sigma) & (images < 1 + 9 * sigma)
        kernels = np.exp(-(((at[:, None] - images[near]) / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi))
        return float(np.abs(kernels @ residuals[near]).mean() - sigma)

    return float(brentq(excess, 1e-3, 0.5, xtol=1e-9))


def probmetrics_metric(name: str) -> OfArrays:
    def metric(probs: Array, labels: Array) -> float:
        found = getattr(import_module("probmetrics.metrics"), name)()
        return float(found.compute_from_labels_probs(*torch_tensors(labels, probs)))

    return metric


def sklearn_score(name: str) -> OfArrays:
    return lambda probs, labels: float(getattr(import_module("sklearn.metrics"), name)(labels, probs))


# ---- temperatures of (logits, labels) ----------------------------------------------------------------------------------


def sklearn_solver(logits: Array, labels: Array) -> float:
    return 1 / float(import_module("sklearn.calibration")._TemperatureScaling().fit(logits, labels).beta_)


def sklearn_calibrated(logits: Array, labels: Array) -> float:
    base = import_module("sklearn.base")

    class Given(base.ClassifierMixin, base.BaseEstimator):  # type: ignore[misc, name-defined]
        """A classifier whose inputs are its scores."""

        def fit(self, scores: Array, labels: Array) -> Given:
            self.classes_ = np.arange(scores.shape[1])
            return self

        def predict(self, scores: Array) -> Array:
            return scores.argmax(axis=1)

        def decision_function(self, scores: Array) -> Array:
            return scores

    frozen = import_module("sklearn.frozen").FrozenEstimator(Given().fit(logits, labels))
    fitted = import_module("sklearn.calibration").CalibratedClassifierCV(frozen, method="temperature").fit(logits, labels)
    return 1 / float(fitted.calibrated_classifiers_[0].calibrators[0].beta_)


def probmetrics_bisection(logits: Array, labels: Array) -> float:
    calibrator = import_module("probmetrics.calibrators.temperature_scaling").TemperatureScalingCalibrator()
    scores, targets = torch_tensors(logits, labels)
    calibrator.fit_torch(import_module("probmetrics.distributions").CategoricalLogits(scores), targets)
    return 1 / float(calibrator.invtemp_)


# Metric, its parameters, the peer, the peer's figure, and what to know if the two differ.
METRIC_PEERS: list[tuple[str, dict[str, Any], str, OfArrays, str]] = [
    ("ece", {}, "torchmetrics", torchmetrics_error, "it sums in float32"),
    ("mce", {}, "torchmetrics", lambda p, y: torchmetrics_error(p, y, norm="max"), "it sums in float32"),
    ("ece", {}, "netcal", netcal_ece, ""),
    ("ece", {}, "uncertainty-calibration", kumar_ece, ""),
    ("ece", {}, "probmetrics", probmetrics_metric("CalibrationError"), "it calls torchmetrics"),
    ("ada_ece", {}, "uncertainty-calibration", kumar_equal_mass, "edges one row apart: ours are AdaECE's authors'"),
    ("ace", {}, "uncertainty-calibration", kumar_marginal, "only rows left over by bins that do not divide N move"),
    ("debiased_ece", {}, "uncertainty-calibration", lambda p, y: kumar_ece(p, y, debias=True), ""),
    ("debiased_ece", {"norm": 2}, "uncertainty-calibration", kumar_debiased_square, "both leave out bins of one row"),
    ("smooth_ece", {}, "relplot", relplot_smooth, "its σ is a multiple of 1/1024, its mesh coarse"),
    ("ks", {}, "probmetrics", probmetrics_metric("KolmogorovSmirnovCalibrationMetric"),
     "for two classes only: with more it sets the probability of class 1 against the label's number"),
    ("brier", {}, "scikit-learn", sklearn_score("brier_score_loss"), ""),
    ("nll", {}, "scikit-learn", sklearn_score("log_loss"), ""),
]  # fmt: skip

# Peer, its temperature, and the largest ratio of times that meets our target.
FIT_PEERS: list[tuple[str, OfArrays, float | None]] = [
    ("scikit-learn's solver", sklearn_solver, 1 / 5),
    ("scikit-learn's CalibratedClassifierCV", sklearn_calibrated, None),
    ("probmetrics' bisection", probmetrics_bisection, None),
]
