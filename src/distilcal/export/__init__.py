"""Shipping a student: folders that transformers loads, ONNX files with calibrated probabilities, model cards."""

from distilcal.export.student import RunStage, TorchBackend, TorchStudent, as_student, load_student

__all__ = ["RunStage", "TorchBackend", "TorchStudent", "as_student", "load_student"]
