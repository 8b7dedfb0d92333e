"""distilcal inside other libraries: each module is named after the library that it works with.

``distilcal.integrations.transformers`` and ``distilcal.integrations.sklearn`` are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

LIBRARIES = ("sklearn", "transformers")


def __getattr__(name: str) -> Any:
    if name not in LIBRARIES:
        raise AttributeError(f"module 'distilcal.integrations' has no attribute {name!r}")
    return import_module(f"distilcal.integrations.{name}")
