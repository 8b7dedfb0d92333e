"""VGG for small images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from distilcal.models.image.layers import ConvNet, initialise_head

VGG_GROUPS = {
    "vgg8": ((64,), (128,), (256,), (512,), (512,)),
    "vgg11": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    "vgg13": ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
}


def vgg(classes: int, *, groups: Sequence[Sequence[int]]) -> ConvNet:
    """Build VGG: groups of 3 × 3 convolutions with bias and norm, pooled after the first three; Simonyan & Zisserman 2015.

    Parameters
    ----------
    classes : int
        Number of outputs.
    groups : sequence of sequences of int
        Channels of the convolutions of each group, as in ``VGG_GROUPS``.
    """
    stages: list[nn.Module] = []
    inputs = 3
    for number, group in enumerate(groups):
        layers: list[nn.Module] = [nn.MaxPool2d(2)] if 0 < number < 4 else []
        for planes in group:
            layers += [nn.Conv2d(inputs, planes, 3, padding=1), nn.BatchNorm2d(planes), nn.ReLU()]
            inputs = planes
        stages.append(nn.Sequential(*layers))
    network = ConvNet(stages, inputs, classes)
    initialise_head(network)
    return network
