"""Distillation with Hugging Face's Trainer: a teacher, and a weighted sum of our losses in place of the model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer

from distilcal.errors import InputError, MissingDependencyError
from distilcal.integrations.transformers.data import (
    CollatorWithRows,
    add_rows,
    check_has_rows,
    default_names,
    logits_of,
    names_in_data,
    names_in_model,
    torch_loader,
)
from distilcal.integrations.transformers.memory import LossMemory
from distilcal.integrations.transformers.objective import (
    PreparedObjective,
    Terms,
    class_labels,
    parse_terms,
    prepare_objective,
    read_rows,
    select_rows,
)
from distilcal.integrations.transformers.teachers import ModelTeacher, build_teacher, captured_features
from distilcal.predictions import Predictions
from distilcal.training.teacher import Features
from distilcal.views import View

TRAIN_ROWS = "distilcal_train_rows"  # key of the batch: row numbers of its examples
STUDENT_TERMS = {"cross_entropy": 0.1, "kd": 0.9}  # as `distilcal distill` has them
NOTHING = PreparedObjective([], None, None, "")  # until there are training data


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

    Attributes
    ----------
    objective : PreparedObjective
        The terms, built for the training data, and the teacher.

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
    >>> [term.name for term in trainer.objective.terms]
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
        self.resume_from: str | bool | None = None  # what `train` was called with
        self.objective: PreparedObjective = NOTHING
        if not hasattr(Trainer, "loss_is_scaled_for_ga"):
            raise MissingDependencyError(
                "this transformers divides losses of its own accord", remedy="pip install --upgrade transformers"
            )
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
        self.add_callback(LossMemory(self))
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
        self.resume_from = resume_from_checkpoint
        if self.train_dataset is not None:
            self._prepare_objective()
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._step_rows = None

    # ---- preparing -------------------------------------------------------------------------------------------------

    def _prepare_objective(self) -> None:
        """Match the teacher with the data, and build the terms."""
        assert self.model is not None
        rows = read_rows(self.train_dataset, self.ids, self.label_names)
        if rows.count is None and (isinstance(self.teacher, Predictions) or self.teacher_features is not None):
            raise InputError(
                "the training data is a stream, in which a teacher's predictions cannot be looked up",
                remedy="give a train_dataset with a length, or a model as teacher",
            )
        teacher = build_teacher(
            self.teacher,
            self.teacher_features,
            student=self.model,
            classes=self._class_names(),
            teacher_classes=self.teacher_classes,
            ids=rows.ids,
        )
        if isinstance(teacher, ModelTeacher):
            teacher.model.to(self.args.device)
        self.objective = prepare_objective(self._parsed_terms, teacher, rows, self.model, seed=self.args.seed)
        self._check_devices()
        if any(hasattr(loss, "update") for loss in self.objective.loss_modules):
            self._check_evaluates_epochs()

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

    def _check_devices(self) -> None:
        """Refuse losses that several processes or GPUs would divide."""
        for term in self.objective.terms:
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

    def _check_evaluates_epochs(self) -> None:
        if self.args.eval_strategy != "epoch" or self.eval_dataset is None or isinstance(self.eval_dataset, Mapping):
            raise InputError(
                "adafocal is adjusted after each epoch by an evaluation",
                remedy='pass one eval_dataset and set eval_strategy="epoch"',
            )

    # ---- data ------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Return Trainer's data loader; it adds row numbers to the batches if a teacher or loss is looked up by them."""
        loader = super().get_train_dataloader()
        if self.objective.needs_rows:
            inner = torch_loader(loader)
            check_has_rows(inner)
            add_rows(inner, CollatorWithRows(inner.collate_fn, TRAIN_ROWS))
        return loader

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """Return the batches of a step as Trainer does, and count their rows over all processes."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        counts = torch.zeros(len(self.objective.terms), device=device)
        for batch in batches:
            labels, rows, count = batch.get(self.label_names[0]), batch.get(TRAIN_ROWS), _batch_size(batch)
            for number, term in enumerate(self.objective.terms):
                counts[number] += self.objective.counting_rows(term, labels, rows, count).sum()
        if self.args.world_size > 1:
            counts = self.accelerator.gather(counts[None]).mean(dim=0)  # gradients of processes are averaged too
        self._step_rows = counts
        self._summed_steps += 1
        return batches, num_items

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
            logits = logits_of(outputs, count)
            loss = _labelled_cross_entropy(logits, class_labels(labels, logits.shape[1]))
        else:
            loss, outputs = self._training_loss(model, inputs, labels, rows, count)
        if isinstance(outputs, Tensor | tuple | list):
            outputs = {"logits": logits_of(outputs, count)}  # Trainer drops the first of a tuple, which it takes for the loss
        return (loss, outputs) if return_outputs else loss

    def _training_loss(
        self, model: Any, inputs: dict[str, Any], labels: Tensor | None, rows: Tensor | None, count: int
    ) -> tuple[Tensor, Any]:
        features = None
        if self.objective.needs_features:
            with captured_features(self.accelerator.unwrap_model(model)) as captured:
                outputs = model(**inputs)
            features = captured[-1]
        else:
            outputs = model(**inputs)
        logits = logits_of(outputs, count)
        if labels is None:
            labels = torch.full((count,), -1, device=logits.device)
        labels = class_labels(labels, logits.shape[1])
        teacher = {} if self.objective.teacher is None else self.objective.teacher.run(inputs, rows)
        view = View(
            logits=logits,
            features=logits[:, :0] if features is None else features,
            labels=labels,
            targets=labels,
            ids=self.objective.memory_positions(rows, count, logits.device),
            **teacher,
        )
        return self._weighted_sum(view), outputs

    def _weighted_sum(self, view: View) -> Tensor:
        """The terms on a part of a step, each weighted by the part's share of the rows that it is a mean over."""
        total = view.logits.new_zeros((), dtype=torch.float32)
        for number, term in enumerate(self.objective.terms):
            selected = select_rows(view, term, self.objective.unknown)
            value = term(selected)
            if self._step_rows is not None:
                # Means over processes: where one of several has a single row, it is less than 1.
                rows = self._step_rows[number].clamp(min=1 / self.args.world_size)
                value = value * (len(selected) / rows)
            total = total + value * term.weight
            name = self.objective.log_names[number]
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
        of_losses = [p for loss in self.objective.loss_modules for p in loss.to(self.args.device).parameters()]
        others = [p for p in of_losses if id(p) not in trained]
        for decay, parameters in (
            (self.args.weight_decay, [p for p in others if p.dim() > 1]),
            (0.0, [p for p in others if p.dim() <= 1]),
        ):
            if parameters:
                optimizer.add_param_group({"params": parameters, "weight_decay": decay})
        return optimizer

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as Trainer does; after an epoch, losses that follow the calibration on dev are adjusted."""
        adjusted = [loss for loss in self.objective.loss_modules if hasattr(loss, "update")]
        if not adjusted or not self.is_in_train or not self.state.global_step:
            return super().evaluation_loop(*args, **kwargs)
        kwargs["prediction_loss_only"] = False
        output = super().evaluation_loop(*args, **kwargs)
        labels = np.asarray(output.label_ids)
        logits = output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions
        predictions = Predictions(np.asarray(logits)[labels >= 0], labels[labels >= 0])
        for loss in adjusted:
            loss.update(predictions.confidence, predictions.correct)
        return output


def _batch_size(batch: Mapping[str, Any]) -> int:
    return next(len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim)


def _labelled_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    if not bool((labels >= 0).any()):
        return logits.sum() * 0.0
    return cross_entropy(logits.float(), labels.clamp(min=-1), ignore_index=-1)


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
