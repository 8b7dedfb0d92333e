"""Sealed folders: complete or absent, and checked."""

import builtins
import errno
import io
import os
import shutil
from pathlib import Path

import pytest

from distilcal.errors import InputError, NewerFormatError
from distilcal.io.folders import (
    DamagedWarning,
    damaged_files,
    digest,
    is_intact,
    link_folder,
    sealed_folder,
    verify_folder,
    write_manifest,
)


def fill(folder, text="abc"):
    with sealed_folder(folder, owner="me") as aside:
        (aside / "inside").mkdir()
        (aside / "inside" / "a.txt").write_text(text)


def test_a_sealed_folder_is_whole_or_not_there(tmp_path):
    fill(tmp_path / "f")
    assert is_intact(tmp_path / "f", owner="me")
    with pytest.raises(RuntimeError), sealed_folder(tmp_path / "g") as aside:
        (aside / "a").write_text("x")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_place_of_a_file_is_damage_and_not_waited_for(tmp_path):
    fill(tmp_path / "f")
    (tmp_path / "f" / "inside" / "a.txt").unlink()
    os.mkfifo(tmp_path / "f" / "inside" / "a.txt")
    with pytest.raises(InputError, match="'inside/a.txt' missing or damaged"):
        verify_folder(tmp_path / "f")


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
    with pytest.warns(DamagedWarning, match="computed again"):
        assert not is_intact(folder, owner="you" if damage == "foreign" else "me")
    assert not folder.exists()
    assert not is_intact(folder, owner="me")


def test_the_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 1.5})


def test_the_faster_of_two_writers_of_a_folder_wins(tmp_path):
    with sealed_folder(tmp_path / "f") as slow:
        (slow / "a").write_text("slow")
        with sealed_folder(tmp_path / "f") as fast:
            (fast / "a").write_text("fast")
    assert (tmp_path / "f" / "a").read_text() == "fast"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "f").write_text("in the way")
    with pytest.raises(NotADirectoryError), sealed_folder(tmp_path / "f") as folder:
        (folder / "a").write_text("x")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_folder_of_a_newer_version_is_refused_and_stays(tmp_path):
    fill(tmp_path / "f")
    manifest = tmp_path / "f" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 7'))
    for check in (is_intact, verify_folder, damaged_files):
        with pytest.raises(NewerFormatError, match="format 7, this version of distilcal reads up to 1"):
            check(tmp_path / "f")
    assert manifest.exists()


@pytest.mark.parametrize(
    "content", ["[]", "3", '{"format": 1}', '{"format": 1, "files": []}', '{"format": 1, "files": {"a": 1}}']
)
def test_a_manifest_of_another_shape_is_one_error(tmp_path, content):
    fill(tmp_path / "f")
    (tmp_path / "f" / "manifest.json").write_text(content)
    with pytest.raises(InputError, match="manifest.json"):
        verify_folder(tmp_path / "f")
    with pytest.warns(DamagedWarning):
        assert not is_intact(tmp_path / "f", owner="me")


def test_every_changed_bit_of_a_folder_is_found(tmp_path):
    fill(tmp_path / "f")
    verify_folder(tmp_path / "f")
    file = tmp_path / "f" / "inside" / "a.txt"
    for i in range(24):
        content = bytearray(b"abc")
        content[i // 8] ^= 1 << i % 8
        file.write_bytes(content)
        assert damaged_files(tmp_path / "f") == ["inside/a.txt"]
    with pytest.raises(InputError, match=r"'inside/a.txt' missing or damaged .*; copy it again"):
        verify_folder(tmp_path / "f", "copy it again")


def test_a_linked_folder_has_a_manifest_of_its_own(tmp_path):
    fill(tmp_path / "f")
    for _ in range(2):  # a second time replaces the first
        link_folder(tmp_path / "f" / "inside", tmp_path / "copy")
        verify_folder(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "f"]
    assert is_intact(tmp_path / "f", owner="me")  # nothing was written into it
    (tmp_path / "f" / "inside" / "a.txt").write_text("abd")  # the same file
    assert damaged_files(tmp_path / "copy") == ["a.txt"]


def test_a_linked_folder_keeps_its_own_manifest(tmp_path):
    with sealed_folder(tmp_path / "f") as aside:
        (aside / "map").mkdir()
        (aside / "map" / "a.txt").write_text("abc")
        write_manifest(aside / "map", owner="map")
    link_folder(tmp_path / "f" / "map", tmp_path / "copy")
    assert is_intact(tmp_path / "copy", owner="map")


@pytest.mark.parametrize("name", ["a.txt", "manifest.json"])
def test_a_folder_that_cannot_be_read_is_not_damaged_and_stays(tmp_path, monkeypatch, name):
    """A file of another user, or a disk that does not answer for a moment."""
    folder = tmp_path / "f"
    fill(folder)
    opened = io.open

    def refused(file, *arguments, **settings):
        if Path(file).name == name:
            raise PermissionError(13, "Permission denied", str(file))
        return opened(file, *arguments, **settings)

    with monkeypatch.context() as patch, pytest.raises(PermissionError, match=name):
        patch.setattr(io, "open", refused)
        patch.setattr(builtins, "open", refused)
        is_intact(folder, owner="me")
    assert is_intact(folder, owner="me")


def test_a_full_disk_that_a_folder_is_copied_to_is_named(tmp_path, monkeypatch):
    """Runs on another disk than the store: files cannot be linked there."""
    fill(tmp_path / "f")

    def other_disk(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr(os, "link", other_disk)
    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        link_folder(tmp_path / "f" / "inside", tmp_path / "copy")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename2.endswith("a.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
