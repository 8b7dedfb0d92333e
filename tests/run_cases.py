"""A small finished run and recipes like it, for the tests of runs."""

import csv

import numpy as np
from shell import command

FAST = ["--epochs", "1", "--batch", "32", "--lr", "0.005"]


def recipe_file(place, path, *, student="layers = [0]", terms='{ loss = "cross_entropy" }, { loss = "kd" }', data="", more=""):
    path.write_text(f"""
name = "small"
[data]
train = {str(place / "train.csv")!r}
{data}
[stages.teacher]
model = {{ name = {str(place / "encoder")!r}, head = "new" }}
train = {{ epochs = 1, lr = 0.005 }}
terms = [{{ loss = "cross_entropy" }}]
[stages.student]
model = {{ name = {str(place / "encoder")!r}, head = "new", {student} }}
train = {{ epochs = 1, lr = 0.005 }}
teacher = "teacher"
terms = [{terms}]
{more}
""")
    return path


def teacher_file(path, source, *, drop=0, classes=("neg", "pos"), seed=0):
    """The predictions of a model that is not here, as a CSV of probabilities."""
    with open(source, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label", *(f"prob_{c}" for c in classes)])
        for row in rows[drop:]:
            p = float(np.clip(rng.normal(0.8, 0.1), 0.02, 0.98))
            label = row["label"] if row["label"] in classes else classes[0]
            writer.writerow([row["id"], label, *(f"{p if c == label else 1 - p:.4f}" for c in classes)])
    return path


def distilled(place, tmp_path, *arguments):
    where = ["--out", tmp_path / "run", "--store", tmp_path / "store"]
    return command("distill", "--train", place / "train.csv", "--no-alone", *FAST, *where, *arguments)
