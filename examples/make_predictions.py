"""Make the predictions of an overconfident classifier for the tour: a development split, a test split, shifted data, a rival.

A classifier that is calibrated by construction draws its labels from the softmax of its logits; reporting logits that are
1.8 times too large makes it overconfident, and noise on the logits that it never sees in its labels makes it wrong as well.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from distilcal import Predictions

CLASSES = ("anger", "disgust", "fear", "joy", "neutral", "sadness", "surprise")
SHARES = (0.08, 0.04, 0.05, 0.25, 0.38, 0.12, 0.08)


def predictions(
    name: str, rows: int, *, noise: float, scale: float, seed: int, rival_noise: float | None = None
) -> Predictions:
    """Logits of one model on drawn examples; the same seed with a rival's noise gives another model on the same rows."""
    rng = np.random.default_rng(seed)
    evidence = np.log(SHARES) + 4.0 * rng.normal(size=(rows, len(CLASSES)))
    labels = (evidence + rng.gumbel(size=evidence.shape)).argmax(axis=1)
    seen = evidence + noise * rng.normal(size=evidence.shape)
    if rival_noise is not None:
        seen = evidence + rival_noise * rng.normal(size=evidence.shape)
    ids = [f"{seed}-{i}" for i in range(rows)]
    return Predictions.from_logits(scale * seen, labels, ids=ids, classes=CLASSES, name=name)


def main(folder: Path) -> None:
    """Write dev.csv, test.csv, shifted.csv and rival.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    sets = [
        predictions("dev", 3000, noise=0.8, scale=1.8, seed=1),
        predictions("test", 5000, noise=0.8, scale=1.8, seed=2),
        predictions("shifted", 3000, noise=2.4, scale=1.8, seed=3),
        predictions("rival", 5000, noise=0.8, scale=1.0, seed=2, rival_noise=1.0),
    ]
    for made in sets:
        made.save(folder / f"{made.name}.csv")
        print(f"wrote {folder / made.name}.csv: {len(made):,} rows, accuracy {made.correct.mean():.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
