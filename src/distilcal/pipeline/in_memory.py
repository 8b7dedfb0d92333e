"""Data, teachers and students that are Python objects, and the files in the folder of a run that stand for them.

A recipe names files only. What `distilcal.distill` is given in memory is checked first and then written to ``data/`` in the
folder of the run, so that the recipe there is complete and an interrupted call goes on. To add a kind of teacher, add a case to
`InMemory.add_teacher`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.data.dataset import Dataset
from distilcal.data.splits import Splits
from distilcal.data.table_source import Columns
from distilcal.data.writing import file_suffix, write_dataset
from distilcal.errors import InputError
from distilcal.inference.called import bare_model
from distilcal.io.atomic import system_errors
from distilcal.io.parts import give_usual_mode
from distilcal.models.pretrained import load_tokenizer, quiet_transformers
from distilcal.pipeline.asking import (
    AskedTeacher,
    OnProgress,
    ask_teacher,
    callable_teacher,
    estimator_teacher,
    teacher_classes,
)
from distilcal.predictions import Predictions


@dataclass
class InMemory:
    """Objects that become files in the folder of a run.

    Attributes
    ----------
    folder : Path
        Where the files are written: ``data`` in the folder of the run.
    columns : Columns
        The names of the columns of texts.
    datasets : dict of str to Dataset
        Data by the file that stands for them.
    models : dict of str to object
        Models of transformers by the folder that stands for them.
    teacher : Predictions or AskedTeacher, optional
        A teacher without a model.
    replaced : dict of Path to Path
        What was written, and where what was there before is set aside.
    """

    folder: Path
    columns: Columns = field(default_factory=Columns)
    datasets: dict[str, Dataset] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    teacher: Predictions | AskedTeacher | None = None
    replaced: dict[Path, Path] = field(default_factory=dict)

    @property
    def teacher_file(self) -> Path:
        """The predictions of a teacher without a model."""
        return self.folder / "teacher.npz"

    @property
    def configs(self) -> dict[str, Mapping[str, Any]]:
        """The configurations of the models by folder; that of a teacher without a model is empty."""
        configs: dict[str, Mapping[str, Any]] = {source: model_config(model) for source, model in self.models.items()}
        if self.teacher is not None:
            configs[str(self.teacher_file)] = {}
        return configs

    def add_data(self, name: str, data: Dataset) -> str:
        """Add data, and return the file that stands for them.

        Parameters
        ----------
        name : str
            Name of the file without suffix.
        data : Dataset
            The examples.

        Returns
        -------
        str
        """
        source = self.folder / f"{name}{file_suffix(data)}"
        self.datasets[str(source)] = replace(data, name=source.stem)
        return str(source)

    def add_teacher(self, teacher: Any) -> str:
        """Add a teacher that is an object, and return the file or folder that stands for it.

        Parameters
        ----------
        teacher : object
            Predictions; a model or a text-classification pipeline of transformers; an object with ``predict_proba``; or a
            callable that returns probabilities (N, K) for a list of N inputs.

        Returns
        -------
        str

        Raises
        ------
        InputError
            If it is none of these.
        """
        if is_model(teacher):
            return self.add_model("teacher", teacher)
        if isinstance(teacher, Predictions):
            self.teacher = teacher
        elif hasattr(teacher, "predict_proba"):
            self.teacher = estimator_teacher(teacher)
        elif callable(teacher):
            self.teacher = callable_teacher(teacher)
        else:
            raise InputError(
                f"a {type(teacher).__name__} cannot teach",
                source="teacher",
                remedy="give a folder or hub name, predictions, a model of transformers, an object with predict_proba, or a "
                "function that returns probabilities (N, K)",
            )
        return str(self.teacher_file)

    def add_model(self, name: str, model: Any) -> str:
        """Add a model of transformers, and return the folder that stands for it.

        Parameters
        ----------
        name : str
            Name of the folder, and of the argument for messages.
        model : transformers.PreTrainedModel or pipeline
            Its tokenizer is that of the pipeline, its own attribute ``tokenizer``, or the one beside its weights.

        Returns
        -------
        str

        Raises
        ------
        InputError
            If it is not a model, or its tokenizer is not known.
        """
        if not is_model(model):
            raise InputError(
                f"a {type(model).__name__} cannot be a model",
                source=name,
                remedy="give a folder, a hub name or a model of transformers",
            )
        model_tokenizer(model, name)
        source = str(self.folder / name)
        self.models[source] = model
        return source

    def write_models(
        self, splits: Splits, *, teacher_labels: tuple[str, ...] = (), on_progress: OnProgress | None = None
    ) -> None:
        """Write the models, and the predictions of a teacher without one; a teacher that is called is asked for them.

        What was there before is set aside until `forget_replaced`; `restore` brings it back.

        Parameters
        ----------
        splits : Splits
            The examples to ask about.
        teacher_labels : tuple of str
            Classes of the teacher's columns, in order; by default its own, or those of the data.
        on_progress : callable, optional
            Called with the number of examples that the teacher has answered, and of all.
        """
        predictions = self.teacher
        if isinstance(predictions, AskedTeacher):
            predictions = ask_teacher(predictions, splits, self.folder, labels=teacher_labels, on_progress=on_progress)
        self._save_models()
        if predictions is not None:
            self._save_predictions(predictions)

    def write_data(self) -> None:
        """Write the data, each file whole or not at all; what was there before is set aside until `forget_replaced`."""
        for source, data in self.datasets.items():
            path = Path(source)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".new-{path.name}")
            write_dataset(data, temporary, self.columns)
            self._replace(path, temporary)

    def forget_replaced(self) -> None:
        """Delete what was set aside."""
        for aside in self.replaced.values():
            _remove(aside)
        self.replaced.clear()

    def restore(self) -> None:
        """Delete what was written and bring back what was there before. Answers of a teacher are kept."""
        for path, aside in self.replaced.items():
            _remove(path)
            if aside.exists():
                os.replace(aside, path)
        self.replaced.clear()
        with suppress(OSError):  # there are answers of a teacher, or data of an earlier run
            self.folder.rmdir()

    def write_placeholders(self, splits: Splits, *, teacher_labels: tuple[str, ...] = ()) -> None:
        """Write what a plan reads: the models, predictions, and for a teacher that would be asked some that know nothing.

        Parameters
        ----------
        splits : Splits
            The examples.
        teacher_labels : tuple of str
            As for `write_models`.

        Raises
        ------
        InputError
            If the classes of a teacher that would be asked are not those of the data.
        """
        self._save_models()
        predictions = self.teacher
        if isinstance(predictions, AskedTeacher):
            classes = teacher_classes(predictions, teacher_labels, splits.train.classes)
            ids = np.unique(np.concatenate([data.ids for data in splits]))
            probs = np.full((len(ids), len(classes)), 1 / len(classes))
            predictions = Predictions.from_probs(probs, ids=ids, classes=classes)
        if predictions is not None:
            self._save_predictions(predictions)

    def _save_models(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for source, model in self.models.items():
            temporary = _save_model(model, Path(source))
            self._replace(Path(source), temporary)

    def _save_predictions(self, predictions: Predictions) -> None:
        temporary = self.folder / f".new-{self.teacher_file.name}"
        predictions.save(temporary)
        self._replace(self.teacher_file, temporary)

    def _replace(self, path: Path, temporary: Path) -> None:
        """Move a new file or folder to its path, and what was there aside."""
        aside = path.with_name(f".old-{path.name}")
        if path.exists() and not aside.exists():  # else a call was killed that had set it aside
            os.replace(path, aside)
        self.replaced[path] = aside
        _remove(path)
        os.replace(temporary, path)


def is_model(value: Any) -> bool:
    """Return whether an object is a model of transformers, or a pipeline around one.

    Parameters
    ----------
    value : object
        Anything.

    Returns
    -------
    bool
    """
    return bare_model(value) is not None


def model_config(model: Any) -> dict[str, Any]:
    """Return the configuration that a model of transformers is saved with.

    Parameters
    ----------
    model : transformers.PreTrainedModel or pipeline
        The model.

    Returns
    -------
    dict
    """
    model = bare_model(model)
    return {**model.config.to_dict(), "architectures": [type(model).__name__]}


def model_tokenizer(model: Any, name: str) -> Any:
    """Return the tokenizer of a model: its own, or the one in the folder or hub repository that it was loaded from.

    Parameters
    ----------
    model : transformers.PreTrainedModel or pipeline
        The model.
    name : str
        Name of the argument, for messages.

    Returns
    -------
    transformers.PreTrainedTokenizerBase

    Raises
    ------
    InputError
        If its tokenizer is not known.
    """
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is not None:
        return tokenizer
    origin = getattr(model, "name_or_path", "")
    if not origin:
        raise InputError(
            f"the {type(model).__name__} has no tokenizer",
            source=name,
            remedy=f"set {name}.tokenizer, or save both with save_pretrained and give the folder",
        )
    return load_tokenizer(origin, name)


def _remove(path: Path) -> None:
    """Delete a file or a folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _save_model(model: Any, folder: Path) -> Path:
    """Save a model in a temporary folder beside the one that it is for, and return it."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
    try:
        with quiet_transformers(), system_errors(folder):
            bare_model(model).save_pretrained(temporary)
            model_tokenizer(model, folder.name).save_pretrained(temporary)
        give_usual_mode(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return temporary
