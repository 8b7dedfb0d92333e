"""MobileNetV2 for small images, as RepDistiller (Mishra et al.) and Hebbalaguppe et al. build it."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from distilcal.models.image.layers import ConvNet, conv_norm, initialise_head, stack_blocks


class InvertedResidual(nn.Module):
    """Widen by 1 × 1, convolve each channel 3 × 3, narrow by 1 × 1; with a shortcut where the shape allows it."""

    def __init__(self, inputs: int, planes: int, stride: int, *, expand: int = 6):
        super().__init__()
        wide = inputs * expand
        self.body = nn.Sequential(
            conv_norm(inputs, wide, 1), conv_norm(wide, wide, 3, stride, groups=wide), conv_norm(wide, planes, 1, act=False)
        )
        self.has_shortcut = stride == 1 and inputs == planes

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of shape (N, planes, H/stride, W/stride)."""
        y: Tensor = self.body(x)
        return x + y if self.has_shortcut else y


def mobilenet_v2(classes: int, *, width: float = 0.5) -> ConvNet:
    """Build MobileNetV2 of RepDistiller: half width, stem of stride 2, expansion 6 (the first block 1), 1280 features.

    Parameters
    ----------
    classes : int
        Number of outputs.
    width : float, default 0.5
        Factor of all widths.
    """
    # expansion, channels, blocks, stride
    groups = [(1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    inputs = int(32 * width)
    stem = conv_norm(3, inputs, 3, 2)
    parts: list[nn.Module] = []
    for expand, planes, blocks, stride in groups:
        outputs = int(planes * width)
        build_block = partial(InvertedResidual, expand=expand)
        parts.append(stack_blocks(build_block, inputs, outputs, stride=stride, blocks=blocks))
        inputs = outputs
    # The maps that papers look at: after the stem, the 2nd, 3rd, 5th and 7th groups.
    stages = [stem, nn.Sequential(*parts[:2]), parts[2], nn.Sequential(*parts[3:5]), nn.Sequential(*parts[5:])]
    network = ConvNet(stages, 1280, classes, last=conv_norm(inputs, 1280, 1))
    initialise_head(network)
    return network


def _biased_conv_norm(
    inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1, padding: int = 0
) -> list[nn.Module]:
    """A convolution with bias, and its norm."""
    return [nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups), nn.BatchNorm2d(outputs)]


class BiasedInvertedResidual(nn.Module):
    """An inverted residual with ReLU6 and convolutions that have a bias."""

    def __init__(self, inputs: int, planes: int, stride: int, *, expand: int):
        super().__init__()
        wide = inputs * expand
        self.body = nn.Sequential(
            *_biased_conv_norm(inputs, wide),
            nn.ReLU6(),
            *_biased_conv_norm(wide, wide, 3, stride, groups=wide, padding=1),
            nn.ReLU6(),
            *_biased_conv_norm(wide, planes),
        )
        self.has_shortcut = stride == 1 and inputs == planes

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of shape (N, planes, H/stride, W/stride)."""
        y: Tensor = self.body(x)
        return x + y if self.has_shortcut else y


def mobilenet_v2_full(classes: int) -> ConvNet:
    """Build MobileNetV2 of Hebbalaguppe et al.: full width, ReLU6, convolutions with bias, a padded 1 × 1 stem, three halvings.

    Parameters
    ----------
    classes : int
        Number of outputs.
    """
    # expansion, channels, blocks, stride
    groups = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 1), (6, 320, 1, 1)]
    stages: list[nn.Module] = [nn.Sequential(*_biased_conv_norm(3, 32, padding=1), nn.ReLU6())]
    inputs = 32
    for expand, planes, blocks, stride in groups:
        build_block = partial(BiasedInvertedResidual, expand=expand)
        stages.append(stack_blocks(build_block, inputs, planes, stride=stride, blocks=blocks))
        inputs = planes
    return ConvNet(stages, 1280, classes, last=nn.Sequential(*_biased_conv_norm(inputs, 1280), nn.ReLU6()))
