"""Fixtures and settings that all tests share."""

import os

# Tiny models gain nothing from threads, which get in each other's way on a busy machine. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from samples import make, make_tied

from distilcal import Predictions

# Readline, which pytest imports, exports the size of a window to every child: documented output has the width of a pipe.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)


@pytest.fixture
def predictions() -> Predictions:
    return make()


@pytest.fixture
def tied() -> Predictions:
    return make_tied()
