"""Networks for small devices: MobileNetV2 and ShuffleNet, as P002 and P004 build them for 32 × 32 pixels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, relu

from distilcal.models.layers import Network, conv_norm, repeated

Layer = Callable[..., nn.Sequential]  # a convolution with its norm

# ---- MobileNetV2 -------------------------------------------------------------------------------------------------------


class InvertedResidual(nn.Module):
    """Widen by 1 × 1, 3 × 3 per channel, narrow by 1 × 1; a shortcut where shape allows."""

    def __init__(self, inputs: int, planes: int, stride: int, *, expand: int = 6):
        super().__init__()
        wide = inputs * expand
        self.body = nn.Sequential(
            conv_norm(inputs, wide, 1), conv_norm(wide, wide, 3, stride, groups=wide), conv_norm(wide, planes, 1, act=False)
        )
        self.skips = stride == 1 and inputs == planes

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.skips else y


def mobilenet_v2(classes: int, *, width: float = 0.5) -> Network:
    """MobileNetV2 of RepDistiller: half width, stem of stride 2, expansion 6 (the first block 1), 1280 features."""
    settings = [(1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    inputs = int(32 * width)
    stem = conv_norm(3, inputs, 3, 2)
    groups: list[nn.Module] = []
    for expand, planes, blocks, stride in settings:
        outputs = int(planes * width)
        make = partial(InvertedResidual, expand=expand)
        groups.append(repeated(make, inputs, outputs, stride, blocks, 1))
        inputs = outputs
    # The maps that papers look at: after the stem, the 2nd, 3rd, 5th and 7th groups.
    stages = [stem, nn.Sequential(*groups[:2]), groups[2], nn.Sequential(*groups[3:5]), nn.Sequential(*groups[5:])]
    network = Network(stages, 1280, classes, last=conv_norm(inputs, 1280, 1))
    nn.init.normal_(network.head.weight, 0.0, 0.01)
    nn.init.zeros_(network.head.bias)
    return network


def mobilenet_v2_full(classes: int) -> Network:
    """MobileNetV2 of P004: full width, ReLU6, convolutions with bias, a padded 1 × 1 stem, three halvings."""

    def layer(inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1, padding: int = 0) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups), nn.BatchNorm2d(outputs)]

    class Block(nn.Module):
        def __init__(self, inputs: int, planes: int, stride: int, *, expand: int):
            super().__init__()
            wide = inputs * expand
            self.body = nn.Sequential(
                *layer(inputs, wide), nn.ReLU6(), *layer(wide, wide, 3, stride, wide, 1), nn.ReLU6(), *layer(wide, planes)
            )
            self.skips = stride == 1 and inputs == planes

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.body(x)
            return x + y if self.skips else y

    settings = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 1), (6, 320, 1, 1)]
    stages: list[nn.Module] = [nn.Sequential(*layer(3, 32, padding=1), nn.ReLU6())]
    inputs = 32
    for expand, planes, blocks, stride in settings:
        stages.append(repeated(partial(Block, expand=expand), inputs, planes, stride, blocks, 1))
        inputs = planes
    return Network(stages, 1280, classes, last=nn.Sequential(*layer(inputs, 1280), nn.ReLU6()))


# ---- ShuffleNet --------------------------------------------------------------------------------------------------------


def _shuffled(x: Tensor, groups: int) -> Tensor:
    n, channels, height, width = x.shape
    return x.view(n, groups, channels // groups, height, width).transpose(1, 2).reshape(n, channels, height, width)


class ShuffleUnit(nn.Module):
    """ShuffleNetV1: grouped 1 × 1, shuffle, 3 × 3 per channel, grouped 1 × 1; halving units append their pooled input."""

    def __init__(self, inputs: int, planes: int, stride: int, *, groups: int):
        super().__init__()
        self.stride = stride
        grown = planes - inputs if stride == 2 else planes  # the pooled input makes up the rest
        middle = grown // 4
        self.shuffle_groups = 1 if inputs == 24 else groups
        self.narrow = conv_norm(inputs, middle, 1, groups=self.shuffle_groups)
        self.spread = conv_norm(middle, middle, 3, stride, groups=middle, act=False)
        self.widen = conv_norm(middle, grown, 1, groups=groups, act=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.widen(self.spread(_shuffled(self.narrow(x), self.shuffle_groups)))
        if self.stride == 2:
            return relu(torch.cat([y, avg_pool2d(x, 3, 2, 1)], dim=1))
        return relu(y + x)


def shufflenet_v1(classes: int, *, groups: int = 3) -> Network:
    """ShuffleNetV1 of RepDistiller: groups of 3, outputs 240, 480, 960, blocks 4, 8, 4; Zhang et al. 2018."""
    stages: list[nn.Module] = [conv_norm(3, 24, 1)]
    inputs = 24
    for planes, blocks in ((240, 4), (480, 8), (960, 4)):
        stages.append(repeated(partial(ShuffleUnit, groups=groups), inputs, planes, 2, blocks, 1))
        inputs = planes
    return Network(stages, inputs, classes)


class SplitUnit(nn.Module):
    """ShuffleNetV2: half of the channels pass, half are convolved, then shuffled."""

    def __init__(self, channels: int, layer: Layer = conv_norm):
        super().__init__()
        half = channels // 2
        self.passing = half
        self.body = nn.Sequential(layer(half, half, 1), layer(half, half, 3, groups=half, act=False), layer(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        return _shuffled(torch.cat([x[:, : self.passing], self.body(x[:, self.passing :])], dim=1), 2)


class HalvingUnit(nn.Module):
    """ShuffleNetV2: both branches convolve with stride 2, then shuffled; ``width`` is that inside the right one."""

    def __init__(self, inputs: int, outputs: int, width: int, layer: Layer = conv_norm):
        super().__init__()
        half = outputs // 2
        self.left = nn.Sequential(layer(inputs, inputs, 3, 2, groups=inputs, act=False), layer(inputs, half, 1))
        self.right = nn.Sequential(
            layer(inputs, width, 1), layer(width, width, 3, 2, groups=width, act=False), layer(width, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return _shuffled(torch.cat([self.left(x), self.right(x)], dim=1), 2)


def shufflenet_v2(classes: int, *, biased: bool = False) -> Network:
    """ShuffleNetV2 × 1: 116, 232, 464 channels, 1024 features; Ma et al. 2018. As RepDistiller builds it.

    ``biased`` is P004's: a 3 × 3 stem, convolutions with bias, right branches as wide as their input where pixels are halved.
    """
    layer = _biased if biased else conv_norm
    stages: list[nn.Module] = [layer(3, 24, 3, act=False) if biased else layer(3, 24, 1)]
    inputs = 24
    for outputs, blocks in ((116, 3), (232, 7), (464, 3)):
        first = HalvingUnit(inputs, outputs, inputs if biased else outputs // 2, layer)
        stages.append(nn.Sequential(first, *(SplitUnit(outputs, layer) for _ in range(blocks))))
        inputs = outputs
    return Network(stages, 1024, classes, last=layer(inputs, 1024, 1))


def _biased(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))
