"""What the networks for small images are built of: convolutions with their norms, and stages with a linear head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d


class ConvNet(nn.Module):
    """A convolutional classifier: stages one after the other, average pooling and a linear head.

    Parameters
    ----------
    stages : sequence of Module
        The parts whose outputs feature losses and mixing look at.
    width : int
        Channels that reach the pooling.
    classes : int
        Number of outputs.
    last : Module, optional
        Applied between the last stage and the pooling.
    grid : int, default 1
        Pool each map to ``grid`` × ``grid`` values; 1 is the mean over the whole map.

    Examples
    --------
    >>> import torch
    >>> network = ConvNet([conv_norm(3, 8)], width=8, classes=2)
    >>> network(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 2])
    """

    def __init__(self, stages: Sequence[nn.Module], width: int, classes: int, *, last: nn.Module | None = None, grid: int = 1):
        super().__init__()
        self.grid = grid
        self.stages = nn.ModuleList(stages)
        self.last = last if last is not None else nn.Identity()
        self.head = nn.Linear(width * grid**2, classes)
        _initialise(self)

    def feature_maps(self, x: Tensor) -> list[Tensor]:
        """Return the output of every stage, and last the pooled features (N, width)."""
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        maps.append(self.pool(x))
        return maps

    def features(self, x: Tensor) -> Tensor:
        """Return the pooled features (N, width) that the head reads."""
        for stage in self.stages:
            x = stage(x)
        return self.pool(x)

    def pool(self, x: Tensor) -> Tensor:
        """Return the features (N, width) of the last stage's maps."""
        x = self.last(x)
        if self.grid == 1:
            return x.mean(dim=(2, 3))
        return adaptive_avg_pool2d(x, self.grid).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, 3, H, W)."""
        logits: Tensor = self.head(self.features(x))
        return logits


def _initialise(network: nn.Module) -> None:
    """Convolutions from N(0, 2/(k²·out)), batch norms at (1, 0), linear layers as torch initialises them."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
            nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / fan_out))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def initialise_head(network: ConvNet) -> None:
    """Initialise the head from N(0, 0.01²) and its bias at 0, as VGG and MobileNetV2 of RepDistiller do.

    Parameters
    ----------
    network : ConvNet
        The network, changed in place.
    """
    nn.init.normal_(network.head.weight, 0.0, 0.01)
    nn.init.zeros_(network.head.bias)


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps the size of the map at stride 1.

    Parameters
    ----------
    inputs, outputs : int
        Numbers of channels.
    size : int, default 3
        Side of the kernel in pixels, an odd number.
    stride : int, default 1
        Step in pixels.
    groups : int, default 1
        Groups of channels that are convolved apart.

    Returns
    -------
    Conv2d
        A layer from (N, inputs, H, W) to (N, outputs, ⌈H / stride⌉, ⌈W / stride⌉).

    Examples
    --------
    >>> conv(3, 8, stride=2).weight.shape
    torch.Size([8, 3, 3, 3])
    """
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)


def conv_norm(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    """Return a convolution without bias, a batch norm and, with ``act``, a ReLU.

    Parameters
    ----------
    inputs, outputs : int
        Numbers of channels.
    size : int, default 3
        Side of the kernel in pixels, an odd number.
    stride : int, default 1
        Step in pixels.
    groups : int, default 1
        Groups of channels that are convolved apart.
    act : bool, default True
        Whether a ReLU follows.

    Returns
    -------
    Sequential
        Two or three layers.

    Examples
    --------
    >>> len(conv_norm(3, 8)), len(conv_norm(3, 8, act=False))
    (3, 2)
    """
    layers: list[nn.Module] = [conv(inputs, outputs, size, stride, groups), nn.BatchNorm2d(outputs)]
    if act:
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def stack_blocks(
    build_block: Callable[[int, int, int], nn.Module],
    inputs: int,
    planes: int,
    *,
    stride: int,
    blocks: int,
    expansion: int = 1,
) -> nn.Sequential:
    """Return blocks one after the other; the first changes the width and has the stride.

    Parameters
    ----------
    build_block : callable
        ``build_block(inputs, planes, stride)`` builds a block with ``planes * expansion`` output channels.
    inputs : int
        Input channels of the first block.
    planes : int
        Width of the blocks, in channels.
    stride : int
        Step of the first block, in pixels.
    blocks : int
        Number of blocks.
    expansion : int, default 1
        Output channels of a block per plane.

    Returns
    -------
    Sequential
        The blocks.

    Examples
    --------
    >>> len(stack_blocks(lambda inputs, planes, stride: conv(inputs, planes, stride=stride), 3, 8, stride=2, blocks=4))
    4
    """
    # The order in which blocks are built is that in which they draw their initial weights: the later ones first.
    rest = [build_block(planes * expansion, planes, 1) for _ in range(blocks - 1)]
    return nn.Sequential(build_block(inputs, planes, stride), *rest)
