"""The table of training dynamics: one row per example, by id. NumPy only, so that maps are read without torch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError
from distilcal.io.atomic import read_json, write_json
from distilcal.io.folders import MANIFEST, sealed_folder, verify_folder
from distilcal.predictions import find_rows

Floats = NDArray[np.floating[Any]]
NEVER_LEARNED = 1000  # forgetting of an example that was never right, as in the cartography tool


@dataclass(frozen=True)
class Dynamics:
    """Statistics of a model's predictions on each training example over the epochs, from the training pass.

    Examples
    --------
    >>> from distilcal.dynamics import Recorder
    >>> recorder = Recorder(["a", "b"], [0, 1], ["no", "yes"])
    >>> recorder.record([0, 1], np.array([[2.0, 0.0], [1.0, 0.0]]))
    >>> recorder.end_epoch()
    >>> dynamics = recorder.dynamics()
    >>> dynamics.confidence.round(3).tolist(), dynamics.aum.tolist()
    ([0.8809999823570251, 0.26899999380111694], [2.0, -1.0])
    """

    ids: NDArray[np.str_]  # (N,)
    labels: NDArray[np.int64]  # (N,)
    classes: tuple[str, ...]
    epochs: NDArray[np.int32]  # (N,) measurements of each example
    confidence: Floats  # (N,) mean probability of the label
    variability: Floats  # (N,) population standard deviation of it
    correctness: NDArray[np.int32]  # (N,) epochs in which the label was predicted
    forgotten: NDArray[np.int32]  # (N,) times it went from right to wrong
    aum: Floats  # (N,) mean margin of the label's logit over the largest other
    logits: Floats  # (N, K) of the last epoch
    feature_saliency: Floats | None = None  # (N, D) |feature · gradient| of the last epoch, where it was recorded

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def forgetting(self) -> NDArray[np.int32]:
        """Number of times an example went from right to wrong; 1000 if it was never right."""
        return np.where(self.correctness == 0, NEVER_LEARNED, self.forgotten).astype(np.int32)

    @property
    def threshold_closeness(self) -> Floats:
        """μ(1 − μ): large where the mean probability of the label is near 1/2."""
        return self.confidence * (1 - self.confidence)

    @property
    def variability_ci(self) -> Floats:
        """√(v + v²/(E − 1)), v the variance: variability, widened for few epochs."""
        variance = self.variability**2
        return np.sqrt(variance + variance**2 / np.maximum(self.epochs - 1, 1))

    def select(self, rows: NDArray[np.int64]) -> Dynamics:
        """Return the table of some rows, in this order."""
        arrays = {column.name: getattr(self, column.name) for column in fields(self) if column.name != "classes"}
        return Dynamics(classes=self.classes, **{name: a[rows] for name, a in arrays.items() if a is not None})

    def for_examples(self, ids: NDArray[np.str_], labels: NDArray[np.int64], classes: tuple[str, ...], name: str) -> Dynamics:
        """Return the table of these training examples, matched by id.

        Parameters
        ----------
        ids : array of str, shape (N,)
            Ids of the examples.
        labels : array of int, shape (N,)
            Their class indices; a map that has another label for one of them is refused.
        classes : tuple of str
            Class names, in the order that the result is to have.
        name : str
            Name of the map, for error messages.

        Returns
        -------
        Dynamics
            One row per example, in the order of ``ids``, with the columns of its logits in the order of ``classes``.

        Raises
        ------
        InputError
            If the map lacks an example, has another label for it, or recorded less than one epoch.
        """
        rows, missing = find_rows(self.ids, ids)
        if len(missing):
            raise InputError(
                f"the map {name!r} is of other data: it lacks {len(missing)} of {len(ids)} training examples, "
                f"the first with id {str(missing[0])!r}",
                remedy="record the map on the data that this stage trains on",
            )
        data_labels, map_labels = np.array(classes)[labels], np.array(self.classes)[self.labels[rows]]
        differ = data_labels != map_labels
        if differ.any():
            row = int(differ.argmax())
            raise InputError(
                f"the map {name!r} is of other data: it calls id {str(ids[row])!r} {str(map_labels[row])!r}, "
                f"the data {str(data_labels[row])!r}",
                remedy="record the map on the data that this stage trains on",
            )
        unseen = self.epochs[rows] == 0
        if unseen.any():
            raise InputError(
                f"the map {name!r} has seen {len(ids) - int(unseen.sum())} of {len(ids)} training examples only",
                remedy="record at least one whole epoch",
            )
        unknown = [c for c in classes if c not in self.classes]
        if unknown:
            raise InputError(f"the map {name!r} has no class {unknown[0]!r}", remedy="record it on data with the same classes")
        selected = self.select(rows)
        columns = [self.classes.index(c) for c in classes]
        return replace(selected, labels=labels, classes=classes, logits=selected.logits[:, columns])

    def save(self, folder: str | Path) -> None:
        """Save the table in a new folder, one ``.npy`` file per column, with checksums.

        Parameters
        ----------
        folder : str or Path
            The folder to create.

        Raises
        ------
        InputError
            If the folder exists already.
        """
        folder = Path(folder)
        if folder.exists():
            raise InputError("this exists already", source=str(folder), remedy="give a new folder")
        with sealed_folder(folder) as aside:
            for column in fields(self):
                array = getattr(self, column.name)
                if column.name != "classes" and array is not None:
                    np.save(aside / f"{column.name}.npy", array)
            write_json(aside / "classes.json", list(self.classes))


def load_dynamics(folder: str | Path) -> Dynamics:
    """Load the table that `Dynamics.save` wrote, memory-mapped.

    Parameters
    ----------
    folder : str or Path
        Its folder, or that of a run's stage (RUN/STAGE).

    Returns
    -------
    Dynamics
        The table; its arrays are read-only.

    Raises
    ------
    InputError
        If there is no table in the folder, or if it is damaged.
    """
    folder = Path(folder)
    if not (folder / "confidence.npy").exists() and (folder / "dynamics" / MANIFEST).exists():
        folder = folder / "dynamics"  # of a run's stage
    if not (folder / "confidence.npy").exists() or not (folder / MANIFEST).exists():
        raise InputError("there is no map in it", source=str(folder), remedy="train a stage with record = true")
    verify_folder(folder, "remove it and record it again")
    try:
        classes = tuple(str(c) for c in read_json(folder / "classes.json"))
        arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in folder.glob("*.npy")}
        return Dynamics(classes=classes, **arrays)
    except (OSError, ValueError, TypeError):
        raise InputError("this map is damaged", source=str(folder), remedy="remove it and record it again") from None
