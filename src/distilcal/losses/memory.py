"""Losses that remember: small modules with the same call as the functions, a ``state_dict``, and hooks the loop calls.

``ids`` (N,) are positions in the training set, 0 … n_data - 1. ``start_epoch(epoch, epochs)`` counts epochs from 0. What a
loss remembers is updated inside its call, after the value is computed, in training mode only.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize, one_hot

from distilcal.errors import InputError
from distilcal.losses.calibration import _of_label, cross_entropy, raised


class CorrectnessRanking(nn.Module):
    """CRL: confidence shall be ordered as the share of times a sample was right; Moon et al. 2020, weight 1.

    Neighbours in the batch (the last with the first) are compared: ``mean max(0, -g·(κ_a - κ_b) + |ĉ_a - ĉ_b|)``, g the sign
    of ĉ_a - ĉ_b and 0 for equals. ``rank`` is the confidence κ: ``"softmax"`` largest probability, ``"margin"`` to the second,
    ``"entropy"`` -H/log K. Memory: one number per sample.
    """

    def __init__(self, n_data: int, *, rank: Literal["softmax", "margin", "entropy"] = "softmax"):
        super().__init__()
        if rank not in ("softmax", "margin", "entropy"):
            raise InputError(f"rank {rank!r} is not 'softmax', 'margin' or 'entropy'")
        self.rank = rank
        self.times_right: Tensor
        self.most: Tensor
        self.register_buffer("times_right", torch.zeros(n_data, dtype=torch.float64))
        self.register_buffer("most", torch.ones((), dtype=torch.float64))

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """The count that a sample can have reached: the number of epochs behind it, at least 1."""
        self.most.fill_(max(1, epoch))

    def forward(self, logits: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        log_probs = log_softmax(raised(logits), dim=1)
        loss = self._ranking(log_probs, ids)
        if self.training:
            right = (log_probs.argmax(dim=1) == labels).to(self.times_right.dtype)
            self.times_right.index_add_(0, ids, right)
        return loss

    def _ranking(self, log_probs: Tensor, ids: Tensor) -> Tensor:
        least = self.times_right.min()
        if len(ids) < 2 or self.most <= least:
            return log_probs.sum() * 0.0
        share = ((self.times_right[ids] - least) / (self.most - least)).to(log_probs.dtype)
        confidence = self._confidence(log_probs)
        gap = share - share.roll(-1)
        terms = (gap.abs() - gap.sign() * (confidence - confidence.roll(-1))).clamp(min=0)
        return torch.where(gap == 0, torch.zeros_like(terms), terms).mean()

    def _confidence(self, log_probs: Tensor) -> Tensor:
        if self.rank == "entropy":
            return (log_probs.exp() * log_probs).sum(dim=1) / float(np.log(log_probs.shape[1]))
        top = log_probs.exp().topk(2, dim=1).values
        return top[:, 0] if self.rank == "softmax" else top[:, 0] - top[:, 1]


class ProgressiveSelfDistillation(nn.Module):
    """PS-KD: cross-entropy against ``(1 - α_e)·label + α_e·own prediction of the last epoch``; Kim et al. 2021.

    α_e = ``alpha``·(e + 1)/E. In epoch 0 the last prediction is the label. Memory: n_data × K numbers in single precision,
    or in the precision of ``dtype``.
    """

    def __init__(self, n_data: int, classes: int, *, alpha: float = 0.8, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.alpha = alpha
        self.last: Tensor
        self.seen: Tensor
        self.share: Tensor
        self.register_buffer("last", torch.zeros(n_data, classes, dtype=dtype))
        self.register_buffer("seen", torch.zeros(n_data, dtype=torch.bool))
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))

    def start_epoch(self, epoch: int, epochs: int) -> None:
        self.share.fill_(self.alpha * (epoch + 1) / epochs)

    def forward(self, logits: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        logits = raised(logits)
        truth = one_hot(labels, logits.shape[1]).to(logits.dtype)
        last = torch.where(self.seen[ids, None], self.last[ids].to(logits.dtype), truth)
        share = float(self.share)
        loss = cross_entropy(logits, (1 - share) * truth + share * last)
        if self.training:
            self.last[ids] = log_softmax(logits.detach(), dim=1).exp().to(self.last.dtype)
            self.seen[ids] = True
        return loss


class AdaFocal(nn.Module):
    """Focal loss whose γ follows the calibration of each bin of confidence on dev; Ghosh et al. 2022.

    A sample takes the γ of the bin that holds its p_y: ``-(1 - p_y)^γ log p_y`` for γ ≥ 0, ``-(1 + p_y)^|γ| log p_y`` below.
    After every epoch ``update(confidence, correct)`` on dev predictions renews the bins (equal mass) and moves each γ with
    the gap of its bin: γ·exp(λ·gap), for negative γ γ·exp(-λ·gap), through ±``switch`` to the other sign, within bounds.
    """

    def __init__(self, *, bins: int = 15, rate: float = 1.0, switch: float = 0.2, lowest: float = -2.0, highest: float = 20.0):
        super().__init__()
        self.rate, self.switch, self.lowest, self.highest = rate, switch, lowest, highest
        self.edges: Tensor
        self.gamma: Tensor
        self.register_buffer("edges", torch.arange(bins + 1, dtype=torch.float64) / bins)
        self.register_buffer("gamma", torch.ones(bins, dtype=torch.float64))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        log_p = _of_label(log_softmax(raised(logits), dim=1), labels)
        p = log_p.exp()
        gamma = self.gamma_of(p.detach()).to(p.dtype)
        base = torch.where(gamma >= 0, 1 - p, 1 + p) + 1e-20
        certain = base <= 1e-20  # p = 1 with γ < 1 would give 0 · inf
        power = torch.where(certain, (gamma == 0).to(p.dtype), torch.where(certain, 1.0, base) ** gamma.abs())
        return (-power * log_p).mean()

    def gamma_of(self, p: Tensor) -> Tensor:
        """The γ of the bin [lower, upper) of each probability; the first and last bins reach outward."""
        return self.gamma[torch.bucketize(p.to(self.edges.dtype), self.edges[1:-1], right=True)]

    def update(self, confidence: ArrayLike, correct: ArrayLike) -> None:
        """Renew the bins from dev's top-label confidences and move γ with their gaps."""
        edges, gap = equal_mass_gaps(np.asarray(confidence, np.float64), np.asarray(correct, np.float64), len(self.gamma))
        self.edges.copy_(torch.from_numpy(edges))
        self.step(torch.from_numpy(gap))

    def step(self, gap: Tensor) -> None:
        """Move γ with the gap (confidence - accuracy) of each bin."""
        moved = self.gamma * torch.exp(torch.where(self.gamma > 0, self.rate * gap, -self.rate * gap))
        flipped = torch.full_like(moved, self.switch).copysign(-moved)
        self.gamma.copy_(torch.where(moved.abs() < self.switch, flipped, moved).clamp(self.lowest, self.highest))


def equal_mass_gaps(confidence: np.ndarray, correct: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges (B + 1,) and gap mean confidence - accuracy (B,), 0 where empty, by AdaFocal's released code.

    Interpolated edges, bins (lo, hi]; confidences equal to the smallest are in no bin, as there.
    """
    n = len(confidence)
    edges = np.interp(np.linspace(0, n, bins + 1), np.arange(n), np.sort(confidence))
    cell = np.searchsorted(edges, confidence, side="left") - 1
    kept = cell >= 0
    count = np.bincount(cell[kept], minlength=bins)[:bins]
    gap = np.bincount(cell[kept], (confidence - correct)[kept], minlength=bins)[:bins] / np.maximum(count, 1)
    return edges, gap


class ContrastiveDistillation(nn.Module):
    """CRD: a student's feature shall tell its own teacher feature from those of other classes; Tian et al. 2020, weight 0.8.

    Both features go through a linear map to ``dim`` and are normalised; both maps are trained with the student. Scores
    against ``negatives`` remembered features of other classes (drawn without replacement where there are enough) enter a
    noise-contrastive loss, whose constants Z are set by the first batch and then frozen.

    Memory: two banks of n_data × dim, and N × n_data scores at a time. Cost: O(N · n_data · dim).
    """

    def __init__(
        self,
        features: int,
        teacher_features: int,
        labels: Tensor,
        *,
        dim: int = 128,
        negatives: int = 16384,
        temperature: float = 0.07,
        momentum: float = 0.5,
        seed: int = 0,
    ):
        super().__init__()
        n_data = len(labels)
        self.negatives, self.temperature, self.momentum = negatives, temperature, momentum
        self.generator = torch.Generator().manual_seed(seed)
        self.embed_student = nn.Linear(features, dim)
        self.embed_teacher = nn.Linear(teacher_features, dim)
        self.student_bank: Tensor
        self.teacher_bank: Tensor
        self.labels: Tensor
        self.z_student: Tensor
        self.z_teacher: Tensor
        bound = 1 / (dim / 3) ** 0.5
        for name in ("student_bank", "teacher_bank"):
            self.register_buffer(name, torch.empty(n_data, dim).uniform_(-bound, bound, generator=self.generator))
        self.register_buffer("labels", labels.clone())
        for name in ("z_student", "z_teacher"):
            self.register_buffer(name, torch.full((), -1.0, dtype=torch.float64))  # set by the first batch

    def forward(self, features: Tensor, teacher_features: Tensor, ids: Tensor) -> Tensor:
        return self.contrast(features, teacher_features, torch.cat([ids[:, None], self.draw(ids)], dim=1))

    def draw(self, ids: Tensor) -> Tensor:
        """Indices (N, negatives) of samples of other classes."""
        other = (self.labels[None] != self.labels[ids, None]).to(torch.float32)  # (N, n_data)
        enough = bool((other.sum(dim=1) >= self.negatives).all())
        return torch.multinomial(other.cpu(), self.negatives, replacement=not enough, generator=self.generator).to(ids.device)

    def contrast(self, features: Tensor, teacher_features: Tensor, index: Tensor) -> Tensor:
        """The loss with given indices (N, 1 + negatives), the positive first; then the banks move."""
        student = normalize(self.embed_student(raised(features).flatten(1)), dim=1)
        teacher = normalize(self.embed_teacher(raised(teacher_features).detach().flatten(1)), dim=1)
        # All scores at once and then the wanted ones: gathering (N, negatives, dim) features would take far more memory.
        score_student = torch.exp((student @ self.teacher_bank.T).gather(1, index) / self.temperature)
        score_teacher = torch.exp((teacher @ self.student_bank.T).gather(1, index) / self.temperature)
        n_data = len(self.labels)
        for z, score in ((self.z_student, score_student), (self.z_teacher, score_teacher)):
            if z < 0:
                z.copy_(score.detach().mean() * n_data)
        loss = _noise_contrast(score_student / self.z_student.to(student.dtype), n_data) + _noise_contrast(
            score_teacher / self.z_teacher.to(teacher.dtype), n_data
        )
        if self.training:
            # Into a new bank: the backward pass still needs the one that the scores were made with.
            self.student_bank = self._moved(self.student_bank, index[:, 0], student)
            self.teacher_bank = self._moved(self.teacher_bank, index[:, 0], teacher)
        return loss

    def _moved(self, bank: Tensor, own: Tensor, feature: Tensor) -> Tensor:
        mixed = self.momentum * bank[own] + (1 - self.momentum) * feature.detach().to(bank.dtype)
        return bank.index_copy(0, own, normalize(mixed, dim=1))

    def get_extra_state(self) -> Tensor:
        """The generator's state, so that a resumed run draws the same negatives."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state)


def _noise_contrast(p: Tensor, n_data: int) -> Tensor:
    """``-mean_i [log P⁺/(P⁺ + k/n) + Σ_neg log (k/n)/(P⁻ + k/n)]`` for scores (N, 1 + k), the positive first."""
    noise = (p.shape[1] - 1) / n_data
    positive = torch.log(p[:, 0] / (p[:, 0] + noise + 1e-7))
    negative = torch.log(noise / (p[:, 1:] + noise + 1e-7)).sum(dim=1)
    return -(positive + negative).mean()
