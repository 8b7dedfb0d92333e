"""The only two functions that train and run a network: ``fit`` and ``predict``."""

from distilcal.training.batches import same_inputs
from distilcal.training.loop import Fit, Step, fit
from distilcal.training.predict import logits_of, predict, teacher_outputs

__all__ = ["Fit", "Step", "fit", "logits_of", "predict", "same_inputs", "teacher_outputs"]
