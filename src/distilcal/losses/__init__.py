"""Losses for training and distilling, listed in ``LOSSES``.

A loss is a function of tensors, or a small module where it must remember, whose argument *names* say what it wants:
``logits, labels, targets, features, teacher_logits, teacher_features, ids``. It works in anybody's loop; ``wants`` tells a
loop what to hand over. A method is a weighted sum of such terms: ``0.1·cross_entropy + 0.9·kd`` is Hinton's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from distilcal.losses.calibration import (
    acls,
    brier,
    confidence_penalty,
    cpc,
    cross_entropy,
    dca,
    flsd53,
    focal,
    mbls,
    mdca,
    mmce,
    mmce_weighted,
    smoothed,
    softmax_bce,
)
from distilcal.losses.distillation import kd, rkd
from distilcal.losses.memory import AdaFocal, ContrastiveDistillation, CorrectnessRanking, ProgressiveSelfDistillation

LOSSES: dict[str, Callable[..., Any]] = {
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
    "kd": kd,
    "rkd": rkd,
    # modules: called once to make them, then as the functions
    "crl": CorrectnessRanking,
    "pskd": ProgressiveSelfDistillation,
    "adafocal": AdaFocal,
    "crd": ContrastiveDistillation,
}

__all__ = [
    "LOSSES",
    "AdaFocal",
    "ContrastiveDistillation",
    "CorrectnessRanking",
    "ProgressiveSelfDistillation",
    "acls",
    "brier",
    "confidence_penalty",
    "cpc",
    "cross_entropy",
    "dca",
    "flsd53",
    "focal",
    "kd",
    "mbls",
    "mdca",
    "mmce",
    "mmce_weighted",
    "required_inputs",
    "rkd",
    "smoothed",
    "softmax_bce",
]


def required_inputs(loss: Callable[..., Any]) -> tuple[str, ...]:
    """The names of what a loss is called with, in order: settings are keyword-only, the rest comes from the batch."""
    call = loss.forward if isinstance(loss, nn.Module) or (isinstance(loss, type) and issubclass(loss, nn.Module)) else loss
    names = [p.name for p in inspect.signature(call).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    return tuple(name for name in names if name != "self")
