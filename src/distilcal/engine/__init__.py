"""The only two functions that train and run a network: ``fit`` and ``predict``."""

from distilcal.engine.loop import Fit, Step, fit
from distilcal.engine.predicting import predict, teacher_outputs

__all__ = ["Fit", "Step", "fit", "predict", "teacher_outputs"]
