"""A tiny study on vectors, its data, and an executor in this process."""

from __future__ import annotations

import numpy as np

from distilcal.study.job import run_job
from distilcal.study.loading import load_study
from distilcal.study.schema import task_recipe

STUDY = """
title = "Tiny"
seeds = [0, 1]
temperature_rows = false
score_tables = false

[metrics]
accuracy = { percent = true, digits = 1 }
error = { metric = "ece", bins = 10, closed = "left", percent = true }

[tasks.near]
data = { train = "TRAIN", ood = ["OTHER"] }
sets = { home = "test", away = "other" }

[stages.big]
model = { name = "mlp", hidden = [16] }
train = { epochs = 4, batch = 32, lr = 1e-2, schedule = "none", choose = "last" }
terms = [{ loss = "cross_entropy" }, { loss = "confidence_penalty", weight = 0 }]

[stages.small]
like = "big"
model = { name = "linear", hidden = [] }

[stages.kd]
like = "small"
teacher = "big"
terms = [{ loss = "cross_entropy", weight = 0.5 }, { loss = "kd", weight = 0.5 }]

[grids.rates]
stages = ["big"]
axes = [{ "train.lr" = [1e-4, 1e-2] }, { "train.epochs" = [1, 2, 3, 4] }]
choose = "accuracy"

[methods]
Large = { stage = "big" }
Alone = { stage = "small" }
"Alone, scaled" = { stage = "small", scaled = true }
Taught = { stage = "kd" }

[[variants]]
of = "Taught"
axes = [{ "terms.1.temperature" = [1, 4] }]
names = ["T"]

[[tables]]
name = "table1"
title = "Error"
common = { metric = "error", task = "near" }
rows = [
  { method = "Large" },
  { method = "Alone" },
  { method = "Alone, scaled", against = "Alone" },
  { method = "Taught", against = "Alone" },
]
columns = [{ name = "home", set = "home" }, { set = "away" }, { name = "scaled", set = "home", scaled = true }]
paper = [[1.0, [2.0, 0.5], nan], [nan, nan, nan], [3, 4, 5], [nan, 2.5, 1]]

[[claims]]
text = "The large model is better than a constant."
metric = "accuracy"
higher = "Large"
than = "Alone"
places = [{ task = "near", set = "home" }]

[[figures]]
name = "training"
title = "While training"
kind = "training"
y = "entropy"
methods = ["Large", "Alone"]
places = [{ task = "near" }]

[[figures]]
name = "scatter"
title = "Both"
x = "accuracy"
y = "error"
methods = ["Large", "Alone"]
places = [{ task = "near", set = "home" }, { task = "near", set = "away" }]

[[figures]]
name = "temperature"
title = "Temperature"
kind = "line"
x = "temperature"
y = "error"
methods = ["Taught, T 1", "Taught, T 4"]
values = [1, 4]
places = [{ task = "near", set = "home" }]

[[figures]]
name = "bars"
title = "Error by method"
kind = "bars"
y = "error"
methods = ["Large", "Alone"]
places = [{ task = "near", set = "home" }, { task = "near", set = "away" }]

[[figures]]
name = "chains"
title = "Chains"
kind = "line"
x = "temperature"
y = "error"
points = [
  { method = "Taught, T 1", series = "taught", x = 1 },
  { method = "Taught, T 4", series = "taught", x = 4 },
  { method = "Alone", series = "alone", x = 1 },
]
places = [{ task = "near", set = "home" }]

[[figures]]
name = "grouped"
title = "Grouped"
kind = "bars"
y = "error"
points = [
  { method = "Alone", series = "alone", x = "T = 1" },
  { method = "Taught, T 1", series = "taught", x = "T = 1" },
  { method = "Taught, T 4", series = "taught", x = "T = 4" },
]
places = [{ task = "near", set = "home" }]

[[figures]]
name = "bins"
title = "Bins"
kind = "reliability"
methods = ["Large", "Taught"]
places = [{ task = "near", set = "home" }, { task = "near", set = "away" }]

[[figures]]
name = "plane"
title = "Features"
kind = "projection"
methods = ["Large"]
classes = ["0", "1", "2"]
places = [{ task = "near", set = "home" }]

[[figures]]
name = "batches"
title = "On training batches"
kind = "training"
y = "entropy"
split = "train"
methods = ["Large", "Alone"]
places = [{ task = "near" }]

[chosen.near]
big = { "train.lr" = 5e-3, "train.epochs" = 3 }

[[points]]
name = "chosen"
title = "Points"
methods = ["Large", "Taught"]
parameters = { alpha = ["terms.9.weight", "terms.1.weight"], "learning rate" = ["train.lr"], epochs = ["train.epochs"] }

[[theorems]]
name = "theorem1"
[[theorems]]
name = "theorem2"

[scales.small]
note = "tiny"
[scales.full]
note = "as written"
seeds = [0, 1, 2]
tasks.near.data.limit = 100
"""


def blobs(path, count, seed, shift=0.0):
    """Three classes of vectors that overlap."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    centres = np.random.default_rng(5).normal(size=(3, 6)) * 1.2
    np.savez(path, vectors=(centres[labels] + rng.normal(size=(count, 6)) + shift).astype(np.float32), labels=labels)


class InProcessExecutor:
    """Runs jobs in this process, one at a time; ``before`` is called first and may raise."""

    slots = 1

    def __init__(self, before=lambda id_, arguments: None):
        self.before = before
        self.ended = []

    def submit(self, id_, arguments):
        try:
            self.before(id_, arguments)
            self.ended.append((id_, run_job(**arguments)))
        except Exception as error:
            self.ended.append((id_, error))

    def finished(self, timeout):
        ended, self.ended = self.ended, []
        return ended

    def close(self):
        pass

    def describe(self):
        return {"processes": 1, "threads": 1}


def without_times(results):
    """The results of a study without what differs from run to run."""
    return {
        key: value for key, value in results.items() if key not in ("environment", "seconds", "training", "trained", "command")
    }


def near_recipe(folder):
    """The recipe of the tiny study's only task."""
    return task_recipe(load_study(str(folder / "tiny.toml")), "near")
