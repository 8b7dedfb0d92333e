"""The kernel-smoothed calibration error on a grid: reflection at 0 and 1 makes smoothing a product of cosine transforms."""

from __future__ import annotations

import numpy as np

from distilcal.metrics.rows import Binary, run_sums
from distilcal.predictions import FloatArray


def residual_histogram(question: Binary, grid: int) -> FloatArray:
    """Sum the residuals of a question in the cells of a grid, each shared between the two nearest cell centres.

    Parameters
    ----------
    question : Binary
        Scores and outcomes, as they are or resampled.
    grid : int
        Number of cells of [0, 1].

    Returns
    -------
    array (..., grid)
    """
    position = question.sorted * grid - 0.5
    np.clip(position, 0.0, grid - 1.0, out=position)
    lower = np.minimum(position.astype(np.int32), grid - 2)
    upper_part = np.subtract(position, lower, out=position)
    cuts = np.searchsorted(lower, np.arange(grid))  # lower is sorted, so each cell is a run
    residuals = question.sorted_residuals
    to_upper = run_sums(residuals * upper_part, cuts)
    cells = np.zeros((*residuals.shape[:-1], grid))
    cells[..., :-1] = run_sums(residuals, cuts) - to_upper
    cells[..., 1:] += to_upper
    return cells


def smoothed_error(cells: FloatArray, tolerance: float = 1e-10) -> FloatArray:
    """Solve ``Σ|smooth_σ(cells)| = σ`` for every leading row at once, by the Illinois variant of false position.

    Parameters
    ----------
    cells : array (..., grid)
        Mean residuals on a grid, as `residual_histogram` returns them divided by the number of rows.
    tolerance : float
        Largest difference between the two sides.

    Returns
    -------
    array (...)
        The solutions σ, in [0, 1].
    """
    from scipy.fft import dct, idct

    grid = cells.shape[-1]
    spectrum = dct(cells, axis=-1)
    decay = (np.pi * np.arange(grid)) ** 2 / 2

    def excess(sigma: FloatArray) -> FloatArray:  # falls, by at least as much as σ grows
        modes = int(min(grid, 2 + np.sqrt(80) / (np.pi * max(sigma.min(), 1e-9))))  # higher ones are smoothed to nothing
        smooth = idct(spectrum[..., :modes] * np.exp(-decay[:modes] * sigma[..., None] ** 2), n=grid, axis=-1)
        return np.asarray(np.abs(smooth).sum(axis=-1) - sigma)

    # Smoothing keeps the sum and can only lower Σ|·|, so the root lies between these two.
    low, high = np.abs(cells.sum(axis=-1)), np.minimum(np.abs(cells).sum(axis=-1), 1.0)
    above, below = excess(low), excess(high)
    last_side = np.full(low.shape, 0)
    guess = low
    for _ in range(100):
        with np.errstate(invalid="ignore", divide="ignore"):  # 0/0 where both ends are already the root
            guess = np.where(above > below, (low * below - high * above) / (below - above), low)
        value = excess(guess)
        if np.abs(value).max() < tolerance:
            break
        side = np.where(value > 0, 1, -1)
        # The end that has stayed twice in a row gets half its weight, or it would stay forever.
        repeated = side == last_side
        above = np.where(side > 0, value, np.where(repeated, above / 2, above))
        below = np.where(side < 0, value, np.where(repeated, below / 2, below))
        low, high = np.where(side > 0, guess, low), np.where(side < 0, guess, high)
        last_side = side
    return np.asarray(np.clip(guess, 0.0, 1.0))
