"""Networks that can be trained and distilled: text encoders, networks for small images, heads on vectors, linear theory."""

from distilcal.models.base import Output, Stepwise, fold_temperature
from distilcal.models.cifar import NETWORKS, network, padded_resnet_state
from distilcal.models.classifier import Classifier, load_classifier, make_classifier, save_classifier, shrunk
from distilcal.models.inputs import Batches, outputs
from distilcal.models.layers import Network
from distilcal.models.linear import exact_student, linear_kd_losses, theorem1_student

__all__ = [
    "NETWORKS",
    "Batches",
    "Classifier",
    "Network",
    "Output",
    "Stepwise",
    "exact_student",
    "fold_temperature",
    "linear_kd_losses",
    "load_classifier",
    "make_classifier",
    "network",
    "outputs",
    "padded_resnet_state",
    "save_classifier",
    "shrunk",
    "theorem1_student",
]
