"""Training dynamics from Hugging Face's Trainer: one callback, and nothing else changes.

    recording = DynamicsCallback()
    trainer = Trainer(model, args, train_dataset=data, callbacks=[recording])
    trainer.train()
    recording.save("map")

While it trains, the data loader hands out each example with its place in the data, and the collator puts the places into the
batch: what travels with the batch stays right whatever shuffles, prefetches or shares out the work. A hook takes them from
the batch before the model's forward, another notes the logits after it. Training itself comes out the same to the bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from distilcal.dynamics import Dynamics, Recorder
from distilcal.errors import InputError
from distilcal.io.atomic import read_json
from distilcal.io.folders import MANIFEST, digest, file_digest, sealed_folder

PLACES = "distilcal_places"  # of the examples in the training data, as the batch carries them
FOLDER = "dynamics"  # beside each checkpoint
LABELS = ("labels", "label", "label_ids")  # what Trainer calls them


class DynamicsCallback(TrainerCallback):
    """Records training dynamics from Hugging Face's Trainer: the logits of every training forward, by example, once an epoch.

    The state is saved in ``dynamics/`` of each checkpoint, and a resumed training continues from it.

    Parameters
    ----------
    labels : array of int, optional
        Class indices in the order of ``train_dataset``. They are read from it if it is a ``datasets.Dataset`` or a list of
        dicts, and must be given otherwise.
    ids : array of str, optional
        Ids of the examples; 0, 1, … by default.
    classes : sequence of str, optional
        Class names; by default those of the data, or else of the model's ``id2label``.
    resume_from_checkpoint : str, Path or bool, optional
        Where a resumed training reads its state: ``output_dir`` by default, another folder if given, False: nowhere.

    Examples
    --------
    >>> recording = DynamicsCallback(classes=["no", "yes"])
    >>> recording.recorder is None
    True
    """

    def __init__(
        self,
        labels: ArrayLike | None = None,
        *,
        ids: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        resume_from_checkpoint: str | Path | bool | None = None,
    ):
        self.labels, self.ids, self.classes = labels, ids, classes
        self.resume_from_checkpoint = resume_from_checkpoint
        self.recorder: Recorder | None = None  # made when the first logits come
        self._attached = ExitStack()
        self._places: Tensor | None = None
        self._arrived = False
        self._is_main_process = True

    # ---- what came out ---------------------------------------------------------------------------------------------

    def dynamics(self) -> Dynamics:
        """Return the table of all that was recorded; while several processes train, all of them call it together."""
        if self.recorder is None:
            raise InputError("no training was recorded yet", remedy="call trainer.train() first")
        return self.recorder.dynamics()

    def save(self, folder: str | Path) -> None:
        """Save the table in a new folder; of several processes the main one does."""
        table = self.dynamics()
        if self._is_main_process:
            table.save(folder)

    def close(self) -> None:
        """Restore model and data loader: done when training ends, and for you to call if it is interrupted."""
        self._attached.close()

    # ---- what Trainer calls ----------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Attach to the model and the data loader of a training that begins."""
        self.close()
        if args.n_gpu > 1:
            raise InputError(
                f"one process trains on {args.n_gpu} GPUs (DataParallel), which cannot be recorded",
                remedy="start it with torchrun or accelerate launch, or show it one GPU",
            )
        loader = getattr(train_dataloader, "base_dataloader", train_dataloader)  # Accelerate's are built around torch's
        _check_loader(loader)
        dataset = loader.dataset
        labels = _labels(dataset, self.labels, args.label_names or ())
        ids = np.arange(len(labels)) if self.ids is None else self.ids

        def make(width: int) -> Recorder:
            return Recorder(ids, labels, _classes(width, self.classes, dataset, model), once=True)

        self._make, self._is_main_process, self._arrived, self._places = make, bool(state.is_world_process_zero), False, None
        self.recorder = None
        if state.global_step and self.resume_from_checkpoint is not False:
            self._restore(args, state)
        self._attach(model, loader, labels)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that something was recorded in this step."""
        self._check_arrived()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that something was recorded in this part of a step."""
        self._check_arrived()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the epoch of the recorder."""
        if self.recorder is not None:
            self.recorder.end_epoch()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the state of the recorder beside a checkpoint."""
        if self.recorder is None:
            return
        arrays = self.recorder.state()  # all processes take part
        checkpoint = _checkpoint(args, state)
        if args.should_save and checkpoint.is_dir():  # a search over settings saves elsewhere
            shutil.rmtree(checkpoint / FOLDER, ignore_errors=True)  # of an earlier training into the same folder
            with sealed_folder(checkpoint / FOLDER, **_facts(self.recorder, state)) as aside:
                for name, array in arrays.items():
                    np.save(aside / f"{name}.npy", array)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Detach from the model and the data loader."""
        self.close()
        if self.recorder is not None:
            self.recorder.own_rows = False  # all is brought together: from here on a process may ask alone

    # ---- how it is recorded ----------------------------------------------------------------------------------------

    def _attach(self, model: Any, loader: Any, labels: NDArray[np.int64]) -> None:
        for hook in list(model._forward_pre_hooks.values()):  # left by a training that was broken off
            owner = getattr(hook, "__self__", None)
            if isinstance(owner, DynamicsCallback):
                owner.close()
        dataset, collate = loader.dataset, loader.collate_fn
        # torch guards ``dataset``, since samplers were made for its length: that stays the same.
        object.__setattr__(loader, "dataset", _Placed(dataset))
        loader.collate_fn = _Collator(collate, labels)
        self._attached.callback(object.__setattr__, loader, "dataset", dataset)
        self._attached.callback(setattr, loader, "collate_fn", collate)
        before = model.register_forward_pre_hook(self._take_places, prepend=True, with_kwargs=True)
        self._attached.callback(before.remove)
        self._attached.callback(model.register_forward_hook(self._note).remove)

    # A compiled model calls the hooks as they are: compiled with it, they would be compiled anew at each step.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _take_places(self, model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        kwargs = dict(kwargs)
        self._places = kwargs.pop(PLACES, None)
        return args, kwargs

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _note(self, model: Any, args: Any, outputs: Any) -> None:
        places, self._places = self._places, None
        if places is None or not model.training or not torch.is_grad_enabled():
            return
        try:
            logits = _logits(outputs, len(places))
            if self.recorder is None:
                self.recorder = self._make(logits.shape[1])
        except InputError:
            self.close()
            raise
        # A copy: a loss may change the logits in place before they are added up.
        self.recorder.record(places, logits.detach().to(torch.float32, copy=True))
        self._arrived = True

    def _check_arrived(self) -> None:
        if not self._arrived:
            self.close()
            raise InputError(
                f"nothing could be recorded in this step: {PLACES!r} of the batch did not reach the model",
                remedy="have compute_loss call model(**inputs) in train mode with all inputs of the batch (labels may be taken "
                "out), or take DynamicsCallback away",
            )
        self._arrived = False

    # ---- going on from a checkpoint --------------------------------------------------------------------------------

    def _restore(self, args: Any, state: Any) -> None:
        given = self.resume_from_checkpoint
        checkpoint = Path(given) if isinstance(given, str | Path) else _checkpoint(args, state)
        arrays, manifest = _read(checkpoint / FOLDER)
        self.recorder = self._make(arrays["logits"].shape[1])
        facts = _facts(self.recorder, state)
        for name, of_other in {"data": "other data or classes", "training": "another training"}.items():
            if manifest.get(name) != facts[name]:
                raise InputError(
                    f"its training dynamics are of {of_other} than this one",
                    source=str(checkpoint),
                    remedy="resume with the same data and classes, and give DynamicsCallback the checkpoint that Trainer has",
                )
        self.recorder.restore(arrays)
        if float(state.epoch).is_integer():  # saved after the last step of an epoch, which may be before its end
            self.recorder.end_epoch()


# ---- the data loader ---------------------------------------------------------------------------------------------------


class _Placed:
    """A dataset whose items come with their place."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, place: int) -> tuple[int, Any]:
        return place, self.dataset[place]

    def __getitems__(self, places: list[int]) -> list[tuple[int, Any]]:
        fetch = getattr(self.dataset, "__getitems__", None)  # datasets.Dataset reads a batch at once
        items = fetch(places) if fetch else [self.dataset[place] for place in places]
        return list(zip(places, items, strict=True))

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while it is unpickled in a worker
            raise AttributeError(name)
        return getattr(self.dataset, name)  # set_epoch and the like


class _Collator:
    """The collator that was there, and the places of the examples put into its batch."""

    def __init__(self, collate: Callable[[list[Any]], Any], labels: NDArray[np.int64]):
        self.collate, self.labels = collate, labels

    def __call__(self, placed: list[tuple[int, Any]]) -> Any:
        places, items = zip(*placed, strict=True)
        batch = self.collate(list(items))
        if not isinstance(batch, MutableMapping):
            raise InputError(f"the collator makes a {type(batch).__name__}", remedy="let it make a dict, as Trainer asks")
        found = np.array(places, dtype=np.int64)
        self._compare(found, batch.get("labels"))
        batch[PLACES] = torch.from_numpy(found)
        return batch

    def _compare(self, places: NDArray[np.int64], said: Any) -> None:
        if not isinstance(said, Tensor) or said.shape != places.shape or said.is_floating_point():
            return
        other = np.flatnonzero(said.numpy() != self.labels[places])
        if len(other):
            place = int(places[other[0]])
            raise InputError(
                f"the batch has label {int(said[other[0]])} for it, DynamicsCallback {int(self.labels[place])}",
                source="train_dataset",
                row=place,
                remedy="give DynamicsCallback the labels in the order of train_dataset",
            )


def _check_loader(loader: Any) -> None:
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise InputError(
            "the training data comes as a stream, in which examples have no place",
            remedy="give Trainer a train_dataset with a length, such as a list or a datasets.Dataset",
        )


# ---- labels, classes, logits -------------------------------------------------------------------------------------------


def _labels(dataset: Any, given: ArrayLike | None, names: Sequence[str]) -> NDArray[np.int64]:
    """Class indices of all examples."""
    labels = _read_labels(dataset, (*names, *LABELS)) if given is None else np.asarray(given)
    if labels is None:
        raise InputError(
            "the labels of train_dataset cannot be read at once",
            remedy="give them: DynamicsCallback(labels), class indices in its order",
        )
    if labels.shape != (len(dataset),):
        raise InputError(
            f"labels of shape {labels.shape} for {len(dataset)} training examples", remedy="give each example one class index"
        )
    if labels.dtype.kind not in "iub":
        raise InputError(f"labels are {labels.dtype}, not class indices", remedy="only classifiers can be recorded")
    return labels.astype(np.int64)


def _read_labels(dataset: Any, names: Sequence[str]) -> NDArray[Any] | None:
    if isinstance(dataset, list | tuple):
        first = dataset[0] if dataset else {}
        name = next((n for n in names if n in first), None) if isinstance(first, Mapping) else None
        return None if name is None else np.array([example[name] for example in dataset])
    name = next((n for n in names if n in getattr(dataset, "column_names", ())), None)
    return None if name is None else np.asarray(dataset.with_format("numpy")[name][:])


def _classes(width: int, given: Sequence[str] | None, dataset: Any, model: Any) -> Sequence[str]:
    """Names of the columns of the logits: those given, of the data, of the model, or 0, 1, …"""
    if given is not None:
        if len(given) != width:
            raise InputError(f"{len(given)} classes were given and the model has {width}", remedy="give one name per logit")
        return given
    features = getattr(dataset, "features", None)
    of_labels = [features[name] for name in LABELS if name in features] if isinstance(features, Mapping) else []
    from_data = [list(feature.names) for feature in of_labels if hasattr(feature, "names")]
    by_number = getattr(getattr(model, "config", None), "id2label", None) or {}
    from_model = [str(by_number[i]) for i in sorted(by_number)]
    unnamed = [f"LABEL_{i}" for i in range(width)]  # what transformers calls classes without names
    return next((n for n in (*from_data, from_model) if len(n) == width and n != unnamed), [str(i) for i in range(width)])


def _logits(outputs: Any, count: int) -> Tensor:
    """The logits (N, K) among what a model returned: by name, or in a tuple the first that can be."""
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    if isinstance(found, list | tuple):
        found = next((v for v in found if isinstance(v, Tensor) and v.ndim == 2 and len(v) == count), None)
    if not isinstance(found, Tensor):
        kind = f"only {', '.join(outputs)}" if isinstance(outputs, Mapping) else f"a {type(outputs).__name__} without them"
        raise InputError(f"the model returned no logits, {kind}", remedy="have its forward return a dict with 'logits'")
    if found.ndim != 2 or found.shape[0] != count or found.shape[1] < 2:
        raise InputError(
            f"logits of shape {tuple(found.shape)} for {count} examples",
            remedy="only classifiers can be recorded: one row per example, one column per class",
        )
    return found


# ---- the saved state ---------------------------------------------------------------------------------------------------


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _facts(recorder: Recorder, state: Any) -> dict[str, str]:
    """What a state belongs to: the data, and the training as its log knows it."""
    return {
        "data": digest([recorder.ids.tolist(), recorder.labels.tolist(), recorder.classes]),
        "training": digest([state.global_step, state.epoch, state.log_history]),
    }


def _read(folder: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    if not (folder / MANIFEST).exists():
        raise InputError(
            "no training dynamics were saved with this checkpoint",
            source=str(folder.parent),
            remedy="if Trainer resumes from another folder, give it to DynamicsCallback as resume_from_checkpoint; "
            "False records from here on only",
        )
    try:
        manifest = read_json(folder / MANIFEST)
        arrays = {path.stem: np.load(path, allow_pickle=False) for path in folder.glob("*.npy")}
        whole = all(file_digest(folder / name) == value for name, value in manifest["files"].items()) and "logits" in arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise InputError("these training dynamics are damaged", source=str(folder), remedy="resume from an earlier checkpoint")
    return arrays, manifest
