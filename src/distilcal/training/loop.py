"""The one training loop. A new method is a new loss or a new view; this file need not change for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distilcal.calibrate import fit_temperature
from distilcal.config.schema import TrainSettings
from distilcal.data import Dataset
from distilcal.dynamics import Recorder
from distilcal.errors import TrainingError
from distilcal.metrics import METRICS
from distilcal.models.classifier import Classifier
from distilcal.models.inputs import Batches, run_network
from distilcal.models.text import TextNetwork
from distilcal.predictions import Predictions
from distilcal.training.batches import BatchSource
from distilcal.training.checkpoint import Checkpoint
from distilcal.training.distributed import build_accelerator, gather_rows, own_part, share_buffers
from distilcal.training.gradients import Objective, StepLosses, add_gradient
from distilcal.training.schedule import (
    build_optimizer,
    epoch_batches,
    epoch_seed,
    mixed_epoch_batches,
    rate_factor,
    resolve_settings,
)
from distilcal.training.setup import TrainingSetup, check_setup, fit_key
from distilcal.training.teacher import Features, align_teacher
from distilcal.views import VIEWS, Batch, StepContext, Term, View

DEV_METRICS = ("accuracy", "nll", "ece", "brier", "entropy")  # in the history after every epoch, beside calibrated_nll
FOLLOWED_PARTS = 10  # into which an epoch is divided for the terms that are only followed
PROGRESS_INTERVAL = 0.2  # seconds between two calls of on_progress
DEV_BATCH = 128  # examples per forward pass on dev


@dataclass(frozen=True)
class TrainingProgress:
    """How far training is: what a progress bar shows.

    Attributes
    ----------
    epoch : int
        The current epoch, from 0.
    epochs : int
        Number of all epochs.
    step : int
        Steps done in this epoch.
    steps : int
        Steps of an epoch.
    losses : dict of str to float
        Means over this epoch so far.
    dev : dict of str to float
        Metrics on dev after the last epoch; empty in the first.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    losses: dict[str, float]
    dev: dict[str, float]


@dataclass(frozen=True)
class TrainingResult:
    """What training did. The classifier has the weights of ``best_epoch``.

    Attributes
    ----------
    history : list of dict
        One entry per epoch: epoch, losses, lr, dev, seconds; with terms of weight 0, which are followed and not minimised,
        also followed: their means over successive parts of the epoch.
    best_epoch : int
        The epoch that is best on dev, from 0.
    seconds : float
        Time of training.
    resumed_at : int
        Epochs that an earlier, interrupted call had finished.
    dev_logits : array of float32, shape (N, K), optional
        The logits of ``best_epoch`` on dev; None if they were computed in reduced precision, or if training resumed from a
        checkpoint of an earlier version, which lacks them.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    seconds: float
    resumed_at: int = 0
    dev_logits: NDArray[np.float32] | None = None


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
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
) -> TrainingResult:
    """Train a classifier: minimise ``Σ weight · loss(view)`` and keep the epoch that is best on dev.

    Parameters
    ----------
    classifier : Classifier
        The network to train, in place.
    train : Dataset
        Data to train on. Unlabelled examples, whose label is -1, take part in the terms that need no label: those that do not
        read ``labels`` or ``targets``. The other terms are means over the labelled rows of a batch.
    dev : Dataset
        Labelled data to choose the epoch on; data whose role is test are refused.
    terms : sequence of Term
        Losses with their weights and views.
    settings : TrainSettings, optional
        Epochs, batch size, optimiser, schedule.
    teacher : Predictions, optional
        A teacher's predictions. Rows are matched by id and classes by name; more rows than needed are allowed. Terms that
        compare with the teacher are means over the rows that it has.
    teacher_features : Features, optional
        The teacher's features, for losses that compare features.
    live_teacher : Classifier, optional
        A teacher that is run on every batch, for inputs that change. With ``teacher`` too, it is run only on what views make of
        a batch.
    views : mapping of str to callable
        The views that terms name: functions ``(network, batch) -> View``.
    recorder : Recorder, optional
        Records the student's logits on the plain view of each labelled example.
    groups : array of int, shape (N,), optional
        Groups of training examples that are spread evenly over the batches.
    soft_labels : bool, default False
        Whether to train on the label distributions of the data, where they have them.
    seed : int, default 0
        Decides the order of examples, augmentation, dropout and mixing; the caller's generators are left as they are.
    checkpoint_dir : Path, optional
        Where the state is saved after every epoch. The same call resumes from it and ends with the same numbers.
    store : Path, optional
        Where tokenised texts and features of frozen encoders are cached.
    on_progress : callable, optional
        Called with a `TrainingProgress` a few times a second.
    on_epoch : callable, optional
        Called in the main process with the entry of the history after every epoch that this call trains.

    Returns
    -------
    TrainingResult
        The history and the epoch whose weights the classifier has.

    Raises
    ------
    InputError
        If the arguments do not fit together, for example if an example takes part in no term, since it has no label and the
        teacher does not know it.
    TrainingError
        If a loss or the network's outputs are not finite any more.

    Examples
    --------
    >>> from distilcal.config.schema import ModelSettings
    >>> from distilcal.data import Vectors
    >>> from distilcal.models import build_classifier
    >>> from distilcal.views import build_term
    >>> data = Dataset(Vectors(np.eye(8, dtype=np.float32)), [0, 1] * 4, ("no", "yes"))
    >>> student = build_classifier(ModelSettings(name="linear"), data)
    >>> logits = np.random.default_rng(0).normal(size=(8, 2))
    >>> teacher = Predictions(logits, data.labels, ids=data.ids, classes=data.classes)
    >>> result = fit(student, data, data, [build_term("kd")], TrainSettings(epochs=2), teacher=teacher)
    >>> len(result.history), sorted(result.history[0]["losses"])
    (2, ['kd'])
    """
    start_time = time.perf_counter()
    settings = resolve_settings(settings or TrainSettings(), len(train))
    setup = TrainingSetup(
        classifier=classifier,
        train=train,
        dev=dev.with_classes(train.classes),
        terms=tuple(terms),
        settings=settings,
        teacher_outputs=align_teacher(train, teacher, teacher_features),
        live_teacher=live_teacher,
        views=views,
        recorder=recorder,
        groups=groups,
        soft_labels=soft_labels,
        seed=seed,
    )
    check_setup(setup)
    accelerator = build_accelerator(settings.precision, head_unused=not any("logits" in term.inputs for term in terms))
    train_batches = classifier.inputs.prepare(train, store)
    dev_batches = classifier.inputs.prepare(setup.dev, store)
    dev_labels = setup.dev.labels
    assert dev_labels is not None
    if settings.freeze_embeddings:
        assert isinstance(classifier.network, TextNetwork)
        classifier.network.word_embeddings.requires_grad_(False)
    loss_modules: list[Any] = [term.loss.to(accelerator.device) for term in terms if isinstance(term.loss, nn.Module)]
    network = accelerator.prepare(classifier.network)
    optimizer = build_optimizer(network, [p for loss in loss_modules for p in loss.parameters()], settings)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    # With float16 the accelerator's optimizer skips steps whose scaled gradients overflowed.
    stepper = accelerator.prepare(optimizer) if accelerator.scaler is not None else optimizer
    objective = _build_objective(setup, network, accelerator, train_batches)
    if recorder is not None:
        recorder.own_rows = False  # every process records the whole batch
    # Hashing weights and data takes a while, and only a saved state needs it.
    key = "" if checkpoint_dir is None else fit_key(setup)
    checkpoint = Checkpoint(checkpoint_dir, key, classifier.network)
    history = checkpoint.resume(optimizer, loss_modules, recorder)
    resumed_at = len(history)

    with torch.random.fork_rng():
        for epoch in range(resumed_at, settings.epochs):
            if _is_out_of_patience(history, settings):
                break
            epoch_start = time.perf_counter()
            torch.manual_seed(epoch_seed(seed, epoch, 1) + accelerator.process_index)  # dropout
            augment = torch.Generator().manual_seed(epoch_seed(seed, epoch, 2) + accelerator.process_index)
            _start_epoch(loss_modules, epoch, settings.epochs)
            batches = _epoch_batches(setup, train_batches.lengths, epoch)
            steps = len(batches)
            means = _LossMeans(_distinct_names(terms), epoch, [term.weight == 0 for term in terms])
            last_report = time.perf_counter()
            network.train()
            for step, rows in enumerate(batches):
                factor = rate_factor(settings, epoch * steps + step, settings.epochs * steps, steps)
                learning_rate = settings.lr * factor
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate
                is_labelled = train.is_labelled[rows] if objective.source.is_partly_labelled else None
                losses = add_gradient(objective, StepContext(rows, (seed, epoch, step), is_labelled), augment)
                means.add(losses)
                if settings.clip:
                    if accelerator.scaler is not None:
                        accelerator.unscale_gradients()
                    nn.utils.clip_grad_norm_(parameters, settings.clip)
                stepper.step()
                optimizer.zero_grad()
                is_last = step + 1 == steps
                if on_progress is not None and (is_last or time.perf_counter() - last_report > PROGRESS_INTERVAL):
                    last_report = time.perf_counter()
                    dev_metrics = history[-1]["dev"] if history else {}
                    on_progress(TrainingProgress(epoch, settings.epochs, step + 1, steps, means.compute(), dev_metrics))
            if recorder is not None:
                recorder.end_epoch()
            mean_losses = means.compute()

            dev_logits = _dev_logits(classifier, dev_batches, accelerator)
            predictions = Predictions(dev_logits, dev_labels, classes=train.classes, name="dev")
            for loss in loss_modules:
                if hasattr(loss, "update"):
                    loss.update(predictions.confidence, predictions.correct)
            dev_metrics = _dev_metrics(predictions)
            seconds = time.perf_counter() - epoch_start
            history.append({"epoch": epoch, "losses": mean_losses, "lr": learning_rate, "dev": dev_metrics, "seconds": seconds})
            followed = means.followed()
            if followed:
                history[-1]["followed"] = followed
            is_best = _best_epoch(history, settings) == epoch
            checkpoint.save(
                history,
                optimizer,
                loss_modules,
                recorder,
                dev_logits=torch.from_numpy(dev_logits) if accelerator.mixed_precision == "no" else None,
                is_best=is_best,
                write=accelerator.is_main_process,
            )
            if on_epoch is not None and accelerator.is_main_process:
                on_epoch(history[-1])
            accelerator.wait_for_everyone()

    accelerator.unwrap_model(network, keep_fp32_wrapper=False)
    best_epoch = _best_epoch(history, settings)
    checkpoint.load_best()
    classifier.network.eval()
    if settings.freeze_embeddings:
        classifier.network.word_embeddings.requires_grad_()
    classifier.new_head = False
    best_dev_logits = None if checkpoint.best_dev_logits is None else checkpoint.best_dev_logits.numpy()
    return TrainingResult(history, best_epoch, time.perf_counter() - start_time, resumed_at, best_dev_logits)


# ---- preparing ---------------------------------------------------------------------------------------------------------


def _build_objective(setup: TrainingSetup, network: Any, accelerator: Any, batches: Batches) -> Objective:
    source = BatchSource(
        train=setup.train,
        batches=batches,
        teacher_outputs=setup.teacher_outputs,
        live_teacher=setup.live_teacher,
        student=setup.classifier,
        soft_labels=setup.soft_labels,
        device=accelerator.device,
        run_on_plain=any(_reads_teacher(term, setup.views) for term in setup.terms),
    )
    return Objective(
        network=network,
        accelerator=accelerator,
        source=source,
        terms=setup.terms,
        views=setup.views,
        accumulate=setup.settings.accumulate,
        recorder=setup.recorder,
    )


def _reads_teacher(term: Term, views: Mapping[str, Any]) -> bool:
    """Whether a term needs the teacher's outputs on the unchanged batch; some views run the teacher themselves."""
    if getattr(views[term.view], "needs_live_teacher", False):
        return False
    return any(name.startswith("teacher_") for name in term.inputs)


def _distinct_names(terms: Sequence[Term]) -> list[str]:
    """A name for each term in the history: "kd", "cross_entropy(mixed)", and "kd 1", "kd 2" where one comes twice."""
    names = [term.name if term.view == "plain" else f"{term.name}({term.view})" for term in terms]
    distinct = []
    for i, name in enumerate(names):
        earlier = names[: i + 1].count(name)
        distinct.append(name if names.count(name) == 1 else f"{name} {earlier}")
    return distinct


# ---- one epoch ---------------------------------------------------------------------------------------------------------


def _epoch_batches(setup: TrainingSetup, lengths: NDArray[np.int64] | None, epoch: int) -> list[NDArray[np.int64]]:
    is_labelled, settings = setup.train.is_labelled, setup.settings
    if is_labelled.all() or not is_labelled.any():
        return epoch_batches(len(is_labelled), lengths, settings.batch, seed=setup.seed, epoch=epoch, groups=setup.groups)
    return mixed_epoch_batches(
        is_labelled, lengths, settings.batch, share=settings.labelled_share, seed=setup.seed, epoch=epoch
    )


def _start_epoch(loss_modules: Sequence[Any], epoch: int, epochs: int) -> None:
    for loss in loss_modules:
        loss.train()
        if hasattr(loss, "start_epoch"):
            loss.start_epoch(epoch, epochs)


class _LossMeans:
    """Means of the losses over the examples of an epoch.

    Values stay on their device until means are computed: reading one in every step would make a GPU wait.
    """

    def __init__(self, names: Sequence[str], epoch: int, is_followed: Sequence[bool]):
        self.names, self.epoch, self.is_followed = names, epoch, is_followed
        self.by_step: list[Tensor] = []  # (steps, terms), kept if a term is followed
        self.sums = torch.zeros(len(names), dtype=torch.float64)
        self.rows = torch.zeros(len(names), dtype=torch.float64)
        self.pending: list[StepLosses] = []

    def add(self, losses: StepLosses) -> None:
        self.pending.append(losses)

    def compute(self) -> dict[str, float]:
        """The means so far, by name of the term."""
        if self.pending:
            counts = torch.tensor([losses.counts for losses in self.pending], dtype=torch.float64)
            values: list[Tensor] = [value for losses in self.pending for value in losses.values]
            by_step = torch.stack(values).double().cpu().view(len(counts), -1)
            if any(self.is_followed):
                self.by_step.append(by_step)
            self.sums += (by_step * counts).sum(dim=0)
            self.rows += counts.sum(dim=0)
            self.pending.clear()
        means = dict(zip(self.names, (self.sums / self.rows.clamp(min=1)).tolist(), strict=True))
        for name, value in means.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"the loss {name} became {value} in epoch {self.epoch + 1}",
                    remedy="lower lr, or check the settings of the loss",
                )
        return means

    def followed(self) -> dict[str, list[float]]:
        """The means of the followed terms over successive parts of the epoch, in which steps count alike."""
        if not self.by_step:
            return {}
        by_step = torch.cat(self.by_step)
        parts = [part.mean(dim=0).tolist() for part in by_step.tensor_split(min(FOLLOWED_PARTS, len(by_step)))]
        columns = [list(column) for column in zip(*parts, strict=True)]
        return {name: column for name, column, chosen in zip(self.names, columns, self.is_followed, strict=True) if chosen}


def _dev_logits(classifier: Classifier, batches: Batches, accelerator: Any) -> NDArray[np.float32]:
    """The logits on dev, of which each process computes a part."""
    share_buffers(classifier.network, accelerator)
    rows = own_part(np.arange(len(batches)), accelerator.process_index, accelerator.num_processes)
    computed = run_network(classifier.network, batches, rows=rows, batch_size=DEV_BATCH, device=accelerator.device)["logits"]
    logits = gather_rows(computed, rows, len(batches), accelerator)
    if not np.isfinite(logits).all():
        raise TrainingError("the network's outputs are not finite any more", remedy="lower lr, or check the terms")
    return logits


def _dev_metrics(predictions: Predictions) -> dict[str, float]:
    """The metrics of an epoch; ``calibrated_nll`` is the NLL after the temperature that is fitted on the same rows."""
    metrics = {name: METRICS[name](predictions.probs, predictions.labels) for name in DEV_METRICS}
    return {**metrics, "calibrated_nll": fit_temperature(predictions).fit.nll_after}


# ---- choosing an epoch -------------------------------------------------------------------------------------------------


def _best_epoch(history: Sequence[dict[str, Any]], settings: TrainSettings) -> int:
    """The epoch to keep: the first with the best value on dev."""
    last = len(history) - 1
    if settings.choose == "last":
        return last
    candidates = list(range(len(history)))
    if settings.choose_among:
        candidates = [epoch for epoch in candidates if epoch + 1 in settings.choose_among]
    if not candidates:  # none of them has come yet
        return last
    values = [history[epoch]["dev"][settings.choose] for epoch in candidates]
    best = np.argmax(values) if settings.choose == "accuracy" else np.argmin(values)
    return candidates[int(best)]


def _is_out_of_patience(history: Sequence[dict[str, Any]], settings: TrainSettings) -> bool:
    if not settings.patience or not history:
        return False
    return len(history) - 1 - _best_epoch(history, settings) >= settings.patience
