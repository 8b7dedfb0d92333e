"""Signals that ask a command to stop: SIGTERM, which schedulers send, and SIGHUP, of a terminal that was closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))  # Windows has no SIGHUP


class StoppedBySignal(KeyboardInterrupt):
    """The process was asked to stop: handled as Ctrl-C is, so that everything is closed and the state stays saved.

    Parameters
    ----------
    number : int
        Number of the signal.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended."""
        return 128 + self.number


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise `StoppedBySignal` in the block when a signal asks the process to stop. Ignored signals, as under nohup, stay so."""
    if threading.current_thread() is not threading.main_thread():  # where Python has no handlers
        yield
        return
    previous = {number: signal.getsignal(number) for number in STOPPING}
    handled = [number for number, handler in previous.items() if handler == signal.SIG_DFL]

    def ignore(number: int, frame: FrameType | None) -> None:
        """Do nothing. Python complains, with a traceback, of a signal that came with the first if it finds SIG_IGN for it."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, ignore)  # a second one does not interrupt the closing
        raise StoppedBySignal(number)

    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
