"""Fit every calibrator on one set of predictions, try it on another, and print a table.

python examples/compare_calibrators.py demo/dev.csv demo/test.csv
"""

from __future__ import annotations

import sys

from distilcal import Predictions, evaluate
from distilcal.calibrate import FITS

SHOWN = ("accuracy", "nll", "brier", "ece", "sce", "smooth_ece")


def main(dev_file: str, test_file: str) -> None:
    """Print one line per calibrator."""
    dev, test = Predictions.load(dev_file), Predictions.load(test_file)
    print("| calibrator | " + " | ".join(SHOWN) + " |")
    print("|---|" + "---|" * len(SHOWN))
    for name, fit in {"none": None, **FITS}.items():
        scored = test if fit is None else fit(dev)(test)
        values = evaluate(scored, SHOWN, intervals=None).values
        print(f"| {name} | " + " | ".join(f"{values[m]:.4f}" for m in SHOWN) + " |")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/compare_calibrators.py DEV TEST")
    main(*sys.argv[1:])
