"""Losses that train for calibration: plain functions of tensors.

Argument names say what a loss wants: ``logits`` (N, K), ``labels`` (N,) class indices, ``targets`` (N, K) distributions or
(N,) indices. Each returns its own term only, a mean over the batch; weights belong to whoever adds terms up. Half precision
is raised to single first. Cost is O(N·K) unless stated. To add one: write a function here and enter it in ``LOSSES``.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, log_softmax, one_hot, relu, softplus

from distilcal.errors import InputError

PAIR_ENTRIES = 1 << 24  # entries of an (N, K, K) block that CPC works on at a time


def raised(values: Tensor) -> Tensor:
    """Half precision as single; single and double as they are."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def smoothed(
    targets: Tensor,
    classes: int,
    smoothing: float = 0.0,
    convention: Literal["uniform", "offtarget"] = "uniform",
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Target distributions (N, K) with label smoothing.

    ``"uniform"``: (1 - α)·target + α/K on every class (torch, P003). ``"offtarget"``: a label gets 1 - α, each other class
    α/(K - 1) (P000, P001, P004); for soft targets the same linear map. They agree where α_off = α_uniform·(K - 1)/K.
    """
    if targets.dim() == 1:
        targets = one_hot(targets, classes)
    targets = targets.to(dtype)
    if not smoothing:
        return targets
    if convention == "uniform":
        return (1 - smoothing) * targets + smoothing / classes
    if convention == "offtarget":
        return (1 - smoothing) * targets + smoothing / (classes - 1) * (1 - targets)
    raise InputError(f"convention {convention!r} is neither 'uniform' nor 'offtarget'")


def cross_entropy(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, convention: Literal["uniform", "offtarget"] = "uniform"
) -> Tensor:
    """``mean(-Σ_k q_k log p_k)`` against labels (N,) or distributions (N, K), with label smoothing."""
    logits = raised(logits)
    if targets.dim() == 1 and not smoothing:
        return -_of_label(log_softmax(logits, dim=1), targets).mean()
    q = smoothed(targets, logits.shape[1], smoothing, convention, dtype=logits.dtype)
    log_probs = log_softmax(logits, dim=1)
    # A class of weight 0 takes no part, however impossible it is: 0 · -inf must be 0.
    return -torch.where(q == 0, torch.zeros_like(log_probs), q * log_probs).sum(dim=1).mean()


def focal(logits: Tensor, labels: Tensor, *, gamma: float = 3.0) -> Tensor:
    """``mean(-(1 - p_y)^γ log p_y)``; Lin et al. 2017, for calibration Mukhoti et al. 2020. γ = 0 is cross-entropy."""
    log_p = _of_label(log_softmax(raised(logits), dim=1), labels)
    return _focal_terms(log_p, torch.full_like(log_p, gamma)).mean()


def flsd53(logits: Tensor, labels: Tensor, *, gamma: float = 3.0) -> Tensor:
    """Focal loss with γ = 5 where p_y < 0.2, 3 where p_y < 0.5, ``gamma`` above; Mukhoti et al. 2020."""
    log_p = _of_label(log_softmax(raised(logits), dim=1), labels)
    p = log_p.detach().exp()
    chosen = torch.where(p < 0.2, 5.0, torch.where(p < 0.5, 3.0, gamma)).to(log_p.dtype)
    return _focal_terms(log_p, chosen).mean()


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    """``mean(Σ_k (p_k - 1[y=k])²)``: summed over classes. In [0, 2]."""
    probs = log_softmax(raised(logits), dim=1).exp()
    return (probs - one_hot(labels, probs.shape[1])).square().sum(dim=1).mean()


def softmax_bce(logits: Tensor, targets: Tensor) -> Tensor:
    """``-mean_ik [q_ik log p_ik + (1 - q_ik) log(1 - p_ik)]``: what manifold mixup's code trains with; a mean over K."""
    logits = raised(logits)
    probs = log_softmax(logits, dim=1).exp()
    return binary_cross_entropy(probs, smoothed(targets, logits.shape[1], dtype=logits.dtype))


def confidence_penalty(logits: Tensor, *, over_classes: Literal["sum", "mean"] = "sum") -> Tensor:
    """``-mean(H(p))``; Pereyra et al. 2017, weight 0.1. ``over_classes="mean"`` divides by K, as MbLS's code does."""
    log_probs = log_softmax(raised(logits), dim=1)
    negative_entropy = (log_probs.exp() * log_probs).sum(dim=1).mean()
    return negative_entropy if over_classes == "sum" else negative_entropy / logits.shape[1]


def mdca(logits: Tensor, labels: Tensor) -> Tensor:
    """``1/K Σ_k |mean_i p_ik - mean_i 1[y_i=k]|``, absent classes too; Hebbalaguppe et al. 2022. A statistic of the batch."""
    probs = log_softmax(raised(logits), dim=1).exp()
    return (probs.mean(dim=0) - one_hot(labels, probs.shape[1]).to(probs.dtype).mean(dim=0)).abs().mean()


def dca(logits: Tensor, labels: Tensor) -> Tensor:
    """``|mean confidence - accuracy|`` of the batch; Liang et al. 2020, weight 10."""
    confidence, correct = _confidence(logits, labels)
    return (confidence.mean() - correct.mean()).abs()


def mmce(logits: Tensor, labels: Tensor, *, width: float = 0.4) -> Tensor:
    """``1/N² Σ_ij (c_i - r_i)(c_j - r_j) exp(-|r_i - r_j|/width)``; Kumar et al. 2018, squared as in all code. O(N²)."""
    confidence, correct = _confidence(logits, labels)
    gap = correct - confidence
    return (gap[:, None] * gap[None] * _laplacian(confidence, confidence, width)).mean()


def mmce_weighted(
    logits: Tensor, labels: Tensor, *, width: float = 0.4, variant: Literal["paper", "author"] = "paper"
) -> Tensor:
    """MMCE with right (C) and wrong (W) predictions weighted alike, a square root; 0 when all are right or all wrong. O(N²).

    ``√(avg_CC (1-r_i)(1-r_j)k + avg_WW r_i r_j k - 2 avg_CW (1-r_i) r_j k)``; Kumar et al. 2018. ``"author"`` divides the
    averages by their number of pairs once more, as every released code does: some m times smaller.
    """
    confidence, correct = _confidence(logits, labels)
    right, wrong = confidence[correct > 0], confidence[correct == 0]
    m, n = len(right), len(wrong)
    if not m or not n:
        return confidence.sum() * 0.0
    parts = (
        ((1 - right)[:, None] * (1 - right)[None] * _laplacian(right, right, width)).mean(),
        (wrong[:, None] * wrong[None] * _laplacian(wrong, wrong, width)).mean(),
        ((1 - right)[:, None] * wrong[None] * _laplacian(right, wrong, width)).mean(),
    )
    if variant == "author":
        squared = parts[0] / (m * m + 1e-5) + parts[1] / (n * n + 1e-5) - 2 * parts[2] / (m * n + 1e-5)
        return (squared + 1e-10).sqrt()
    if variant != "paper":
        raise InputError(f"variant {variant!r} is neither 'paper' nor 'author'")
    squared = parts[0] + parts[1] - 2 * parts[2]
    # A positive definite kernel: below 0 is rounding, and at 0 the root has no slope to give.
    return torch.where(squared > 0, squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt(), squared * 0.0)


def cpc(logits: Tensor, labels: Tensor, *, discrimination: float = 0.1, exclusion: float = 1.0) -> Tensor:
    """Pairwise constraints ``λ₁·BDC + λ₂·BEC``; Cheng & Vasconcelos 2022. O(N·K²) time, memory bounded by chunks.

    BDC: mean over j ≠ y of softplus(z_j - z_y). BEC: mean over ordered pairs a ≠ b of other classes of ½ softplus(z_b - z_a),
    which draws them together; 0 for two classes.
    """
    logits = raised(logits)
    n, k = logits.shape
    total = logits.sum() * 0.0
    if discrimination:
        rest = softplus(logits - _of_label(logits, labels)[:, None]).sum(dim=1) - softplus(logits.new_zeros(()))
        total = total + discrimination * (rest / (k - 1)).mean()
    if exclusion and k > 2:
        step = max(1, PAIR_ENTRIES // (k * k))
        chunks = (_pairs_of_others(logits[i : i + step], labels[i : i + step]) for i in range(0, n, step))
        total = total + exclusion * sum(chunks, logits.new_zeros(())) / (n * (k - 1) * (k - 2))
    return total


def mbls(logits: Tensor, *, margin: float = 10.0) -> Tensor:
    """``mean_ik relu(max_j z_ij - z_ik - m)``, the maximum not detached; Liu et al. 2022, weight 0.1."""
    logits = raised(logits)
    return relu(logits.max(dim=1, keepdim=True).values - logits - margin).mean()


def acls(logits: Tensor, *, margin: float = 10.0, positive: float = 1.0, negative: float = 0.1) -> Tensor:
    """``λ⁺·mean_i relu(max - m)² + λ⁻·mean_{k not max} relu(sg(max) - z_k - m)²``; Park et al. 2023, weight 0.1.

    The positive term looks at the largest logit itself, so a constant added to all logits does change it. Every logit that
    equals the maximum counts as one.
    """
    logits = raised(logits)
    n, k = logits.shape
    top = logits.max(dim=1, keepdim=True).values
    is_top = (logits == top).to(logits.dtype)
    # max(dim) hands the whole gradient to one index; with ties each tied entry adds a copy of the same square.
    over = relu(logits.gather(1, logits.argmax(dim=1, keepdim=True)) - margin).square() * is_top
    under = relu(top.detach() - logits - margin).square() * (1 - is_top)
    return positive * over.sum() / n + negative * under.sum() / (n * (k - 1))


def _of_label(values: Tensor, labels: Tensor) -> Tensor:
    return values.gather(1, labels[:, None]).squeeze(1)


def _focal_terms(log_p: Tensor, gamma: Tensor) -> Tensor:
    """-(1 - p)^γ log p, with the limit 0 and slope 0 at p = 1, where γ < 1 would give 0 · inf."""
    rest = -torch.expm1(log_p)  # 1 - p without cancellation
    certain = rest <= 0
    return torch.where(certain, -log_p * (gamma == 0), -(torch.where(certain, 1.0, rest) ** gamma) * log_p)


def _confidence(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Top-label probability (N,), with gradient, and whether it is right (N,), without; the first class wins a tie."""
    log_probs = log_softmax(raised(logits), dim=1)
    predicted = log_probs.argmax(dim=1)
    return _of_label(log_probs, predicted).exp(), (predicted == labels).to(log_probs.dtype)


def _laplacian(a: Tensor, b: Tensor, width: float) -> Tensor:
    return torch.exp(-(a[:, None] - b[None]).abs() / width)


def _pairs_of_others(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ over rows and ordered pairs a ≠ b, both other than the label, of ½ softplus(z_b - z_a)."""
    k = logits.shape[1]
    other = 1 - one_hot(labels, k).to(logits.dtype)
    pairs = softplus(logits[:, None] - logits[:, :, None])  # (n, a, b)
    weight = other[:, :, None] * other[:, None] * (1 - torch.eye(k, dtype=logits.dtype, device=logits.device))
    return 0.5 * (pairs * weight).sum()
