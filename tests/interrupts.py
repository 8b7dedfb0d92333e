"""Ctrl-C at a chosen step: Python reports to audit hooks when a file or folder is opened, created, renamed or removed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.scandir", "fcntl.flock"}


@dataclass
class Interrupt:
    """At which step the interrupt comes, and how many there were."""

    at: int
    steps: int = 0


current: list[Interrupt] = []
is_listening: list[bool] = []


def listen(event: str, arguments: object) -> None:
    if current and event in STEPS:
        interrupt = current[-1]
        interrupt.steps += 1
        if interrupt.steps == interrupt.at:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def interrupt_at(step: int) -> Iterator[Interrupt]:
    """Raise a KeyboardInterrupt in place of the step of this number, counted from 1."""
    if not is_listening:  # a hook stays until Python ends
        sys.addaudithook(listen)
        is_listening.append(True)
    current.append(Interrupt(step))
    try:
        yield current[-1]
    finally:
        current.pop()
