"""Networks for small images, as the papers on distillation use them: 32 × 32 pixels, parameter counts of the originals.

Every network has ``stages`` (the maps at which its papers look) and a linear ``head`` on the pooled features, so that
``network.features(x)`` is what feature losses and mixing want and ``network(x)`` is ``head(features(x))``. ``NETWORKS`` lists
them by name; to add one, write a function ``(classes) -> Network`` and enter it there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad, relu

from distilcal.errors import InputError


class Network(nn.Module):
    """Stages one after the other, global average pooling, a linear head."""

    def __init__(self, stages: Sequence[nn.Module], width: int, classes: int, *, last: nn.Module | None = None):
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.last = last if last is not None else nn.Identity()  # between the last stage and the pooling
        self.head = nn.Linear(width, classes)
        _initialise(self)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The output of every stage, and last the pooled features (N, width)."""
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        found.append(self.last(x).mean(dim=(2, 3)))
        return found

    def features(self, x: Tensor) -> Tensor:
        """Pooled features (N, width), what the head sees."""
        for stage in self.stages:
            x = stage(x)
        return self.last(x).mean(dim=(2, 3))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def _initialise(network: nn.Module) -> None:
    """Convolutions from N(0, 2/(k²·out)), batch norms at (1, 0), linear layers as torch makes them."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
            nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / fan_out))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)


def _conv_norm(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [_conv(inputs, outputs, size, stride, groups), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))


# ---- ResNet ------------------------------------------------------------------------------------------------------------


class Basic(nn.Module):
    """Two 3 × 3 convolutions with a shortcut; ``padded`` shortcuts skip pixels and pad channels with zeros (option A)."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, *, padded: bool = False):
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = _conv(planes, planes), nn.BatchNorm2d(planes)
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
            _conv_norm(inputs, planes, 1), _conv_norm(planes, planes, 3, stride), _conv_norm(planes, outputs, 1, act=False)
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
    return PaddedShortcut(stride, outputs - inputs) if padded else _conv_norm(inputs, outputs, 1, stride, act=False)


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
    stages: list[nn.Module] = [_conv_norm(3, widths[0])]
    inputs = widths[0]
    for planes, stride in zip(widths[1:], (1, 2, 2), strict=True):
        stages.append(_blocks(make, inputs, planes, stride, blocks, block.expansion))
        inputs = planes * block.expansion
    return Network(stages, inputs, classes)


def resnet50(classes: int) -> Network:
    """ResNet-50 with a 3 × 3 stem of stride 1: four stages of [3, 4, 6, 3] bottlenecks."""
    stages: list[nn.Module] = [_conv_norm(3, 64)]
    inputs = 64
    for planes, blocks, stride in zip((64, 128, 256, 512), (3, 4, 6, 3), (1, 2, 2, 2), strict=True):
        stages.append(_blocks(Bottleneck, inputs, planes, stride, blocks, 4))
        inputs = planes * 4
    return Network(stages, inputs, classes)


def _blocks(
    make: Callable[[int, int, int], nn.Module], inputs: int, planes: int, stride: int, blocks: int, expansion: int
) -> nn.Sequential:
    rest = [make(planes * expansion, planes, 1) for _ in range(blocks - 1)]
    return nn.Sequential(make(inputs, planes, stride), *rest)


# ---- Wide ResNet -------------------------------------------------------------------------------------------------------


class PreActivation(nn.Module):
    """Norm and ReLU before each of two 3 × 3 convolutions; the shortcut of a new width starts after the first."""

    def __init__(self, inputs: int, planes: int, stride: int):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), _conv(inputs, planes, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(planes), _conv(planes, planes)
        self.shortcut = None if inputs == planes else _conv(inputs, planes, 1, stride)

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
    stages: list[nn.Module] = [_conv(3, 16)]
    for inputs, planes, stride in zip((16, *widths), widths, (1, 2, 2), strict=False):
        stages.append(_blocks(PreActivation, inputs, planes, stride, blocks, 1))
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


# ---- MobileNetV2 -------------------------------------------------------------------------------------------------------


class InvertedResidual(nn.Module):
    """Widen by 1 × 1, 3 × 3 per channel, narrow by 1 × 1; a shortcut where shape allows."""

    def __init__(self, inputs: int, planes: int, stride: int, *, expand: int = 6):
        super().__init__()
        wide = inputs * expand
        self.body = nn.Sequential(
            _conv_norm(inputs, wide, 1), _conv_norm(wide, wide, 3, stride, groups=wide), _conv_norm(wide, planes, 1, act=False)
        )
        self.skips = stride == 1 and inputs == planes

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.skips else y


def mobilenet_v2(classes: int, *, width: float = 0.5) -> Network:
    """MobileNetV2 of RepDistiller: half width, stem of stride 2, expansion 6 (the first block 1), 1280 features."""
    settings = [(1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    inputs = int(32 * width)
    stem = _conv_norm(3, inputs, 3, 2)
    groups: list[nn.Module] = []
    for expand, planes, blocks, stride in settings:
        outputs = int(planes * width)
        make = partial(InvertedResidual, expand=expand)
        groups.append(_blocks(make, inputs, outputs, stride, blocks, 1))
        inputs = outputs
    # The maps that papers look at: after the stem, the 2nd, 3rd, 5th and 7th groups.
    stages = [stem, nn.Sequential(*groups[:2]), groups[2], nn.Sequential(*groups[3:5]), nn.Sequential(*groups[5:])]
    network = Network(stages, 1280, classes, last=_conv_norm(inputs, 1280, 1))
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
        stages.append(_blocks(partial(Block, expand=expand), inputs, planes, stride, blocks, 1))
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
        self.narrow = _conv_norm(inputs, middle, 1, groups=self.shuffle_groups)
        self.spread = _conv_norm(middle, middle, 3, stride, groups=middle, act=False)
        self.widen = _conv_norm(middle, grown, 1, groups=groups, act=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.widen(self.spread(_shuffled(self.narrow(x), self.shuffle_groups)))
        if self.stride == 2:
            return relu(torch.cat([y, avg_pool2d(x, 3, 2, 1)], dim=1))
        return relu(y + x)


def shufflenet_v1(classes: int, *, groups: int = 3) -> Network:
    """ShuffleNetV1 of RepDistiller: groups of 3, outputs 240, 480, 960, blocks 4, 8, 4; Zhang et al. 2018."""
    stages: list[nn.Module] = [_conv_norm(3, 24, 1)]
    inputs = 24
    for planes, blocks in ((240, 4), (480, 8), (960, 4)):
        stages.append(_blocks(partial(ShuffleUnit, groups=groups), inputs, planes, 2, blocks, 1))
        inputs = planes
    return Network(stages, inputs, classes)


class SplitUnit(nn.Module):
    """ShuffleNetV2: half of the channels pass, half are convolved, then shuffled."""

    def __init__(self, channels: int):
        super().__init__()
        half = channels // 2
        self.passing = half
        self.body = nn.Sequential(
            _conv_norm(half, half, 1), _conv_norm(half, half, 3, groups=half, act=False), _conv_norm(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return _shuffled(torch.cat([x[:, : self.passing], self.body(x[:, self.passing :])], dim=1), 2)


class HalvingUnit(nn.Module):
    """ShuffleNetV2: both branches convolve with stride 2, then shuffled."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        half = outputs // 2
        self.left = nn.Sequential(_conv_norm(inputs, inputs, 3, 2, groups=inputs, act=False), _conv_norm(inputs, half, 1))
        self.right = nn.Sequential(
            _conv_norm(inputs, half, 1), _conv_norm(half, half, 3, 2, groups=half, act=False), _conv_norm(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return _shuffled(torch.cat([self.left(x), self.right(x)], dim=1), 2)


def shufflenet_v2(classes: int) -> Network:
    """ShuffleNetV2 × 1 of RepDistiller: 116, 232, 464 channels, 1024 features; Ma et al. 2018."""
    stages: list[nn.Module] = [_conv_norm(3, 24, 1)]
    inputs = 24
    for outputs, blocks in ((116, 3), (232, 7), (464, 3)):
        stages.append(nn.Sequential(HalvingUnit(inputs, outputs), *(SplitUnit(outputs) for _ in range(blocks))))
        inputs = outputs
    return Network(stages, 1024, classes, last=_conv_norm(inputs, 1024, 1))


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
    "resnet50": resnet50,
    **{f"wrn_{d}_{k}": partial(wrn, depth=d, widen=k) for d, k in ((16, 1), (16, 2), (16, 4), (40, 1), (40, 2))},
    **{name: partial(vgg, groups=groups) for name, groups in _VGG.items()},
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v2_full": mobilenet_v2_full,
    "shufflenet_v1": shufflenet_v1,
    "shufflenet_v2": shufflenet_v2,
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
