"""Standard input, output and error: what happens where the caller closed them or nobody reads them any more."""

from __future__ import annotations

import os
import select
import sys

STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}  # by their descriptors 0, 1 and 2


def open_closed_streams() -> None:
    """Open the streams that the caller closed, onto nothing.

    The next files would take their descriptors, and what a library in C prints would be written into them.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    while nowhere < len(STREAMS):
        os.set_inheritable(nowhere, True)  # or it would be closed again in the processes that we start
        nowhere = os.open(os.devnull, os.O_RDWR)
    os.close(nowhere)
    for descriptor, (name, mode) in enumerate(STREAMS.items()):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


def is_output_read() -> bool:
    """Whether somebody still reads standard output, as far as the system can tell."""
    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
