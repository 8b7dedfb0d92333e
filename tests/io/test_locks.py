"""Locks between processes and threads."""

import os
import subprocess
import sys
import threading

import pytest
from interrupts import interrupt_at

from distilcal.errors import MissingDependencyError, StoreError
from distilcal.io import locks
from distilcal.io.locks import file_lock, is_locked


def test_a_lock_is_refused_while_another_process_holds_it_and_free_when_it_dies(tmp_path):
    program = f"""
import time
from pathlib import Path
from distilcal.io.locks import file_lock
with file_lock(Path({str(tmp_path / "l")!r})):
    print("held", flush=True)
    time.sleep(600)
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="somebody works here"), file_lock(tmp_path / "l", busy="somebody works here"):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert (tmp_path / "l").exists()
    assert not is_locked(tmp_path / "l")
    with file_lock(tmp_path / "l", busy="somebody works here"):
        assert is_locked(tmp_path / "l")
    assert not is_locked(tmp_path / "l")
    assert not list(tmp_path.iterdir())


def test_a_signal_at_any_moment_leaves_no_lock(tmp_path):
    """Ctrl-C at each step that touches the disk in turn, as long as there are steps."""
    interrupted = 0
    for step in range(1, 100):
        with interrupt_at(step) as interrupt:
            try:
                with file_lock(tmp_path / "l", busy="somebody works here"):
                    pass
            except KeyboardInterrupt:
                interrupted += 1
        assert not list(tmp_path.iterdir()), step
        if interrupt.steps < step:
            break
    assert interrupted >= 3


def test_a_lock_whose_file_is_removed_while_one_waits_for_it_still_excludes(tmp_path):
    """Each holder removes the file when it is done: those who opened it before must notice."""
    inside, most, entered = [], [], []

    def work():
        for _ in range(30):
            with file_lock(tmp_path / "sub" / "l", on_wait=lambda: None):
                inside.append(1)
                most.append(len(inside))
                entered.append(1)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(entered) == 120
    assert max(most) == 1
    assert not list((tmp_path / "sub").iterdir())


def test_who_waits_is_told_once_and_then_holds_the_lock(tmp_path):
    path, order = tmp_path / "folder" / "l", []
    waiting = threading.Event()

    def second():
        with file_lock(path, on_wait=lambda: (order.append("waits"), waiting.set())):
            order.append("second")

    with file_lock(path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(120)
        order.append("first")
    thread.join(120)
    assert order == ["waits", "first", "second"]


def test_a_system_without_flock_uses_filelock_and_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    with file_lock(tmp_path / "l"), pytest.raises(StoreError, match="busy"), file_lock(tmp_path / "l", busy="busy"):
        pass
    assert is_locked(tmp_path / "l") == (tmp_path / "l").exists()
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(MissingDependencyError, match="distilcal\\[train\\]"), file_lock(tmp_path / "l"):
        pass


def test_the_lock_of_another_user_is_looked_at_without_writing(tmp_path, monkeypatch):
    opened = os.open

    def readable(path, flags, *mode):
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *mode)

    with file_lock(tmp_path / "l"), monkeypatch.context() as patch:
        patch.setattr(os, "open", readable)
        assert is_locked(tmp_path / "l")
    (tmp_path / "l").touch()
    monkeypatch.setattr(os, "open", readable)
    assert not is_locked(tmp_path / "l")
