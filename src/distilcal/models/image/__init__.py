"""Networks for small images, as the papers on distillation use them: 32 × 32 pixels, parameter counts of the originals.

Every network has ``stages`` (the maps at which its papers look) and a linear ``head`` on the pooled features, so that
``network.features(x)`` is what feature losses and mixing read and ``network(x)`` is ``head(features(x))``. ``NETWORKS`` lists
them by name; to add one, write a function ``(classes) -> ConvNet`` and enter it there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial

from distilcal.errors import InputError
from distilcal.models.image.densenet import densenet121
from distilcal.models.image.layers import ConvNet
from distilcal.models.image.mobilenet import mobilenet_v2, mobilenet_v2_full
from distilcal.models.image.resnet import (
    BasicBlock,
    Bottleneck,
    convert_padded_resnet_state,
    four_stage_resnet,
    resnet,
    wide_resnet,
)
from distilcal.models.image.shufflenet import shufflenet_v1, shufflenet_v2
from distilcal.models.image.vgg import VGG_GROUPS, vgg

_WIDE = (32, 64, 128, 256)

NETWORKS: dict[str, Callable[[int], ConvNet]] = {
    **{f"resnet{d}": partial(resnet, depth=d) for d in (8, 14, 20, 32, 44, 56, 110)},
    **{f"resnet{d}x4": partial(resnet, depth=d, widths=_WIDE) for d in (8, 32)},
    **{f"resnet{d}_padded": partial(resnet, depth=d, padded=True) for d in (20, 32, 44, 56, 110)},
    # Hebbalaguppe et al. call these resnet56 and resnet110.
    **{f"resnet{d}_bottleneck": partial(resnet, depth=d, block=Bottleneck) for d in (56, 110)},
    "resnet50": four_stage_resnet,
    # Of Hebbalaguppe et al. for Tiny-ImageNet; ResNet-34 and ResNet-18 are those of Mishra et al. there.
    "resnet18_tiny": partial(four_stage_resnet, blocks=(2, 2, 2, 2), block=BasicBlock, grid=2),
    "resnet34_tiny": partial(four_stage_resnet, blocks=(3, 4, 6, 3), block=BasicBlock, grid=2),
    "resnet50_tiny": partial(four_stage_resnet, grid=2),
    "resnet110_tiny": partial(four_stage_resnet, blocks=(3, 4, 26, 3), grid=2),
    "densenet121": densenet121,
    **{
        f"wrn_{d}_{k}": partial(wide_resnet, depth=d, widen=k)
        for d, k in ((10, 1), (10, 2), (16, 1), (16, 2), (16, 4), (40, 1), (40, 2))
    },
    **{name: partial(vgg, groups=groups) for name, groups in VGG_GROUPS.items()},
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v2_full": mobilenet_v2_full,
    "shufflenet_v1": shufflenet_v1,
    "shufflenet_v2": shufflenet_v2,
    "shufflenet_v2_biased": partial(shufflenet_v2, biased=True),
}


def build_image_network(name: str, classes: int) -> ConvNet:
    """Build a network for small images by its name, initialised from torch's global generator.

    Parameters
    ----------
    name : str
        A key of ``NETWORKS``.
    classes : int
        Number of outputs, at least 2.

    Returns
    -------
    ConvNet
        The untrained network.

    Raises
    ------
    InputError
        If there is no such network; the message names similar ones.

    Examples
    --------
    >>> network = build_image_network("resnet8", 10)
    >>> network.head.out_features, network.head.in_features
    (10, 64)
    """
    if name not in NETWORKS:
        similar = get_close_matches(re.sub(r"[-_ ]", "", name.lower()), NETWORKS, n=3, cutoff=0.4) or list(NETWORKS)
        raise InputError(f"unknown network {name!r}", remedy="did you mean " + ", ".join(similar) + "?")
    if classes < 2:
        raise InputError(f"{classes} classes", remedy="give at least two")
    return NETWORKS[name](classes)


__all__ = ["NETWORKS", "ConvNet", "build_image_network", "convert_padded_resnet_state"]
