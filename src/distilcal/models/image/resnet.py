"""ResNets for small images: those of CIFAR, their wider kin with four stages, and pre-activation Wide ResNets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from distilcal.errors import InputError
from distilcal.models.image.layers import ConvNet, conv, conv_norm, stack_blocks


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions with a shortcut; ``padded`` shortcuts skip pixels and pad channels with zeros (option A)."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, *, padded: bool = False):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(planes, planes), nn.BatchNorm2d(planes)
        self.shortcut = _shortcut(inputs, planes, stride, padded)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of shape (N, planes, H/stride, W/stride)."""
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
        """Return maps of shape (N, 4·planes, H/stride, W/stride)."""
        return relu(self.body(x) + self.shortcut(x))


class PaddedShortcut(nn.Module):
    """Keep every ``stride``-th pixel and add zero channels, half of them on each side: no parameters."""

    def __init__(self, stride: int, extra_channels: int):
        super().__init__()
        self.stride, self.extra_channels = stride, extra_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the subsampled maps with the zero channels around them."""
        before = self.extra_channels // 2
        after = self.extra_channels - before
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, after))


def _shortcut(inputs: int, outputs: int, stride: int, padded: bool) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if padded:
        return PaddedShortcut(stride, outputs - inputs)
    return conv_norm(inputs, outputs, 1, stride, act=False)


Block = type[BasicBlock] | type[Bottleneck]


def resnet(
    classes: int,
    *,
    depth: int,
    widths: Sequence[int] = (16, 16, 32, 64),
    block: Block = BasicBlock,
    padded: bool = False,
) -> ConvNet:
    """Build ResNet-d for CIFAR: a 3 × 3 stem and three stages of blocks; He et al. 2016.

    Parameters
    ----------
    classes : int
        Number of outputs.
    depth : int
        Layers: 6n + 2 with basic blocks, 9n + 2 with bottlenecks.
    widths : sequence of int
        Channels of the stem and of the three stages.
    block : type
        `BasicBlock` or `Bottleneck`.
    padded : bool, default False
        Shortcuts without parameters, as in the networks that are trained with the original recipe.
    """
    convolutions = 2 if block is BasicBlock else 3
    blocks, rest = divmod(depth - 2, 3 * convolutions)
    if rest:
        raise InputError(
            f"a ResNet of {depth} layers cannot be divided into three stages", remedy=f"give {3 * convolutions}n + 2 layers"
        )
    build_block: Callable[[int, int, int], nn.Module] = partial(BasicBlock, padded=padded) if block is BasicBlock else block
    stages: list[nn.Module] = [conv_norm(3, widths[0])]
    inputs = widths[0]
    for planes, stride in zip(widths[1:], (1, 2, 2), strict=True):
        stages.append(stack_blocks(build_block, inputs, planes, stride=stride, blocks=blocks, expansion=block.expansion))
        inputs = planes * block.expansion
    return ConvNet(stages, inputs, classes)


def four_stage_resnet(
    classes: int, *, blocks: Sequence[int] = (3, 4, 6, 3), block: Block = Bottleneck, grid: int = 1
) -> ConvNet:
    """Build ResNet-50 and its kin with a 3 × 3 stem of stride 1: four stages of 64 to 512 planes.

    Parameters
    ----------
    classes : int
        Number of outputs.
    blocks : sequence of int
        Blocks of each stage.
    block : type
        `BasicBlock` or `Bottleneck`.
    grid : int, default 1
        Side of the grid to which each map is pooled; Hebbalaguppe et al. use 2 for images of 64 × 64 pixels.
    """
    stages: list[nn.Module] = [conv_norm(3, 64)]
    inputs = 64
    for planes, count, stride in zip((64, 128, 256, 512), blocks, (1, 2, 2, 2), strict=True):
        stages.append(stack_blocks(block, inputs, planes, stride=stride, blocks=count, expansion=block.expansion))
        inputs = planes * block.expansion
    return ConvNet(stages, inputs, classes, grid=grid)


class PreActivationBlock(nn.Module):
    """Norm and ReLU before each of two 3 × 3 convolutions; the shortcut of a new width starts after the first."""

    def __init__(self, inputs: int, planes: int, stride: int):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, planes, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(planes), conv(planes, planes)
        self.shortcut = None if inputs == planes else conv(inputs, planes, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of shape (N, planes, H/stride, W/stride)."""
        y = relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(y)
        z: Tensor = self.conv2(relu(self.bn2(self.conv1(y)))) + skip
        return z


def wide_resnet(classes: int, *, depth: int, widen: int) -> ConvNet:
    """Build WRN-d-k: pre-activation blocks, widths 16k, 32k, 64k, no dropout; Zagoruyko & Komodakis 2016.

    Parameters
    ----------
    classes : int
        Number of outputs.
    depth : int
        Layers: 6n + 4.
    widen : int
        The factor k of the widths.
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest:
        raise InputError(f"a wide ResNet of {depth} layers cannot be divided into three stages", remedy="give 6n + 4 layers")
    widths = [16 * widen, 32 * widen, 64 * widen]
    stages: list[nn.Module] = [conv(3, 16)]
    for inputs, planes, stride in zip((16, *widths), widths, (1, 2, 2), strict=False):
        stages.append(stack_blocks(PreActivationBlock, inputs, planes, stride=stride, blocks=blocks))
    return ConvNet(stages, widths[-1], classes, last=nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU()))


def convert_padded_resnet_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a published padded ResNet to our names.

    Parameters
    ----------
    state : mapping of str to Tensor
        Weights under the names ``conv1, bn1, layer{1,2,3}.{i}.…, linear``, with or without ``module.`` in front.

    Returns
    -------
    dict of str to Tensor
        The same tensors under the names of `resnet` with ``padded=True``.

    Examples
    --------
    >>> list(convert_padded_resnet_state({"module.layer1.0.conv1.weight": None, "linear.bias": None}))
    ['stages.1.0.conv1.weight', 'head.bias']
    """
    return {_padded_resnet_name(name): value for name, value in state.items()}


def _padded_resnet_name(name: str) -> str:
    first, _, rest = name.removeprefix("module.").partition(".")
    if first == "conv1":
        return f"stages.0.0.{rest}"
    if first == "bn1":
        return f"stages.0.1.{rest}"
    if first == "linear":
        return f"head.{rest}"
    return f"stages.{first.removeprefix('layer')}.{rest}"
