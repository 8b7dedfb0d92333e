"""The only two functions that train and run a network: ``fit`` and ``predict``."""

from distilcal.engine.loop import Fit, Step, fit
from distilcal.engine.predicting import logits_of, predict, teacher_outputs
from distilcal.engine.source import same_inputs

__all__ = ["Fit", "Step", "fit", "logits_of", "predict", "same_inputs", "teacher_outputs"]
