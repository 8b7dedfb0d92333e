"""Loading the model that predict and serve use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distilcal.errors import InputError

if TYPE_CHECKING:
    from distilcal.inference import Student

MODEL_FILES = ("metrics.json", "config.json", "distilcal.json")


def load_for_use(source: Path, stage: str = "") -> Student:
    """Load a student from an .onnx, the folder of a run, or a saved folder; without torch for an .onnx."""
    if source.suffix.lower() == ".onnx":
        if stage:
            raise InputError("an .onnx holds one model", source=str(source), remedy="leave out --stage")
        from distilcal.inference.onnx import load_onnx

        return load_onnx(source)
    if source.is_dir() and not any((source / name).exists() for name in MODEL_FILES):
        raise InputError(
            "this is not the folder of a finished run, nor of a saved model",
            source=str(source),
            remedy="give one made by distilcal run, distill or export, or an .onnx",
        )
    from distilcal.export import load_student
    from distilcal.pipeline.stage import move_to_device

    student = load_student(source, stage)
    move_to_device(student.classifier)
    return student
