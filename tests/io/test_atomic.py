"""Files that are complete or absent, and archives of arrays."""

import os
import sys
import time

import numpy as np
import pytest

from distilcal.errors import InputError, MissingDependencyError
from distilcal.io.atomic import atomic_write, check_output, open_npz, parse_json, read_json, refuse_same_file, write_json
from distilcal.io.folders import sealed_folder


def test_arrays_of_an_archive_are_read_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", labels=[0, 1], ids=["x", "y"])
    with open_npz(tmp_path / "a.npz") as arrays:
        assert sorted(arrays) == ["ids", "labels"]
        assert len(arrays) == 2
        assert arrays["labels"].tolist() == [0, 1]
        assert arrays.get("groups") is None
        assert "ids" in arrays
        with pytest.raises(InputError, match=r"a\.npz: there is no array 'groups'; it has ids, labels"):
            arrays["groups"]


def test_an_error_in_the_block_is_not_taken_for_damage(tmp_path):
    np.savez(tmp_path / "a.npz", labels=[0, 1])
    for error in (KeyError, ValueError, RuntimeError, TypeError):
        with pytest.raises(error, match="ours"), open_npz(tmp_path / "a.npz"):
            raise error("ours")


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_archives_are_one_clear_error(tmp_path, compressed):
    path = tmp_path / "a.npz"
    (np.savez_compressed if compressed else np.savez)(path, logits=np.random.default_rng(0).normal(size=(9, 3)), ids=["é"] * 9)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(200):
        data = bytearray(whole)
        data[rng.integers(0, len(data))] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            with open_npz(path) as arrays:
                for name in arrays:
                    arrays[name]
        except InputError:
            pass  # anything else fails the test


def test_json_is_written_whole_and_damage_is_named(tmp_path):
    write_json(tmp_path / "a.json", {"é": [1, None]})
    assert read_json(tmp_path / "a.json") == {"é": [1, None]}
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == {"é": [1, None]}
    (tmp_path / "a.json").write_text("{")
    for name in ("a.json", "missing.json"):
        with pytest.raises(InputError, match=f"{name}.*missing or damaged"):
            read_json(tmp_path / name)


def test_a_name_of_a_file_that_is_no_text_is_kept_in_json(tmp_path):
    name = os.fsdecode(b"runs/\xff")
    write_json(tmp_path / "a.json", {"command": name, name: 1})
    assert read_json(tmp_path / "a.json") == {"command": name, name: 1}


@pytest.mark.skipif(os.name == "nt", reason="links and modes of Unix")
def test_a_key_that_comes_twice_is_found_at_once_among_many():
    keys = ", ".join(f'"{number}": 0' for number in range(200_000))
    begun = time.process_time()
    with pytest.raises(InputError, match="the key 'last' comes twice"):
        parse_json(f'{{{keys}, "last": 0, "last": 1}}')
    assert time.process_time() - begun < 10  # counting every key in all of them takes a quarter of an hour


def test_a_link_is_followed_and_the_mode_is_the_user_s(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    with atomic_write(tmp_path / "link.txt") as file:
        file.write(b"new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    mask = os.umask(0o022)
    os.umask(mask)
    assert (tmp_path / "real.txt").stat().st_mode & 0o777 == 0o666 & ~mask


def test_where_no_file_can_be_written(tmp_path):
    with pytest.raises(InputError, match="a folder or a device"):
        check_output(tmp_path)
    with pytest.raises(InputError, match="does not exist; create it first"):
        check_output(tmp_path / "nowhere" / "a.json")


def test_a_name_that_is_too_long_is_refused_before_the_work(tmp_path):
    """The temporary name of a file is longer than its own."""
    longest = tmp_path / ("ü" * 118 + ".csv")
    write_json(longest, {})
    assert longest.exists()
    with pytest.raises(InputError, match="its name is too long; choose one of at most 240 bytes"):
        check_output(tmp_path / ("ü" * 119 + ".csv"))


@pytest.mark.parametrize(("package", "extra"), [("datasets", "hub"), ("PIL", "train")])
def test_a_source_names_the_package_that_it_needs(tmp_path, monkeypatch, package, extra):
    from distilcal.data import read_dataset

    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(b"")
    source = "hub:owner/name@train" if package == "datasets" else tmp_path
    with pytest.raises(MissingDependencyError, match=f"distilcal\\[{extra}\\]"):
        read_dataset(source)


def test_an_output_is_never_an_input_under_another_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data.csv"
    data.write_text("text\n")
    (tmp_path / "link.csv").symlink_to(data)
    os.link(data, tmp_path / "hard.csv")
    (tmp_path / "folder").mkdir()
    for name in ("data.csv", "./data.csv", "folder/../data.csv", "link.csv", "hard.csv", str(data)):
        with pytest.raises(InputError, match=r"this output is the input '.*data\.csv'; give the output a name of its own"):
            refuse_same_file([None, "hub:reviews", data], ["new.csv", name])
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "new.csv")
    with pytest.raises(InputError, match=r"^dangling\.csv: this output is also the output 'new\.csv'"):
        refuse_same_file([data], ["new.csv", "./dangling.csv"])
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refuse_same_file([data, "hub:reviews", "loop", tmp_path / "folder"], ["new.csv", None, "folder/data.csv"])


def test_a_full_disk_names_the_file_that_it_has_no_room_for(tmp_path):
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(OSError, match=r"No space left on device: .*a.json"), atomic_write(tmp_path / "a.json"):
        raise OSError(28, "No space left on device")
    with pytest.raises(OSError, match=r"No space left on device: .*f'"), sealed_folder(tmp_path / "f"):
        raise OSError(28, "No space left on device")
    with pytest.raises(OSError, match="^210 requested and 190 written$"), sealed_folder(tmp_path / "f"):
        raise OSError("210 requested and 190 written")  # as numpy says it
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
