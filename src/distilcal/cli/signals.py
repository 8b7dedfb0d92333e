"""Signals that ask a command to stop: Ctrl-C, SIGTERM, which schedulers send, and SIGHUP, of a terminal that was closed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from distilcal.imports import count_imports

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))  # not on Windows
CLOSING_SECONDS = 5.0  # in which a further signal does not interrupt the closing
RESEND_SECONDS = 0.01  # after which a signal that came in a finaliser or an import is sent again


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


@dataclass
class Stop:
    """What asked the process to stop.

    Attributes
    ----------
    number : int or None
        Number of the first signal; None if there was none.
    """

    number: int | None = None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended; without a signal, that of Ctrl-C."""
        return 128 + (signal.SIGINT if self.number is None else self.number)

    @property
    def message(self) -> str:
        """The line that is printed."""
        if self.number is None or self.number == signal.SIGINT:
            return "stopped"
        return f"stopped by {signal.Signals(self.number).name}"


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Raise a KeyboardInterrupt in the block when a signal asks the process to stop. Ignored signals, as under nohup, stay so.

    Further signals are ignored while what is open is closed. After that they raise again: a library may have kept the first
    one to itself. Python itself does so in a finaliser (``__del__``), which it cannot stop: there the signal is sent again.
    While a module is imported the signal waits: in the C++ of torch's import an exception would abort the process.

    Yields
    ------
    Stop
        Knows the first signal, whatever a library has made of its exception.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # where Python has no handlers
        yield stop
        return
    previous = {number: handler for number in STOPPING if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN)}
    closing_until = 0.0
    outer_imports = count_imports(sys._getframe())

    def send_again(number: int) -> None:
        again = threading.Timer(RESEND_SECONDS, _signal_main_thread, (number,))
        again.daemon = True
        again.start()

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal closing_until
        if time.monotonic() < closing_until:
            return
        stop.number = number if stop.number is None else stop.number
        if count_imports(frame) > outer_imports:
            send_again(stop.number)
            return
        closing_until = time.monotonic() + CLOSING_SECONDS
        raise KeyboardInterrupt if number == signal.SIGINT else StoppedBySignal(number)

    def show_unraisable(unraisable: Any) -> None:
        nonlocal closing_until
        if stop.number is None or not isinstance(unraisable.exc_value, KeyboardInterrupt):
            show_others(unraisable)
            return
        closing_until = 0.0
        send_again(stop.number)

    show_others, sys.unraisablehook = sys.unraisablehook, show_unraisable
    for number in previous:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        sys.unraisablehook = show_others
        for number, handler in previous.items():
            signal.signal(number, handler)


def _signal_main_thread(number: int) -> None:
    """Send a signal to the thread that handles it: in another one it would not end a system call in which that one waits."""
    main_thread = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main_thread is not None:
        signal.pthread_kill(main_thread, number)
    else:  # Windows
        signal.raise_signal(number)


def end_on_signals(code: int | None = None) -> None:
    """Let signals end this process at once: before its command begins and after it has ended, nothing is to be saved.

    Ignored signals, as under nohup, stay so; those that a parent has blocked would stay so, too, and nothing but SIGKILL could
    end the process, so that they are let through.

    Parameters
    ----------
    code : int, optional
        The exit code of the command that has ended and said how; without it, the process says which signal ended it.
    """

    def end(number: int, frame: FrameType | None) -> None:
        stop = Stop(number)
        if code is None:
            os.write(2, f"{stop.message}\n".encode())
        os._exit(stop.exit_code if code is None else code)

    for number in STOPPING:
        if signal.getsignal(number) not in (None, signal.SIG_IGN):
            signal.signal(number, end)
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def hold_signals() -> None:
    """Keep signals from a process while Python ends: it would let them kill the process, in place of its exit code.

    They are ignored, not blocked: the threads of a library, each of which blocks its own, would receive them.
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
