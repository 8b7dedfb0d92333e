"""What the tables of a study cost on a GPU, estimated before anything is trained.

Training takes three times the operations of a forward pass, for every example, epoch and view. A forward pass of an encoder
takes two operations for each parameter of its layers and each token; one of a network for images is counted on tensors without
content. The one pass of a teacher over its data, evaluation and frozen encoders are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from distilcal.data.catalogue import find_benchmark
from distilcal.data.splits import BENCHMARK_PREFIX
from distilcal.study.expand import Graph, Job
from distilcal.study.places import merge_places
from distilcal.study.schema import Study, TableSettings

# Parameters of the layers of an encoder; embeddings are looked up and cost nothing.
ENCODER_PARAMETERS = {
    "distilbert-base-uncased": 42.5e6,
    "bert-base-uncased": 85.1e6,
    "roberta-base": 85.1e6,
    "bert-large-uncased": 302e6,
    "roberta-large": 302e6,
}
OTHER_ENCODER = 85.1e6
FILLED = 0.5  # of max_length, on average over a batch
PASSES = 3  # forward and backward, in forward passes
# Operations a second that training reaches on a GPU of a data centre in mixed precision. Small images keep it less busy.
SPEEDS = {"text": 25e12, "image": 5e12}
ASSUMPTIONS = (
    f"{SPEEDS['text'] / 1e12:g} TFLOP/s in effect on texts and {SPEEDS['image'] / 1e12:g} on images, texts that fill "
    f"{FILLED:.0%} of max_length, {PASSES} forward passes a step and view"
)
VECTOR_MODELS = ("linear", "mlp", "")


@dataclass(frozen=True)
class Cost:
    """What some jobs take.

    Attributes
    ----------
    name : str
        Of the table; empty for all of a study.
    networks : tuple of str
        Names of the networks that are trained.
    examples, epochs : tuple of (int, int)
        The fewest and the most of a run.
    runs : int
        Number of jobs that train, each counted once.
    gpu_hours : float
        Estimated time on one GPU.
    """

    name: str
    networks: tuple[str, ...]
    examples: tuple[int, int]
    epochs: tuple[int, int]
    runs: int
    gpu_hours: float

    def __str__(self) -> str:
        networks = ", ".join(self.networks) or "no network that is trained whole"
        examples, epochs = _range_text(self.examples, "example"), _range_text(self.epochs, "epoch")
        return (
            f"{self.gpu_hours:,.1f} GPU-hours for {self.name}: {networks}; {examples}; {epochs}; {_counted(self.runs, 'run')}"
        )


def table_costs(study: Study, graph: Graph, size: Callable[[Job], int]) -> list[Cost]:
    """Estimate what each table of a study takes, and all of them together. Jobs that tables share count in each.

    Parameters
    ----------
    study : Study
        The study at one scale.
    graph : Graph
        Its jobs.
    size : callable
        ``size(job)`` returns the number of training examples of a job.

    Returns
    -------
    list of Cost
        One for each table, and last the whole study.
    """
    costs = [_cost(graph, table.name, _table_jobs(study, graph, table), size) for table in study.tables]
    return [*costs, _cost(graph, "the whole study", graph.jobs, size)]


def _table_jobs(study: Study, graph: Graph, table: TableSettings) -> set[str]:
    """The ids of everything that the cells of a table need."""
    ids = set()
    for row in table.rows:
        for column in table.columns:
            place = merge_places(table.common, row, column)
            for method in filter(None, (place.method, place.against)):
                ids |= {graph.cells.get((method, place.task, seed), "") for seed in study.seeds}
    remaining, jobs = list(ids - {""}), set()
    while remaining:
        id_ = remaining.pop()
        if id_ not in jobs:
            jobs.add(id_)
            remaining += graph.needs(id_)
    return jobs & set(graph.jobs)


def _cost(graph: Graph, name: str, ids: Iterable[str], size: Callable[[Job], int]) -> Cost:
    jobs = [graph.jobs[id_] for id_ in ids if graph.jobs[id_].stage.terms]
    sizes = [size(job) for job in jobs]
    epochs = [job.stage.train.epochs for job in jobs]
    seconds = sum(_seconds(graph, job, examples) for job, examples in zip(jobs, sizes, strict=True))
    networks = sorted({_trained_model(graph, job).stage.model.name for job in jobs} - set(VECTOR_MODELS))
    return Cost(name, tuple(networks), _range(sizes), _range(epochs), len(jobs), seconds / 3600)


def _seconds(graph: Graph, job: Job, examples: int) -> float:
    """Time of one run on a GPU."""
    from distilcal.models.image import NETWORKS

    model = _trained_model(graph, job).stage.model
    if model.frozen or model.name in VECTOR_MODELS:
        return 0.0
    kind = "image" if model.name in NETWORKS else "text"
    if kind == "image":
        operations = _image_operations(model.name, _side(job))
    else:
        texts = 4 if _is_multiple_choice(job) else 1
        tokens = FILLED * (model.max_length or 128) * texts
        operations = 2 * ENCODER_PARAMETERS.get(model.name, OTHER_ENCODER) * tokens
    views = 1 + len({term.view for term in job.stage.terms} - {"plain"})
    return PASSES * operations * examples * job.stage.train.epochs * views / SPEEDS[kind]


def _trained_model(graph: Graph, job: Job) -> Job:
    """The job whose settings name the network: the one from which training starts, if it starts from another."""
    parent = job.needs.get("start_from", "")
    while parent:
        job = graph.jobs[graph.choices[parent].jobs[0] if parent in graph.choices else parent]
        parent = job.needs.get("start_from", "")
    return job


@cache
def _image_operations(name: str, side: int) -> float:
    """Operations of a forward pass of a network on one picture, counted on tensors without content."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from distilcal.models.image import build_image_network

    with torch.device("meta"):
        network = build_image_network(name, 100).eval()
        picture = torch.empty(1, 3, side, side)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(picture)
    return float(counter.get_total_flops())


def _side(job: Job) -> int:
    """Pixels a side of a job's pictures."""
    return job.data.size or (64 if "tiny_imagenet" in job.data.train else 32)


def _is_multiple_choice(job: Job) -> bool:
    if job.data.choices:
        return True
    name = job.data.train.removeprefix(BENCHMARK_PREFIX).partition("@")[0]
    return job.data.train.startswith(BENCHMARK_PREFIX) and find_benchmark(name).kind == "multiple choice"


def _range(values: list[int]) -> tuple[int, int]:
    return (min(values), max(values)) if values else (0, 0)


def _range_text(values: tuple[int, int], unit: str) -> str:
    low, high = values
    return _counted(high, unit) if low == high else f"{low:,} to {_counted(high, unit)}"


def _counted(number: int, unit: str) -> str:
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"
