"""Losses that hand a teacher's knowledge to a student. The teacher never receives gradient.

The one with a memory, CRD, is in ``memory``.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, normalize, smooth_l1_loss

from distilcal.errors import InputError
from distilcal.losses.calibration import raised


def kd(
    logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float = 1.0,
    student_temperature: float | None = None,
    t_squared: bool = True,
    reduction: Literal["batch", "classes"] = "batch",
) -> Tensor:
    """``T² · KL(softmax(teacher/T) ‖ softmax(student/T))``, mean over the batch; Hinton et al. 2015.

    ``student_temperature=1, t_squared=False`` divides the teacher's logits only (P000). ``reduction="classes"`` also divides
    by K (P002's scaled KD). P003 is ``t_squared=False``, P004 the default. T² keeps the gradient's size as T grows.
    """
    if not temperature > 0 or not (student_temperature is None or student_temperature > 0):
        raise InputError(f"temperature {temperature} and {student_temperature} must be positive")
    logits, teacher_logits = raised(logits), raised(teacher_logits).detach()
    student = log_softmax(logits / (temperature if student_temperature is None else student_temperature), dim=1)
    # Where the teacher gives probability 0 a class takes no part: 0 · (-inf - x) must be 0, so the logarithm stays finite.
    teacher = log_softmax(teacher_logits.to(logits.dtype) / temperature, dim=1).clamp(min=-1e30)
    divergence = kl_div(student, teacher, reduction="sum", log_target=True) / len(logits)
    if reduction == "classes":
        divergence = divergence / logits.shape[1]
    elif reduction != "batch":
        raise InputError(f"reduction {reduction!r} is neither 'batch' nor 'classes'")
    return divergence * temperature**2 if t_squared else divergence


def rkd(features: Tensor, teacher_features: Tensor, *, distance: float = 25.0, angle: float = 50.0) -> Tensor:
    """Relational KD ``w_D · L_distance + w_A · L_angle``; Park et al. 2019. O(N²·D + N³); 0 for a single row.

    Pairwise distances, divided by their mean, and cosines of the angles of all triples are compared by smooth L1, mean over
    all N² and N³ entries. Features (N, …) are flattened; student and teacher may differ in width.
    """
    student, teacher = raised(features).flatten(1), raised(teacher_features).detach().flatten(1)
    if len(student) < 2:
        return student.sum() * 0.0
    teacher = teacher.to(student.dtype)
    total = student.sum() * 0.0
    if distance:
        total = total + distance * smooth_l1_loss(_relative_distances(student), _relative_distances(teacher))
    if angle:
        total = total + angle * smooth_l1_loss(_angles(student), _angles(teacher))
    return total


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
