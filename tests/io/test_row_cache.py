"""Rows of a network are found by the content of the example."""

import threading
import time
from functools import partial

import numpy as np
import pytest

from distilcal.io.folders import DamagedWarning, digest
from distilcal.io.locks import file_lock
from distilcal.io.row_cache import RowCache


def make_for(values, calls):
    def make(rows):
        calls.append(len(rows))
        return {"logits": values[rows], "features": values[rows] * 10}

    return make


def test_rows_are_found_by_content_in_any_order(tmp_path):
    keys = np.array([digest(i) for i in range(20)])
    values = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    cache, calls = RowCache(tmp_path, "net"), []
    first = cache.fetch(keys[:12], ("logits",), make_for(values, calls))
    np.testing.assert_array_equal(first["logits"], values[:12])
    order = np.random.default_rng(1).permutation(12)
    again = RowCache(tmp_path, "net").fetch(keys[order], ("logits", "features"), make_for(values[order], calls))
    np.testing.assert_array_equal(again["logits"], values[order])
    np.testing.assert_array_equal(again["features"], values[order] * 10)
    assert calls == [12]
    grown = cache.fetch(keys, ("logits",), make_for(values, calls))
    np.testing.assert_array_equal(grown["logits"], values)
    assert calls == [12, 8]


def test_rows_that_another_computes_are_waited_for(tmp_path):
    """Two who want the same rows at a time: one computes, the other finds them."""
    keys = np.array([digest(i) for i in range(6)])
    values, calls = np.arange(6.0)[:, None], []
    began = threading.Event()

    def slow(rows):
        began.set()
        time.sleep(0.3)
        return make_for(values, calls)(rows)

    first = threading.Thread(target=lambda: RowCache(tmp_path, "net").fetch(keys, ("logits",), slow))
    first.start()
    began.wait()
    found = RowCache(tmp_path, "net").fetch(keys, ("logits",), make_for(values, calls))
    first.join()
    assert calls == [6]
    np.testing.assert_array_equal(found["logits"], values)


def test_the_lock_of_a_process_that_was_killed_after_storing_is_removed_and_a_held_one_stays(tmp_path):
    keys = np.array(["a", "b"])
    fetch = partial(RowCache(tmp_path, "network").fetch, keys, ("logits",), lambda rows: {"logits": np.eye(2)[rows]})
    expected = fetch()["logits"]
    lock = tmp_path / "network" / ".lock"
    lock.touch()
    with file_lock(lock):
        assert np.array_equal(fetch()["logits"], expected)
        assert lock.exists()
    lock.touch()
    assert np.array_equal(fetch()["logits"], expected)
    assert not lock.exists()


def test_repeated_content_is_computed_once(tmp_path):
    keys, calls = np.array(["b", "a", "b", "a", "c"]), []
    values = np.array([[1.0], [2.0], [1.0], [2.0], [3.0]])
    found = RowCache(tmp_path, "net").fetch(keys, ("logits",), make_for(values, calls))
    np.testing.assert_array_equal(found["logits"], values)
    assert calls == [3]


def test_another_network_and_a_damaged_file_are_computed_anew(tmp_path):
    keys, calls = np.array(["a", "b"]), []
    values = np.array([[1.0], [2.0]])
    RowCache(tmp_path, "one").fetch(keys, ("logits",), make_for(values, calls))
    RowCache(tmp_path, "two").fetch(keys, ("logits",), make_for(values + 1, calls))
    assert calls == [2, 2]
    file = next((tmp_path / "one").rglob("logits.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.warns(DamagedWarning):
        found = RowCache(tmp_path, "one").fetch(keys, ("logits",), make_for(values, calls))
    np.testing.assert_array_equal(found["logits"], values)
    assert calls == [2, 2, 2]
    (tmp_path / "two").rename(tmp_path / "three")  # somebody put another network's rows under this name
    with pytest.warns(DamagedWarning):
        RowCache(tmp_path, "three").fetch(keys, ("logits",), make_for(values, calls))
    assert calls == [2, 2, 2, 2]


def test_features_are_added_when_first_asked_for(tmp_path):
    keys, calls = np.array(["a", "b"]), []
    values = np.array([[1.0], [2.0]])

    def only_logits(rows):
        calls.append("logits")
        return {"logits": values[rows]}

    cache = RowCache(tmp_path, "net")
    cache.fetch(keys, ("logits",), only_logits)
    found = cache.fetch(keys, ("logits", "features"), make_for(values, calls))
    np.testing.assert_array_equal(found["features"], values * 10)
    cache.fetch(keys, ("logits",), lambda rows: pytest.fail("computed again"))
