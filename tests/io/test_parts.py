"""What is under way has a temporary name, and what a killed process left is told from what another is writing."""

import os
import signal
import subprocess
import sys

import pytest
from interrupts import interrupt_at

from distilcal.io import parts
from distilcal.io.atomic import atomic_write, write_json
from distilcal.io.folders import is_intact, sealed_folder
from distilcal.io.parts import is_part_of, is_stale, part_folder, remove_folder, remove_if_stale

KILLED = """
import os, signal, sys
from pathlib import Path
from distilcal.io.atomic import atomic_write
from distilcal.io.folders import sealed_folder
place = Path(sys.argv[1])
with atomic_write(place / "a.json") as file, sealed_folder(place / "f") as folder:
    file.write(b"{")
    (folder / "x").write_text("half")
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    print("writing", flush=True)
    sys.stdin.read()
"""


def start(place, how):
    command = [sys.executable, "-c", KILLED, str(place), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def names(place):
    return sorted(path.name for path in place.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next_who_writes_the_same(tmp_path):
    with start(tmp_path, "die") as killed:
        assert killed.wait(300) == -signal.SIGKILL
    left = list(tmp_path.iterdir())
    assert len(left) == 2
    assert all(is_stale(path) for path in left)
    write_json(tmp_path / "other.json", {})
    assert len(names(tmp_path)) == 3  # another file is none of its business
    write_json(tmp_path / "a.json", {})
    assert not is_intact(tmp_path / "f")
    assert names(tmp_path) == ["a.json", "other.json"]


def test_what_another_process_is_writing_stays(tmp_path):
    with start(tmp_path, "wait") as other:
        assert other.stdout.readline() == "writing\n"
        left = list(tmp_path.iterdir())
        assert not any(is_stale(path) or remove_if_stale(path) for path in left)
        write_json(tmp_path / "a.json", {"ours": 1})
        with sealed_folder(tmp_path / "f") as folder:
            (folder / "x").write_text("ours")
        assert set(left) < set(tmp_path.iterdir())
        other.stdin.close()
        assert other.wait(300) == 0
    assert names(tmp_path) == ["a.json", "f"]
    assert (tmp_path / "a.json").read_text() == "{"  # the last one, complete
    assert (tmp_path / "f" / "x").read_text() == "ours"  # the first one


def test_a_process_whose_new_file_was_taken_for_stale_creates_another(tmp_path, monkeypatch):
    hold, calls = parts._hold, []

    def removed_before_it_is_held(handle, part):
        calls.append(part)
        if len(calls) in (1, 3):
            assert remove_if_stale(part)
        return hold(handle, part)

    monkeypatch.setattr(parts, "_hold", removed_before_it_is_held)
    write_json(tmp_path / "a.json", {})
    with sealed_folder(tmp_path / "f"):
        pass
    assert len(calls) >= 4
    assert names(tmp_path) == ["a.json", "f"]


def test_a_file_system_without_locks_still_writes_and_removes_nothing_of_others(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(95, "no locks here")

    left = tmp_path / ".a.json.abcdefgh.part"
    left.write_text("{")
    monkeypatch.setattr(parts, "try_lock", refuse)
    write_json(tmp_path / "a.json", {})
    assert not is_stale(left)
    assert not remove_if_stale(left)
    assert names(tmp_path) == [left.name, "a.json"]


def test_who_removes_a_folder_that_another_was_killed_while_removing_removes_the_rest(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "x").write_text("x")
    script = """
import os, shutil, signal, sys
from pathlib import Path
from distilcal.io.parts import remove_folder
shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
remove_folder(Path(sys.argv[1]))
"""
    killed = subprocess.run([sys.executable, "-c", script, str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not folder.exists()
    assert len(names(tmp_path)) == 1
    remove_folder(folder)
    assert names(tmp_path) == []


def write_file(place):
    write_json(place / "a.json", {})


def write_folder(place):
    with sealed_folder(place / "f") as folder:
        (folder / "x").write_text("x")


def replace_folder(place):
    (place / "old" / "inside").mkdir(parents=True)
    (place / "old" / "inside" / "a").write_text("a")
    remove_folder(place / "old")


@pytest.mark.parametrize("write", [write_file, write_folder, replace_folder])
def test_a_signal_at_any_moment_leaves_nothing_under_way(tmp_path, write):
    """Ctrl-C at each step that touches the disk in turn, as long as there are steps."""
    interrupted = 0
    for step in range(1, 100):
        place = tmp_path / str(step)
        place.mkdir()
        with interrupt_at(step) as interrupt:
            try:
                write(place)
            except KeyboardInterrupt:
                interrupted += 1
        assert not [path for path in place.rglob("*") if path.name.endswith(".part")], step
        if interrupt.steps < step:
            break
    assert interrupted >= 5


def test_a_removed_folder_is_gone_as_a_whole(tmp_path, monkeypatch):
    (tmp_path / "f" / "inside").mkdir(parents=True)
    (tmp_path / "f" / "inside" / "a").write_text("a")
    seen = []
    rmtree = parts.shutil.rmtree
    monkeypatch.setattr(parts.shutil, "rmtree", lambda *a, **b: (seen.append(names(tmp_path)), rmtree(*a, **b)))
    remove_folder(tmp_path / "f")
    assert "f" not in seen[0]
    remove_folder(tmp_path / "f")
    remove_folder(tmp_path / "none" / "f")
    assert not names(tmp_path)


@pytest.mark.parametrize("name", [".part", "a.abcdefgh.part", ".a.short.part", ".b.abcdefgh.part", ".a.ABCDEFGH.part"])
def test_names_of_others_are_not_taken_for_ours(tmp_path, name):
    assert not is_part_of(name, "a")
    (tmp_path / name).write_text("somebody else's")
    with atomic_write(tmp_path / "a") as file:
        file.write(b"1")
    assert name in names(tmp_path)


def test_a_failing_block_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), part_folder(tmp_path / "f") as part:
        (part / "a").write_text("a")
        raise RuntimeError
    assert not names(tmp_path)
    assert not is_stale(tmp_path / "f")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name == "nt", reason="modes of Unix")
@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002])
def test_what_is_written_has_the_mode_that_the_user_gives_new_files(tmp_path, mask):
    """Private where the user's are, and shared where a group works with one store."""
    before = os.umask(mask)
    try:
        with sealed_folder(tmp_path / "f") as folder:
            (folder / "x").write_text("x")
            (folder / "x").chmod(0o600)  # as safetensors does
    finally:
        os.umask(before)
    for path in (tmp_path / "f", *(tmp_path / "f").iterdir()):
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~mask, path
