"""A soak: many tiny runs on one store, two at a time, each killed at random and started again until it is finished.

Every result must be equal to that of an undisturbed run, no file may be left over, and ``distilcal check`` must find nothing::

    python benchmarks/soak.py --runs 300

Runs come in pairs that need the same stages, so that two processes often train, wait for or read the same entry of the store.
Processes are forked from this one, which has imported torch: a start costs milliseconds, and most of the time is work that a
kill can hit.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from distilcal.config.loading import parse_recipe
from distilcal.integrity import check_integrity
from distilcal.io.atomic import read_json
from distilcal.io.predictions import read_predictions
from distilcal.pipeline import run_recipe

STAGES = ("teacher", "student")
ROWS, WIDTH, CLASSES = 300, 6, 3
PROGRESS_INTERVAL = 60  # seconds between two lines that say how far it is


@dataclass
class Soak:
    """The state of a soak."""

    place: Path
    runs: int
    kill_probability: float
    rng: random.Random
    usual_seconds: float = 1.0
    kills: int = 0
    starts: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.place / "store"

    def folder(self, number: int) -> Path:
        return self.place / "runs" / f"{number:04d}"

    def reference(self, number: int) -> Path:
        return self.place / "references" / f"{number // 2:04d}"


def write_data(path: Path) -> None:
    """Write three overlapping clouds of points."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=ROWS)
    vectors = rng.normal(size=(ROWS, WIDTH)) + 1.2 * np.eye(CLASSES, WIDTH)[labels]
    names = np.array([f"class {i}" for i in range(CLASSES)])
    np.savez(path, vectors=vectors.astype(np.float32), labels=names[labels])


def build_recipe(place: Path, seed: int) -> object:
    """A teacher that records its dynamics, and a student of it with a loss that has a memory."""
    train = {"epochs": 3, "batch": 16, "lr": 0.05}
    return parse_recipe(
        {
            "name": "soak",
            "seed": seed,
            "data": {"train": str(place / "data.npz")},
            "stages": {
                "teacher": {
                    "model": {"name": "mlp", "hidden": [8]},
                    "train": train,
                    "record": True,
                    "terms": [{"loss": "cross_entropy"}],
                },
                "student": {
                    "model": {"name": "linear"},
                    "train": train,
                    "teacher": "teacher",
                    "terms": [{"loss": "kd"}, {"loss": "crl"}],
                },
            },
        }
    )


def start(recipe: object, folder: Path, store: Path, log: Path) -> int:
    """Fork a process that runs a recipe, and return its id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        sys.stderr = open(log, "a", encoding="utf-8")  # noqa: SIM115
        run_recipe(recipe, folder, store)  # type: ignore[arg-type]
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run_references(soak: Soak) -> None:
    """Run every recipe undisturbed, in a store of its own."""
    seconds = []
    for number in range(0, soak.runs, 2):
        begun = time.monotonic()
        folder = soak.reference(number)
        process = start(build_recipe(soak.place, number // 2), folder, soak.place / "reference-store", soak.place / "log.txt")
        _, status = os.waitpid(process, 0)
        if status:
            raise SystemExit(f"an undisturbed run failed:\n{(soak.place / 'log.txt').read_text()}")
        seconds.append(time.monotonic() - begun)
    soak.usual_seconds = statistics.median(seconds)


def run_disturbed(soak: Soak, writers: int) -> None:
    """Run every recipe twice, some at a time, until all are finished."""
    waiting = list(range(soak.runs))
    running: dict[int, tuple[int, float]] = {}  # process → run, and when to kill it
    last_report = time.monotonic()
    while waiting or running:
        while waiting and len(running) < writers:
            number = waiting.pop(0)
            log = soak.place / "log.txt"
            process = start(build_recipe(soak.place, number // 2), soak.folder(number), soak.store, log)
            soak.starts += 1
            end = float("inf")
            if soak.rng.random() < soak.kill_probability:
                end = time.monotonic() + soak.rng.uniform(0, soak.usual_seconds)
            running[process] = number, end
        for process, (number, end) in list(running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended and time.monotonic() >= end:
                os.kill(process, signal.SIGKILL)
                _, status = os.waitpid(process, 0)
                ended = process
            if not ended:
                continue
            del running[process]
            if os.WIFSIGNALED(status):
                soak.kills += 1
                waiting.insert(soak.rng.randint(0, min(3, len(waiting))), number)
            elif status:
                soak.failures.append(f"run {number} failed; see {soak.place / 'log.txt'}")
        if time.monotonic() - last_report > PROGRESS_INTERVAL:
            last_report = time.monotonic()
            finished = soak.runs - len(waiting) - len(running)
            print(f"{finished} of {soak.runs} runs, {soak.kills} kills", flush=True)
        time.sleep(0.002)


def compare(soak: Soak) -> None:
    """Compare every run with the undisturbed one: weights, dynamics, histories, predictions, metrics."""
    for number in range(soak.runs):
        for stage in STAGES:
            difference = _difference(soak.folder(number) / stage, soak.reference(number) / stage)
            if difference:
                soak.failures.append(f"run {number}, {stage}: {difference}")


def _difference(folder: Path, expected: Path) -> str:
    try:
        for file in ("model/model.safetensors", "dynamics/manifest.json"):
            if (expected / file).exists() and (folder / file).read_bytes() != (expected / file).read_bytes():
                return f"{file} differs"
        if read_json(folder / "stage.json")["sets"] != read_json(expected / "stage.json")["sets"]:
            return "the metrics differ"
        histories = [[epoch["dev"] for epoch in read_json(place / "history.json")] for place in (folder, expected)]
        if histories[0] != histories[1]:
            return "the histories differ"
        for file in (expected / "predictions").iterdir():
            a, b = read_predictions(folder / "predictions" / file.name), read_predictions(file)
            if not np.array_equal(a.logits, b.logits):
                return f"the predictions of {file.stem} differ"
    except (OSError, ValueError, KeyError) as error:
        return str(error)
    return ""


def find_leftovers(soak: Soak) -> None:
    """Look for what a killed process has left, and check the store and all runs."""
    for folder in (soak.store, soak.place / "runs"):
        for path in folder.rglob("*"):
            if path.name.endswith(".part") or path.name in (".lock", ".new") or path.parent.name in ("locks", "work"):
                soak.failures.append(f"left over: {path}")
    for folder in (soak.store, *(soak.folder(number) for number in range(soak.runs))):
        report = check_integrity(folder)
        soak.failures += [str(finding) for finding in report.findings] + report.notes


def main(arguments: list[str] | None = None) -> int:
    """Run the soak and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--writers", type=int, default=2, help="runs at a time")
    parser.add_argument("--kill", type=float, default=0.7, help="probability that a process is killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder to work in, which is kept")
    settings = parser.parse_args(arguments)

    import torch

    torch.set_num_threads(1)
    logging.disable()
    place = settings.keep or Path(tempfile.mkdtemp(prefix="distilcal-soak-"))
    place.mkdir(parents=True, exist_ok=True)
    write_data(place / "data.npz")
    soak = Soak(place, settings.runs, settings.kill, random.Random(settings.seed))
    begun = time.monotonic()
    run_references(soak)
    print(f"{(soak.runs + 1) // 2} undisturbed runs: {soak.usual_seconds:.2f} s each", flush=True)
    run_disturbed(soak, settings.writers)
    compare(soak)
    find_leftovers(soak)
    seconds = time.monotonic() - begun
    print(f"{soak.runs} runs in {soak.starts} starts, {soak.kills} of them killed, in {seconds:.0f} s")
    for failure in soak.failures:
        print(f"FAILED {failure}")
    print("every result is equal, nothing is left over" if not soak.failures else f"{len(soak.failures)} failures")
    if settings.keep is None and not soak.failures:
        shutil.rmtree(place)
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
