"""The one training loop. A new method is a new loss or a new view; this file need not change for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distilcal.config.schema import TrainSettings
from distilcal.data import Dataset
from distilcal.dynamics import Recorder
from distilcal.errors import InputError
from distilcal.metrics import METRICS
from distilcal.models.base import Output
from distilcal.models.classifier import Classifier
from distilcal.models.inputs import Batches, outputs
from distilcal.predictions import Predictions
from distilcal.training.batches import Source
from distilcal.training.checkpoint import States
from distilcal.training.distributed import build_accelerator, gathered_rows, own_part, whole
from distilcal.training.schedule import build_optimizer, epoch_batches, epoch_seed, rate_factor
from distilcal.training.teacher import Features, align_teacher
from distilcal.training.validation import check_fit, check_recorder, fit_key
from distilcal.views import VIEWS, Batch, Draws, Term, View, kept
from distilcal.views.batch import joined as join_views
from distilcal.views.pairs import current_saliency

FOLLOWED = ("accuracy", "nll", "ece", "brier", "entropy")  # on dev, after every epoch
PROGRESS_INTERVAL = 0.2  # seconds


@dataclass(frozen=True)
class TrainingProgress:
    """How far training is: what a progress bar shows."""

    epoch: int  # from 0
    epochs: int
    step: int  # steps done in this epoch
    steps: int
    losses: dict[str, float]  # means of this epoch so far
    dev: dict[str, float]  # after the last epoch


@dataclass(frozen=True)
class TrainingResult:
    """What training did. The classifier has the weights of ``best_epoch``."""

    history: list[dict[str, Any]]  # one entry per epoch
    best_epoch: int  # from 0
    seconds: float
    resumed_at: int = 0  # epochs that were done before


def fit(
    classifier: Classifier,
    train: Dataset,
    dev: Dataset,
    terms: Sequence[Term],
    settings: TrainSettings | None = None,
    *,
    teacher: Predictions | None = None,
    teacher_features: Features | None = None,
    live_teacher: Classifier | None = None,
    views: Mapping[str, Callable[[Any, Batch], View]] = VIEWS,
    recorder: Recorder | None = None,
    groups: NDArray[Any] | None = None,
    soft_labels: bool = False,
    seed: int = 0,
    checkpoint_dir: Path | None = None,
    store: Path | None = None,
    on_progress: Callable[[TrainingProgress], None] | None = None,
) -> TrainingResult:
    """Minimise ``Σ weight · loss(view)`` and keep the epoch that dev likes best.

    ``teacher`` has ``logits`` (and ``features``) of the training rows, in their order. A ``live_teacher`` is run on every batch
    instead, for inputs that change; with both, it is run on what views make of the batch. With a ``folder`` the state is saved
    there after each epoch, and a run that was killed goes on from it to the same numbers. ``soft_labels`` trains on the raters'
    distributions where the data have them. A ``recorder`` is told what the student says about each example of the plain view.
    ``groups`` (N,) are spread evenly over the batches.
    """
    settings = settings or TrainSettings()
    started = time.perf_counter()
    joined = align_teacher(train, teacher, teacher_features)
    dev = check_fit(classifier, train, dev, terms, joined, live_teacher, views)
    if recorder is not None:
        check_recorder(recorder, train, terms)
        recorder.own_rows = False  # the loop hands every process the whole batch
    accelerator = build_accelerator(settings.precision, head_unused=not any("logits" in t.inputs for t in terms))
    batches, dev_batches = classifier.feed.read(train, store), classifier.feed.read(dev, store)
    losses: list[Any] = [t.loss for t in terms if isinstance(t.loss, nn.Module)]
    for loss in losses:
        loss.to(accelerator.device)
    network = accelerator.prepare(classifier.network)
    optimizer = build_optimizer(network, [p for loss in losses for p in loss.parameters()], settings)
    loop = _Loop(classifier, network, optimizer, accelerator, settings, tuple(terms), views, seed, recorder)
    asks = any(w.startswith("teacher_") for t in terms if not getattr(views[t.view], "asks_live", False) for w in t.inputs)
    source = Source(train, batches, joined, live_teacher, classifier, soft_labels, accelerator.device, asks)
    # Hashing weights and data takes a while, and only a saved state needs it.
    key = (
        ""
        if checkpoint_dir is None
        else fit_key(classifier, train, dev, terms, settings, joined, live_teacher, soft_labels, seed, views, recorder, groups)
    )
    states = States(checkpoint_dir, key, classifier.network)
    history = states.resume(optimizer, losses, recorder)
    resumed_at = len(history)
    with torch.random.fork_rng():
        for epoch in range(len(history), settings.epochs):
            if _stopped(history, settings):
                break
            begun = time.perf_counter()
            torch.manual_seed(epoch_seed(seed, epoch, 1) + accelerator.process_index)  # dropout
            augment = torch.Generator().manual_seed(epoch_seed(seed, epoch, 2) + accelerator.process_index)
            for loss in losses:
                loss.train()
                if hasattr(loss, "start_epoch"):
                    loss.start_epoch(epoch, settings.epochs)
            order = epoch_batches(len(train), batches.lengths, settings.batch, seed=seed, epoch=epoch, groups=groups)
            means = loop.epoch(epoch, order, source, augment, on_progress, history)
            if recorder is not None:
                recorder.end_epoch()
            predictions = _predict_dev(loop, dev, dev_batches)
            for loss in losses:
                if hasattr(loss, "update"):
                    loss.update(predictions.confidence, predictions.correct)
            followed = {name: METRICS[name](predictions.probs, predictions.labels) for name in FOLLOWED}
            history.append(
                {"epoch": epoch, "losses": means, "lr": loop.rate, "dev": followed, "seconds": time.perf_counter() - begun}
            )
            if accelerator.is_main_process or checkpoint_dir is None:  # without a folder each process remembers for itself
                states.save(history, optimizer, losses, recorder, best=_best(history, settings) == epoch)
            accelerator.wait_for_everyone()
    accelerator.unwrap_model(network, keep_fp32_wrapper=False)
    states.take_best(_best(history, settings))
    classifier.network.eval()
    classifier.new_head = False
    return TrainingResult(history, _best(history, settings), time.perf_counter() - started, resumed_at)


@dataclass
class _Loop:
    """What does not change from step to step."""

    classifier: Classifier
    network: Any
    optimizer: torch.optim.Optimizer
    accelerator: Any
    settings: TrainSettings
    terms: tuple[Term, ...]
    views: Mapping[str, Callable[[Any, Batch], View]]
    seed: int
    recorder: Recorder | None
    rate: float = 0.0

    def __post_init__(self) -> None:
        self.names = _distinct_names(self.terms)
        self.used = tuple(dict.fromkeys(t.view for t in self.terms))
        self.wanted = {name: frozenset(w for t in self.terms if t.view == name for w in t.inputs) for name in self.used}
        # A mean over rows that count in each part is not the mean over those of the batch.
        self.by_part = all(t.by_example for t in self.terms) and not any(
            getattr(self.views[name], "drops_rows", False) for name in self.used
        )
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.together = self.accelerator.num_processes > 1
        self.scaled = self.accelerator.scaler is not None  # float16: losses are scaled so that gradients do not vanish
        self.stepper = self.accelerator.prepare(self.optimizer) if self.scaled else self.optimizer
        self.counted: list[int] = []  # rows that each term of the last step looked at

    def epoch(
        self,
        epoch: int,
        order: Sequence[NDArray[np.int64]],
        source: Source,
        augment: torch.Generator,
        progress: Callable[[TrainingProgress], None] | None,
        history: Sequence[dict[str, Any]],
    ) -> dict[str, float]:
        """Train on every batch once; the mean of each loss over the examples."""
        settings, count = self.settings, len(order)
        losses = _Means(self.names, epoch)
        told = time.perf_counter()
        self.network.train()
        for step, rows in enumerate(order):
            self.rate = settings.lr * rate_factor(settings, epoch * count + step, settings.epochs * count, count)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate
            values = self._backward(Draws(rows, (self.seed, epoch, step)), source, augment)
            losses.add(self.counted, values)
            if settings.clip:
                if self.scaled:
                    self.accelerator.unscale_gradients()
                nn.utils.clip_grad_norm_(self.parameters, settings.clip)
            self.stepper.step()
            self.optimizer.zero_grad()
            if progress is not None and (time.perf_counter() - told > PROGRESS_INTERVAL or step + 1 == count):
                told = time.perf_counter()
                last = history[-1]["dev"] if history else {}
                progress(TrainingProgress(epoch, settings.epochs, step + 1, count, losses.so_far(), last))
        return losses.so_far()

    def _add_gradient(self, total: Tensor) -> None:
        if self.scaled:
            self.accelerator.backward(total)
        else:
            total.backward()  # type: ignore[no-untyped-call]

    def _backward(self, draws: Draws, source: Source, augment: torch.Generator) -> list[Tensor]:
        """Add the gradient of a batch; the value of each loss."""
        place = np.arange(len(draws.rows))
        if self.settings.accumulate == 1:
            seen = self._look(self._batch(draws, place, source, augment), len(place))
            self._record(seen)
            total, each = self._sum(seen)
            self._add_gradient(total)
            return each
        parts = [p for p in np.array_split(place, self.settings.accumulate) if len(p)]
        if not self.by_part:
            return self._backward_twice(draws, parts, source, augment)
        values = [torch.zeros((), device=source.device) for _ in self.terms]
        for i, part in enumerate(parts):
            share = len(part) / len(place)
            with nullcontext() if i + 1 == len(parts) else self.accelerator.no_sync(self.network):
                seen = self._look(self._batch(draws, part, source, augment), len(part))
                self._record(seen)
                total, each = self._sum(seen)
                self._add_gradient(total * share)
            values = [v + e * share for v, e in zip(values, each, strict=True)]
        self.counted = [len(place)] * len(self.terms)
        return values

    def _backward_twice(
        self, draws: Draws, parts: Sequence[NDArray[np.int64]], source: Source, augment: torch.Generator
    ) -> list[Tensor]:
        """The same gradient as the whole batch for losses that look at it as a whole, in the memory of one part.

        First every part goes through without gradient, the losses say how they depend on what the student said, and then every
        part goes through once more, with the same dropout, to hand that on.
        """
        batches = [self._batch(draws, part, source, augment) for part in parts]
        states, first = [], []
        with torch.no_grad():
            for batch, part in zip(batches, parts, strict=True):
                states.append(_rng_state(source.device))
                first.append(self._look(batch, len(part)))
        seen = {name: join_views([f[name] for f in first]) for name in self.used}
        self._record(seen)
        for view in seen.values():
            view.logits.requires_grad_()
            view.features.requires_grad_()
        total, values = self._sum(seen)
        self._add_gradient(total)
        start = 0
        for batch, part, state in zip(batches, parts, states, strict=True):
            _set_rng_state(state, source.device)
            made, wanted = [], []
            for name, view in self._look(batch, len(part)).items():
                for now, then in ((view.logits, seen[name].logits), (view.features, seen[name].features)):
                    if then.grad is not None:
                        made.append(now)
                        wanted.append(then.grad[start : start + len(part)])
            torch.autograd.backward(made, wanted)
            start += len(part)
        return values

    def _batch(self, draws: Draws, place: NDArray[np.int64], source: Source, augment: torch.Generator) -> Batch:
        if self.together:
            place = own_part(place, self.accelerator.process_index, self.accelerator.num_processes)
        return source.batch(draws, place, augment)

    def _look(self, batch: Batch, count: int) -> dict[str, View]:
        batch.said = None  # of an earlier pass
        seen = {}
        for name in self.used:
            batch.wanted = self.wanted[name]
            seen[name] = self.views[name](self.network, batch)
        return {name: whole(view, count, self.accelerator) for name, view in seen.items()} if self.together else seen

    def _record(self, seen: Mapping[str, View]) -> None:
        """Tell the recorder what the student said about the plain examples."""
        if self.recorder is None:
            return
        view = seen["plain"]
        salient = None
        if self.recorder.width:
            salient = current_saliency(self.network, Output(view.logits, view.features), view.labels, "features")
        self.recorder.record(view.ids, view.logits, salient)

    def _sum(self, seen: Mapping[str, View]) -> tuple[Tensor, list[Tensor]]:
        seen = {name: kept(view) for name, view in seen.items()}
        each = [term(seen[term.view]) for term in self.terms]
        self.counted = [len(seen[term.view]) for term in self.terms]
        total = each[0] * self.terms[0].weight if self.terms[0].weight != 1 else each[0]
        for value, term in zip(each[1:], self.terms[1:], strict=True):
            total = total + value * term.weight
        return total, [v.detach() for v in each]


class _Means:
    """Means of the losses over the examples of an epoch; the values stay where they are until somebody asks."""

    def __init__(self, names: Sequence[str], epoch: int):
        self.names, self.epoch = names, epoch
        self.sums, self.seen = (torch.zeros(len(names), dtype=torch.float64) for _ in range(2))
        self.waiting: list[tuple[list[int], list[Tensor]]] = []

    def add(self, counts: list[int], values: list[Tensor]) -> None:
        """The value of each loss on a batch, and over how many examples it is a mean."""
        self.waiting.append((counts, values))

    def so_far(self) -> dict[str, float]:
        if self.waiting:
            counts = torch.tensor([counts for counts, _ in self.waiting], dtype=torch.float64)
            values = torch.stack([v for _, each in self.waiting for v in each]).double().cpu().view(len(counts), -1)
            self.sums += (values * counts).sum(dim=0)
            self.seen += counts.sum(dim=0)
            self.waiting.clear()
        means = dict(zip(self.names, (self.sums / self.seen.clamp(min=1)).tolist(), strict=True))
        for name, value in means.items():
            if not math.isfinite(value):
                raise InputError(
                    f"the loss {name} became {value} in epoch {self.epoch + 1}",
                    remedy="lower lr, or check the settings of the loss",
                )
        return means


# ---- parts -------------------------------------------------------------------------------------------------------------


def _predict_dev(loop: _Loop, dev: Dataset, batches: Batches) -> Predictions:
    own = own_part(np.arange(len(dev)), loop.accelerator.process_index, loop.accelerator.num_processes)
    made = outputs(loop.classifier.network, batches, rows=own, batch_size=128, device=loop.accelerator.device)["logits"]
    logits = gathered_rows(made, own, len(dev), loop.accelerator)
    assert dev.labels is not None
    try:
        return Predictions(logits, dev.labels, classes=dev.classes, name=dev.name)
    except InputError:
        raise InputError("the network's outputs are not finite any more", remedy="lower lr, or check the terms") from None


def _rng_state(device: torch.device) -> Tensor:
    """Where dropout's random numbers are."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_rng_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _best(history: Sequence[dict[str, Any]], settings: TrainSettings) -> int:
    """The epoch to keep: the first with the best figure on dev."""
    if settings.choose == "last":
        return len(history) - 1
    among = [i for i in range(len(history)) if not settings.choose_among or i + 1 in settings.choose_among]
    if not among:  # none of them has come yet
        return len(history) - 1
    figures = [history[i]["dev"][settings.choose] for i in among]
    return among[int(np.argmax(figures) if settings.choose == "accuracy" else np.argmin(figures))]


def _stopped(history: Sequence[dict[str, Any]], settings: TrainSettings) -> bool:
    return bool(settings.patience and history and len(history) - 1 - _best(history, settings) >= settings.patience)


def _distinct_names(terms: Sequence[Term]) -> list[str]:
    names = [t.name if t.view == "plain" else f"{t.name}({t.view})" for t in terms]
    return [n if names.count(n) == 1 else f"{n} {names[: i + 1].count(n)}" for i, n in enumerate(names)]
