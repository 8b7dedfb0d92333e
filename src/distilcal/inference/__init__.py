"""Using a finished classifier: labels, calibrated probabilities, and what to leave to a teacher or a human. Needs no torch."""

from distilcal.inference.deferral import Acceptance, Answer, DeferralTeacher
from distilcal.inference.files import PredictedFile, predict_file
from distilcal.inference.student import Backend, Student, as_inputs

__all__ = ["Acceptance", "Answer", "Backend", "DeferralTeacher", "PredictedFile", "Student", "as_inputs", "predict_file"]
