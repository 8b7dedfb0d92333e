"""Losses with a memory: small modules that are called like the functions, with a ``state_dict`` and hooks for the loop.

``ids`` (N,) are positions in the training set, 0 … n_data - 1. ``start_epoch(epoch, epochs)`` counts epochs from 0. The memory
is updated inside the call, after the value is computed, in training mode only. ``update(confidence, correct)``, where there is
one, is called with dev predictions after every epoch.

To add a loss, write a module here and enter it in ``MEMORY_LOSSES``: it is built once for each training.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

from distilcal.arguments import check_argument, check_range
from distilcal.errors import InputError
from distilcal.losses.calibration import LARGEST, SMALLEST, at_least_float32, cross_entropy, gather_labels, one_hot_labels


class CorrectnessRanking(nn.Module):
    """CRL: confidences are ordered as the share of epochs in which a sample was right; the usual weight is 1.

    ``mean max(0, -g·(κ_a - κ_b) + |ĉ_a - ĉ_b|)`` over neighbours a, b in the batch (the last with the first), g the sign of
    ĉ_a - ĉ_b and 0 for equals. Range: [0, 2]. A statistic of the whole batch. Memory: one number per sample.

    Parameters
    ----------
    n_data : int
        Number of training examples.
    rank : {"softmax", "margin", "entropy"}, default "softmax"
        The confidence κ: the largest probability, its margin over the second, or -H/log K.

    References
    ----------
    Moon et al. 2020.

    Examples
    --------
    >>> loss = CorrectnessRanking(4)
    >>> loss.start_epoch(0, 10)
    >>> float(loss(torch.eye(2), torch.tensor([0, 1]), torch.tensor([3, 1])))
    0.0
    >>> loss.times_right.tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, n_data: int, *, rank: Literal["softmax", "margin", "entropy"] = "softmax"):
        super().__init__()
        if rank not in ("softmax", "margin", "entropy"):
            raise InputError(f"rank {rank!r} is not 'softmax', 'margin' or 'entropy'")
        self.rank = rank
        self.times_right: Tensor
        self.most: Tensor
        self.counted: Tensor
        self.register_buffer("times_right", torch.zeros(n_data, dtype=torch.float64))
        self.register_buffer("most", torch.ones((), dtype=torch.float64))
        self.register_buffer("counted", torch.zeros(n_data, dtype=torch.bool))  # in this epoch

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Set the count that a sample can have reached: the number of epochs before this one, at least 1."""
        self.most.fill_(max(1, epoch))
        self.counted.fill_(False)

    def forward(self, logits: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        """Return the loss of a batch and count which of its examples were right, each once an epoch."""
        log_probs = log_softmax(at_least_float32(logits), dim=1)
        loss = self._ranking(log_probs, ids)
        if self.training:
            right = gather_labels(one_hot_labels(labels, log_probs), log_probs.argmax(dim=1))
            self.times_right[ids] += (right * ~self.counted[ids]).to(self.times_right.dtype)
            self.counted[ids] = True
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
    """PS-KD: cross-entropy against a mix of the label and the own prediction of the last epoch.

    ``mean CE(p, (1 - α_e) · label + α_e · last prediction)``, α_e = α · (e + 1)/E. Range: [0, ∞). In the first epoch the last
    prediction is the label. Memory: n_data × K numbers.

    Parameters
    ----------
    n_data : int
        Number of training examples.
    classes : int
        Number of classes K.
    alpha : float, default 0.8
        α, the share of the own prediction in the last epoch.
    dtype : torch.dtype, default torch.float32
        Precision in which predictions are remembered.

    References
    ----------
    Kim et al. 2021.

    Examples
    --------
    >>> loss = ProgressiveSelfDistillation(4, 2)
    >>> loss.start_epoch(0, 10)
    >>> round(float(loss(torch.eye(2), torch.tensor([0, 1]), torch.tensor([3, 1]))), 4)
    0.3133
    >>> loss.seen.tolist()
    [False, True, False, True]
    """

    def __init__(self, n_data: int, classes: int, *, alpha: float = 0.8, dtype: torch.dtype = torch.float32):
        super().__init__()
        check_range(0, 1, alpha=alpha)
        self.alpha = alpha
        self.last: Tensor
        self.seen: Tensor
        self.share: Tensor
        self.register_buffer("last", torch.zeros(n_data, classes, dtype=dtype))
        self.register_buffer("seen", torch.zeros(n_data, dtype=torch.bool))
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Set α_e, the share of the own prediction in this epoch."""
        self.share.fill_(self.alpha * (epoch + 1) / epochs)

    def forward(self, logits: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        """Return the loss of a batch and remember its predictions."""
        logits = at_least_float32(logits)
        truth = one_hot_labels(labels, logits)
        last = torch.where(self.seen[ids, None], self.last[ids].to(logits.dtype), truth)
        share = float(self.share)
        loss = cross_entropy(logits, (1 - share) * truth + share * last)
        if self.training:
            self.last[ids] = log_softmax(logits.detach(), dim=1).exp().to(self.last.dtype)
            self.seen[ids] = True
        return loss


class AdaFocal(nn.Module):
    """AdaFocal: focal loss whose γ follows the calibration of each bin of confidence on dev.

    A sample takes the γ of the bin that holds its p_y: ``-(1 - p_y)^γ log p_y`` for γ ≥ 0, ``-(1 + p_y)^|γ| log p_y`` below.
    Range: [0, ∞). After every epoch `update` on dev predictions renews the bins (equal mass) and moves each γ with the gap of
    its bin: γ·exp(λ·gap), for negative γ γ·exp(-λ·gap), through ±``switch`` to the other sign, within bounds.

    Parameters
    ----------
    bins : int, default 15
        Number of bins.
    rate : float, default 1.0
        λ.
    switch : float, default 0.2
        Where γ changes its sign.
    lowest, highest : float, default -2.0 and 20.0
        Bounds of γ.

    References
    ----------
    Ghosh et al. 2022.

    Examples
    --------
    >>> loss = AdaFocal(bins=2)
    >>> round(float(loss(torch.eye(2), torch.tensor([0, 1]))), 4)
    0.0842
    >>> loss.update([0.6, 0.7, 0.8, 0.9], [0, 0, 1, 1])
    >>> loss.gamma.round(decimals=3).tolist()
    [1.284, 0.905]
    """

    def __init__(self, *, bins: int = 15, rate: float = 1.0, switch: float = 0.2, lowest: float = -2.0, highest: float = 20.0):
        super().__init__()
        check_range(1, LARGEST, bins=check_argument("bins", bins, int, "AdaFocal"))
        check_range(0, LARGEST, rate=rate, switch=switch, highest=highest)
        check_range(-LARGEST, highest, lowest=lowest)
        self.rate, self.switch, self.lowest, self.highest = rate, switch, lowest, highest
        self.edges: Tensor
        self.gamma: Tensor
        self.register_buffer("edges", torch.arange(bins + 1, dtype=torch.float64) / bins)
        self.register_buffer("gamma", torch.ones(bins, dtype=torch.float64))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        log_p = gather_labels(log_softmax(at_least_float32(logits), dim=1), labels)
        p = log_p.exp()
        gamma = self.gamma_of(p.detach()).to(p.dtype)
        base = torch.where(gamma >= 0, 1 - p, 1 + p) + 1e-20
        certain = base <= 1e-20  # p = 1 with γ < 1 would give 0 · inf
        power = torch.where(certain, (gamma == 0).to(p.dtype), torch.where(certain, 1.0, base) ** gamma.abs())
        return (-power * log_p).mean()

    def gamma_of(self, p: Tensor) -> Tensor:
        """Return the γ of the bin [lower, upper) of each probability; the first and last bins reach outward."""
        return self.gamma[torch.bucketize(p.to(self.edges.dtype), self.edges[1:-1], right=True)]

    def update(self, confidence: ArrayLike, correct: ArrayLike) -> None:
        """Renew the bins from dev's top-label confidences (N,) and whether they are right (N,), and move γ with their gaps."""
        edges, gap = equal_mass_gaps(np.asarray(confidence, np.float64), np.asarray(correct, np.float64), len(self.gamma))
        self.edges.copy_(torch.from_numpy(edges))
        self.step(torch.from_numpy(gap))

    def step(self, gap: Tensor) -> None:
        """Move γ with the gap (confidence - accuracy) of each bin."""
        moved = self.gamma * torch.exp(torch.where(self.gamma > 0, self.rate * gap, -self.rate * gap))
        flipped = torch.full_like(moved, self.switch).copysign(-moved)
        self.gamma.copy_(torch.where(moved.abs() < self.switch, flipped, moved).clamp(self.lowest, self.highest))


def equal_mass_gaps(confidence: np.ndarray, correct: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return edges of bins and the gap mean confidence - accuracy in each, as AdaFocal's released code does.

    Edges are interpolated and bins are (lower, upper]; confidences equal to the smallest are in no bin, as in that code.

    Parameters
    ----------
    confidence : ndarray of float, shape (N,)
        Confidences in [0, 1].
    correct : ndarray of bool or int, shape (N,)
        Whether each prediction is right.
    bins : int
        Number B of bins.

    Returns
    -------
    edges : ndarray of float, shape (B + 1,)
        The edges, in ascending order.
    gap : ndarray of float, shape (B,)
        The gaps in [-1, 1], 0 for empty bins.

    Examples
    --------
    >>> edges, gap = equal_mass_gaps(np.array([0.6, 0.7, 0.8, 0.9]), np.array([0, 0, 1, 1]), 2)
    >>> gap.round(2).tolist()
    [0.25, -0.1]
    """
    n = len(confidence)
    edges = np.interp(np.linspace(0, n, bins + 1), np.arange(n), np.sort(confidence))
    cell = np.searchsorted(edges, confidence, side="left") - 1
    kept = cell >= 0
    count = np.bincount(cell[kept], minlength=bins)[:bins]
    gap = np.bincount(cell[kept], (confidence - correct)[kept], minlength=bins)[:bins] / np.maximum(count, 1)
    return edges, gap


class ContrastiveDistillation(nn.Module):
    """CRD: a student's feature tells its own teacher feature from those of other classes; the usual weight is 0.8.

    Both features go through a linear map to ``dim`` and are normalised; both maps are trained with the student. Scores against
    ``negatives`` remembered features of other classes (drawn without replacement where there are enough) enter a
    noise-contrastive loss, ``-mean_i [log P⁺/(P⁺ + k/n) + Σ_neg log (k/n)/(P⁻ + k/n)]``, once for each side, whose constants Z
    are set by the first batch and then frozen. Range: [0, ∞).

    Memory: two banks of n_data × dim, and N × n_data scores at a time. Cost: O(N · n_data · dim), and O(N · negatives) to draw.

    Parameters
    ----------
    features, teacher_features : int
        Width of the flattened features of student and teacher.
    labels : Tensor of int, shape (n_data,)
        Labels of all training examples.
    dim : int, default 128
        Width in which features are compared.
    negatives : int, default 16384
        k, the number of features of other classes.
    temperature : float, default 0.07
        Divides cosines.
    momentum : float, default 0.5
        Share of the old feature when a bank is updated.
    seed : int, default 0
        Of the banks and of the drawn negatives.

    References
    ----------
    Tian et al. 2020.

    Examples
    --------
    >>> loss = ContrastiveDistillation(3, 4, torch.tensor([0, 1, 0, 1]), negatives=2)
    >>> value = loss(torch.randn(2, 3), torch.randn(2, 4), torch.tensor([3, 0]))
    >>> value.shape, bool(value > 0)
    (torch.Size([]), True)
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
        check_range(1, 2**31, dim=check_argument("dim", dim, int, "ContrastiveDistillation"))
        check_range(1, 2**31, negatives=check_argument("negatives", negatives, int, "ContrastiveDistillation"))
        check_argument("seed", seed, int, "ContrastiveDistillation")
        check_range(SMALLEST, LARGEST, temperature=temperature)
        check_range(0, 1, momentum=momentum)
        n_data = len(labels)
        self.negatives, self.temperature, self.momentum = negatives, temperature, momentum
        self.generator = torch.Generator().manual_seed(seed)
        self.classes = ExamplesByClass(labels)
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
        """Return the loss of a batch with newly drawn negatives."""
        return self.contrast(features, teacher_features, torch.cat([ids[:, None], self.draw(ids)], dim=1))

    def draw(self, ids: Tensor) -> Tensor:
        """Return indices (N, negatives) of samples of other classes, every row drawn by itself."""
        seed = int(torch.randint(2**62, (), generator=self.generator))  # the generator's state is what a resumed run restores
        drawn = self.classes.draw_others(self.labels[ids].cpu().numpy(), self.negatives, np.random.default_rng(seed))
        return torch.from_numpy(drawn).to(ids.device)

    def contrast(self, features: Tensor, teacher_features: Tensor, index: Tensor) -> Tensor:
        """Return the loss with given indices (N, 1 + negatives), the positive first, and update the banks."""
        student = normalize(self.embed_student(at_least_float32(features).flatten(1)), dim=1)
        teacher = normalize(self.embed_teacher(at_least_float32(teacher_features).detach().flatten(1)), dim=1)
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
        """Return the generator's state, so that a resumed run draws the same negatives."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the generator's state."""
        self.generator.set_state(state)


class ExamplesByClass:
    """The examples of each class, to draw from those of all other classes.

    Parameters
    ----------
    labels : Tensor of int, shape (n_data,)
        Labels of all examples.

    Examples
    --------
    >>> examples = ExamplesByClass(torch.tensor([0, 1, 0, 1]))
    >>> sorted(examples.draw_others(np.array([0]), 2, np.random.default_rng(0))[0].tolist())
    [1, 3]
    """

    def __init__(self, labels: Tensor):
        values = labels.cpu().numpy()
        self.order = np.argsort(values, kind="stable")  # positions of the examples, class by class
        self.labels, self.starts, self.counts = np.unique(values[self.order], return_index=True, return_counts=True)

    def draw_others(self, labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return positions (N, count) of examples of other classes than ``labels`` (N,).

        Without replacement in each row; with it in all rows if one of them has fewer than ``count`` other examples.
        """
        own = np.searchsorted(self.labels, labels)
        replace = bool((len(self.order) - self.counts[own]).min() < count)
        drawn = np.empty((len(labels), count), dtype=np.int64)
        for row, start, size in zip(drawn, self.starts[own], self.counts[own], strict=True):
            # A partial shuffle: a tenth of the time of torch.multinomial, which draws and sorts a number for every example.
            places = rng.choice(len(self.order) - size, count, replace=replace, shuffle=False)
            places += size * (places >= start)  # past the examples of the own class
            self.order.take(places, out=row)
        return drawn


def _noise_contrast(p: Tensor, n_data: int) -> Tensor:
    """``-mean_i [log P⁺/(P⁺ + k/n) + Σ_neg log (k/n)/(P⁻ + k/n)]`` for scores (N, 1 + k), the positive first."""
    noise = (p.shape[1] - 1) / n_data
    positive = torch.log(p[:, 0] / (p[:, 0] + noise + 1e-7))
    negative = torch.log(noise / (p[:, 1:] + noise + 1e-7)).sum(dim=1)
    return -(positive + negative).mean()


MEMORY_LOSSES: dict[str, type[nn.Module]] = {
    "crl": CorrectnessRanking,
    "pskd": ProgressiveSelfDistillation,
    "adafocal": AdaFocal,
    "crd": ContrastiveDistillation,
}
MEMORY_BY_EXAMPLE = frozenset({"pskd", "adafocal"})  # value on a batch = mean of the values on its parts
