"""The functions that run a network: `fit` trains it, `predict` and `compute_outputs` apply it."""

from distilcal.training.batches import same_inputs
from distilcal.training.loop import TrainingProgress, TrainingResult, fit
from distilcal.training.prediction import compute_outputs, predict
from distilcal.training.teacher import Features

__all__ = ["Features", "TrainingProgress", "TrainingResult", "compute_outputs", "fit", "predict", "same_inputs"]
