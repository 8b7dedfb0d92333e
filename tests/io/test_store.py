"""The store: whole or not there, checked, found by content."""

import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

from distilcal.errors import InputError
from distilcal.io.store import DamagedWarning, RowCache, digest, intact, locked, sealed


def fill(folder, text="abc"):
    with sealed(folder, owner="me") as aside:
        (aside / "inside").mkdir()
        (aside / "inside" / "a.txt").write_text(text)


def test_a_sealed_folder_is_whole_or_not_there(tmp_path):
    fill(tmp_path / "f")
    assert intact(tmp_path / "f", owner="me")
    with pytest.raises(RuntimeError), sealed(tmp_path / "g") as aside:
        (aside / "a").write_text("x")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("damage", ["changed", "removed", "manifest", "no manifest", "foreign", "format"])
def test_damaged_or_foreign_folders_are_not_used(tmp_path, damage):
    folder = tmp_path / "f"
    fill(folder)
    file, manifest = folder / "inside" / "a.txt", folder / "manifest.json"
    if damage == "changed":
        file.write_text("abd")
    elif damage == "removed":
        file.unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "format":
        manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 0'))
    with pytest.warns(DamagedWarning, match="made again"):
        assert not intact(folder, owner="you" if damage == "foreign" else "me")
    assert not folder.exists()
    assert not intact(folder, owner="me")


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


def test_a_lock_is_refused_while_another_process_holds_it_and_free_when_it_dies(tmp_path):
    program = f"""
import time
from pathlib import Path
from distilcal.io.store import locked
with locked(Path({str(tmp_path / "l")!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="somebody works here"), locked(tmp_path / "l", busy="somebody works here"):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with warnings.catch_warnings(), locked(tmp_path / "l", busy="somebody works here"):
        pass


def test_the_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 1.5})
