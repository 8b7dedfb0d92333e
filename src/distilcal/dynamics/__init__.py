"""What a model said about each training example while it learned: the record, and what can be read from it."""

from distilcal.dynamics.maps import aum_halves, likely_mislabelled, regions, saliency
from distilcal.dynamics.recorder import Recorder
from distilcal.dynamics.table import Dynamics, load_dynamics

__all__ = ["Dynamics", "Recorder", "aum_halves", "likely_mislabelled", "load_dynamics", "regions", "saliency"]
