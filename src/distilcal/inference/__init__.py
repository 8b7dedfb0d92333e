"""Using a finished classifier: labels, calibrated probabilities and what to hand over. Needs no torch."""

from distilcal.inference.files import PredictedFile, predict_file
from distilcal.inference.student import Answer, Backend, Student, as_inputs

__all__ = ["Answer", "Backend", "PredictedFile", "Student", "as_inputs", "predict_file"]
