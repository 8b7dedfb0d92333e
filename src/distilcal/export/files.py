"""Exporting by names: from a run or a folder to an .onnx or a folder, with data read from files."""

from __future__ import annotations

from pathlib import Path

from distilcal.data import Columns, Dataset, read_dataset
from distilcal.errors import InputError
from distilcal.export.report import ExportReport
from distilcal.export.student import TorchStudent, load_student
from distilcal.io.atomic import refuse_same_file


def export_student(
    source: str | Path,
    target: Path,
    *,
    stage: str = "",
    int8: bool = False,
    max_drop: float = 0.5,
    dev: str = "",
    test: str = "",
    columns: Columns | None = None,
) -> ExportReport | None:
    """Export a student as ``distilcal export`` does.

    Parameters
    ----------
    source : str or Path
        The folder of a run, of a saved student, or of a transformers model.
    target : Path
        A name that ends in .onnx for `TorchStudent.export_onnx`, any other for `TorchStudent.save_pretrained`.
    stage : str, default ""
        Which model of a run; its student by default.
    int8 : bool, default False
        Whether weights are in 8 bits.
    max_drop : float, default 0.5
        Percentage points of accuracy that 8 bits may cost.
    dev, test : str, default ""
        Labelled data: a file, a folder or ``hub:NAME@SPLIT``; by default those of the run.
    columns : Columns, optional
        Which columns of these data hold what; by default those of the run, or the usual names.

    Returns
    -------
    ExportReport or None
        None for a folder.

    Raises
    ------
    InputError
        If the student or data cannot be loaded, or the result not be written.
    """
    is_folder = target.suffix.lower() != ".onnx"
    if is_folder and (int8 or dev or test):
        raise InputError(
            f"a folder holds the model as it is, so that {str(target)!r} takes neither 8 bits nor data",
            remedy="give a name that ends in .onnx",
        )
    if Path(source).suffix.lower() == ".onnx":
        raise InputError(
            "an .onnx is exported already", source=str(source), remedy="give the run or the folder that it was exported from"
        )
    refuse_same_file([source], [target])
    student = load_student(source, stage)
    if is_folder:
        student.save_pretrained(target)
        return None
    return student.export_onnx(
        target,
        int8=int8,
        max_drop=max_drop,
        dev=_read_labelled(dev, "dev", student, columns) if dev else None,
        test=_read_labelled(test, "test", student, columns) if test else None,
    )


def _read_labelled(source: str, name: str, student: TorchStudent, columns: Columns | None) -> Dataset:
    size = None
    if student.source is not None:
        settings = student.source.recipe().data
        size = settings.size or None
        columns = columns or Columns(
            text=settings.text, pair=settings.pair, choices=settings.choices, label=settings.label, id=settings.id
        )
    return read_dataset(source, columns=columns, classes=student.classes, name=name, size=size, by_index=False)
