"""Where jobs are carried out: processes of this machine, or a Ray cluster. Both call the same function with the same words.

An executor is told of jobs with ``submit`` and says with ``finished`` which of them came to an end. To add one, write these
two and ``close``.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, Protocol

from distilcal.errors import InputError

ATTEMPTS = 3  # of a job whose process was killed
Arguments = Mapping[str, Any]


class Executor(Protocol):
    """Carries out jobs, so many at a time."""

    slots: int

    def submit(self, id_: str, arguments: Arguments) -> None:
        """Start a job: ``work(**arguments)``."""

    def finished(self, timeout: float) -> list[tuple[str, dict[str, Any] | BaseException]]:
        """Jobs that ended since the last call, each with what it returned or raised; waits for the first."""

    def close(self) -> None:
        """Stop everything."""

    def describe(self) -> dict[str, Any]:
        """How many jobs at a time, with how many threads each: for the record."""


def carry(arguments: Arguments) -> dict[str, Any]:
    """What every worker calls; the heavy imports happen there. An error comes back as words, which any process can read."""
    from distilcal.study.job import work

    try:
        return work(**arguments)
    except InputError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def local_processes(processes: int | None = None, threads: int | None = None) -> tuple[int, int]:
    """Processes × threads that use the cores there are without oversubscribing them: one thread each, if not told otherwise."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes is None:
        processes = max(1, cores // (threads or 1))
    if processes < 1 or (threads is not None and threads < 1):
        raise InputError("processes and threads must be at least 1")
    return processes, threads or max(1, cores // processes)


def gpus_here() -> int:
    """GPUs of this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _prepare(threads: int, device: str | None, parent: int) -> None:
    """Before torch is imported in a worker: its threads, its own GPU if there are any, and an end when its parent is gone."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _devices(gpus: int) -> list[str]:
    """The GPUs that this process may use, by the names that its workers are told."""
    said = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return said[:gpus] if len(said) >= gpus else [str(i) for i in range(gpus)]


@dataclass
class LocalExecutor:
    """Processes of this machine that stay alive from job to job. A killed one is replaced and its job started again."""

    processes: int = 0
    threads: int = 0
    gpus: int = 0
    call: Callable[[Arguments], dict[str, Any]] = carry
    running: dict[Future[dict[str, Any]], tuple[str, int]] = field(default_factory=dict)  # → job, and the place it runs in
    asked: dict[str, Arguments] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.processes, self.threads = local_processes(self.processes or self.gpus or None, self.threads or None)
        self.slots = self.processes
        self.pools = [self._new_pool(place) for place in range(self.slots)]  # one each: none dies of another's death
        self.free = list(range(self.slots))

    def _new_pool(self, place: int) -> ProcessPoolExecutor:
        device = _devices(self.gpus)[place % self.gpus] if self.gpus else None
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, context, _prepare, (self.threads, device, os.getpid()))

    def submit(self, id_: str, arguments: Arguments) -> None:
        self.asked[id_] = arguments
        self.attempts[id_] = self.attempts.get(id_, 0) + 1
        place = self.free.pop()
        try:
            future = self.pools[place].submit(self.call, arguments)
        except BrokenProcessPool:  # killed while it had nothing to do
            self._replace(place)
            future = self.pools[place].submit(self.call, arguments)
        self.running[future] = id_, place

    def finished(self, timeout: float) -> list[tuple[str, dict[str, Any] | BaseException]]:
        done, _ = wait(self.running, timeout, FIRST_COMPLETED)
        ended: list[tuple[str, dict[str, Any] | BaseException]] = []
        for future in done:
            id_, place = self.running.pop(future)
            self.free.append(place)
            error = future.exception()
            if not isinstance(error, BrokenProcessPool):
                ended.append((id_, error if error is not None else future.result()))
                continue
            self._replace(place)
            if self.attempts[id_] < ATTEMPTS:
                self.submit(id_, self.asked[id_])
            else:
                ended.append((id_, RuntimeError(f"its process was killed {ATTEMPTS} times; is there enough memory?")))
        return ended

    def _replace(self, place: int) -> None:
        self.pools[place].shutdown(wait=False, cancel_futures=True)
        self.pools[place] = self._new_pool(place)

    def describe(self) -> dict[str, Any]:
        return {"processes": self.processes, "threads": self.threads}

    def close(self) -> None:
        for pool in self.pools:
            for process in list((getattr(pool, "_processes", None) or {}).values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class RayExecutor:
    """Tasks of a Ray cluster, all of whose machines share the store's folder. A killed worker's task is started again."""

    address: str = ""
    cpus: float = 1
    gpus: float = 0
    call: Callable[[Arguments], dict[str, Any]] = carry
    running: dict[Any, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            import ray
        except ImportError:
            raise InputError("ray is not installed", remedy="pip install 'distilcal[ray]'") from None
        self.ray: Any = ray
        self.started_here = not ray.is_initialized()
        if self.started_here:
            try:
                ray.init(address=self.address or None, log_to_driver=False, include_dashboard=False, configure_logging=False)
            except (ConnectionError, ValueError) as error:
                where = self.address or "this machine"
                raise InputError(f"no Ray cluster at {where}: {error}", remedy="check --address") from None
        there = self.ray.cluster_resources()
        by_cpu = there.get("CPU", 0) // self.cpus if self.cpus else float("inf")
        by_gpu = there.get("GPU", 0) // self.gpus if self.gpus else float("inf")
        self.slots = int(min(by_cpu, by_gpu, 10_000))
        if self.slots < 1:
            raise InputError(f"the cluster has {there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs, less than a job "
                             "wants", remedy="lower --cpus or --gpus")  # fmt: skip
        threads = str(max(1, int(self.cpus)))
        environment = {"env_vars": {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE",
                                    "TOKENIZERS_PARALLELISM": "false", **_passed_on()}}  # fmt: skip
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": ATTEMPTS, "runtime_env": environment}
        self.remote = ray.remote(self.call).options(**options)

    def submit(self, id_: str, arguments: Arguments) -> None:
        self.running[self.remote.remote(dict(arguments))] = id_

    def finished(self, timeout: float) -> list[tuple[str, dict[str, Any] | BaseException]]:
        if not self.running:
            time.sleep(min(timeout, 0.01))
            return []
        done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=timeout)
        ended: list[tuple[str, dict[str, Any] | BaseException]] = []
        for ref in done:
            id_ = self.running.pop(ref)
            try:
                ended.append((id_, self.ray.get(ref)))
            except self.ray.exceptions.RayTaskError as error:
                ended.append((id_, error.cause if isinstance(error.cause, BaseException) else error))
            except self.ray.exceptions.RayError as error:
                ended.append((id_, error))
        return ended

    def describe(self) -> dict[str, Any]:
        return {"processes": self.slots, "threads": max(1, int(self.cpus))}

    def close(self) -> None:
        for ref in self.running:
            self.ray.cancel(ref, force=True)
        if self.started_here:
            self.ray.shutdown()


def _passed_on() -> dict[str, str]:
    """What a worker must know as the caller does."""
    return {
        name: os.environ[name]
        for name in ("DISTILCAL_DATA", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN")
        if name in os.environ
    }
