"""The ledger of a search: the time used and what was found, on disk, so that a killed search goes on.

A thread saves the time every few seconds and logs a line whenever a minute has passed without one, also while a teacher
labels a large data set and nothing else reports.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from distilcal.errors import DistilcalError
from distilcal.io.atomic import expected_shape, read_json, write_json
from distilcal.pipeline.budget.duration import format_duration
from distilcal.pipeline.logs import main_process_logger

FILE = "budget.json"
FORMAT = 1
SAVE_SECONDS = 5.0  # between two times on disk: what a kill can lose of the time used
LINE_SECONDS = 60.0  # at most, between two lines

logger = main_process_logger(__name__)


class Ledger:
    """Time and findings of a search.

    Parameters
    ----------
    path : Path
        The file, while the search is under way.
    key : str
        What is searched: findings of another search in the same file are not used.
    budget : float
        Seconds for all of it.
    started : float, optional
        Reading of the clock when the work began; by default now.
    finished : Path, optional
        The file of a search that came to its end, which is read where the first is missing or of another search.
    clock : callable
        Returns seconds that never go back.

    Attributes
    ----------
    facts : dict
        The content of the file but for the time.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        budget: float,
        *,
        started: float | None = None,
        finished: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.path, self.budget, self._clock = path, budget, clock
        self._started = clock() if started is None else started
        self._used_before = 0.0
        self._activity = ""
        self._last_line = clock()
        self._lock = threading.Lock()
        self.facts: dict[str, Any] = {"format": FORMAT, "key": key, "state": "searching", "rungs": []}
        self._is_finished = False
        for earlier in (path, finished or path):
            found = read_json(earlier) if earlier.exists() else None
            if isinstance(found, dict) and found.get("key") == key and found.get("format") == FORMAT:
                with expected_shape(earlier, "remove it to search again"):
                    self._used_before = float(found.pop("used"))
                    found.pop("budget")
                    if not isinstance(found["rungs"], list):
                        raise TypeError("rungs is not a list")
                self.facts = found
                break
        self._saved = copy.deepcopy(self.facts)

    @property
    def resumed(self) -> float:
        """Seconds that earlier processes used."""
        return self._used_before

    def used(self) -> float:
        """Return the seconds used so far, by this process and earlier ones."""
        return self._used_before + self._clock() - self._started

    def left(self) -> float:
        """Return the seconds that are left; negative if there are none."""
        return self.budget - self.used()

    def save(self) -> None:
        """Write the file."""
        with self._lock:
            self._saved = copy.deepcopy(self.facts)
            self._write()

    def finish(self, path: Path) -> None:
        """Write the findings of a search that is finished to another file. The first is not written any more."""
        with self._lock:
            self.facts["state"] = "finished"
            self._saved = copy.deepcopy(self.facts)
            self._write(path)
            self._is_finished = True

    def _write(self, path: Path | None = None) -> None:
        if not self._is_finished:
            write_json(path or self.path, {**self._saved, "budget": self.budget, "used": round(self.used(), 3)})

    def log(self, message: str, *arguments: object) -> None:
        """Log a line with the time used and left."""
        self._last_line = self._clock()
        left = self.left()
        remaining = f"{format_duration(left)} left" if left >= 0 else f"{format_duration(-left)} over"
        logger.info(f"{message} (%s used, %s)", *arguments, format_duration(self.used()), remaining)

    def begin(self, activity: str) -> None:
        """Name what is being done, for the lines in between."""
        self._activity = activity

    def tick(self) -> None:
        """Save the time, and log a line if there was none for a minute. Facts are saved by `save` only, in its thread."""
        with self._lock:
            self._write()
        if self._clock() - self._last_line >= LINE_SECONDS:
            self.log("%s", self._activity)

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Call `tick` every few seconds while the block runs, from a thread of its own."""
        stopped = threading.Event()

        def run() -> None:
            while not stopped.wait(SAVE_SECONDS):
                with suppress(OSError, DistilcalError):  # a full disk also stops the thread that works, which reports it
                    self.tick()

        thread = threading.Thread(target=run, name="distilcal-budget", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            self.save()
