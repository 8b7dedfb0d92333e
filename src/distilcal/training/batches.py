"""Where a batch comes from: the data, and the teacher's word on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distilcal.data import Dataset
from distilcal.models.base import Mix, Tensors
from distilcal.models.classifier import Classifier
from distilcal.models.inputs import Batches, ImageFeed
from distilcal.views import Batch, Draws


@dataclass
class Source:
    """Where a batch comes from: the data, and the teacher's word on them."""

    train: Dataset
    batches: Batches
    teacher: Mapping[str, NDArray[Any]] | None
    live_teacher: Classifier | None
    student: Classifier
    soft_labels: bool
    device: torch.device
    asks: bool = True  # whether some loss wants a live teacher's word on the batch as it stands

    def __post_init__(self) -> None:
        assert self.train.labels is not None
        self.labels = torch.from_numpy(np.ascontiguousarray(self.train.labels))
        self.targets = self.labels
        if self.soft_labels and self.train.label_probs is not None:
            self.targets = torch.from_numpy(self.train.label_probs.astype(np.float32))
        self.said = {f"teacher_{name}": torch.from_numpy(value) for name, value in (self.teacher or {}).items()}
        if self.live_teacher is not None:
            self.live_teacher.network.to(self.device).eval()

    def batch(self, draws: Draws, place: NDArray[np.int64], augment: torch.Generator) -> Batch:
        """The examples at these places of a step's batch."""
        made = self._made(draws.rows[place], augment, self.asks)
        return replace(made, draws=draws, place=place, fetch=self._fetch, ask=self._ask if self.live_teacher else None)

    def _fetch(self, rows: NDArray[np.int64], seed: int, taught: bool) -> Batch:
        """Any other examples, as partners; with the teacher's word if it is wanted."""
        return self._made(rows, torch.Generator().manual_seed(seed), taught)

    def _made(self, rows: NDArray[np.int64], augment: torch.Generator, taught: bool = True) -> Batch:
        ids = torch.from_numpy(rows)
        inputs = {name: value.to(self.device) for name, value in self.batches.batch(rows, augment).items()}
        said = {name: value.index_select(0, ids).to(self.device) for name, value in self.said.items()}
        if taught and self.live_teacher is not None and not self.said:
            said = self._ask(inputs)
        labels = self.labels.index_select(0, ids).to(self.device)
        targets = labels if self.targets is self.labels else self.targets.index_select(0, ids).to(self.device)
        word = said.get("teacher_logits"), said.get("teacher_features")
        return Batch(inputs, labels, targets, ids.to(self.device), *word, Draws(rows), np.arange(len(rows)))

    @torch.no_grad()
    def _ask(self, inputs: Tensors, mix: Mix | None = None) -> dict[str, Tensor]:
        """The teacher's word on these very inputs, normalised as it wants them."""
        assert self.live_teacher is not None
        mine, its = self.student.feed, self.live_teacher.feed
        if isinstance(mine, ImageFeed) and isinstance(its, ImageFeed) and (mine.mean, mine.std) != (its.mean, its.std):
            here, there = ([torch.tensor(v, device=self.device).view(1, 3, 1, 1) for v in (f.mean, f.std)] for f in (mine, its))
            inputs = {"pixels": (inputs["pixels"] * here[1] + here[0] - there[0]) / there[1]}
        made = self.live_teacher.network(inputs, mix)
        return {"teacher_logits": made.logits, "teacher_features": made.features}


def same_inputs(student: Classifier, teacher: Classifier) -> bool:
    """Whether what the student is fed means the same to the teacher: pixels do, token numbers only with one tokenizer."""
    pixels = isinstance(student.feed, ImageFeed) and isinstance(teacher.feed, ImageFeed)
    return pixels or student.feed.describe() == teacher.feed.describe()
