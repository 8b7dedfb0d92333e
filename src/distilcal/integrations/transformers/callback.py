"""Training dynamics from Hugging Face's Trainer: one callback, and nothing else changes.

    recording = DynamicsCallback()
    trainer = Trainer(model, args, train_dataset=data, callbacks=[recording])
    trainer.train()
    recording.save("map")

While it trains, the data loader returns each example with its row in the data, and the collator adds the rows to the batch:
they stay right whatever shuffles, prefetches or distributes the work. A hook removes them from the batch before the model's
forward, another records the logits after it. Training itself is bitwise the same.
"""

from __future__ import annotations

import shutil
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from distilcal.dynamics import Dynamics, Recorder
from distilcal.errors import InputError
from distilcal.integrations.transformers.data import (
    LABELS,
    CollatorWithRows,
    add_rows,
    check_has_rows,
    default_names,
    logits_of,
    names_in_data,
    names_in_model,
    read_column,
    torch_loader,
)
from distilcal.io.atomic import read_json
from distilcal.io.folders import MANIFEST, digest, file_digest, sealed_folder

ROWS = "distilcal_rows"  # key of the batch: rows of its examples in the training data
FOLDER = "dynamics"  # in each checkpoint


class DynamicsCallback(TrainerCallback):
    """Records training dynamics from Hugging Face's Trainer: the logits of every training forward, by example, once an epoch.

    The state is saved in ``dynamics/`` of each checkpoint, and a resumed training continues from it.

    Parameters
    ----------
    labels : array of int, optional
        Class indices in the order of ``train_dataset``. They are read from it if it is a ``datasets.Dataset`` or a list of
        dicts, and must be given otherwise. Rows with a negative label are unlabelled and are not recorded.
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
        self.labels = labels
        self.ids = ids
        self.classes = classes
        self.resume_from_checkpoint = resume_from_checkpoint
        self.recorder: Recorder | None = None  # built with the first logits
        self._attached = ExitStack()
        self._batch_rows: Tensor | None = None
        self._has_recorded = False  # in this step
        self._is_main_process = True

    # ---- results ---------------------------------------------------------------------------------------------------

    def dynamics(self) -> Dynamics:
        """Return the table of training dynamics; while several processes train, all of them call it together.

        Returns
        -------
        Dynamics

        Raises
        ------
        InputError
            If no training was recorded yet.
        """
        if self.recorder is None:
            raise InputError("no training was recorded yet", remedy="call trainer.train() first")
        return self.recorder.dynamics()

    def save(self, folder: str | Path) -> None:
        """Save the table in a new folder; of several processes the main one does.

        Parameters
        ----------
        folder : str or Path
            The folder to create; `load_dynamics` reads it.
        """
        table = self.dynamics()
        if self._is_main_process:
            table.save(folder)

    def close(self) -> None:
        """Restore model and data loader: done when training ends, and for you to call if it is interrupted."""
        self._attached.close()

    # ---- callbacks of Trainer --------------------------------------------------------------------------------------

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
        loader = torch_loader(train_dataloader)
        check_has_rows(loader)
        dataset = loader.dataset
        labels = _class_indices(dataset, self.labels, args.label_names or ())
        ids = np.arange(len(labels)) if self.ids is None else np.asarray(self.ids)
        is_labelled = labels >= 0
        self._positions = torch.from_numpy(np.where(is_labelled, is_labelled.cumsum() - 1, -1))

        def build_recorder(class_count: int) -> Recorder:
            classes = _class_names(class_count, self.classes, dataset, model)
            if is_labelled.all():
                return Recorder(ids, labels, classes, once=True)
            return Recorder(ids[is_labelled], labels[is_labelled], classes, once=True)

        self._build_recorder = build_recorder
        self._is_main_process = bool(state.is_world_process_zero)
        self._has_recorded = False
        self._batch_rows = None
        self.recorder = None
        if state.global_step and self.resume_from_checkpoint is not False:
            self._restore(args, state)
        self._attach(model, loader, labels)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that something was recorded in this step."""
        self._check_recorded()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that something was recorded in this part of a step."""
        self._check_recorded()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the epoch of the recorder."""
        if self.recorder is not None:
            self.recorder.end_epoch()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the state of the recorder beside a checkpoint."""
        if self.recorder is None:
            return
        arrays = self.recorder.state()  # all processes take part
        checkpoint = _checkpoint_dir(args, state)
        if args.should_save and checkpoint.is_dir():  # a search over settings saves elsewhere
            shutil.rmtree(checkpoint / FOLDER, ignore_errors=True)  # of an earlier training into the same folder
            with sealed_folder(checkpoint / FOLDER, **_digests(self.recorder, state)) as aside:
                for name, array in arrays.items():
                    np.save(aside / f"{name}.npy", array)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Detach from the model and the data loader."""
        self.close()
        if self.recorder is not None:
            self.recorder.own_rows = False  # all rows are gathered: from here on a process may read them alone

    # ---- recording -------------------------------------------------------------------------------------------------

    def _attach(self, model: Any, loader: Any, labels: NDArray[np.int64]) -> None:
        for hook in list(model._forward_pre_hooks.values()):  # left by an interrupted training
            owner = getattr(hook, "__self__", None)
            if isinstance(owner, DynamicsCallback):
                owner.close()
        self._attached.callback(add_rows(loader, _CheckedCollator(loader.collate_fn, labels)))
        before = model.register_forward_pre_hook(self._remove_rows, prepend=True, with_kwargs=True)
        self._attached.callback(before.remove)
        self._attached.callback(model.register_forward_hook(self._record_logits).remove)

    # A compiled model calls the hooks as they are: compiled with it, they would be recompiled at each step.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _remove_rows(self, model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        kwargs = dict(kwargs)
        self._batch_rows = kwargs.pop(ROWS, None)
        return args, kwargs

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _record_logits(self, model: Any, args: Any, outputs: Any) -> None:
        rows, self._batch_rows = self._batch_rows, None
        if rows is None or not model.training or not torch.is_grad_enabled():
            return
        try:
            logits = logits_of(outputs, len(rows))
            if self.recorder is None:
                self.recorder = self._build_recorder(logits.shape[1])
        except InputError:
            self.close()
            raise
        # A copy: a loss may change the logits in place before the recorder reads them.
        logits = logits.detach().to(torch.float32, copy=True)
        positions = self._positions[rows.cpu()]
        is_labelled = positions >= 0
        self.recorder.record(positions[is_labelled], logits[is_labelled.to(logits.device)])
        self._has_recorded = True

    def _check_recorded(self) -> None:
        if not self._has_recorded:
            self.close()
            raise InputError(
                f"nothing could be recorded in this step: {ROWS!r} of the batch did not reach the model",
                remedy="have compute_loss call model(**inputs) in train mode with all inputs of the batch (labels may be "
                "removed), or remove DynamicsCallback",
            )
        self._has_recorded = False

    # ---- resuming from a checkpoint --------------------------------------------------------------------------------

    def _restore(self, args: Any, state: Any) -> None:
        checkpoint = _checkpoint_dir(args, state)
        if isinstance(self.resume_from_checkpoint, str | Path):
            checkpoint = Path(self.resume_from_checkpoint)
        arrays, manifest = _read_state(checkpoint / FOLDER)
        self.recorder = self._build_recorder(arrays["logits"].shape[1])
        digests = _digests(self.recorder, state)
        for name, difference in {"data": "other data or classes", "training": "another training"}.items():
            if manifest.get(name) != digests[name]:
                raise InputError(
                    f"its training dynamics are of {difference} than this one",
                    source=str(checkpoint),
                    remedy="resume with the same data and classes, and give DynamicsCallback the checkpoint that Trainer has",
                )
        self.recorder.restore(arrays)
        if float(state.epoch).is_integer():  # saved after the last step of an epoch, which may be before its end
            self.recorder.end_epoch()


# ---- labels and classes ------------------------------------------------------------------------------------------------


class _CheckedCollator(CollatorWithRows):
    """Adds row numbers to batches whose labels are those of the callback."""

    def __init__(self, collate: Any, labels: NDArray[np.int64]):
        super().__init__(collate, ROWS)
        self.labels = labels

    def __call__(self, examples: list[tuple[int, Any]]) -> MutableMapping[str, Any]:
        batch = super().__call__(examples)
        self._check_labels(batch[ROWS].numpy(), batch.get("labels"))
        return batch

    def _check_labels(self, rows: NDArray[np.int64], batch_labels: Any) -> None:
        """Compare class indices in the batch with those of the callback; labels of another kind are not compared."""
        if not isinstance(batch_labels, Tensor) or batch_labels.shape != rows.shape or batch_labels.is_floating_point():
            return
        differ = batch_labels.numpy() != self.labels[rows]
        if differ.any():
            position = int(differ.argmax())
            row = int(rows[position])
            raise InputError(
                f"the batch has label {int(batch_labels[position])} for it, DynamicsCallback {int(self.labels[row])}",
                source="train_dataset",
                row=row,
                remedy="give DynamicsCallback the labels in the order of train_dataset",
            )


def _class_indices(dataset: Any, user_labels: ArrayLike | None, names: Sequence[str]) -> NDArray[np.int64]:
    """Return the class indices of all examples: the user's, or those of the data."""
    labels = np.asarray(user_labels) if user_labels is not None else read_column(dataset, (*names, *LABELS))
    if labels is None:
        raise InputError(
            "the labels of train_dataset cannot be read at once",
            remedy="pass them: DynamicsCallback(labels), class indices in its order",
        )
    if labels.shape != (len(dataset),):
        raise InputError(
            f"labels of shape {labels.shape} for {len(dataset)} training examples", remedy="give each example one class index"
        )
    if labels.dtype.kind not in "iub":
        raise InputError(f"labels are {labels.dtype}, not class indices", remedy="only classifiers can be recorded")
    return labels.astype(np.int64)


def _class_names(class_count: int, user_classes: Sequence[str] | None, dataset: Any, model: Any) -> Sequence[str]:
    """Return names for the columns of the logits: the user's, those of the data, of the model, or 0, 1, …"""
    if user_classes is not None:
        if len(user_classes) != class_count:
            raise InputError(
                f"got {len(user_classes)} classes, but the model has {class_count}", remedy="pass one name per logit"
            )
        return user_classes
    for names in (*names_in_data(dataset), names_in_model(model)):
        if len(names) == class_count and names != default_names(class_count):
            return names
    return [str(i) for i in range(class_count)]


# ---- the saved state ---------------------------------------------------------------------------------------------------


def _checkpoint_dir(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _digests(recorder: Recorder, state: Any) -> dict[str, str]:
    """Return digests of the data and of the training's log, which tell whether a saved state belongs to them."""
    return {
        "data": digest([recorder.ids.tolist(), recorder.labels.tolist(), recorder.classes]),
        "training": digest([state.global_step, state.epoch, state.log_history]),
    }


def _read_state(folder: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
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
        is_intact = all(file_digest(folder / name) == value for name, value in manifest["files"].items())
        is_intact = is_intact and "logits" in arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        is_intact = False
    if not is_intact:
        raise InputError("these training dynamics are damaged", source=str(folder), remedy="resume from an earlier checkpoint")
    return arrays, manifest
