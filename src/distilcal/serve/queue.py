"""A bounded queue in front of the model: few requests run, some wait, more are refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")


class TooManyRequests(Exception):
    """As many requests as are allowed are under way."""


class ModelQueue:
    """Runs functions in threads, first come, first served.

    Parameters
    ----------
    threads : int
        How many run at a time.
    max_requests : int
        How many may be under way, running or waiting.
    """

    def __init__(self, threads: int, max_requests: int):
        self.max_requests = max_requests
        self.pending = 0
        self._running = asyncio.Semaphore(threads)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="distilcal-model")

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request while it is under way; raise `TooManyRequests` if there are too many."""
        if self.pending >= self.max_requests:
            raise TooManyRequests
        self.pending += 1
        try:
            yield
        finally:
            self.pending -= 1

    async def run(
        self, function: Callable[..., Result], *arguments: Any, is_abandoned: Callable[[], Awaitable[bool]]
    ) -> Result | None:
        """Wait for a thread, call the function in it and return its result; None if nobody waits for it any more."""
        async with self._running:
            if await is_abandoned():
                return None
            return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def close(self) -> None:
        """Let the threads end; what waits is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)
