"""Fixtures and settings that all tests share."""

import os
import signal

# Tiny models gain nothing from threads, which get in each other's way on a busy machine. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# One instruction set on every x86 machine: AVX-512 adds numbers in another order than AVX2, and what a tiny model learns from
# the last bit on (tests/pins) would depend on the machine. Before torch and NumPy are imported.
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
os.environ.setdefault("MKL_CBWR", "AVX2")
os.environ.setdefault("DNNL_MAX_CPU_ISA", "AVX2")
os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
# Nothing is asked of the hub: a benchmark without a folder is an error here. Before huggingface_hub is imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from samples import make, make_tied

from distilcal import Predictions

# Readline, which pytest imports, exports the size of a window to every child: documented output has the width of a pipe.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)


# nohup and shells in the background make a process, and all that it starts, ignore these: some tests send them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def predictions() -> Predictions:
    return make()


@pytest.fixture
def tied() -> Predictions:
    return make_tied()
