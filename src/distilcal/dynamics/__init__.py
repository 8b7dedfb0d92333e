"""Training dynamics: a model's predictions on each training example over the epochs, and the statistics of them."""

from distilcal.dynamics.maps import aum_halves, likely_mislabelled, random_halves, regions, saliency
from distilcal.dynamics.recorder import Recorder
from distilcal.dynamics.table import Dynamics, load_dynamics

__all__ = [
    "Dynamics",
    "Recorder",
    "aum_halves",
    "likely_mislabelled",
    "load_dynamics",
    "random_halves",
    "regions",
    "saliency",
]
