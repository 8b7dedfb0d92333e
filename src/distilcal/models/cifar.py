"""Networks for small images, as the papers on distillation use them: 32 × 32 pixels, parameter counts of the originals.

Every network has ``stages`` (the maps at which its papers look) and a linear ``head`` on the pooled features, so that
``network.features(x)`` is what feature losses and mixing want and ``network(x)`` is ``head(features(x))``. ``NETWORKS`` lists
them by name; to add one, write a function ``(classes) -> Network`` and enter it there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from distilcal.errors import InputError
from distilcal.models.layers import Network, conv, conv_norm, repeated
from distilcal.models.mobile import mobilenet_v2, mobilenet_v2_full, shufflenet_v1, shufflenet_v2

# ---- ResNet ------------------------------------------------------------------------------------------------------------


class Basic(nn.Module):
    """Two 3 × 3 convolutions with a shortcut; ``padded`` shortcuts skip pixels and pad channels with zeros (option A)."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, *, padded: bool = False):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(planes, planes), nn.BatchNorm2d(planes)
        self.shortcut = _shortcut(inputs, planes, stride, padded)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(y + self.shortcut(x))


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions to four times the width, with a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int):
        super().__init__()
        outputs = planes * self.expansion
        self.body = nn.Sequential(
            conv_norm(inputs, planes, 1), conv_norm(planes, planes, 3, stride), conv_norm(planes, outputs, 1, act=False)
        )
        self.shortcut = _shortcut(inputs, outputs, stride, padded=False)

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.body(x) + self.shortcut(x))


class PaddedShortcut(nn.Module):
    """Every ``stride``-th pixel, new channels zero, half of them on each side: no parameters."""

    def __init__(self, stride: int, more: int):
        super().__init__()
        self.stride, self.more = stride, more

    def forward(self, x: Tensor) -> Tensor:
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))


def _shortcut(inputs: int, outputs: int, stride: int, padded: bool) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return PaddedShortcut(stride, outputs - inputs) if padded else conv_norm(inputs, outputs, 1, stride, act=False)


def resnet(
    classes: int,
    *,
    depth: int,
    widths: Sequence[int] = (16, 16, 32, 64),
    block: type[Basic] | type[Bottleneck] = Basic,
    padded: bool = False,
) -> Network:
    """ResNet-d for CIFAR: a 3 × 3 stem and three stages of basic (or bottleneck) blocks; He et al. 2016.

    ``padded=True`` has shortcuts without parameters, as the networks that are trained with the original recipe.
    """
    convolutions = 2 if block is Basic else 3
    blocks, rest = divmod(depth - 2, 3 * convolutions)
    if rest:
        raise InputError(f"a ResNet of {depth} layers cannot be divided into three stages", remedy="give 6n + 2 layers")
    make: Callable[[int, int, int], nn.Module] = partial(Basic, padded=padded) if block is Basic else block
    stages: list[nn.Module] = [conv_norm(3, widths[0])]
    inputs = widths[0]
    for planes, stride in zip(widths[1:], (1, 2, 2), strict=True):
        stages.append(repeated(make, inputs, planes, stride, blocks, block.expansion))
        inputs = planes * block.expansion
    return Network(stages, inputs, classes)


def wide_resnet(
    classes: int,
    *,
    blocks: Sequence[int] = (3, 4, 6, 3),
    block: type[Basic] | type[Bottleneck] = Bottleneck,
    grid: int = 1,
) -> Network:
    """ResNet-50 and its kin with a 3 × 3 stem of stride 1: four stages of 64 to 512 planes.

    ``grid=2`` reads four pooled values of each map, as P004 does with 64 × 64 pixels.
    """
    stages: list[nn.Module] = [conv_norm(3, 64)]
    inputs = 64
    for planes, count, stride in zip((64, 128, 256, 512), blocks, (1, 2, 2, 2), strict=True):
        stages.append(repeated(block, inputs, planes, stride, count, block.expansion))
        inputs = planes * block.expansion
    return Network(stages, inputs, classes, grid=grid)


# ---- Wide ResNet -------------------------------------------------------------------------------------------------------


class PreActivation(nn.Module):
    """Norm and ReLU before each of two 3 × 3 convolutions; the shortcut of a new width starts after the first."""

    def __init__(self, inputs: int, planes: int, stride: int):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, planes, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(planes), conv(planes, planes)
        self.shortcut = None if inputs == planes else conv(inputs, planes, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(y)
        z: Tensor = self.conv2(relu(self.bn2(self.conv1(y)))) + skip
        return z


def wrn(classes: int, *, depth: int, widen: int) -> Network:
    """WRN-d-k: pre-activation blocks, widths 16k, 32k, 64k, no dropout; Zagoruyko & Komodakis 2016."""
    blocks, rest = divmod(depth - 4, 6)
    if rest:
        raise InputError(f"a wide ResNet of {depth} layers cannot be divided", remedy="give 6n + 4 layers")
    widths = [16 * widen, 32 * widen, 64 * widen]
    stages: list[nn.Module] = [conv(3, 16)]
    for inputs, planes, stride in zip((16, *widths), widths, (1, 2, 2), strict=False):
        stages.append(repeated(PreActivation, inputs, planes, stride, blocks, 1))
    return Network(stages, widths[-1], classes, last=nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU()))


# ---- VGG ---------------------------------------------------------------------------------------------------------------


def vgg(classes: int, *, groups: Sequence[Sequence[int]]) -> Network:
    """VGG: groups of 3 × 3 convolutions with bias and norm, pooled after the first three groups; Simonyan & Zisserman 2015."""
    stages: list[nn.Module] = []
    inputs = 3
    for number, group in enumerate(groups):
        layers: list[nn.Module] = [nn.MaxPool2d(2)] if 0 < number < 4 else []
        for planes in group:
            layers += [nn.Conv2d(inputs, planes, 3, padding=1), nn.BatchNorm2d(planes), nn.ReLU()]
            inputs = planes
        stages.append(nn.Sequential(*layers))
    network = Network(stages, inputs, classes)
    nn.init.normal_(network.head.weight, 0.0, 0.01)
    nn.init.zeros_(network.head.bias)
    return network


# ---- DenseNet ----------------------------------------------------------------------------------------------------------


class DenseLayer(nn.Module):
    """Norm first: 1 × 1 to four times the growth, 3 × 3 to the growth, added to the channels that came in."""

    def __init__(self, inputs: int, growth: int):
        super().__init__()
        inner = 4 * growth
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), conv(inputs, inner, 1), nn.BatchNorm2d(inner), nn.ReLU(), conv(inner, growth)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], dim=1)


def densenet121(classes: int, *, growth: int = 32) -> Network:
    """DenseNet-121 with a 3 × 3 stem without norm; Huang et al. 2017."""
    stages: list[nn.Module] = [conv(3, 2 * growth)]
    channels = 2 * growth
    for i, count in enumerate((6, 12, 24, 16)):
        layers: list[nn.Module] = []
        if i:  # between two blocks half of the channels and of the pixels remain
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(count):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        stages.append(nn.Sequential(*layers))
    return Network(stages, channels, classes, last=nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU()))


# ---- by name -----------------------------------------------------------------------------------------------------------

_WIDE = (32, 64, 128, 256)
_VGG = {
    "vgg8": ((64,), (128,), (256,), (512,), (512,)),
    "vgg11": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    "vgg13": ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
}

NETWORKS: dict[str, Callable[[int], Network]] = {
    **{f"resnet{d}": partial(resnet, depth=d) for d in (8, 14, 20, 32, 44, 56, 110)},
    **{f"resnet{d}x4": partial(resnet, depth=d, widths=_WIDE) for d in (8, 32)},
    **{f"resnet{d}_padded": partial(resnet, depth=d, padded=True) for d in (20, 32, 44, 56, 110)},
    # P004 calls these resnet56 and resnet110.
    **{f"resnet{d}_bottleneck": partial(resnet, depth=d, block=Bottleneck) for d in (56, 110)},
    "resnet50": wide_resnet,
    # P004's for Tiny-ImageNet, P002's ResNet-34 and ResNet-18 there.
    "resnet18_tiny": partial(wide_resnet, blocks=(2, 2, 2, 2), block=Basic, grid=2),
    "resnet34_tiny": partial(wide_resnet, blocks=(3, 4, 6, 3), block=Basic, grid=2),
    "resnet50_tiny": partial(wide_resnet, grid=2),
    "resnet110_tiny": partial(wide_resnet, blocks=(3, 4, 26, 3), grid=2),
    "densenet121": densenet121,
    **{f"wrn_{d}_{k}": partial(wrn, depth=d, widen=k) for d, k in ((16, 1), (16, 2), (16, 4), (40, 1), (40, 2))},
    **{name: partial(vgg, groups=groups) for name, groups in _VGG.items()},
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v2_full": mobilenet_v2_full,
    "shufflenet_v1": shufflenet_v1,
    "shufflenet_v2": shufflenet_v2,
    "shufflenet_v2_biased": partial(shufflenet_v2, biased=True),
}


def padded_resnet_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with the keys ``conv1, bn1, layer{1,2,3}.{i}.…, linear``, as padded ResNets are published, under ours."""

    def renamed(key: str) -> str:
        first, _, rest = key.removeprefix("module.").partition(".")
        if first in ("conv1", "bn1"):
            return f"stages.0.{0 if first == 'conv1' else 1}.{rest}"
        return f"head.{rest}" if first == "linear" else f"stages.{first.removeprefix('layer')}.{rest}"

    return {renamed(key): value for key, value in state.items()}


def network(name: str, classes: int) -> Network:
    """A network by name, freshly initialised from torch's generator."""
    if name not in NETWORKS:
        near = get_close_matches(re.sub(r"[-_ ]", "", name.lower()), NETWORKS, n=3, cutoff=0.4) or list(NETWORKS)
        raise InputError(f"there is no network {name!r}", remedy="did you mean " + ", ".join(near) + "?")
    if classes < 2:
        raise InputError(f"{classes} classes", remedy="give at least two")
    return NETWORKS[name](classes)
