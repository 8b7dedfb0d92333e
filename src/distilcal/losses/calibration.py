"""Losses that train for calibration: plain functions of tensors.

Argument names say what a loss reads: ``logits`` (N, K), ``labels`` (N,) class indices, ``targets`` (N, K) distributions or
(N,) indices. Each returns its own term only, a mean over the batch; weights belong to whoever adds terms up. Half precision
is raised to single first. Cost is O(N·K) unless stated.

To add a loss, write a function here and enter it in ``CALIBRATION_LOSSES`` at the end of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, log_softmax, one_hot, relu, softplus

from distilcal.arguments import check_range
from distilcal.errors import InputError

# Settings of losses are numbers of this range, or 0: smaller divisors and larger factors overflow in single precision.
SMALLEST, LARGEST = 1e-6, 1e6

PAIR_ENTRIES = 1 << 24  # entries of an (N, K, K) block that CPC works on at a time


def at_least_float32(values: Tensor) -> Tensor:
    """Return half precision as single; single and double precision unchanged.

    Parameters
    ----------
    values : Tensor, any shape
        The values.

    Returns
    -------
    Tensor, same shape
        The values as float32 or float64.

    Examples
    --------
    >>> at_least_float32(torch.zeros(2, dtype=torch.float16)).dtype
    torch.float32
    """
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def smooth_targets(
    targets: Tensor,
    classes: int,
    smoothing: float = 0.0,
    convention: Literal["uniform", "offtarget"] = "uniform",
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return target distributions with label smoothing.

    The two conventions agree where ``α_offtarget = α_uniform · (K - 1) / K``.

    Parameters
    ----------
    targets : Tensor, shape (N,) or (N, K)
        Class indices, or distributions over classes.
    classes : int
        Number of classes K.
    smoothing : float, default 0.0
        α, the probability that is taken from the target.
    convention : {"uniform", "offtarget"}, default "uniform"
        ``"uniform"``: (1 - α) · target + α/K on every class (torch, Sultan). ``"offtarget"``: a label gets 1 - α, each other
        class α/(K - 1), as in the other papers; for soft targets the same linear map.
    dtype : torch.dtype, default torch.float32
        Precision of the result.

    Returns
    -------
    Tensor, shape (N, K)

    Examples
    --------
    >>> smooth_targets(torch.tensor([0]), 3, 0.3, "offtarget").round(decimals=3).tolist()
    [[0.699999988079071, 0.15000000596046448, 0.15000000596046448]]
    """
    check_range(0, 1, smoothing=smoothing)
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
    """Return the cross-entropy against labels or distributions, with label smoothing.

    ``mean(-Σ_k q_k log p_k)``. Range: [0, ∞).

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    targets : Tensor, shape (N,) or (N, K)
        Class indices, or distributions over classes.
    smoothing : float, default 0.0
        Probability that is taken from the target; see `smooth_targets`.
    convention : {"uniform", "offtarget"}, default "uniform"
        How it is spread over classes; see `smooth_targets`.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Szegedy et al. 2016 (label smoothing).

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(cross_entropy(logits, labels)), 4)
    0.8955
    """
    logits = at_least_float32(logits)
    if targets.dim() == 1 and not smoothing:
        return -gather_labels(log_softmax(logits, dim=1), targets).mean()
    q = smooth_targets(targets, logits.shape[1], smoothing, convention, dtype=logits.dtype)
    if q.shape != logits.shape:  # torch would repeat what is missing
        raise InputError(
            f"targets of shape {tuple(targets.shape)} for logits of shape {tuple(logits.shape)}",
            remedy="give a class index or a distribution over the classes for each row",
        )
    log_probs = log_softmax(logits, dim=1)
    # A class of weight 0 takes no part, however impossible it is: 0 · -inf must be 0.
    return -torch.where(q == 0, torch.zeros_like(log_probs), q * log_probs).sum(dim=1).mean()


def focal(logits: Tensor, labels: Tensor, *, gamma: float = 3.0) -> Tensor:
    """Return the focal loss.

    ``mean(-(1 - p_y)^γ log p_y)``. Range: [0, ∞).

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    labels : Tensor of int, shape (N,)
        Class indices.
    gamma : float, default 3.0
        γ: how much confident rows lose weight; 0 is cross-entropy.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Lin et al. 2017; for calibration Mukhoti et al. 2020.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(focal(logits, labels)), 4)
    0.3808
    """
    check_range(0, LARGEST, gamma=gamma)
    log_p = gather_labels(log_softmax(at_least_float32(logits), dim=1), labels)
    return _focal_terms(log_p, torch.full_like(log_p, gamma)).mean()


def flsd53(logits: Tensor, labels: Tensor, *, gamma: float = 3.0) -> Tensor:
    """Return the focal loss with a sample-dependent γ.

    ``mean(-(1 - p_y)^γ(p_y) log p_y), γ = 5 where p_y < 0.2, 3 where p_y < 0.5, else gamma``. Range: [0, ∞).

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    labels : Tensor of int, shape (N,)
        Class indices.
    gamma : float, default 3.0
        γ where the label's probability is at least 0.5.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Mukhoti et al. 2020.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(flsd53(logits, labels)), 4)
    0.3808
    """
    check_range(0, LARGEST, gamma=gamma)
    log_p = gather_labels(log_softmax(at_least_float32(logits), dim=1), labels)
    p = log_p.detach().exp()
    chosen = torch.where(p < 0.2, 5.0, torch.where(p < 0.5, 3.0, gamma)).to(log_p.dtype)
    return _focal_terms(log_p, chosen).mean()


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the Brier score, summed over classes.

    ``mean(Σ_k (p_k - 1[y=k])²)``. Range: [0, 2].

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    labels : Tensor of int, shape (N,)
        Class indices.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Brier 1950.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(brier(logits, labels)), 4)
    0.533
    """
    probs = log_softmax(at_least_float32(logits), dim=1).exp()
    return (probs - one_hot_labels(labels, probs)).square().sum(dim=1).mean()


def softmax_bce(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy of each class's probability, a mean over classes.

    ``-mean_ik [q_ik log p_ik + (1 - q_ik) log(1 - p_ik)]``. Range: [0, ∞).

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    targets : Tensor, shape (N,) or (N, K)
        Class indices, or distributions over classes.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    The released code of manifold mixup, Verma et al. 2019.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(softmax_bce(logits, labels)), 4)
    0.5188
    """
    logits = at_least_float32(logits)
    probs = log_softmax(logits, dim=1).exp()
    return binary_cross_entropy(probs, smooth_targets(targets, logits.shape[1], dtype=logits.dtype))


def confidence_penalty(logits: Tensor, *, over_classes: Literal["sum", "mean"] = "sum") -> Tensor:
    """Return the negative entropy of the predictions; the usual weight is 0.1.

    ``-mean(H(p))``. Range: [-log K, 0].

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    over_classes : {"sum", "mean"}, default "sum"
        ``"mean"`` divides by K, as the released code of MbLS does.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Pereyra et al. 2017.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(confidence_penalty(logits)), 4)
    -0.8205
    """
    if over_classes not in ("sum", "mean"):
        raise InputError(f"over_classes {over_classes!r} is neither 'sum' nor 'mean'")
    log_probs = log_softmax(at_least_float32(logits), dim=1)
    negative_entropy = (log_probs.exp() * log_probs).sum(dim=1).mean()
    return negative_entropy if over_classes == "sum" else negative_entropy / logits.shape[1]


def mdca(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the multi-class difference of confidence and accuracy of the batch.

    ``1/K Σ_k |mean_i p_ik - mean_i 1[y_i=k]|``. Range: [0, 2/K].

    A statistic of the whole batch; classes that are absent from it count too.

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    labels : Tensor of int, shape (N,)
        Class indices.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Hebbalaguppe et al. 2022.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(mdca(logits, labels)), 4)
    0.2275
    """
    probs = log_softmax(at_least_float32(logits), dim=1).exp()
    return (probs.mean(dim=0) - one_hot_labels(labels, probs).mean(dim=0)).abs().mean()


def dca(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the difference of confidence and accuracy of the batch; the usual weight is 10.

    ``|mean confidence - accuracy|``. Range: [0, 1].

    A statistic of the whole batch.

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    labels : Tensor of int, shape (N,)
        Class indices.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Liang et al. 2020.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(dca(logits, labels)), 4)
    0.1816
    """
    confidence, correct = _confidence(logits, labels)
    return (confidence.mean() - correct.mean()).abs()


def mmce(logits: Tensor, labels: Tensor, *, width: float = 0.4) -> Tensor:
    """Return the squared maximum mean calibration error of the batch.

    ``1/N² Σ_ij (c_i - r_i)(c_j - r_j) exp(-|r_i - r_j|/width)``. Range: [0, 1].

    r is the confidence of a row and c whether it is right. A statistic of the whole batch; cost O(N²).

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    labels : Tensor of int, shape (N,)
        Class indices.
    width : float, default 0.4
        Width of the Laplacian kernel on confidences.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Kumar et al. 2018; squared, as in all released code.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(mmce(logits, labels)), 4)
    0.0581
    """
    confidence, correct = _confidence(logits, labels)
    gap = correct - confidence
    return (gap[:, None] * gap[None] * _laplacian(confidence, confidence, width)).mean()


def mmce_weighted(
    logits: Tensor, labels: Tensor, *, width: float = 0.4, variant: Literal["paper", "author"] = "paper"
) -> Tensor:
    """Return the MMCE with right and wrong predictions weighted alike, a square root.

    ``√(avg_CC (1-r_i)(1-r_j)k + avg_WW r_i r_j k - 2 avg_CW (1-r_i) r_j k)``. Range: [0, √2].

    C are the right and W the wrong predictions; 0 when all are right or all wrong. A statistic of the whole batch; cost O(N²).

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    labels : Tensor of int, shape (N,)
        Class indices.
    width : float, default 0.4
        Width of the Laplacian kernel k on confidences.
    variant : {"paper", "author"}, default "paper"
        ``"author"`` divides the averages by their number of pairs once more, as every released code does. Published weights
        (2 to 4) are for that form; without it the same weight is 7 to 46 times as strong.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Kumar et al. 2018.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(mmce_weighted(logits, labels)), 4)
    0.4821
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
    """Return the calibration by pairwise constraints.

    ``λ₁ · BDC + λ₂ · BEC``. Range: [0, ∞).

    Cost O(N·K²); memory is bounded by chunks.

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    labels : Tensor of int, shape (N,)
        Class indices.
    discrimination : float, default 0.1
        λ₁, the weight of BDC: mean over j ≠ y of softplus(z_j - z_y).
    exclusion : float, default 1.0
        λ₂, the weight of BEC: mean over ordered pairs a ≠ b of other classes of ½ softplus(z_b - z_a), which draws
        them together; 0 for two classes.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Cheng & Vasconcelos 2022.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(cpc(logits, labels)), 4)
    0.4331
    """
    check_range(0, LARGEST, discrimination=discrimination, exclusion=exclusion)
    logits = at_least_float32(logits)
    n, k = logits.shape
    total = logits.sum() * 0.0
    if discrimination:
        rest = softplus(logits - gather_labels(logits, labels)[:, None]).sum(dim=1) - softplus(logits.new_zeros(()))
        total = total + discrimination * (rest / (k - 1)).mean()
    if exclusion and k > 2:
        step = max(1, PAIR_ENTRIES // (k * k))
        chunks = (_pairs_of_others(logits[i : i + step], labels[i : i + step]) for i in range(0, n, step))
        total = total + exclusion * sum(chunks, logits.new_zeros(())) / (n * (k - 1) * (k - 2))
    return total


def mbls(logits: Tensor, *, margin: float = 10.0) -> Tensor:
    """Return the margin-based label smoothing penalty; the usual weight is 0.1.

    ``mean_ik relu(max_j z_ij - z_ik - m)``. Range: [0, ∞).

    The maximum is not detached.

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    margin : float, default 10.0
        m: differences of logits up to it cost nothing.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Liu et al. 2022.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(mbls(logits, margin=1.0)), 4)
    0.3333
    """
    check_range(0, LARGEST, margin=margin)
    logits = at_least_float32(logits)
    return relu(logits.max(dim=1, keepdim=True).values - logits - margin).mean()


def acls(logits: Tensor, *, margin: float = 10.0, positive: float = 1.0, negative: float = 0.1) -> Tensor:
    """Return the adaptive and conditional label smoothing penalty; the usual weight is 0.1.

    ``λ⁺ · mean_i relu(max - m)² + λ⁻ · mean_{k not max} relu(sg(max) - z_k - m)²``. Range: [0, ∞).

    sg stops the gradient. The positive term looks at the largest logit itself, so a constant added to all logits changes it.
    Every logit that equals the maximum counts as one.

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    margin : float, default 10.0
        m.
    positive : float, default 1.0
        λ⁺, the weight of the largest logit.
    negative : float, default 0.1
        λ⁻, the weight of the others.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Park et al. 2023.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    >>> round(float(acls(logits, margin=1.0)), 4)
    0.55
    """
    check_range(0, LARGEST, margin=margin, positive=positive, negative=negative)
    logits = at_least_float32(logits)
    n, k = logits.shape
    top = logits.max(dim=1, keepdim=True).values
    is_top = (logits == top).to(logits.dtype)
    # max(dim) hands the whole gradient to one index; with ties each tied entry adds a copy of the same square.
    over = relu(logits.gather(1, logits.argmax(dim=1, keepdim=True)) - margin).square() * is_top
    under = relu(top.detach() - logits - margin).square() * (1 - is_top)
    return positive * over.sum() / n + negative * under.sum() / (n * (k - 1))


def gather_labels(values: Tensor, labels: Tensor) -> Tensor:
    """Return each row's value in the column of its label.

    Parameters
    ----------
    values : Tensor, shape (N, K)
        A value per class, such as log-probabilities.
    labels : Tensor of int64, shape (N,)
        Classes from 0 to K − 1.

    Returns
    -------
    Tensor, shape (N,)
        The values of the labels.

    Examples
    --------
    >>> gather_labels(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([1, 0])).tolist()
    [0.10000000149011612, 0.30000001192092896]
    """
    _check_labels(labels, values)
    return values.gather(1, labels[:, None]).squeeze(1)


def one_hot_labels(labels: Tensor, values: Tensor) -> Tensor:
    """Return 1 in the column of each row's label, and 0 in the others.

    Parameters
    ----------
    labels : Tensor of int64, shape (N,)
        Classes from 0 to K − 1.
    values : Tensor, shape (N, K)
        A value per class, such as log-probabilities, in whose precision the result is.

    Returns
    -------
    Tensor, shape (N, K)

    Examples
    --------
    >>> one_hot_labels(torch.tensor([1, 0]), torch.tensor([[0.9, 0.1], [0.3, 0.7]])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    _check_labels(labels, values)
    return one_hot(labels, values.shape[1]).to(values.dtype)


def _check_labels(labels: Tensor, values: Tensor) -> None:
    """Refuse labels that are not one for each row: torch would repeat some of them, or leave out rows, without a word."""
    if labels.shape != values.shape[:1]:
        raise InputError(
            f"labels of shape {tuple(labels.shape)} for logits of shape {tuple(values.shape)}",
            remedy="give one class index for each row",
        )


def _focal_terms(log_p: Tensor, gamma: Tensor) -> Tensor:
    """-(1 - p)^γ log p, with the limit 0 and slope 0 at p = 1, where γ < 1 would give 0 · inf."""
    rest = -torch.expm1(log_p)  # 1 - p without cancellation
    certain = rest <= 0
    return torch.where(certain, -log_p * (gamma == 0), -(torch.where(certain, 1.0, rest) ** gamma) * log_p)


def _confidence(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Top-label probability (N,), with gradient, and whether it is right (N,), without; the first class wins a tie."""
    log_probs = log_softmax(at_least_float32(logits), dim=1)
    predicted = log_probs.argmax(dim=1)
    return gather_labels(log_probs, predicted).exp(), gather_labels(one_hot_labels(labels, log_probs), predicted)


def _laplacian(a: Tensor, b: Tensor, width: float) -> Tensor:
    check_range(SMALLEST, LARGEST, width=width)
    return torch.exp(-(a[:, None] - b[None]).abs() / width)


def _pairs_of_others(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ over rows and ordered pairs a ≠ b, both other than the label, of ½ softplus(z_b - z_a)."""
    k = logits.shape[1]
    other = 1 - one_hot_labels(labels, logits)
    pairs = softplus(logits[:, None] - logits[:, :, None])  # (n, a, b)
    weight = other[:, :, None] * other[:, None] * (1 - torch.eye(k, dtype=logits.dtype, device=logits.device))
    return 0.5 * (pairs * weight).sum()


CALIBRATION_LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": cross_entropy,
    "focal": focal,
    "flsd53": flsd53,
    "brier": brier,
    "softmax_bce": softmax_bce,
    "confidence_penalty": confidence_penalty,
    "mdca": mdca,
    "dca": dca,
    "mmce": mmce,
    "mmce_weighted": mmce_weighted,
    "cpc": cpc,
    "mbls": mbls,
    "acls": acls,
}
# Their value on a batch is the mean of their values on its parts. All others look at the batch as a whole.
CALIBRATION_BY_EXAMPLE = frozenset(
    {"cross_entropy", "focal", "flsd53", "brier", "softmax_bce", "confidence_penalty", "cpc", "mbls", "acls"}
)
