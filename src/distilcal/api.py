"""The front door: distil from Python, load what was distilled, read any data. ``import distilcal as dc`` has all of it.

`distill` does what ``distilcal distill`` does, by the same code: the command calls it. Heavy packages are imported when a
function needs them, so that ``dc.load("student.onnx")`` needs neither torch nor transformers.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilcal.errors import InputError, list_names, optional_packages

if TYPE_CHECKING:
    from distilcal.data import Dataset
    from distilcal.inference import Student
    from distilcal.predictions import Predictions
    from distilcal.runs import Run, RunSummary

STORE = "distilcal-store"  # unless $DISTILCAL_STORE names another folder
ROLES = ("text", "pair", "label", "id", "group")  # what a column can be, in column_mapping

OnStageProgress = Callable[[str, Any], None]  # name of a stage, TrainingProgress


@dataclass(frozen=True)
class Result:
    """A finished run of `distill`: its figures, its report and its student.

    ``print(result)`` shows the tables of the report; a notebook shows them with a reliability diagram.

    Parameters
    ----------
    folder : Path
        The folder of the run.

    Examples
    --------
    >>> Result(Path("runs/reviews"))
    Result('runs/reviews')
    """

    folder: Path

    @cached_property
    def run(self) -> Run:
        """The run, as `distilcal.runs.read_run` reads it."""
        from distilcal.runs import read_run

        return read_run(self.folder)

    @cached_property
    def summary(self) -> RunSummary:
        """The models of the run, the student compared with the others."""
        from distilcal.runs import summarise_runs

        return summarise_runs([self.run])

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Every figure of every model on every split, as in ``metrics.json``."""
        return self.run.facts

    @cached_property
    def student(self) -> Student:
        """The student, loaded when it is first used; `load` loads the other models of the run."""
        return load(self.folder)

    def predictions(self, stage: str = "student", split: str = "test") -> Predictions:
        """Return what a model of the run predicted on a split, as trained.

        Parameters
        ----------
        stage : str, default "student"
            "student", "alone" or "teacher".
        split : str, default "test"
            "dev", "test" or the name of another domain.

        Returns
        -------
        Predictions

        Raises
        ------
        InputError
            If there are no such predictions.
        """
        predictions = self.run.predictions(stage, split)
        if predictions is None:
            there = [f"{path.parts[-3]} on {path.stem}" for path in sorted(self.folder.glob("*/predictions/*.npz"))]
            raise InputError(
                f"there are no predictions of {stage!r} on {split!r}",
                source=str(self.folder),
                remedy=f"there are those of {', '.join(there)}",
            )
        return predictions

    def report(self, path: str | Path) -> Path:
        """Write the report as one self-contained page.

        Parameters
        ----------
        path : str or Path
            The HTML file.

        Returns
        -------
        Path
            The same file.
        """
        from distilcal.report.runs.page import write_runs_page

        write_runs_page(self.summary, Path(path))
        return Path(path)

    def __repr__(self) -> str:
        return f"Result({str(self.folder)!r})"

    def __str__(self) -> str:
        from distilcal.report.console import build_console
        from distilcal.report.runs.terminal import show_runs

        console = build_console(StringIO())
        show_runs(self.summary, console)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text.rstrip("\n")

    def _repr_html_(self) -> str:
        from distilcal.report.runs.page import render_summary

        return render_summary(self.summary)


def distill(
    train: Any,
    teacher: Any,
    student: Any = None,
    *,
    layers: Sequence[int] | str | None = (),
    dev: Any = "",
    test: Any = "",
    unlabelled: Any = (),
    ood: Any = (),
    classes: Sequence[str] | str | None = (),
    column_mapping: Mapping[str, str] | None = None,
    text: str = "",
    pair: str = "",
    choices: Sequence[str] | str = (),
    label: str = "label",
    id_column: str = "",
    group: str = "",
    teacher_labels: Sequence[str] | str | None = (),
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    labelled_share: float | None = None,
    max_length: int = 256,
    accuracy: float = 0.95,
    seed: int = 0,
    alone: bool = True,
    budget: str | float | None = None,
    name: str = "distilled",
    out: str | Path | None = None,
    store: str | Path | None = None,
    changes: Sequence[str] = (),
    dry_run: bool = False,
    track: str = "",
    progress: bool | OnStageProgress = True,
) -> Result:
    """Turn data and a teacher into a smaller student whose confidence can be trusted.

    A teacher that is trained for these classes is used as it is; an encoder without a head is trained first, with MDCA beside
    cross-entropy. Its logits are divided by its temperature on dev. The student learns from labels and teacher. An interrupted
    call that is repeated goes on.

    Parameters
    ----------
    train : path, DataFrame, datasets.Dataset, list, dict of columns, tuple of two lists, or Dataset
        Training data, as `load_dataset` reads them, or ``benchmark:NAME``. The splits of a ``DatasetDict`` are also dev and
        test. Data that are not files are copied into the folder of the run.
    teacher : str, Path, Predictions, model, classifier or callable
        Hub name or folder of a model, the name of a network for images (``resnet20``), predictions, or a run; a model of
        transformers; a fitted classifier with ``predict_proba``, whose classes are matched by name; or a function that returns
        probabilities (N, K) for a list of N inputs. A function is asked about 1,000 examples at a time.
    student : str, Path or model, optional
        Hub name, folder, run, name of a network for images (``resnet8``), or a model of transformers. By default every second
        layer of the teacher's encoder.
    layers : sequence of int
        Layers of the student to keep, counted from 0; empty: all.
    dev, test : as train
        Development and test data. By default a tenth and a fifth of ``train``.
    unlabelled : as train, or a list of texts
        Further training data without labels, which the teacher labels for the student; a list of paths is several of them.
        Rows of ``train`` whose label is None or NaN join them.
    ood : as train, a list of such, or a dict of them by name
        Data of other domains to test on.
    classes : sequence of str
        Names of the classes, in order. By default those of the labels' ``ClassLabel`` or categories, or as found in ``train``.
    column_mapping : dict of str to str, optional
        Names of columns to what they hold, such as ``{"review": "text", "stars": "label"}``; in place of the next arguments.
    text, pair : str
        Columns of texts and of second texts. By default the usual names.
    choices : sequence of str
        Columns of choices, or one that holds lists; ``text`` is the prompt.
    label : str, default "label"
        Column of labels.
    id_column : str
        Column of ids. By default ``id``, or computed from the content.
    group : str
        Column of groups that are never split between train and test.
    teacher_labels : sequence of str
        Classes of the teacher's outputs, in order, if it does not name them.
    epochs : int, optional
        Passes over the training data. By default 3, or as many as make 300 steps, ending early if dev does not improve.
    batch : int, optional
        Examples in a batch. By default 16 for fewer than 2,000 training examples, else 32.
    lr : float, optional
        Learning rate at its highest. By default 5e-5 for pretrained encoders, and for networks that start from nothing 1e-3
        (images) or 0.01 (``linear`` and ``mlp``).
    labelled_share : float, optional
        Share of labelled examples in the student's batches. By default as in the data.
    max_length : int, default 256
        Tokens after which a text is cut off.
    accuracy : float, default 0.95
        Target accuracy among the answers that are not handed over to a human.
    seed : int, default 0
        Seed of the models and of the order of the data.
    alone : bool, default True
        Also train the student without its teacher, to compare.
    budget : str or float, optional
        A time, as ``"30m"`` or in seconds: try several students, choose the best of them on dev, and be done by then. Test is
        read once, for the chosen one. ``epochs`` are then those of the teacher.
    name : str, default "distilled"
        Name of the run; that of its folder if ``out`` is given.
    out : str or Path, optional
        Folder of the run: a new one, or that of an earlier run, whose results stay until the new ones are complete. By default
        ``runs/NAME``.
    store : str or Path, optional
        Where trained stages are kept. By default ``$DISTILCAL_STORE``, or ``distilcal-store``.
    changes : sequence of str
        Changes to the recipe, such as ``stages.student.train.schedule=cosine``.
    dry_run : bool, default False
        Return what would be done, and write nothing. A teacher that is a function is not asked.
    track : {"", "tensorboard", "wandb", "mlflow"}
        Log losses and metrics to this tracker; its files go to ``track/`` in the folder of the run.
    progress : bool or callable, default True
        Show bars on a terminal or in a notebook, and a line a minute elsewhere; or a callable that receives the name of a stage
        and its `TrainingProgress`.

    Returns
    -------
    Result
        The figures, the report and the student; a `distilcal.pipeline.Plan` (or `distilcal.pipeline.budget.BudgetPlan`) if
        ``dry_run``.

    Raises
    ------
    InputError
        If data, teacher or settings are invalid, before anything is trained.

    Examples
    --------
    >>> result = distill(reviews, teacher="./my-bert", student="distilbert-base-uncased")  # doctest: +SKIP
    >>> result.student.predict(["a fine film"])  # doctest: +SKIP
    ['positive']
    """
    started = time.monotonic()
    with optional_packages("training"):
        from distilcal.pipeline.budget import parse_duration
        from distilcal.pipeline.call_sources import CallSources
        from distilcal.pipeline.calls import plan_call, run_call
        from distilcal.pipeline.distill import DistillSettings
        from distilcal.pipeline.preflight import check_folders
        from distilcal.pipeline.tracking import check_tracker

    _check_arguments(column_mapping, out=out, store=store, name=name, changes=changes, track=track, progress=progress)
    seconds = None if budget is None else parse_duration(budget)
    named = _named_columns(column_mapping, text=text, pair=pair, label=label, id=id_column, group=group)
    if out is not None:
        name = _run_name(Path(out))
    lists: dict[str, Any] = {"layers": layers, "classes": classes, "choices": choices, "teacher_labels": teacher_labels}
    lists = {name: _plain_list(values) for name, values in lists.items()}
    settings = DistillSettings(
        train="",
        teacher="",
        text=named["text"],
        pair=named["pair"],
        label=named["label"],
        id_column=named["id"],
        group=named["group"],
        epochs=epochs,
        batch=batch,
        lr=lr,
        labelled_share=labelled_share,
        max_length=max_length,
        accuracy=accuracy,
        seed=seed,
        alone=alone,
        name=name,
        **lists,
    )
    folder = Path("runs") / settings.name if out is None else Path(out)
    store = Path(store if store is not None else os.environ.get("DISTILCAL_STORE") or STORE)
    check_folders(folder, store)
    if track:
        check_tracker(track)
    sources = CallSources(train, dev, test, unlabelled, ood, teacher, student)
    if dry_run:
        with tempfile.TemporaryDirectory() as temporary:
            planned: Any = plan_call(settings, sources, Path(temporary), store, changes=changes, seconds=seconds)
            return planned  # type: ignore[no-any-return]  # the one case that is not a Result
    run_call(
        settings,
        sources,
        folder,
        store,
        changes=changes,
        seconds=seconds,
        started=started,
        progress=progress,
        track=track,
    )
    return Result(folder)


def load(path: str | Path, stage: str = "") -> Student:
    """Load a student: from a run, from what ``save_pretrained`` wrote, or from an .onnx file.

    Parameters
    ----------
    path : str or Path
        The folder of a finished run, or of one of its stages; a folder written by ``student.save_pretrained``; a folder or hub
        name of transformers; or an .onnx file written by ``student.export_onnx``, which needs neither torch nor transformers.
    stage : str, default ""
        Which model of a run; its student by default.

    Returns
    -------
    Student
        With ``predict`` and ``predict_proba``.

    Raises
    ------
    InputError
        If there is no model, or the run has no such stage.
    MissingDependencyError
        If a package is missing that runs the model.
    """
    from distilcal.inference.student import model_path

    if model_path(path).suffix.lower() == ".onnx":
        if stage:
            raise InputError("an .onnx holds one model", source=str(path), remedy="leave out stage")
        from distilcal.inference.onnx import load_onnx

        return load_onnx(path)
    with optional_packages("a model that is not an .onnx"):
        from distilcal.export import load_student

    return load_student(path, stage)


def load_dataset(
    data: Any,
    *,
    column_mapping: Mapping[str, str] | None = None,
    text: str = "",
    pair: str = "",
    choices: Sequence[str] = (),
    label: str = "label",
    id_column: str = "",
    group: str = "",
    classes: Sequence[str] | None = None,
    labelled: bool = True,
) -> Dataset:
    """Read examples of any form: files, DataFrames, Hugging Face data sets, lists, columns, arrays.

    Parameters
    ----------
    data : object
        A path or ``hub:NAME@SPLIT``; ``benchmark:NAME``, of which the training split is read; a pandas or polars DataFrame, a
        ``datasets.Dataset``, an Arrow table or a dict of columns; a list of dicts or of ``(text, label)``; a tuple of two lists
        or arrays, inputs and labels; a Dataset; or, without labels, a list of texts or an array.
    column_mapping : dict of str to str, optional
        Names of columns to what they hold, such as ``{"review": "text", "stars": "label"}``.
    text, pair, choices, label, id_column, group
        The same one by one, as for `distill`.
    classes : sequence of str, optional
        Names and order of the classes. By default those that the object names, or the labels in the data.
    labelled : bool, default True
        Whether the examples have labels. If False, labels are not read.

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        If the data are empty or invalid, with the row.

    Examples
    --------
    >>> load_dataset({"review": ["a fine film", "dull"], "stars": [5, 1]}, column_mapping={"review": "text", "stars": "label"})
    Dataset('data', 2 texts, 2 classes)
    """
    from distilcal.data.convert import to_dataset
    from distilcal.data.table_source import Columns

    _check_arguments(column_mapping)
    choices, classes = _plain_list(choices), _plain_list(classes)
    for name, names in (("choices", choices), ("classes", classes or ())):
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
            raise InputError(f"expected a list of texts, got {names!r:.80}", source=name, remedy='write it as ["a", "b"]')
    named = _named_columns(column_mapping, text=text, pair=pair, label=label, id=id_column, group=group)
    columns = Columns(choices=tuple(choices), **named)
    if isinstance(data, str) and data.startswith("benchmark:"):
        from distilcal.data.splits import read_benchmark

        return read_benchmark(data.removeprefix("benchmark:"), "train", classes)
    return to_dataset(data, columns=columns, classes=classes, labelled=labelled)


# ---- arguments ---------------------------------------------------------------------------------------------------------


def _check_arguments(column_mapping: Any = None, **values: Any) -> None:
    """Refuse arguments of the wrong type, each by its name. Settings check their own."""
    if column_mapping is not None and not isinstance(column_mapping, Mapping):
        raise InputError(
            f"expected a dict, got {column_mapping!r:.80}",
            source="column_mapping",
            remedy='write it as {"review": "text", "stars": "label"}',
        )
    for column in column_mapping or ():
        if not isinstance(column, str):
            raise InputError(f"the column {column!r:.80} is not text", source="column_mapping", remedy="name it as in the data")
    for name in ("out", "store"):
        value = values.get(name)
        if value is not None and not isinstance(value, str | Path):
            raise InputError(f"expected a path, got {value!r:.80}", source=name, remedy="give the path of a folder")
        if value == "":
            raise InputError("the path is empty", source=name, remedy="give the path of a folder, or leave it out")
    for name in ("name", "track"):
        if not isinstance(values.get(name, ""), str):
            raise InputError(f"expected text, got {values[name]!r:.80}", source=name, remedy="give text")
    changes = values.get("changes", ())
    if isinstance(changes, str) or not isinstance(changes, Sequence) or not all(isinstance(text, str) for text in changes):
        raise InputError(
            f"expected a list of texts, got {changes!r:.80}",
            source="changes",
            remedy='write it as ["stages.student.train.epochs=5"]',
        )
    progress = values.get("progress", True)
    if not isinstance(progress, bool) and not callable(progress):
        raise InputError(f"expected true, false or a callable, got {progress!r:.80}", source="progress", remedy="change it")


def _plain_list(values: Any) -> Any:
    """An array, a Series or an Index, such as ``classes_`` of scikit-learn, as a list; anything else as it is."""
    return values.tolist() if hasattr(values, "tolist") else values


def _run_name(folder: Path) -> str:
    """The name of a run after its folder, of which letters, digits and a few signs are kept."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", os.path.basename(os.path.abspath(folder)))[:100].strip("-.") or "distilled"


def _named_columns(column_mapping: Mapping[str, str] | None, **names: str) -> dict[str, str]:
    """Return the column of each role, from its own argument or the mapping."""
    for role, column in names.items():
        if not isinstance(column, str):
            raise InputError(f"expected the name of a column, got {column!r:.80}", source=role, remedy="give text")
    defaults = {"text": "", "pair": "", "label": "label", "id": "", "group": ""}
    for column, role in (column_mapping or {}).items():
        if role not in ROLES:
            raise InputError(
                f"column_mapping has {role!r} for {column!r}",
                remedy=f"map columns to {list_names(ROLES)}; leave out the others",
            )
        if names[role] != defaults[role]:
            raise InputError(f"column_mapping and another argument both name the column of {role}", remedy="give one of them")
        names[role] = column
    return names
