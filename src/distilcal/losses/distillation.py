"""Losses by which a student learns from a teacher. The teacher never receives gradient.

CRD, which has a memory, is in ``memory``. To add a loss, write a function here and enter it in ``DISTILLATION_LOSSES``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax, normalize, smooth_l1_loss

from distilcal.arguments import check_range
from distilcal.errors import InputError
from distilcal.losses.calibration import LARGEST, SMALLEST, at_least_float32


def kd(
    logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float = 1.0,
    student_temperature: float | None = None,
    t_squared: bool = True,
    reduction: Literal["batch", "classes"] = "batch",
) -> Tensor:
    """Return the knowledge distillation loss.

    ``T² · mean_i KL(softmax(teacher/T) ‖ softmax(student/T))``. Range: [0, ∞).

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    teacher_logits : Tensor, shape (N, K)
        The teacher's logits; they receive no gradient.
    temperature : float, default 1.0
        T: both sets of logits are divided by it.
    student_temperature : float, optional
        Divides the student's logits in place of T; with 1 and ``t_squared=False`` only the teacher's are divided, as by
        Hosseini & Caragea.
    t_squared : bool, default True
        Whether to multiply by T², which keeps the size of the gradient as T grows. Hosseini & Caragea do not; Mishra et al.
        and Sultan do not say.
    reduction : {"batch", "classes"}, default "batch"
        ``"classes"`` divides by K too (Mishra et al.'s scaled KD).

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Hinton et al. 2015.

    Examples
    --------
    >>> logits, teacher_logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    >>> round(float(kd(logits, teacher_logits, temperature=2.0)), 4)
    0.2364
    """
    check_range(SMALLEST, LARGEST, temperature=temperature)
    if student_temperature is not None:
        check_range(SMALLEST, LARGEST, student_temperature=student_temperature)
    _check_same_shape(logits, teacher_logits)
    logits, teacher_logits = at_least_float32(logits), at_least_float32(teacher_logits).detach()
    student = log_softmax(logits / (temperature if student_temperature is None else student_temperature), dim=1)
    # Where the teacher gives probability 0 a class takes no part: 0 · (-inf - x) must be 0, so the logarithm stays finite.
    teacher = log_softmax(teacher_logits.to(logits.dtype) / temperature, dim=1).clamp(min=-1e30)
    divergence = kl_div(student, teacher, reduction="sum", log_target=True) / len(logits)
    if reduction == "classes":
        divergence = divergence / logits.shape[1]
    elif reduction != "batch":
        raise InputError(f"reduction {reduction!r} is neither 'batch' nor 'classes'")
    return divergence * temperature**2 if t_squared else divergence


def hard_kd(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return the cross-entropy with the class that the teacher finds most probable.

    ``mean_i -log softmax(student)_{argmax teacher}``. Range: [0, ∞). What is usual with the answers of a large model; the
    teacher's confidence is lost, so it is the control for `kd`.

    Parameters
    ----------
    logits : Tensor, shape (N, K)
        Scores before the softmax.
    teacher_logits : Tensor, shape (N, K)
        The teacher's logits; they receive no gradient.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Lee 2013, "Pseudo-label"; Touvron et al. 2021, hard-label distillation.

    Examples
    --------
    >>> logits, teacher_logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    >>> round(float(hard_kd(logits, teacher_logits)), 4)
    0.2201
    """
    _check_same_shape(logits, teacher_logits)
    return cross_entropy(at_least_float32(logits), teacher_logits.argmax(dim=1))


def rkd(features: Tensor, teacher_features: Tensor, *, distance: float = 25.0, angle: float = 50.0) -> Tensor:
    """Return the relational knowledge distillation loss.

    ``w_D · L_distance + w_A · L_angle``. Range: [0, ∞).

    Pairwise distances, divided by their mean, and cosines of the angles of all triples are compared by smooth L1, mean over all
    N² and N³ entries; 0 for a single row. Cost O(N²·D + N³).

    Parameters
    ----------
    features : Tensor, shape (N, ...)
        The student's features; they are flattened.
    teacher_features : Tensor, shape (N, ...)
        The teacher's, of any width; they receive no gradient.
    distance : float, default 25.0
        w_D.
    angle : float, default 50.0
        w_A.

    Returns
    -------
    Tensor, scalar

    References
    ----------
    Park et al. 2019.

    Examples
    --------
    >>> features = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> round(float(rkd(features, 3 * features)), 4)
    0.0
    >>> float(rkd(features, features.flip(0))) > 0
    True
    """
    check_range(0, LARGEST, distance=distance, angle=angle)
    student, teacher = at_least_float32(features).flatten(1), at_least_float32(teacher_features).detach().flatten(1)
    if len(student) < 2:
        return student.sum() * 0.0
    teacher = teacher.to(student.dtype)
    total = student.sum() * 0.0
    if distance:
        total = total + distance * smooth_l1_loss(_relative_distances(student), _relative_distances(teacher))
    if angle:
        total = total + angle * smooth_l1_loss(_angles(student), _angles(teacher))
    return total


def _check_same_shape(logits: Tensor, teacher_logits: Tensor) -> None:
    """Refuse a teacher's logits of other rows or classes: torch would repeat what is missing, or leave out the rest."""
    if logits.shape != teacher_logits.shape:
        raise InputError(
            f"teacher's logits of shape {tuple(teacher_logits.shape)} for logits of shape {tuple(logits.shape)}",
            remedy="give the teacher's logits of the same rows and classes",
        )


def _relative_distances(x: Tensor) -> Tensor:
    """(N, N) Euclidean distances over the mean of the off-diagonal ones; equal rows count as 1e-6 apart."""
    square = (x[:, None] - x[None]).square().sum(dim=2)
    off = ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    distances = torch.where(off, square.clamp(min=1e-12).sqrt(), 0.0)
    return distances / distances[off].mean()


def _angles(x: Tensor) -> Tensor:
    """(N, N, N) cosine of the angle at row i between rows j and k."""
    towards = normalize(x[None] - x[:, None], dim=2, eps=1e-12)  # (i, j, D): from i to j
    return towards @ towards.transpose(1, 2)


DISTILLATION_LOSSES: dict[str, Callable[..., Tensor]] = {"kd": kd, "hard_kd": hard_kd, "rkd": rkd}
DISTILLATION_BY_EXAMPLE = frozenset({"kd", "hard_kd"})  # value on a batch = mean of the values on its parts
