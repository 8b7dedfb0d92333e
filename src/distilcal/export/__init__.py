"""Shipping a student: folders that transformers loads, ONNX files with calibrated probabilities, model cards."""

from distilcal.export.files import export_student
from distilcal.export.report import AccuracyWarning, ExportReport, ModelFacts
from distilcal.export.student import RunStage, TorchBackend, TorchStudent, as_student, load_student

__all__ = [
    "AccuracyWarning",
    "ExportReport",
    "ModelFacts",
    "RunStage",
    "TorchBackend",
    "TorchStudent",
    "as_student",
    "export_student",
    "load_student",
]
