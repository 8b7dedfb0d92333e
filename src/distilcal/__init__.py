"""distilcal: classifiers that know when they are wrong, and an honest report of how far to trust them.

Names are loaded when first used, so that ``import distilcal`` and the command line stay fast and never import torch. The
library logs to the logger "distilcal" and its children; it prints nothing until an application configures logging.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distilcal.errors import InputError as InputError
    from distilcal.metrics import compare as compare
    from distilcal.metrics import evaluate as evaluate
    from distilcal.metrics import reliability as reliability
    from distilcal.predictions import Predictions as Predictions
    from distilcal.predictions import ensemble as ensemble
    from distilcal.predictions import join as join

__version__ = "0.1.0.dev0"

logging.getLogger("distilcal").addHandler(logging.NullHandler())

_HOME = {
    "InputError": "distilcal.errors",
    "Predictions": "distilcal.predictions",
    "ensemble": "distilcal.predictions",
    "join": "distilcal.predictions",
    "compare": "distilcal.metrics",
    "evaluate": "distilcal.metrics",
    "reliability": "distilcal.metrics",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'distilcal' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
