"""Image corruptions: noise, blur, weather, light, shape and storage, those of Hendrycks & Dietterich (ICLR 2019).

Parameters are those of CIFAR-10-C; lengths are in pixels of a 32 × 32 image. To add one, write ``f(x, severity, draws)`` on
float32 pixels (N, H, W, 3) in [0, 1] and add it to ``IMAGE_CORRUPTIONS`` at the end; the tests cover it from there. Take
random numbers from ``draws`` alone, in the same order at every severity: then the corruption of an example depends on no other
example, and all severities use the same random numbers. ``corruptions.py`` applies them to a data set.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.image_source import import_pillow

Floats = NDArray[np.floating[Any]]  # float32; factors are Python's floats, which leave it so


@dataclass(frozen=True, eq=False)
class Draws:
    """Random numbers for each example of a chunk, from its own stream.

    Parameters
    ----------
    streams : sequence of int
        The seed of each example.

    Examples
    --------
    >>> chunk = Draws([3, 4]).normal(2)
    >>> chunk.shape, bool((chunk[1] == Draws([4]).normal(2)[0]).all())
    ((2, 2), True)
    """

    streams: Sequence[int]

    @cached_property
    def generators(self) -> list[np.random.Generator]:
        """One generator per example, which remembers what it drew."""
        return [np.random.default_rng(stream) for stream in self.streams]

    def normal(self, *shape: int) -> Floats:
        """Draw (N, *shape) normal numbers with mean 0 and standard deviation 1."""
        return np.stack([rng.standard_normal(shape, np.float32) for rng in self.generators])

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Floats:
        """Draw (N, *shape) uniform numbers between low and high."""
        return low + (high - low) * np.stack([rng.random(shape, np.float32) for rng in self.generators])

    def poisson(self, mean: Floats) -> Floats:
        """Draw Poisson counts (N, ...) with these means (N, ...)."""
        counts = [rng.poisson(rates) for rng, rates in zip(self.generators, mean, strict=True)]
        return np.stack(counts).astype(np.float32)


ImageCorruption = Callable[[Floats, int, Draws], Floats]  # the caller clips results to [0, 1]


# ---- noise -------------------------------------------------------------------------------------------------------------


def gaussian_noise(x: Floats, severity: int, draws: Draws) -> Floats:
    """Add Gaussian noise, as in low light.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: standard deviation 0.04 to 0.10.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    return x + (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1] * draws.normal(*x.shape[1:])


def shot_noise(x: Floats, severity: int, draws: Draws) -> Floats:
    """Add the noise of counting photons (Poisson).

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: 500 down to 50 photons.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    photons = (500, 250, 100, 75, 50)[severity - 1]
    return draws.poisson(x * photons) / photons


def impulse_noise(x: Floats, severity: int, draws: Draws) -> Floats:
    """Set a share of all values to 0 or 1 (salt and pepper).

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: 1 % to 7 % of the values.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    drawn = draws.uniform(*x.shape[1:])
    return np.where(drawn < share, (drawn < share / 2).astype(np.float32), x)


def speckle_noise(x: Floats, severity: int, draws: Draws) -> Floats:
    """Add Gaussian noise that grows with brightness.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: standard deviation 0.06 to 0.2 times the value.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    return x + (0.06, 0.1, 0.12, 0.16, 0.2)[severity - 1] * x * draws.normal(*x.shape[1:])


# ---- blur --------------------------------------------------------------------------------------------------------------


def gaussian_blur(x: Floats, severity: int, draws: Draws) -> Floats:
    """Blur with a Gaussian.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: standard deviation 0.4 to 1 pixel.
    draws : Draws
        Not used.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    return _smooth(x, (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1])


def defocus_blur(x: Floats, severity: int, draws: Draws) -> Floats:
    """Blur as a lens out of focus does: every point becomes a disk with a soft edge.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: radius 0.3 to 1.5 pixels.
    draws : Draws
        Not used.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    from scipy import ndimage

    radius, softness = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[severity - 1]
    away = np.arange(-3, 4) ** 2
    disk = (away[:, None] + away <= radius**2).astype(np.float64)
    edge = np.exp(-0.5 * (np.arange(-1, 2) / softness) ** 2)
    soft = ndimage.convolve(disk, np.outer(edge, edge), mode="constant")
    blurred: Floats = ndimage.convolve(x, (soft / soft.sum())[None, :, :, None], mode="mirror")
    return blurred


def glass_blur(x: Floats, severity: int, draws: Draws) -> Floats:
    """Blur as frosted glass does: pixels are replaced by near ones, between two Gaussian blurs.

    The published code is meant to swap neighbours but copies the upper left one or none, each from an image that is not yet
    changed there. That is one gather, and it leaves the first two rows and columns where they are.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: strength of the blurs, and from 4 on two passes.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    sigma, times = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    n, height, width = x.shape[:3]
    x = as_bytes(_smooth(x, sigma)).astype(np.float32) / 255
    rows, columns = np.arange(height)[:, None], np.arange(width)
    back = (draws.uniform(times, 2, height, width) < 0.5) & (rows >= 2) & (columns >= 2)
    for k in range(times):
        x = x[np.arange(n)[:, None, None], rows - back[:, k, 0], columns - back[:, k, 1]]
    return _smooth(x, sigma)


def motion_blur(x: Floats, severity: int, draws: Draws) -> Floats:
    """Blur along a random direction within 45° of the horizontal, as if the camera moved.

    The difference between severities 3 and 4 is too faint to see.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: length and strength of the motion.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    radius, sigma = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[severity - 1]
    return _smear(x, radius, sigma, draws.uniform(low=-45, high=45))


def zoom_blur(x: Floats, severity: int, draws: Draws) -> Floats:
    """Average slightly enlarged copies, as if the lens zoomed.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: 7 to 26 copies, each 1 % larger than the last.
    draws : Draws
        Not used.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    copies = (7, 12, 16, 21, 26)[severity - 1]
    planes = np.ascontiguousarray(np.moveaxis(x, 3, 1))  # (N, 3, H, W)
    total = planes.copy()
    for factor in 1 + 0.01 * np.arange(copies):
        total += _enlarge(planes, float(factor))
    return np.moveaxis(total, 1, 3) / (copies + 1)


# ---- weather -----------------------------------------------------------------------------------------------------------


def snow(x: Floats, severity: int, draws: Draws) -> Floats:
    """Whiten the scene and add flakes that fall in streaks.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: density, size and streaks of the flakes.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    mean, spread, zoom, least, radius, sigma, kept = (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    )[severity - 1]
    flakes = _enlarge(mean + spread * draws.normal(*x.shape[1:3]), zoom)
    flakes = np.clip(np.where(flakes < least, 0, flakes), 0, 1)
    flakes = _smear(flakes[..., None], radius, sigma, draws.uniform(low=-135, high=-45))
    grey = x @ np.array([[0.299], [0.587], [0.114]], dtype=np.float32)
    x = kept * x + (1 - kept) * np.maximum(x, grey * 1.5 + 0.5)
    return x + flakes + flakes[:, ::-1, ::-1]


def frost(x: Floats, severity: int, draws: Draws) -> Floats:
    """Show the image through an icy pane.

    The ice is computed by ``_ice_panes``, where the paper uses photographs, so figures are not those of CIFAR-10-C.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: opacity of the ice.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    kept, strength = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    panes = _ice_panes()
    which, top, left, flip = (draws.uniform(4).T * np.array([[len(panes)], [ICE], [ICE], [2]])).astype(np.int64)
    rows = (top[:, None] + np.arange(x.shape[1])) % ICE
    columns = (left[:, None] + np.arange(x.shape[2]) * np.where(flip, 1, -1)[:, None]) % ICE
    ice: Floats = panes[which[:, None, None], rows[:, :, None], columns[:, None, :]]
    return kept * x + strength * ice


def fog(x: Floats, severity: int, draws: Draws) -> Floats:
    """Add a veil of uneven thickness.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: thickness of the veil and roughness of its clouds.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    strength, smoothness = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[severity - 1]
    brightest: Floats = x.max(axis=(1, 2, 3), keepdims=True)
    veil = strength * _clouds(draws, x.shape[1], x.shape[2], smoothness)[..., None]
    return (x + veil) * brightest / (brightest + strength)


def spatter(x: Floats, severity: int, draws: Draws) -> Floats:
    """Add drops of water on the lens, from severity 4 on of mud.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: amount of liquid.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    mean, spread, sigma, least, strength = (
        (0.62, 0.1, 0.7, 0.7, 0.5),
        (0.65, 0.1, 0.8, 0.7, 0.5),
        (0.65, 0.3, 1.0, 0.69, 0.5),
        (0.65, 0.1, 0.7, 0.69, 0.6),
        (0.65, 0.1, 0.5, 0.68, 0.6),
    )[severity - 1]
    liquid = _smooth(mean + spread * draws.normal(*x.shape[1:3]), sigma)
    if severity >= 4:
        mud = np.array([63, 42, 20], dtype=np.float32) / 255
        cover = _smooth((liquid > least).astype(np.float32), strength)[..., None]
        cover = np.where(cover < 0.8, 0, cover)
        return x * (1 - cover) + mud * cover
    water = np.array([175, 238, 238], dtype=np.float32) / 255
    shine = liquid * (liquid >= least) * _relief(liquid >= least)
    most = shine.max(axis=(1, 2), keepdims=True)
    return x + strength * (shine / np.where(most > 0, most, 1))[..., None] * water


# ---- light, shape and storage ------------------------------------------------------------------------------------------


def brightness(x: Floats, severity: int, draws: Draws) -> Floats:
    """Raise the value of HSV; hue and saturation stay.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: 0.05 to 0.3 added.
    draws : Draws
        Not used.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    value: Floats = x.max(axis=3, keepdims=True)
    raised = np.minimum(value + (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1], 1)
    black = value == 0
    lighter: Floats = np.where(black, raised, x * raised / np.where(black, 1, value))
    return lighter


def contrast(x: Floats, severity: int, draws: Draws) -> Floats:
    """Move all pixels towards the mean colour of the image.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: contrast times 0.75 down to 0.15.
    draws : Draws
        Not used.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    mean: Floats = x.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    return (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1] + mean


def saturate(x: Floats, severity: int, draws: Draws) -> Floats:
    """Change the saturation of HSV: paler at severities 1 and 2, then more colourful.

    Greys, whose hue is 0, turn red as they do in the paper.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: factor and offset of the saturation.
    draws : Draws
        Not used.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    times, plus = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))[severity - 1]
    value: Floats = x.max(axis=3, keepdims=True)
    below = value - x  # for one hue in proportion to value × saturation
    most: Floats = below.max(axis=3, keepdims=True)
    saturation = most / np.where(value > 0, value, 1)
    adjusted = np.clip(saturation * times + plus, 0, 1)
    red = np.array([0, 1, 1], dtype=np.float32)
    return value - adjusted * value * np.where(most > 0, below / np.where(most > 0, most, 1), red)


def elastic_transform(x: Floats, severity: int, draws: Draws) -> Floats:
    """Stretch the image: an affine map, then local shifts.

    Severities 1 and 2 have the largest map, and hardly any local shifts.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: size of the map and of the shifts.
    draws : Draws
        Random numbers for each image.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    from scipy import ndimage

    shift, sigma, corner = (  # in sides
        (0.0, 0.0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    )[severity - 1]
    height, width = x.shape[1:3]
    side = min(height, width)
    centre, arm = np.array([height // 2, width // 2]), max(side // 3, 1)
    corners = centre + arm * np.array([[1, 1], [1, -1], [-1, -1]])  # (3, 2), rows and columns
    moved = corners + draws.uniform(3, 2, low=-corner * side, high=corner * side).astype(np.float64)
    back = np.linalg.solve(_append_ones(moved), _append_ones(corners)[None])[..., :2]  # (N, 3, 2): from new to old positions
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    origin = back.swapaxes(1, 2) @ np.stack([rows.ravel(), columns.ravel(), np.ones(rows.size)])  # (N, 2, H × W)
    x = _sample(x, *origin.reshape(-1, 2, height, width).swapaxes(0, 1))
    shifts = draws.uniform(2, height, width, low=-1, high=1)
    shifts = shift * side * ndimage.gaussian_filter(shifts, (0, 0, sigma * side, sigma * side), truncate=3)
    return _sample(x, rows + shifts[:, 0], columns + shifts[:, 1])


def pixelate(x: Floats, severity: int, draws: Draws) -> Floats:
    """Shrink the image, and enlarge it again without smoothing.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: shrunk to 95 % down to 65 % of its sides.
    draws : Draws
        Not used.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    rows, columns = (_box_weights(side, max(int(side * share), 1)) for side in x.shape[1:3])
    return np.moveaxis(rows @ np.moveaxis(x, 3, 1) @ columns.T, 1, 3)


def jpeg_compression(x: Floats, severity: int, draws: Draws) -> Floats:
    """Compress the image as a JPEG of low quality.

    Parameters
    ----------
    x : array of float32, shape (N, H, W, 3)
        Images in [0, 1].
    severity : int
        1 to 5: quality 80 down to 40.
    draws : Draws
        Not used.

    Returns
    -------
    array of float32, shape (N, H, W, 3)
    """
    pillow = import_pillow()
    quality = (80, 65, 58, 50, 40)[severity - 1]
    decoded = np.empty_like(x)
    for row, pixels in enumerate(np.rint(x * 255).astype(np.uint8)):
        file = io.BytesIO()
        pillow.fromarray(pixels).save(file, "JPEG", quality=quality)
        decoded[row] = np.asarray(pillow.open(file), dtype=np.float32) / 255
    return decoded


# ---- helpers -------------------------------------------------------------------------------------------------------------


def as_bytes(x: Floats) -> NDArray[np.uint8]:
    """Convert values in [0, 1] to bytes, rounded down as in the published code.

    Values outside are clipped. A small offset keeps bytes the same that were only divided by 255 and multiplied again.

    Parameters
    ----------
    x : ndarray of float, any shape
        The values.

    Returns
    -------
    ndarray of uint8, same shape
        Values from 0 to 255.

    Examples
    --------
    >>> as_bytes(np.array([-0.2, 0.5, 1.0], dtype=np.float32)).tolist()
    [0, 127, 255]
    """
    return (np.clip(x, 0, 1) * 255 + 1e-3).astype(np.uint8)


def _smooth(x: Floats, sigma: float) -> Floats:
    """Blur images (N, H, W, 3) or layers (N, H, W) with a Gaussian of ``sigma`` pixels."""
    from scipy import ndimage

    smooth: Floats = ndimage.gaussian_filter(x, (0, sigma, sigma, 0)[: x.ndim], mode="nearest")
    return smooth


def _smear(x: Floats, radius: int, sigma: float, degrees: Floats) -> Floats:
    """Average each pixel of (N, H, W, C) with those ahead of it at an angle, as ImageMagick does."""
    steps = np.arange(min(2 * radius, int(4 * sigma)) + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    turn = np.deg2rad(degrees.astype(np.float64))[:, None]
    down, right = (np.ceil(steps * along(turn) - 0.5).astype(np.int64) for along in (np.sin, np.cos))  # (N, steps)
    n, height, width = x.shape[:3]
    total = np.zeros_like(x)
    for k, weight in enumerate((weights / weights.sum()).tolist()):
        rows = np.clip(np.arange(height) + down[:, k, None], 0, height - 1)
        columns = np.clip(np.arange(width) + right[:, k, None], 0, width - 1)
        total += weight * x[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return total


def _enlarge(planes: Floats, factor: float) -> Floats:
    """Enlarge the middle of planes (..., H, W) to the size of the whole."""
    rows, columns = (_stretch_weights(side, factor) for side in planes.shape[-2:])
    return rows @ planes @ columns.T


@cache
def _stretch_weights(side: int, factor: float) -> Floats:
    """Return the weights (side, side) of the pixels along one side that enlarge its middle by linear interpolation."""
    kept = int(np.ceil(side / factor))
    size = round(kept * factor)
    at = (side - kept) // 2 + (np.arange(side) + (size - side) // 2) * (kept - 1) / max(size - 1, 1)
    low = np.floor(at).astype(np.int64)
    shares = np.zeros((side, side + 1), dtype=np.float32)
    shares[np.arange(side), low] = 1 - (at - low)
    shares[np.arange(side), low + 1] = at - low
    return shares[:, :side]


def _box_weights(side: int, small: int) -> Floats:
    """Return the weights (side, side) of the pixels along one side that average it over a grid of ``small`` boxes."""
    odd = 2 * np.arange(side) + 1  # twice the middles of pixels, so that all is whole
    from_middle = odd * small - side * odd[:small, None]
    inside = ((from_middle > -side) & (from_middle <= side)).astype(np.float32)
    means = inside / inside.sum(axis=1, keepdims=True)
    spread: Floats = means[odd * small // (2 * side)]
    return spread


def _sample(x: Floats, rows: NDArray[Any], columns: NDArray[Any]) -> Floats:
    """Sample images at fractional positions (N, H, W) by bilinear interpolation, mirrored beyond the border."""
    n, height, width = x.shape[:3]
    image = np.arange(n)[:, None, None]
    top, bottom, down = _interpolation(rows, height)
    left, right, across = _interpolation(columns, width)
    upper = x[image, top, left] * (1 - across) + x[image, top, right] * across
    lower = x[image, bottom, left] * (1 - across) + x[image, bottom, right] * across
    return upper * (1 - down) + lower * down


def _interpolation(at: NDArray[Any], side: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return the pixels before and after positions along one side, and the weight of the second (N, H, W, 1)."""
    period = max(2 * (side - 1), 1)
    folded = np.abs(at) % period
    folded = np.minimum(folded, period - folded)
    low = np.minimum(np.floor(folded).astype(np.int64), side - 1)
    return low, np.minimum(low + 1, side - 1), (folded - low)[..., None].astype(np.float32)


def _append_ones(points: NDArray[Any]) -> NDArray[np.float64]:
    return np.concatenate([points, np.ones((*points.shape[:-1], 1))], axis=-1)


def _clouds(draws: Draws, height: int, width: int, smoothness: float) -> Floats:
    """Draw a plasma fractal in [0, 1] by the diamond-square algorithm, periodic at the borders."""
    side = 1 << max(height - 1, width - 1, 1).bit_length()
    noise = draws.uniform(side, side, low=-1, high=1)
    clouds = np.zeros_like(noise)
    step, strength = side, 100.0
    while step >= 2:
        half = step // 2
        amount = strength * strength
        corners = clouds[:, ::step, ::step]
        around = corners + np.roll(corners, -1, 1)
        around = around + np.roll(around, -1, 2)
        clouds[:, half::step, half::step] = around / 4 + amount * noise[:, half::step, half::step]
        middles = clouds[:, half::step, half::step]
        beside = middles + np.roll(middles, 1, 1) + corners + np.roll(corners, -1, 2)
        clouds[:, ::step, half::step] = beside / 4 + amount * noise[:, ::step, half::step]
        beside = middles + np.roll(middles, 1, 2) + corners + np.roll(corners, -1, 1)
        clouds[:, half::step, ::step] = beside / 4 + amount * noise[:, half::step, ::step]
        step, strength = half, strength / smoothness
    clouds -= clouds.min(axis=(1, 2), keepdims=True)
    clouds /= clouds.max(axis=(1, 2), keepdims=True)
    return clouds[:, :height, :width]


def _relief(drops: NDArray[np.bool_]) -> Floats:
    """Return the light on drops (N, H, W) from one side, by the distance from their rim."""
    from scipy import ndimage

    deep = 20
    rim = drops & ~ndimage.binary_erosion(drops, np.ones((1, 3, 3)), border_value=1)
    # Images are stacked so far apart that no rim is near another image's pixels.
    away = np.minimum(ndimage.distance_transform_edt(~rim, sampling=(2 * deep, 1, 1)), deep)
    height = _equalise(ndimage.uniform_filter(away, (1, 3, 3), mode="mirror").astype(np.int64), deep + 1)
    slope = np.array([[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]], dtype=np.float64)
    lit = np.clip(np.rint(ndimage.correlate(height, slope, mode="mirror")), 0, 255)
    light: Floats = ndimage.uniform_filter(lit, (1, 3, 3), mode="mirror").astype(np.float32)
    return light


def _equalise(values: NDArray[np.int64], levels: int) -> NDArray[np.float64]:
    """Equalise the histogram of each image (N, H, W) to 0 … 255."""
    n, pixels = len(values), values[0].size
    counts = np.bincount((values + levels * np.arange(n)[:, None, None]).ravel(), minlength=n * levels).reshape(n, levels)
    first = np.take_along_axis(counts, (counts > 0).argmax(axis=1)[:, None], axis=1)
    spread = np.rint(255 * (counts.cumsum(axis=1) - first) / np.maximum(pixels - first, 1))
    return np.take_along_axis(spread, values.reshape(n, -1), axis=1).reshape(values.shape)


ICE = 256  # pixels along a pane, which repeats at its borders
PANES = 5


@cache
def _ice_panes() -> Floats:
    """Compute panes of ice (P, ICE, ICE, 3), always the same: grains of parallel needles, of uneven thickness."""
    from scipy.spatial import cKDTree

    rng = np.random.default_rng(0)
    turns = np.pi * np.arange(9) / 9
    places = np.moveaxis(np.mgrid[:ICE, :ICE], 0, -1) + 0.5
    panes = []
    for grains in np.linspace(300, 1500, PANES).astype(np.int64):
        centres = cKDTree(rng.random((grains, 2)) * ICE, boxsize=ICE)
        distance, nearest = centres.query(places, k=2)
        turn = rng.integers(0, len(turns), grains)[nearest[..., 0]]
        noise = rng.standard_normal((ICE, ICE))
        needles = np.choose(turn, [_streaks(noise, 4.0, 0.7, angle) for angle in turns])
        seams = np.exp(-(distance[..., 1] - distance[..., 0]) / 1.5)
        thickness = 1 / (1 + np.exp(-2.5 * _streaks(rng.standard_normal((ICE, ICE)), 6.0, 6.0, 0.0)))
        white = np.clip(0.2 + 0.4 * thickness + (0.3 * needles + 0.3 * seams) * (0.4 + 0.6 * thickness), 0, 1)
        panes.append(white[..., None] ** np.array([1.25, 1.0, 0.85]))  # bluish where it is thin
    return np.stack(panes).astype(np.float32)


def _streaks(noise: NDArray[np.float64], length: float, width: float, angle: float) -> NDArray[np.float64]:
    """Blur noise with a Gaussian of this length and width in pixels, at an angle; mean 0 and standard deviation 1."""
    down, right = np.meshgrid(*(np.fft.fftfreq(side) for side in noise.shape), indexing="ij")
    along = down * np.sin(angle) + right * np.cos(angle)
    across = down * np.cos(angle) - right * np.sin(angle)
    passed = np.exp(-2 * np.pi**2 * ((length * along) ** 2 + (width * across) ** 2))
    smooth: NDArray[np.float64] = np.fft.ifft2(np.fft.fft2(noise) * passed).real
    return (smooth - float(smooth.mean())) / float(smooth.std())


IMAGE_CORRUPTIONS: dict[str, ImageCorruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "speckle_noise": speckle_noise,
    "gaussian_blur": gaussian_blur,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "spatter": spatter,
    "brightness": brightness,
    "contrast": contrast,
    "saturate": saturate,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}
