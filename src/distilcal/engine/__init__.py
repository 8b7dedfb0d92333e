"""The only two functions that train and run a network: ``fit`` and ``predict``."""

from distilcal.engine.loop import Fit, Step, fit
from distilcal.engine.predicting import logits_of, predict, teacher_outputs

__all__ = ["Fit", "Step", "fit", "logits_of", "predict", "teacher_outputs"]
