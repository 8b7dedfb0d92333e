"""What mixing and recording cost, as ratios: a view beside a second plain pass, a record beside none, pairs beside an epoch.

Each question is a function that returns rows of one table, as in ``bench_train.py``. All sides take turns on one thread.
"""

from __future__ import annotations

import os

from bench_measure import Row, table  # first: it sets the number of threads before the libraries load

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bench_train import QUICK, SEED, Case, Sizes, compared, pictures_case, sentences_case, take_turns, vectors_case

from distilcal.config.schema import ModelSettings, ViewSettings
from distilcal.dynamics import Recorder, saliency
from distilcal.views import VIEWS, Batch, View, build_term, build_view
from distilcal.views.pairs import extreme_partners

PAIRED_COUNTS = ((20_000, 1.0, None), (100_000, 1.0, 0.1), (500_000, 0.05, None))  # examples, share measured, target
EPOCHS = 3  # of a call: the first warms up and is not counted


def epoch_seconds(case: Case, view: Callable[[Any, Batch], View] | None) -> float:
    """Seconds of an epoch with cross-entropy on the plain view and, if one is given, on another."""
    from distilcal.training import fit

    student = case.model(case.student)
    terms = [build_term("cross_entropy")] + ([] if view is None else [build_term("cross_entropy", view="other")])
    views = VIEWS if view is None else {**VIEWS, "other": view}
    made = fit(student, case.train, case.dev, terms, case.how(EPOCHS), seed=SEED, views=views)
    return median(epoch["seconds"] for epoch in made.history[1:])


def once_more(network: Any, batch: Batch) -> View:
    """The plain batch through the network a second time: what a view is allowed to cost."""
    said = network(batch.inputs)
    return View(said.logits, said.features, batch.labels, batch.targets, batch.ids)


def a_map(case: Case) -> Any:
    """A map of the case with random contents."""
    rng = np.random.default_rng(SEED)
    recorder = Recorder(case.train.ids, case.train.labels, case.train.classes)
    for _ in range(3):
        recorder.record(np.arange(len(case.train)), rng.normal(size=(len(case.train), len(case.train.classes))))
        recorder.end_epoch()
    return recorder.dynamics()


def view_rows(case: Case, settings: dict[str, ViewSettings], rounds: int) -> list[Row]:
    dynamics = a_map(case)
    views = {name: build_view(s, len(case.train.classes), dynamics) for name, s in settings.items()}
    calls: dict[str, Callable[[], float]] = {"twice": lambda: epoch_seconds(case, once_more)}
    calls |= {name: lambda view=view: epoch_seconds(case, view) for name, view in views.items()}
    found = take_turns(calls, rounds)
    question = f"epoch of {case.name} with plain and {{}} / with two plain passes"
    return [compared(question.format(name), found[name], found["twice"], 1.1) for name in settings]


PAIRED = {
    "regions at the features": ViewSettings(kind="manifold", pairs="regions"),
    "similar at the features": ViewSettings(kind="manifold", pairs="similar"),
    "similar in the batch": ViewSettings(kind="manifold", pairs="similar", candidates="batch"),
}
EVERYWHERE = {
    "mixup": ViewSettings(),
    "manifold, features": ViewSettings(kind="manifold"),
    "manifold, layer 2": ViewSettings(kind="manifold", layers=(2,)),
}


def views_of_sentences(sizes: Sizes) -> list[Row]:
    return view_rows(sentences_case(sizes), EVERYWHERE | PAIRED, sizes.rounds)


def views_of_pictures(sizes: Sizes) -> list[Row]:
    cut = {"cutmix": ViewSettings(kind="cutmix"), "cutout": ViewSettings(kind="cutout")}
    return view_rows(pictures_case(sizes), EVERYWHERE | cut, sizes.rounds)


class Timed(Recorder):
    """A recorder that knows how long it took."""

    seconds = 0.0

    def record(self, rows: Any, logits: Any, saliency: Any = None) -> None:
        begun = time.perf_counter()
        super().record(rows, logits, saliency)
        self.seconds += time.perf_counter() - begun

    def end_epoch(self) -> None:
        begun = time.perf_counter()
        super().end_epoch()
        self.seconds += time.perf_counter() - begun


def recording(sizes: Sizes) -> list[Row]:
    """Seconds inside the recorder over those of the rest of the epoch: two epochs differ by more than it costs."""
    from distilcal.training import fit

    rows = []
    for case in (vectors_case(sizes), pictures_case(sizes), sentences_case(sizes)):
        ratios, inside, outside = [], [], []
        for _ in range(sizes.rounds):
            recorder = Timed(case.train.ids, case.train.labels, case.train.classes)
            made = fit(
                case.model(case.student),
                case.train,
                case.dev,
                [build_term("cross_entropy")],
                case.how(EPOCHS),
                recorder=recorder,
            )
            inside.append(recorder.seconds / EPOCHS)
            outside.append(sum(epoch["seconds"] for epoch in made.history) / EPOCHS - inside[-1])
            ratios.append(inside[-1] / outside[-1])
        shown = (f"{1e3 * median(side):,.2f} ms" for side in (inside, outside))
        target = None if case.name.startswith("MLP") else 0.03  # an epoch of milliseconds is for orientation
        spread = f"{min(ratios):.4f} to {max(ratios):.4f}"
        rows.append(Row(f"recording / the rest of an epoch of {case.name}", *shown, median(ratios), target, spread))
    return rows


def pairing(sizes: Sizes) -> list[Row]:
    """Most similar and most dissimilar of the other half for every example, beside an epoch of MiniLM-L6 on as many."""
    case = sentences_case(sizes)
    case = replace(case, name="MiniLM-L6", student=ModelSettings(name=case.student.name))
    per_example = epoch_seconds(case, None) / len(case.train)
    rng = np.random.default_rng(SEED)
    rows = []
    for count, part, target in ((2_000, 1.0, None),) if sizes is QUICK else PAIRED_COUNTS:
        few = int(part * count / 2)  # of the high half, with all of the low one: that share of all cosines
        logits, labels = rng.normal(size=(few + count // 2, 3)).astype(np.float32) * 3, rng.integers(0, 3, few + count // 2)
        high, made = np.arange(len(labels)) < few, saliency(logits, labels)
        begun = time.perf_counter()
        for which in ("similar", "dissimilar"):
            extreme_partners(made, high, which)
        seconds = (time.perf_counter() - begun) / part
        ratio = seconds / (per_example * count)
        scaled = "the epoch is scaled up" if part == 1 else f"scaled up from {part:.0%} of the cosines, as is the epoch"
        question = f"both partners of {count:,} examples, 3 classes, / an epoch of {case.name}"
        rows.append(Row(question, f"{seconds:,.1f} s", f"{per_example * count:,.0f} s", ratio, target, scaled))
    return rows


QUESTIONS = (views_of_sentences, views_of_pictures, recording, pairing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; judges no target")
    parser.add_argument("--only", nargs="*", help="names of questions", default=[q.__name__ for q in QUESTIONS])
    parser.add_argument("--rounds", type=int, help="how often the sides take turns")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes() if options.rounds is None else Sizes(rounds=options.rounds)
    rows = [row for ask in QUESTIONS if ask.__name__ in options.only for row in ask(sizes)]
    rows = [replace(row, target=None) for row in rows] if options.quick else rows
    print(table(rows))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))
    if options.strict and any(row.met is False for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
