"""distilcal: classifiers that know when they are wrong, and an honest report of how far to trust them.

Names are loaded when first used, so that ``import distilcal`` and the command line stay fast and never import torch. The
library logs to the logger "distilcal" and its children; it prints nothing until an application configures logging.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distilcal import calibrate as calibrate
    from distilcal import integrations as integrations
    from distilcal import selective as selective
    from distilcal.api import Result as Result
    from distilcal.api import distill as distill
    from distilcal.api import load as load
    from distilcal.api import load_dataset as load_dataset
    from distilcal.data.dataset import Dataset as Dataset
    from distilcal.errors import InputError as InputError
    from distilcal.inference.student import Student as Student
    from distilcal.metrics import compare as compare
    from distilcal.metrics import evaluate as evaluate
    from distilcal.metrics import reliability as reliability
    from distilcal.predictions import Predictions as Predictions
    from distilcal.predictions import ensemble as ensemble
    from distilcal.predictions import join as join

__version__ = "0.1.0.dev0"

logging.getLogger("distilcal").addHandler(logging.NullHandler())

_HOME = {
    "Dataset": "distilcal.data.dataset",
    "InputError": "distilcal.errors",
    "Predictions": "distilcal.predictions",
    "Result": "distilcal.api",
    "Student": "distilcal.inference.student",
    "compare": "distilcal.metrics",
    "distill": "distilcal.api",
    "ensemble": "distilcal.predictions",
    "evaluate": "distilcal.metrics",
    "join": "distilcal.predictions",
    "load": "distilcal.api",
    "load_dataset": "distilcal.api",
    "reliability": "distilcal.metrics",
}
_MODULES = ("calibrate", "integrations", "selective")
__all__ = [*_HOME, *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"distilcal.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'distilcal' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
