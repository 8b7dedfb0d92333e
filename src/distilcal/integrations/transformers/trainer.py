"""Distillation with Hugging Face's Trainer: a teacher, and a weighted sum of our losses in place of the model's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length

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
from distilcal.integrations.transformers.objective import Terms, class_labels, parse_terms, select_rows
from distilcal.integrations.transformers.teachers import ModelTeacher, build_teacher, captured_features
from distilcal.io.folders import DamagedWarning, digest
from distilcal.losses.memory import MEMORY_LOSSES
from distilcal.models.text import last_linear
from distilcal.predictions import Predictions
from distilcal.training.checkpoint import load_tensors, save_tensors
from distilcal.training.teacher import Features
from distilcal.views import Term, View, build_term

TRAIN_ROWS = "distilcal_train_rows"  # key of the batch: row numbers of its examples
LOSS_STATE = "distilcal_losses.safetensors"  # in each checkpoint, if a loss has a memory
STUDENT_TERMS = {"cross_entropy": 0.1, "kd": 0.9}  # as `distilcal distill` has them


class DistillationTrainer(Trainer):
    """A Trainer that minimises ``Σ weight · loss`` with a teacher's outputs beside the labels.

    Everything else is Trainer's. A label of -1 or -100 stands for an unlabelled example: losses that read labels take their
    mean over the labelled rows, and losses that read a teacher's outputs over the rows that it knows. With gradient
    accumulation and several processes the gradient is that of the whole batch for losses that are means over examples; losses
    that look at a batch as a whole (mdca, mmce, rkd, crl, …) see the parts. ``eval_loss`` is the cross-entropy of the labelled
    rows, whatever the terms: evaluation needs no teacher.

    Parameters
    ----------
    *args, **kwargs
        Arguments of ``transformers.Trainer``.
    teacher : Predictions, PreTrainedModel or Classifier, optional
        Predictions are matched with ``train_dataset`` by id; rows that they lack are taught by their labels alone. A model is
        run on the student's inputs, so it needs the same tokenizer. Classes are matched by name.
    terms : mapping or sequence of Term, default {"cross_entropy": 0.1, "kd": 0.9}
        A weight for each loss, or a dict with ``weight`` and settings: ``{"kd": {"weight": 0.9, "temperature": 2.0}}``.
    ids : str or array of str, default "id"
        The column of ``train_dataset`` that holds ids, or the ids in its order. Only predictions need them.
    classes : sequence of str, optional
        Names of the classes by label; by default those of the data's ``ClassLabel``, or else of the model's ``id2label``.
    teacher_classes : sequence of str, optional
        Names of the teacher's outputs, if it has no or other names.
    teacher_features : Features, optional
        The teacher's features by id, for losses that compare features, beside predictions.

    Raises
    ------
    InputError
        If the arguments do not fit together, for example if the teacher has other classes.

    Examples
    --------
    >>> import tempfile
    >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
    >>> from distilcal import Predictions
    >>> sizes = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    >>> student = BertForSequenceClassification(BertConfig(**sizes, id2label={0: "no", 1: "yes"}))
    >>> data = [{"id": "a", "input_ids": [1, 2], "label": 0}, {"id": "b", "input_ids": [1, 3], "label": 1}]
    >>> teacher = Predictions([[0.0, 2.0], [1.0, 0.0]], ["yes", "no"], ids=["b", "a"], classes=["no", "yes"])
    >>> args = TrainingArguments(tempfile.mkdtemp(), use_cpu=True)
    >>> trainer = DistillationTrainer(student, args, train_dataset=data, teacher=teacher)
    >>> [term.name for term in trainer.terms]
    ['cross_entropy', 'kd']
    """

    loss_is_scaled_for_ga = True  # `compute_loss` weights each part of a step by its share of the rows

    def __init__(
        self,
        *args: Any,
        teacher: Any = None,
        terms: Terms | None = None,
        ids: str | ArrayLike = "id",
        classes: Sequence[str] | None = None,
        teacher_classes: Sequence[str] | None = None,
        teacher_features: Features | None = None,
        **kwargs: Any,
    ):
        self._step_rows: Tensor | None = None  # rows of this step that count for each term, a process's mean
        self._term_sums: dict[str, Tensor] = {}  # since the last log
        self._summed_steps = 0
        self._resume_from: Any = None
        self.terms: list[Term] = []
        super().__init__(*args, **kwargs)
        if self.label_smoother is not None:
            raise InputError(
                "label_smoothing_factor has no effect on terms",
                remedy='leave it out and give {"cross_entropy": {"smoothing": 0.1}}',
            )
        if self.compute_loss_func is not None:
            raise InputError("compute_loss_func and terms are given", remedy="leave out one of them")
        self.label_names = self.label_names or ["labels"]
        self.teacher, self.ids, self.classes = teacher, ids, classes
        self.teacher_classes, self.teacher_features = teacher_classes, teacher_features
        self._parsed_terms = parse_terms(STUDENT_TERMS if terms is None else terms)
        if isinstance(ids, str) and not self.args.remove_unused_columns:
            self.data_collator = _CollatorWithoutColumn(self.data_collator, ids)
        self.add_callback(_LossMemory(self))
        if self.train_dataset is not None:
            self._prepare_objective()

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does; the memories of losses start anew, or from the checkpoint.

        Parameters
        ----------
        resume_from_checkpoint : str or bool, optional
            As for Trainer.
        *args, **kwargs
            Further arguments of ``Trainer.train``.

        Returns
        -------
        TrainOutput
        """
        self._resume_from = resume_from_checkpoint
        if self.train_dataset is not None:
            self._prepare_objective()
        return super().train(resume_from_checkpoint, *args, **kwargs)

    # ---- preparing -------------------------------------------------------------------------------------------------

    def _prepare_objective(self) -> None:
        """Match the teacher with the data, and build the terms."""
        assert self.model is not None
        ids = _read_ids(self.train_dataset, self.ids)
        self._teacher = build_teacher(
            self.teacher,
            self.teacher_features,
            student=self.model,
            classes=self._class_names(),
            teacher_classes=self.teacher_classes,
            ids=ids,
        )
        self._positions: Tensor | None = None  # of rows among the labelled ones, which alone are in memories
        self._unknown = {} if self._teacher is None else self._teacher.unknown
        if isinstance(self._teacher, ModelTeacher):
            self._teacher.model.to(self.args.device)
        is_labelled = self._labelled_rows()
        if is_labelled is not None:
            self._positions = torch.from_numpy(is_labelled.cumsum() - 1)
        self.terms = self._build_terms()
        self._check_terms()
        self._check_rows_are_used()
        has_memory = any("ids" in term.inputs for term in self.terms)
        self._needs_rows = has_memory or not (self._teacher is None or isinstance(self._teacher, ModelTeacher))
        self._needs_features = any("features" in term.inputs for term in self.terms)
        described = [[term.name, term.weight, dict(term.settings)] for term in self.terms]
        self._state_key = digest([described, None if ids is None else ids.tolist()])

    def _labelled_rows(self) -> NDArray[np.bool_] | None:
        """Which rows of the training data have a label; None if that cannot be read at once."""
        labels = read_column(self.train_dataset, (*self.label_names, *LABELS))
        if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iub":
            return None
        is_labelled: NDArray[np.bool_] = labels >= 0
        return is_labelled

    def _class_names(self) -> list[str]:
        """The names of the classes by label."""
        own = names_in_model(self.model)
        if self.classes is not None:
            if own and len(own) != len(self.classes):
                raise InputError(f"got {len(self.classes)} classes, but the model has {len(own)}", remedy="name each output")
            return [str(name) for name in self.classes]
        in_data = next(iter(names_in_data(self.train_dataset)), own)
        if self.teacher is not None and in_data != own and own != default_names(len(own)):
            raise InputError(
                f"the classes of train_dataset are {in_data}, those of the model's id2label {own}",
                remedy="set model.config.id2label to those of the data, or pass classes=",
            )
        return in_data

    def _build_terms(self) -> list[Term]:
        names = [term.loss for term in self._parsed_terms if not isinstance(term, Term)]
        context = self._loss_context() if any(name in MEMORY_LOSSES for name in names) else {}
        terms = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.args.seed)
            for term in self._parsed_terms:
                if not isinstance(term, Term):
                    term = build_term(term.loss, term.weight, settings=term.settings, context=context, path="terms")
                terms.append(term)
        return terms

    def _loss_context(self) -> dict[str, Any]:
        """What losses with a memory are built from, as far as data and models have it."""
        assert self.model is not None
        head = last_linear(self.model)[1]
        context: dict[str, Any] = {"classes": head.out_features, "features": head.in_features}
        if not has_length(self.train_dataset):
            raise InputError(
                "the training data is a stream, whose examples cannot be remembered by losses with a memory",
                remedy="give a train_dataset with a length, or leave out " + ", ".join(MEMORY_LOSSES),
            )
        context["n_data"] = len(self.train_dataset)
        is_labelled = self._labelled_rows()
        if is_labelled is not None:
            labels = read_column(self.train_dataset, (*self.label_names, *LABELS))
            assert labels is not None
            context["labels"] = torch.from_numpy(labels[is_labelled])
            context["n_data"] = int(is_labelled.sum())
        if self._teacher is not None and "teacher_features" in self._teacher.outputs:
            context["teacher_features"] = self._teacher.feature_width
        return context

    def _check_terms(self) -> None:
        available = frozenset() if self._teacher is None else self._teacher.outputs
        for term in self.terms:
            missing = [name for name in term.inputs if name.startswith("teacher_") and name not in available]
            if missing:
                raise InputError(f"{term.name} needs {missing[0]}", remedy=f"pass {_remedy_for(missing[0])}, or leave it out")
            if isinstance(term.loss, nn.Module) and self.args.world_size > 1:
                raise InputError(
                    f"{term.name} has a memory, which {self.args.world_size} processes do not share here",
                    remedy="train in one process, or with distilcal.training.fit, which shares it",
                )
            if "features" in term.inputs and self.args.n_gpu > 1:
                raise InputError(
                    f"{term.name} compares features, which {self.args.n_gpu} GPUs in one process (DataParallel) do not give",
                    remedy="start it with torchrun or accelerate launch, or show it one GPU",
                )
            if hasattr(term.loss, "update"):
                self._check_evaluates_epochs(term.name)

    def _check_rows_are_used(self) -> None:
        """Refuse rows that no term can look at, as far as their labels can be read."""
        is_labelled = self._labelled_rows()
        if is_labelled is None:
            return
        unknown = {name: rows.numpy() for name, rows in self._unknown.items()}
        unused = np.ones(len(is_labelled), dtype=bool)
        for term in self.terms:
            counting = term.counting_rows(is_labelled, unknown)
            unused &= np.zeros_like(unused) if counting is None else ~counting
        if unused.any():
            raise InputError(
                f"{int(unused.sum())} of the {len(unused)} rows of train_dataset take part in no term: they lack a label or an "
                "output of the teacher",
                source="train_dataset",
                row=int(unused.argmax()),
                remedy="add what is missing, or leave those rows out of the data",
            )

    def _check_evaluates_epochs(self, name: str) -> None:
        if self.args.eval_strategy != "epoch" or self.eval_dataset is None or isinstance(self.eval_dataset, Mapping):
            raise InputError(
                f"{name} is adjusted after each epoch by an evaluation",
                remedy='pass one eval_dataset and set eval_strategy="epoch"',
            )

    @property
    def _loss_modules(self) -> list[Any]:
        """The losses that have a memory."""
        return [term.loss for term in self.terms if isinstance(term.loss, nn.Module)]

    # ---- data ------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Return Trainer's data loader; it adds row numbers to the batches if a teacher or loss is looked up by them."""
        loader = super().get_train_dataloader()
        if self._needs_rows:
            inner = torch_loader(loader)
            check_has_rows(inner)
            add_rows(inner, CollatorWithRows(inner.collate_fn, TRAIN_ROWS))
        return loader

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """Return the batches of a step as Trainer does, and count their rows over all processes."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        counts = torch.zeros(len(self.terms), device=device)
        for batch in batches:
            counts += torch.stack([self._counting_rows(batch, term).sum() for term in self.terms]).to(device)
        if self.args.world_size > 1:
            counts = self.accelerator.gather(counts[None]).mean(dim=0)  # gradients of processes are averaged too
        self._step_rows = counts
        self._summed_steps += 1
        return batches, num_items

    def _counting_rows(self, batch: Mapping[str, Any], term: Term) -> Tensor:
        """Which rows of a batch count for a term (N,)."""
        labels, rows = batch.get(self.label_names[0]), batch.get(TRAIN_ROWS)
        counting = torch.ones(_batch_size(batch), dtype=torch.bool)
        if term.needs_labels:
            counting = torch.zeros_like(counting) if labels is None else (labels >= 0).cpu()
        for name, unknown in self._unknown.items():
            if name in term.inputs:
                assert rows is not None
                counting = counting & ~unknown[rows.cpu()]
        return counting

    # ---- the loss --------------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Tensor | int | None = None
    ) -> Any:
        """Return the weighted sum of the terms on a batch, or in evaluation the cross-entropy of its labelled rows.

        Parameters
        ----------
        model : Module
            The student, as Trainer wrapped it.
        inputs : dict of str to Tensor
            A batch.
        return_outputs : bool, default False
            Whether to return the outputs of the model too.
        num_items_in_batch : int or Tensor, optional
            Not needed: terms are means over different rows, which are counted by `get_batch_samples`.

        Returns
        -------
        Tensor, or tuple of Tensor and outputs
            While it trains, the part of the step's loss that these rows contribute.
        """
        inputs = dict(inputs)
        rows = inputs.pop(TRAIN_ROWS, None)
        labels = inputs.pop(self.label_names[0], None)
        count = _batch_size(inputs)
        if not model.training:
            outputs = model(**inputs)
            loss = _labelled_cross_entropy(logits_of(outputs, count), class_labels(labels))
        else:
            loss, outputs = self._training_loss(model, inputs, labels, rows, count)
        if isinstance(outputs, Tensor | tuple | list):
            outputs = {"logits": logits_of(outputs, count)}  # Trainer drops the first of a tuple, which it takes for the loss
        return (loss, outputs) if return_outputs else loss

    def _training_loss(
        self, model: Any, inputs: dict[str, Any], labels: Tensor | None, rows: Tensor | None, count: int
    ) -> tuple[Tensor, Any]:
        features = None
        if self._needs_features:
            with captured_features(self.accelerator.unwrap_model(model)) as captured:
                outputs = model(**inputs)
            features = captured[-1]
        else:
            outputs = model(**inputs)
        logits = logits_of(outputs, count)
        if labels is None:
            labels = torch.full((count,), -1, device=logits.device)
        labels = class_labels(labels)
        teacher = {} if self._teacher is None else self._teacher.run(inputs, rows)
        view = View(
            logits=logits,
            features=logits[:, :0] if features is None else features,
            labels=labels,
            targets=labels,
            ids=self._memory_positions(rows, labels),
            **teacher,
        )
        return self._weighted_sum(view), outputs

    def _memory_positions(self, rows: Tensor | None, labels: Tensor) -> Tensor:
        if rows is None:  # no loss has a memory
            return torch.arange(len(labels), device=labels.device)
        return rows if self._positions is None else self._positions[rows.cpu()].to(rows.device)

    def _weighted_sum(self, view: View) -> Tensor:
        """The terms on a part of a step, each weighted by the part's share of the rows that it is a mean over."""
        total = view.logits.new_zeros((), dtype=torch.float32)
        for number, term in enumerate(self.terms):
            selected = select_rows(view, term, self._unknown)
            value = term(selected)
            if self._step_rows is not None:
                value = value * (len(selected) / self._step_rows[number].clamp(min=1))
            total = total + value * term.weight
            name = f"loss_{term.name}"
            self._term_sums[name] = self._term_sums.get(name, 0) + value.detach()
        return total

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as Trainer does, and beside the loss the mean value of each term since the last log.

        Parameters
        ----------
        logs : dict of str to float
            What to log.
        *args, **kwargs
            Further arguments of ``Trainer.log``.
        """
        if "loss" in logs and self._term_sums:
            for name, value in self._term_sums.items():
                mean = self.accelerator.gather(value[None]).mean() if self.args.world_size > 1 else value
                logs[name] = float(mean) / max(self._summed_steps, 1)
            self._term_sums, self._summed_steps = {}, 0
        super().log(logs, *args, **kwargs)

    # ---- losses with a memory --------------------------------------------------------------------------------------

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Return Trainer's optimizer, with the parameters of the losses that have some."""
        optimizer = super().create_optimizer(*args, **kwargs)
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        others = [p for loss in self._loss_modules for p in loss.to(self.args.device).parameters() if id(p) not in trained]
        for decay, parameters in (
            (self.args.weight_decay, [p for p in others if p.dim() > 1]),
            (0.0, [p for p in others if p.dim() <= 1]),
        ):
            if parameters:
                optimizer.add_param_group({"params": parameters, "weight_decay": decay})
        return optimizer

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as Trainer does; after an epoch, losses that follow the calibration on dev are adjusted."""
        adjusted = [loss for loss in self._loss_modules if hasattr(loss, "update")]
        if not adjusted or not self.is_in_train or not self.state.global_step:
            return super().evaluation_loop(*args, **kwargs)
        kwargs["prediction_loss_only"] = False
        output = super().evaluation_loop(*args, **kwargs)
        labels = np.asarray(output.label_ids)
        logits = output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions
        predictions = Predictions(logits[labels >= 0], labels[labels >= 0])
        for loss in adjusted:
            loss.update(predictions.confidence, predictions.correct)
        return output


def _batch_size(batch: Mapping[str, Any]) -> int:
    return next(len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim)


def _remedy_for(name: str) -> str:
    return "teacher_features=, or a model as teacher" if name == "teacher_features" else "teacher="


def _labelled_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    if not bool((labels >= 0).any()):
        return logits.sum() * 0.0
    return cross_entropy(logits.float(), labels.clamp(min=-1), ignore_index=-1)


def _read_ids(dataset: Any, ids: str | ArrayLike) -> NDArray[np.str_] | None:
    """The ids of the training data in its order; None if it has no such column."""
    values = read_column(dataset, [ids]) if isinstance(ids, str) else np.asarray(ids)
    if values is None:
        return None
    if values.shape != (len(dataset),):
        raise InputError(f"ids of shape {values.shape} for {len(dataset)} training examples", remedy="give each example one id")
    names = values.astype(str)
    unique, counts = np.unique(names, return_counts=True)
    if len(unique) < len(names):
        raise InputError(
            f"two examples of train_dataset have the id {str(unique[counts > 1][0])!r}", remedy="give every example a unique id"
        )
    return names


class _CollatorWithoutColumn:
    """Removes a column, whose texts would not become a tensor, before it calls a collator."""

    def __init__(self, collate: Callable[[list[Any]], Any], column: str):
        self.collate, self.column = collate, column

    def __call__(self, examples: list[Any]) -> Any:
        kept = []
        for example in examples:
            if isinstance(example, Mapping):
                example = {name: value for name, value in example.items() if name != self.column}
            kept.append(example)
        return self.collate(kept)


class _LossMemory(TrainerCallback):
    """Lets losses with a memory start epochs, and saves them with each checkpoint."""

    def __init__(self, trainer: DistillationTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        losses = self.trainer._loss_modules
        for loss in losses:
            loss.to(args.device).train()
        if losses and state.global_step:
            self._restore(args, state, losses)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for loss in self.trainer._loss_modules:
            if hasattr(loss, "start_epoch"):
                loss.start_epoch(int(state.epoch or 0), state.num_train_epochs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for loss in self.trainer._loss_modules:
            loss.zero_grad()  # Trainer does it for the model only

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        losses = self.trainer._loss_modules
        if losses and args.should_save and folder.is_dir():  # a search over settings saves elsewhere
            tensors = {f"{i}/{name}": value for i, loss in enumerate(losses) for name, value in loss.state_dict().items()}
            save_tensors(folder / LOSS_STATE, tensors, {"key": self.trainer._state_key})

    def _restore(self, args: Any, state: Any, losses: Sequence[nn.Module]) -> None:
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        if isinstance(self.trainer._resume_from, str | Path):
            folder = Path(self.trainer._resume_from)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedWarning)
            saved = load_tensors(folder / LOSS_STATE, self.trainer._state_key)
        if saved is None:
            names = ", ".join(term.name for term in self.trainer.terms if isinstance(term.loss, nn.Module))
            raise InputError(
                f"the memory of {names} is not in this checkpoint, damaged, or of other terms or data",
                source=str(folder),
                remedy="resume from an earlier checkpoint, with the same terms and data",
            )
        for i, loss in enumerate(losses):
            prefix = f"{i}/"
            loss.load_state_dict({k.removeprefix(prefix): v for k, v in saved[0].items() if k.startswith(prefix)})
