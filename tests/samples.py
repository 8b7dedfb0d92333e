"""Predictions to test on: sizes that differ (N = 7 or 53, K = 3 or 5), ties, exact zeros and ones."""

import numpy as np

from distilcal import Predictions


def make(rows: int = 53, classes: int = 5, *, seed: int = 0, scale: float = 2.0, name: str = "dev") -> Predictions:
    """Logits of an overconfident classifier; labels are drawn from the softmax of half its logits."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(rows, classes))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions.from_logits(logits, labels, ids=[f"row{i}" for i in range(rows)], name=name)


def make_tied(rows: int = 60, *, seed: int = 0) -> Predictions:
    """Probabilities on a coarse grid: many ties, exact zeros and ones, values on bin edges."""
    rng = np.random.default_rng(seed)
    probs = rng.multinomial(10, rng.dirichlet([0.6, 0.8, 1.0, 0.5], size=rows)) / 10
    return Predictions.from_probs(probs, rng.integers(0, 4, rows), name="dev")
