"""Training dynamics for tests: logits from a generator, and text that must be escaped."""

import numpy as np

from distilcal.dynamics import Recorder

HARMFUL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)> & more',
    "[red]not markup[/red] {{ 7 * 7 }}",
    "two\nlines\r\nand\rthree",
    "=1+1",
)
CLASSES = ("<b>bad</b>", "good & well")
COLUMNS = [
    "id",
    "label",
    "predicted",
    "confidence",
    "variability",
    "correctness",
    "epochs",
    "forgetting",
    "threshold_closeness",
    "aum",
    "easy",
    "ambiguous",
    "hard",
    "aum_half",
    "mislabelled",
]


def dynamics(n=60, classes=3, epochs=8, seed=0, names=None, ids=None):
    """Logits that favour the label, from a generator."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    names = names or [f"c{k}" for k in range(classes)]
    recorder = Recorder([f"r{i:03d}" for i in range(n)] if ids is None else ids, labels, names, dtype=np.float64)
    ease = rng.normal(1.0, 1.5, n)
    for _ in range(epochs):
        logits = rng.normal(size=(n, classes))
        logits[np.arange(n), labels] += ease
        recorder.record(np.arange(n), logits)
        recorder.end_epoch()
    return recorder.dynamics()


def texts_for(d):
    return np.array([HARMFUL[i] if i < len(HARMFUL) else f"text of {id_}" for i, id_ in enumerate(d.ids)], dtype=object)
