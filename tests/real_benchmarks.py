"""Benchmarks from real files, for the tests that compare them with what their sources state."""

import os
from functools import cache
from pathlib import Path

import pytest

from distilcal.data.catalogue import BENCHMARKS, load_benchmark

DATA = Path(os.environ.get("DISTILCAL_DATA", Path(__file__).parents[2] / "shared" / "data"))


@cache
def read(name):
    return load_benchmark(name, root=DATA)


def loaded(name):
    """Return the splits of a benchmark, or skip the test if its files are not on this machine."""
    folder = BENCHMARKS[name].folder
    if not (DATA / folder).is_dir():
        pytest.skip(f"no data: set DISTILCAL_DATA to a folder that holds {folder}/")
    return read(name)
