"""Times per example: taken in turns, on fewer examples where a model is slow."""

import time

from distilcal.data import Dataset, texts
from distilcal.pipeline.timing import time_in_turns

DATA = Dataset(texts([f"text {i}" for i in range(300)]))


def test_models_are_timed_in_turns_after_a_warm_up():
    calls = []
    models = {name: lambda data, name=name: calls.append((name, len(data))) for name in ("a", "b")}
    timings = time_in_turns(models, DATA, rounds=3)
    assert calls == [("a", 8), ("a", 8), ("b", 8), ("b", 8), *[("a", 128), ("b", 128)] * 3]
    assert list(timings) == ["a", "b"]


def test_a_slow_model_is_measured_on_fewer_examples_and_found_slower():
    sizes = []

    def slow(data):
        sizes.append(len(data))
        time.sleep(0.01 * len(data))

    timings = time_in_turns({"slow": slow, "fast": lambda data: time.sleep(0.0001 * len(data))}, DATA, rounds=2)
    assert max(sizes) < 40
    assert 9 < timings["slow"].low <= timings["slow"].median <= timings["slow"].high
    assert timings["fast"].median < timings["slow"].median


def test_few_examples_are_all_used():
    sizes = []
    time_in_turns({"model": lambda data: sizes.append(len(data))}, DATA.select([0, 1, 2]))
    assert set(sizes) == {3}
