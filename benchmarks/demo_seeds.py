"""The demo with several seeds: means of every model in every domain, and the endpoints with their intervals.

    DISTILCAL_DATA=demo/data python benchmarks/demo_seeds.py --seeds 0 1 2 3 4 5 6 --out demo/seeds --store demo/store

A seed draws the labelled, unlabelled and test examples and starts the networks. What is finished is not computed again, so the
command can be stopped and repeated, or started for different seeds at the same time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.config.schema import EndpointSettings
from distilcal.endpoints import Endpoint
from distilcal.pipeline.endpoints import evaluate_endpoints

RECIPE = files("distilcal") / "config" / "recipes" / "demo.toml"
MAIN = "student"
STATES = {"given": "as trained", "calibrated": "after its temperature"}
METRICS = ("accuracy", "nll", "ece")


def run_seed(seed: int, out: Path, store: Path) -> Path:
    """Run the demo with a seed, unless it is finished; return its folder."""
    folder = out / str(seed)
    command = [sys.executable, "-m", "distilcal", "run", str(RECIPE), "--out", str(folder), "--store", str(store)]
    subprocess.run([*command, "--set", f"seed={seed}", "--set", f"data.seed={seed}"], check=True)
    return folder


def mean_table(runs: Sequence[dict[str, Any]], state: str) -> list[str]:
    """One row for each model: accuracy / NLL / ECE in every domain and their means, each a mean over the runs."""
    domains = ["test", *runs[0]["ood"]]
    lines = ["| " + " | ".join(["accuracy / NLL / ECE", *domains, "mean"]) + " |", "|" + "---|" * (len(domains) + 2)]
    for stage in runs[0]["stages"]:
        values = np.empty((len(runs), len(domains), len(METRICS)))
        for i, run in enumerate(runs):
            for j, domain in enumerate(domains):
                measured = run["stages"][stage]["sets"][domain][state]
                values[i, j] = [measured[metric]["value"] for metric in METRICS]
        cells = [_cell(values[:, j].mean(axis=0)) for j in range(len(domains))]
        lines.append("| " + " | ".join([stage, *cells, _cell(values.mean(axis=(0, 1)))]) + " |")
    return lines


def _cell(values: np.ndarray) -> str:
    return " / ".join(f"{value:.3f}" for value in values)


def endpoint_line(endpoint: Endpoint) -> str:
    """An endpoint in words."""
    verdict = {True: "better", False: "worse", None: "may be chance"}[endpoint.better]
    values = f"{endpoint.main:.4f} against {endpoint.control:.4f}"
    return f"{endpoint.metric}: {values}, {endpoint.difference:+.4f} [{endpoint.low:+.4f}, {endpoint.high:+.4f}], {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(7)))
    parser.add_argument("--out", type=Path, default=Path("demo/seeds"))
    parser.add_argument("--store", type=Path, default=Path("demo/store"))
    options = parser.parse_args()
    folders = [run_seed(seed, options.out, options.store) for seed in options.seeds]
    runs = [json.loads((folder / "metrics.json").read_text()) for folder in folders]
    domains = ["test", *runs[0]["ood"]]
    controls = [name for name in runs[0]["stages"] if name != MAIN]
    for state, words in STATES.items():
        print(f"\nMeans over {len(runs)} seeds, {words}\n")
        print("\n".join(mean_table(runs, state)))
        for control in controls:
            print(f"\n{MAIN} against {control}, mean over domains, {words}")
            settings = EndpointSettings(against=control, metrics=METRICS, state=state)
            for endpoint in evaluate_endpoints(folders, MAIN, domains, settings):
                print(f"  {endpoint_line(endpoint)}")


if __name__ == "__main__":
    main()
