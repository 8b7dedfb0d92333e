"""What all tests of integrations share."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Trainer collects garbage whenever it starts, which takes longer than these trainings: what is there now is left out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
