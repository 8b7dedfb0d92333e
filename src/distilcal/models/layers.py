"""What the networks for small images are made of: convolutions with their norms, and stages with a linear head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d


class Network(nn.Module):
    """Stages one after the other, average pooling (over the whole map, or to ``grid`` × ``grid`` values), a linear head."""

    def __init__(self, stages: Sequence[nn.Module], width: int, classes: int, *, last: nn.Module | None = None, grid: int = 1):
        super().__init__()
        self.grid = grid
        self.stages = nn.ModuleList(stages)
        self.last = last if last is not None else nn.Identity()  # between the last stage and the pooling
        self.head = nn.Linear(width * grid**2, classes)
        _initialise(self)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The output of every stage, and last the pooled features (N, width)."""
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        found.append(self._pooled(x))
        return found

    def features(self, x: Tensor) -> Tensor:
        """Pooled features (N, width), what the head sees."""
        for stage in self.stages:
            x = stage(x)
        return self._pooled(x)

    def _pooled(self, x: Tensor) -> Tensor:
        x = self.last(x)
        return x.mean(dim=(2, 3)) if self.grid == 1 else adaptive_avg_pool2d(x, self.grid).flatten(1)

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


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)


def conv_norm(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [conv(inputs, outputs, size, stride, groups), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))


def repeated(
    make: Callable[[int, int, int], nn.Module], inputs: int, planes: int, stride: int, blocks: int, expansion: int
) -> nn.Sequential:
    rest = [make(planes * expansion, planes, 1) for _ in range(blocks - 1)]
    return nn.Sequential(make(inputs, planes, stride), *rest)
