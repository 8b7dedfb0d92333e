"""What is read from Trainer's data, batches and models: row numbers, columns, class names and logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from distilcal.errors import InputError

LABELS = ("labels", "label", "label_ids")  # names that Trainer gives labels

# ---- row numbers in batches --------------------------------------------------------------------------------------------


class DatasetWithRows:
    """A dataset that returns each example with its row number.

    Parameters
    ----------
    dataset : dataset with a length
        The data of a Trainer.

    Examples
    --------
    >>> DatasetWithRows(["a", "b"])[1]
    (1, 'b')
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> tuple[int, Any]:
        return row, self.dataset[row]

    def __getitems__(self, rows: list[int]) -> list[tuple[int, Any]]:
        fetch = getattr(self.dataset, "__getitems__", None)  # datasets.Dataset reads a batch at once
        items = fetch(rows) if fetch else [self.dataset[row] for row in rows]
        return list(zip(rows, items, strict=True))

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while it is unpickled in a worker
            raise AttributeError(name)
        return getattr(self.dataset, name)  # set_epoch and the like


class CollatorWithRows:
    """Calls the collator of a data loader and adds the row numbers of the examples to its batch.

    Parameters
    ----------
    collate : callable
        The collator of the data loader.
    key : str
        Name of the row numbers in the batch.

    Examples
    --------
    >>> collate = CollatorWithRows(lambda examples: {"words": examples}, "rows")
    >>> collate([(4, "a"), (1, "b")])["rows"].tolist()
    [4, 1]
    """

    def __init__(self, collate: Callable[[list[Any]], Any], key: str):
        self.collate = collate
        self.key = key

    def __call__(self, examples: list[tuple[int, Any]]) -> MutableMapping[str, Any]:
        rows, items = zip(*examples, strict=True)
        batch = self.collate(list(items))
        if not isinstance(batch, MutableMapping):
            raise InputError(f"the collator returns a {type(batch).__name__}", remedy="return a dict, as Trainer requires")
        batch[self.key] = torch.tensor(rows, dtype=torch.int64)
        return batch


def torch_loader(loader: Any) -> Any:
    """Return torch's data loader inside the one that Accelerate built around it.

    Parameters
    ----------
    loader : DataLoader
        The data loader of a Trainer.

    Returns
    -------
    DataLoader
    """
    return getattr(loader, "base_dataloader", loader)


def add_rows(loader: DataLoader[Any], collate: CollatorWithRows) -> Callable[[], None]:
    """Let a data loader add row numbers to its batches.

    Parameters
    ----------
    loader : DataLoader
        torch's data loader, changed in place.
    collate : CollatorWithRows
        Built around the collator of the loader.

    Returns
    -------
    callable
        Call it without arguments to restore the data loader.
    """
    dataset, collate_before = loader.dataset, loader.collate_fn
    # torch forbids to set ``dataset``, since samplers were built for its length: that stays the same.
    object.__setattr__(loader, "dataset", DatasetWithRows(dataset))
    loader.collate_fn = collate

    def restore() -> None:
        object.__setattr__(loader, "dataset", dataset)
        loader.collate_fn = collate_before

    return restore


def check_has_rows(loader: Any) -> None:
    """Raise an InputError if the examples of a data loader have no row numbers.

    Parameters
    ----------
    loader : DataLoader
        torch's data loader.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise InputError(
            "the training data is a stream, in which examples have no row number",
            remedy="give Trainer a train_dataset with a length, such as a list or a datasets.Dataset",
        )


# ---- columns, classes, logits ------------------------------------------------------------------------------------------


def read_column(dataset: Any, names: Sequence[str]) -> NDArray[Any] | None:
    """Read the first of these columns that a list of dicts or a ``datasets.Dataset`` has.

    Parameters
    ----------
    dataset : list of dict, or datasets.Dataset
        Others are not read.
    names : sequence of str
        The columns, in order of preference.

    Returns
    -------
    array, shape (N,), or None
        None if there is no such column.

    Examples
    --------
    >>> read_column([{"label": 1}, {"label": 0}], ["labels", "label"]).tolist()
    [1, 0]
    """
    if isinstance(dataset, DatasetWithRows):
        dataset = dataset.dataset
    if isinstance(dataset, list | tuple):
        first = dataset[0] if dataset else None
        columns = first if isinstance(first, Mapping) else ()
    else:
        columns = getattr(dataset, "column_names", ()) if hasattr(dataset, "__len__") else ()  # a stream is not read
    name = next((name for name in names if name in columns), None)
    if name is None:
        return None
    if isinstance(dataset, list | tuple):
        return np.array([example[name] for example in dataset])
    return np.asarray(dataset.with_format("numpy")[name][:])


def names_in_data(dataset: Any) -> list[list[str]]:
    """Return the class names of each column of labels that has some.

    Parameters
    ----------
    dataset : datasets.Dataset
        Others have no class names.

    Returns
    -------
    list of list of str
    """
    features = getattr(dataset, "features", None)
    if not isinstance(features, Mapping):
        return []
    label_features = [features[name] for name in LABELS if name in features]
    return [list(feature.names) for feature in label_features if hasattr(feature, "names")]


def names_in_model(model: Any) -> list[str]:
    """Return the class names in ``id2label`` of a model's configuration, in the order of its outputs.

    Parameters
    ----------
    model : PreTrainedModel
        Models without a configuration have no class names.

    Returns
    -------
    list of str
    """
    config = getattr(model, "config", None)
    id2label = getattr(config, "id2label", None) or {}
    return [str(id2label[number]) for number in sorted(id2label)]


def default_names(count: int) -> list[str]:
    """Return the names that transformers gives to classes without names.

    Parameters
    ----------
    count : int
        Number of classes.

    Returns
    -------
    list of str

    Examples
    --------
    >>> default_names(2)
    ['LABEL_0', 'LABEL_1']
    """
    return [f"LABEL_{i}" for i in range(count)]


def logits_of(outputs: Any, count: int) -> Tensor:
    """Return the logits of a model's outputs: by name, or the first matrix of a tuple that has a row per example.

    Parameters
    ----------
    outputs : ModelOutput, dict, tuple or Tensor
        What the model returned.
    count : int
        Number N of examples in the batch.

    Returns
    -------
    Tensor, shape (N, K)

    Raises
    ------
    InputError
        If there are no logits, or not one row per example and one column per class.

    Examples
    --------
    >>> logits_of({"logits": torch.zeros(2, 3)}, 2).shape
    torch.Size([2, 3])
    """
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    if isinstance(logits, list | tuple):
        matrices = (value for value in logits if isinstance(value, Tensor) and value.ndim == 2)
        logits = next((matrix for matrix in matrices if len(matrix) == count), None)
    if not isinstance(logits, Tensor):
        kind = f"only {', '.join(outputs)}" if isinstance(outputs, Mapping) else f"a {type(outputs).__name__} without them"
        raise InputError(f"the model returned no logits, {kind}", remedy="have its forward return a dict with 'logits'")
    if logits.ndim != 2 or logits.shape[0] != count or logits.shape[1] < 2:
        raise InputError(
            f"logits of shape {tuple(logits.shape)} for {count} examples",
            remedy="use a classifier: one row per example, one column per class",
        )
    return logits
