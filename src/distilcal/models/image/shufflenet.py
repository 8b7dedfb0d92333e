"""ShuffleNet V1 and V2 for small images, as RepDistiller (Mishra et al.) and Hebbalaguppe et al. build them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, relu

from distilcal.models.image.layers import ConvNet, conv_norm, stack_blocks

Layer = Callable[..., nn.Sequential]  # a convolution with its norm


def _shuffle_channels(x: Tensor, groups: int) -> Tensor:
    n, channels, height, width = x.shape
    return x.view(n, groups, channels // groups, height, width).transpose(1, 2).reshape(n, channels, height, width)


class ShuffleUnit(nn.Module):
    """ShuffleNetV1: grouped 1 × 1, shuffle, 3 × 3 per channel, grouped 1 × 1; halving units append their pooled input."""

    def __init__(self, inputs: int, planes: int, stride: int, *, groups: int):
        super().__init__()
        self.stride = stride
        grown = planes - inputs if stride == 2 else planes  # the pooled input is the rest
        middle = grown // 4
        self.shuffle_groups = 1 if inputs == 24 else groups
        self.narrow = conv_norm(inputs, middle, 1, groups=self.shuffle_groups)
        self.spread = conv_norm(middle, middle, 3, stride, groups=middle, act=False)
        self.widen = conv_norm(middle, grown, 1, groups=groups, act=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of shape (N, planes, H/stride, W/stride)."""
        y = self.widen(self.spread(_shuffle_channels(self.narrow(x), self.shuffle_groups)))
        if self.stride == 2:
            return relu(torch.cat([y, avg_pool2d(x, 3, 2, 1)], dim=1))
        return relu(y + x)


def shufflenet_v1(classes: int, *, groups: int = 3) -> ConvNet:
    """Build ShuffleNetV1 of RepDistiller: outputs 240, 480, 960, blocks 4, 8, 4; Zhang et al. 2018.

    Parameters
    ----------
    classes : int
        Number of outputs.
    groups : int, default 3
        Groups of the 1 × 1 convolutions.
    """
    stages: list[nn.Module] = [conv_norm(3, 24, 1)]
    inputs = 24
    for planes, blocks in ((240, 4), (480, 8), (960, 4)):
        stages.append(stack_blocks(partial(ShuffleUnit, groups=groups), inputs, planes, stride=2, blocks=blocks))
        inputs = planes
    return ConvNet(stages, inputs, classes)


class SplitUnit(nn.Module):
    """ShuffleNetV2: half of the channels pass, half are convolved, then all are shuffled."""

    def __init__(self, channels: int, layer: Layer = conv_norm):
        super().__init__()
        half = channels // 2
        self.passing = half
        self.body = nn.Sequential(layer(half, half, 1), layer(half, half, 3, groups=half, act=False), layer(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of the same shape."""
        return _shuffle_channels(torch.cat([x[:, : self.passing], self.body(x[:, self.passing :])], dim=1), 2)


class HalvingUnit(nn.Module):
    """ShuffleNetV2: both branches convolve with stride 2, then shuffle; ``width`` is that inside the right one."""

    def __init__(self, inputs: int, outputs: int, width: int, layer: Layer = conv_norm):
        super().__init__()
        half = outputs // 2
        self.left = nn.Sequential(layer(inputs, inputs, 3, 2, groups=inputs, act=False), layer(inputs, half, 1))
        self.right = nn.Sequential(
            layer(inputs, width, 1), layer(width, width, 3, 2, groups=width, act=False), layer(width, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of shape (N, outputs, H/2, W/2)."""
        return _shuffle_channels(torch.cat([self.left(x), self.right(x)], dim=1), 2)


def shufflenet_v2(classes: int, *, biased: bool = False) -> ConvNet:
    """Build ShuffleNetV2 × 1: 116, 232, 464 channels, 1024 features; Ma et al. 2018. As RepDistiller builds it.

    Parameters
    ----------
    classes : int
        Number of outputs.
    biased : bool, default False
        The variant of Hebbalaguppe et al.: a 3 × 3 stem, convolutions with bias, right branches as wide as their input where
        pixels are halved.
    """
    layer = _biased_conv_norm if biased else conv_norm
    stem = layer(3, 24, 3, act=False) if biased else layer(3, 24, 1)
    stages: list[nn.Module] = [stem]
    inputs = 24
    for outputs, blocks in ((116, 3), (232, 7), (464, 3)):
        width = inputs if biased else outputs // 2
        halving = HalvingUnit(inputs, outputs, width, layer)
        stages.append(nn.Sequential(halving, *(SplitUnit(outputs, layer) for _ in range(blocks))))
        inputs = outputs
    return ConvNet(stages, 1024, classes, last=layer(inputs, 1024, 1))


def _biased_conv_norm(
    inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Sequential:
    """`conv_norm` whose convolution has a bias."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups), nn.BatchNorm2d(outputs)]
    if act:
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)
