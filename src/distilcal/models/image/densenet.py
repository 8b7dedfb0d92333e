"""DenseNet for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from distilcal.models.image.layers import ConvNet, conv


class DenseLayer(nn.Module):
    """Norm first: 1 × 1 to four times the growth, 3 × 3 to the growth, appended to the channels that came in."""

    def __init__(self, inputs: int, growth: int):
        super().__init__()
        inner = 4 * growth
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), conv(inputs, inner, 1), nn.BatchNorm2d(inner), nn.ReLU(), conv(inner, growth)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return maps with ``growth`` more channels."""
        return torch.cat([x, self.body(x)], dim=1)


def densenet121(classes: int, *, growth: int = 32) -> ConvNet:
    """Build DenseNet-121 with a 3 × 3 stem without norm; Huang et al. 2017.

    Parameters
    ----------
    classes : int
        Number of outputs.
    growth : int, default 32
        Channels that each layer adds.
    """
    stages: list[nn.Module] = [conv(3, 2 * growth)]
    channels = 2 * growth
    for number, count in enumerate((6, 12, 24, 16)):
        layers: list[nn.Module] = []
        if number > 0:  # between two blocks half of the channels and of the pixels remain
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(count):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        stages.append(nn.Sequential(*layers))
    return ConvNet(stages, channels, classes, last=nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU()))
