"""Networks that can be trained and distilled: text encoders, networks for small images, heads on vectors."""

from distilcal.models.classifier import Classifier, build_classifier, derive_classifier, load_classifier, save_classifier
from distilcal.models.image import NETWORKS, ConvNet, build_image_network
from distilcal.models.inputs import Batches, run_network
from distilcal.models.network import Network, Output, fold_temperature

__all__ = [
    "NETWORKS",
    "Batches",
    "Classifier",
    "ConvNet",
    "Network",
    "Output",
    "build_classifier",
    "build_image_network",
    "derive_classifier",
    "fold_temperature",
    "load_classifier",
    "run_network",
    "save_classifier",
]
