"""The kernel-smoothed calibration error on a grid: reflection at 0 and 1 makes smoothing a product of cosine transforms."""

from __future__ import annotations

import numpy as np

from distilcal.metrics.rows import Binary, run_sums
from distilcal.predictions import FloatArray


def residual_histogram(question: Binary, grid: int) -> FloatArray:
    """Residuals (..., N) shared out over ``grid`` cells of [0, 1], each between the two nearest cell centres."""
    place = question.sorted * grid - 0.5
    np.clip(place, 0.0, grid - 1.0, out=place)
    lower = np.minimum(place.astype(np.int32), grid - 2)
    upper_part = np.subtract(place, lower, out=place)
    cuts = np.searchsorted(lower, np.arange(grid))  # lower is sorted, so each cell is a run
    residuals = question.sorted_residuals
    to_upper = run_sums(residuals * upper_part, cuts)
    cells = np.zeros((*residuals.shape[:-1], grid))
    cells[..., :-1] = run_sums(residuals, cuts) - to_upper
    cells[..., 1:] += to_upper
    return cells


def smoothed_error(cells: FloatArray, tolerance: float = 1e-10) -> FloatArray:
    """Solve ``Σ|smooth_σ(cells)| = σ`` for every leading row at once, by the Illinois form of false position."""
    from scipy.fft import dct, idct

    grid = cells.shape[-1]
    spectrum = dct(cells, axis=-1)
    decay = (np.pi * np.arange(grid)) ** 2 / 2

    def excess(sigma: FloatArray) -> FloatArray:  # falls, by at least as much as σ grows
        felt = int(min(grid, 2 + np.sqrt(80) / (np.pi * max(sigma.min(), 1e-9))))  # higher modes are smoothed to nothing
        smooth = idct(spectrum[..., :felt] * np.exp(-decay[:felt] * sigma[..., None] ** 2), n=grid, axis=-1)
        return np.asarray(np.abs(smooth).sum(axis=-1) - sigma)

    # Smoothing keeps the sum and can only lower Σ|·|, so the root lies between these two.
    low, high = np.abs(cells.sum(axis=-1)), np.minimum(np.abs(cells).sum(axis=-1), 1.0)
    above, below = excess(low), excess(high)
    went_up = np.full(low.shape, 0)
    guess = low
    for _ in range(100):
        with np.errstate(invalid="ignore", divide="ignore"):  # 0/0 where both ends are already the root
            guess = np.where(above > below, (low * below - high * above) / (below - above), low)
        value = excess(guess)
        if np.abs(value).max() < tolerance:
            break
        up = np.where(value > 0, 1, -1)
        # An end that stays put twice running is given half its weight, or it would stay for good.
        again = up == went_up
        above = np.where(up > 0, value, np.where(again, above / 2, above))
        below = np.where(up < 0, value, np.where(again, below / 2, below))
        low, high = np.where(up > 0, guess, low), np.where(up < 0, guess, high)
        went_up = up
    return np.asarray(np.clip(guess, 0.0, 1.0))
