"""Where batches come from: the training data, with a teacher's outputs beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distilcal.data import Dataset
from distilcal.models.classifier import Classifier
from distilcal.models.inputs import Batches, ImageInputs
from distilcal.models.network import Mix, Tensors
from distilcal.training.teacher import unknown_rows
from distilcal.views import Batch, StepContext
from distilcal.views.batch import RowIndices


@dataclass
class BatchSource:
    """Builds batches of the training data, with the teacher's outputs on them.

    Attributes
    ----------
    train : Dataset
        The training data.
    batches : Batches
        The same data as tensors.
    teacher_outputs : dict of str to array
        ``logits`` and ``features`` of a cached teacher in the row order of ``train``, NaN in rows that it does not know; empty
        without a teacher.
    live_teacher : Classifier or None
        A teacher that is run on batches.
    student : Classifier
        The classifier that is trained.
    soft_labels : bool
        Whether targets are the label distributions of the data.
    device : torch.device
        Where batches are needed.
    run_on_plain : bool
        Whether some loss needs a live teacher's outputs on the unchanged batch.
    is_partly_labelled : bool
        Whether some rows of ``train`` are not labelled.
    unknown : dict of str to array of bool, shape (N,)
        Which rows the cached teacher does not know, for those of ``teacher_logits`` and ``teacher_features`` that lack rows.
    """

    train: Dataset
    batches: Batches
    teacher_outputs: Mapping[str, NDArray[Any]]
    live_teacher: Classifier | None
    student: Classifier
    soft_labels: bool
    device: torch.device
    run_on_plain: bool = True

    def __post_init__(self) -> None:
        self.is_partly_labelled = not self.train.is_labelled.all()
        self.unknown = unknown_rows(self.teacher_outputs)
        labels = np.full(len(self.train), -1) if self.train.labels is None else self.train.labels
        self.labels = torch.from_numpy(np.ascontiguousarray(labels))
        self.targets = self.labels
        if self.soft_labels and self.train.label_probs is not None:
            self.targets = torch.from_numpy(self.train.label_probs.astype(np.float32))
        self.cached = {f"teacher_{name}": torch.from_numpy(value) for name, value in self.teacher_outputs.items()}
        if self.live_teacher is not None:
            self.live_teacher.network.to(self.device).eval()

    def build_batch(self, step: StepContext, positions: RowIndices, augment: torch.Generator) -> Batch:
        """Build the batch of the examples at the given positions of a step."""
        batch = self._build(step.rows[positions], augment, with_teacher=self.run_on_plain)
        return replace(
            batch,
            step=step,
            positions=positions,
            load_rows=self.load_rows,
            run_teacher=self.run_teacher if self.live_teacher else None,
        )

    def load_rows(self, rows: RowIndices, seed: int, with_teacher: bool) -> Batch:
        """Load any rows of the training data, as partners in a mix; ``seed`` decides how images are cropped."""
        return self._build(rows, torch.Generator().manual_seed(seed), with_teacher=with_teacher)

    @torch.no_grad()
    def run_teacher(self, inputs: Tensors, mix: Mix | None = None) -> dict[str, Tensor]:
        """Run the live teacher on inputs of the student, normalised as the teacher was trained."""
        assert self.live_teacher is not None
        student_inputs, teacher_inputs = self.student.inputs, self.live_teacher.inputs
        if isinstance(student_inputs, ImageInputs) and isinstance(teacher_inputs, ImageInputs):
            inputs = self._renormalise(inputs, student_inputs, teacher_inputs)
        output = self.live_teacher.network(inputs, mix)
        return {"teacher_logits": output.logits, "teacher_features": output.features}

    def _renormalise(self, inputs: Tensors, student: ImageInputs, teacher: ImageInputs) -> Tensors:
        """Images normalised by the student's mean and standard deviation, by the teacher's instead."""
        if (student.mean, student.std) == (teacher.mean, teacher.std):
            return inputs
        student_mean, student_std = self._channels(student.mean), self._channels(student.std)
        teacher_mean, teacher_std = self._channels(teacher.mean), self._channels(teacher.std)
        return {"pixels": (inputs["pixels"] * student_std + student_mean - teacher_mean) / teacher_std}

    def _channels(self, values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, device=self.device).view(1, 3, 1, 1)

    def _build(self, rows: RowIndices, augment: torch.Generator, *, with_teacher: bool) -> Batch:
        index = torch.from_numpy(rows)
        inputs = {name: value.to(self.device) for name, value in self.batches.batch(rows, augment).items()}
        teacher = {name: value.index_select(0, index).to(self.device) for name, value in self.cached.items()}
        if with_teacher and self.live_teacher is not None and not self.cached:
            teacher = self.run_teacher(inputs)
        labels = self.labels.index_select(0, index).to(self.device)
        targets = labels
        if self.targets is not self.labels:
            targets = self.targets.index_select(0, index).to(self.device)
        return Batch(
            inputs=inputs,
            labels=labels,
            targets=targets,
            ids=index.to(self.device),
            teacher_logits=teacher.get("teacher_logits"),
            teacher_features=teacher.get("teacher_features"),
            step=StepContext(rows),
            positions=np.arange(len(rows)),
        )


def same_inputs(student: Classifier, teacher: Classifier) -> bool:
    """Return whether a teacher can be run on the student's inputs.

    Pixels mean the same to both, whatever their normalisation; token numbers only with the same tokenizer settings.

    Parameters
    ----------
    student, teacher : Classifier
        The classifiers to compare.

    Returns
    -------
    bool
        True if both read images, or if their inputs have the same description.
    """
    pixels = isinstance(student.inputs, ImageInputs) and isinstance(teacher.inputs, ImageInputs)
    return pixels or student.inputs.describe() == teacher.inputs.describe()
