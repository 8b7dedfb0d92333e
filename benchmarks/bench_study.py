"""What studies cost beside training: expanding the full grid of kd-or-smoothing, and the scheduler's own work for each stage.

python benchmarks/bench_study.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from distilcal.study.expand import expand
from distilcal.study.loading import load_study
from distilcal.study.scheduler import run_graph


class AtOnce:
    """Ends every job as soon as it is submitted: what is left is the scheduler's own time."""

    slots = 2

    def __init__(self) -> None:
        self.ended: list[tuple[str, Any]] = []

    def submit(self, id_: str, arguments: Any) -> None:
        dev = {"accuracy": 0.5, "nll": 1.0}
        self.ended.append((id_, {"key": id_, "epochs": [{"dev": dev}], "best": 0, "trained": True, "seconds": 0.0}))

    def finished(self, timeout: float) -> list[tuple[str, Any]]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {}


def main() -> None:
    load_study("kd-or-smoothing", "full")  # imports and types are looked up once
    start_time = time.perf_counter()
    graph = expand(load_study("kd-or-smoothing", "full"))
    expanded = time.perf_counter() - start_time
    print(f"full grid: {graph.points:,} points, {len(graph.jobs):,} stages, {len(graph.cells)} cells: {expanded:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        start_time = time.perf_counter()
        outcome = run_graph(graph, AtOnce(), Path(folder), lambda id_: None)
        spent = time.perf_counter() - start_time
    print(f"schedule {len(outcome.results):,} stages: {1000 * spent / len(outcome.results):.2f} ms a stage")


if __name__ == "__main__":
    main()
