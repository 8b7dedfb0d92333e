"""Locks between processes and threads."""

import subprocess
import sys
import threading

import pytest

from distilcal.errors import MissingDependencyError, StoreError
from distilcal.io.locks import file_lock


def test_a_lock_is_refused_while_another_process_holds_it_and_free_when_it_dies(tmp_path):
    program = f"""
import time
from pathlib import Path
from distilcal.io.locks import file_lock
with file_lock(Path({str(tmp_path / "l")!r})):
    print("held", flush=True)
    time.sleep(60)
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
    with file_lock(tmp_path / "l", busy="somebody works here"):
        pass


def test_who_waits_is_told_once_and_then_holds_the_lock(tmp_path):
    path, order = tmp_path / "folder" / "l", []
    waiting = threading.Event()

    def second():
        with file_lock(path, on_wait=lambda: (order.append("waits"), waiting.set())):
            order.append("second")

    with file_lock(path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["waits", "first", "second"]


def test_without_filelock_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(MissingDependencyError, match="distilcal\\[train\\]"), file_lock(tmp_path / "l"):
        pass
