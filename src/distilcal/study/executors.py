"""Where jobs run: processes of this machine, or a Ray cluster. Both call the same function with the same arguments.

An executor receives jobs with ``submit`` and returns from ``finished`` those that have ended. To add one, write a class with
these two, ``close`` and ``describe``.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from distilcal.errors import DistilcalError, InputError, MissingDependencyError
from distilcal.imports import count_imports

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # of a job whose process was killed
CLOSING_SECONDS = 5.0  # that a job has to close its files
HELD = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
PASSED_ON = ("DISTILCAL_DATA", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN")  # variables that Ray's workers inherit
Arguments = Mapping[str, Any]
Result = dict[str, Any] | BaseException


class Executor(Protocol):
    """Runs jobs, a number of them at a time."""

    slots: int  # how many jobs run at a time

    def submit(self, id_: str, arguments: Arguments) -> None:
        """Start a job: ``run_job(**arguments)``."""

    def finished(self, timeout: float) -> list[tuple[str, Result]]:
        """Wait until a job ends, at most ``timeout`` seconds; return each ended job with what it returned or raised."""

    def close(self) -> None:
        """Stop everything."""

    def describe(self) -> dict[str, Any]:
        """Return the number of processes and the threads of each, for the record."""


def run_in_worker(arguments: Arguments) -> dict[str, Any]:
    """Run a job in a worker process. An error is returned as text, which every process can unpickle.

    Parameters
    ----------
    arguments : mapping of str to Any
        Keyword arguments of `distilcal.study.job.run_job`.

    Returns
    -------
    dict
        What the job returned; ``{"error": text}`` if it failed.
    """
    from distilcal.study.job import run_job  # imports torch

    try:
        return run_job(**arguments)
    except Exception as error:
        log_fault(error, f"job {arguments.get('name')} failed")
        return {"error": error_text(error)}


def log_fault(error: Exception, message: str) -> None:
    """Log an error with its traceback if it is a fault of ours: our own errors, and a full disk, say what to do.

    Parameters
    ----------
    error : Exception
        The error that is being handled.
    message : str
        What failed.
    """
    if not isinstance(error, DistilcalError | OSError):
        logger.exception(message)


def error_text(error: BaseException) -> str:
    """Return an error as text: our own errors as their message, others with their type before it.

    Parameters
    ----------
    error : BaseException
        The error.

    Returns
    -------
    str

    Examples
    --------
    >>> error_text(KeyError("dev"))
    "KeyError: 'dev'"
    """
    if isinstance(error, DistilcalError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def local_processes(processes: int | None = None, threads: int | None = None) -> tuple[int, int]:
    """Divide the cores of this machine into processes and threads without oversubscribing them.

    Parameters
    ----------
    processes : int, optional
        Jobs at a time. By default as many as there are cores for.
    threads : int, optional
        Of each process. By default 1, or more if there are fewer processes than cores.

    Returns
    -------
    processes, threads : int

    Examples
    --------
    >>> local_processes(2, 1)
    (2, 1)
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes is None:
        processes = max(1, cores // (threads or 1))
    if processes < 1 or (threads is not None and threads < 1):
        raise InputError("processes and threads must be at least 1")
    return processes, threads or max(1, cores // processes)


def count_gpus() -> int:
    """Return the number of GPUs of this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _prepare_worker(threads: int, device: str | None, parent: int) -> None:
    """Set threads and GPU of a worker before torch is imported, and end it when its parent is gone."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    for name in ("SIGINT", "SIGHUP"):  # a terminal sends these to all; the parent handles them and stops its workers
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)  # see _signals_held

    def exit_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let what is started in the block have its signals held, until it says what to do with them; ours come afterwards.

    A terminal sends Ctrl-C to all processes: a worker that is still being imported would show a traceback. SIGHUP would end
    the process in which multiprocessing keeps count of its semaphores.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _call_until_terminated(call: Callable[[Arguments], dict[str, Any]], arguments: Arguments) -> dict[str, Any]:
    """Run a job in a worker that SIGTERM ends after its files and locks are closed."""

    def stop(number: int, frame: FrameType | None) -> None:
        if count_imports(frame):
            os._exit(128 + number)
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        return call(arguments)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)


def _visible_gpus(count: int) -> list[str]:
    """The names of the first GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if len(visible) >= count:
        return visible[:count]
    return [str(i) for i in range(count)]


@dataclass
class LocalExecutor:
    """Processes of this machine that stay alive from job to job. A killed one is replaced and its job started again.

    Parameters
    ----------
    processes : int
        Jobs at a time; 0: one for each GPU, or for each core.
    threads : int
        Of each process; 0: as many as there are cores for.
    gpus : int
        GPUs to be shared out among the processes.
    call : callable
        What a worker calls with a job's arguments.
    """

    processes: int = 0
    threads: int = 0
    gpus: int = 0
    call: Callable[[Arguments], dict[str, Any]] = run_in_worker
    running: dict[Future[dict[str, Any]], tuple[str, int]] = field(default_factory=dict)  # → id of the job, and its slot
    submitted: dict[str, Arguments] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.processes, self.threads = local_processes(self.processes or self.gpus or None, self.threads or None)
        self.slots = self.processes
        # A pool of one process for each slot: when a process is killed, its pool breaks, and only that one.
        with _signals_held():
            self.pools = [self._new_pool(slot) for slot in range(self.slots)]
        self.free_slots = list(range(self.slots))

    def _new_pool(self, slot: int) -> ProcessPoolExecutor:
        device = _visible_gpus(self.gpus)[slot % self.gpus] if self.gpus else None
        return ProcessPoolExecutor(
            max_workers=1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_prepare_worker,
            initargs=(self.threads, device, os.getpid()),
        )

    def submit(self, id_: str, arguments: Arguments) -> None:
        """Start a job in a free process."""
        self.submitted[id_] = arguments
        self.attempts[id_] = self.attempts.get(id_, 0) + 1
        slot = self.free_slots.pop()
        with _signals_held():
            try:
                future = self.pools[slot].submit(_call_until_terminated, self.call, arguments)
            except BrokenProcessPool:  # killed while it was idle
                self._replace_pool(slot)
                future = self.pools[slot].submit(_call_until_terminated, self.call, arguments)
        self.running[future] = id_, slot

    def finished(self, timeout: float) -> list[tuple[str, Result]]:
        """Return the jobs that have ended; one whose process was killed is started again, a limited number of times."""
        done, _ = wait(self.running, timeout, FIRST_COMPLETED)
        ended: list[tuple[str, Result]] = []
        for future in done:
            id_, slot = self.running.pop(future)
            self.free_slots.append(slot)
            error = future.exception()
            if error is None:
                ended.append((id_, future.result()))
                continue
            if not isinstance(error, BrokenProcessPool):
                ended.append((id_, error))
                continue
            self._replace_pool(slot)
            if self.attempts[id_] < ATTEMPTS:
                logger.warning("the process of a job was killed; the job starts again")
                self.submit(id_, self.submitted[id_])
            else:
                ended.append((id_, RuntimeError(f"its process was killed {ATTEMPTS} times; is there enough memory?")))
        return ended

    def _replace_pool(self, slot: int) -> None:
        self.pools[slot].shutdown(wait=False, cancel_futures=True)
        self.pools[slot] = self._new_pool(slot)

    def describe(self) -> dict[str, Any]:
        """Return the number of processes and the threads of each."""
        return {"processes": self.processes, "threads": self.threads}

    def close(self) -> None:
        """Terminate all processes, and wait for them; one that does not end is killed."""
        processes = [process for pool in self.pools for process in (getattr(pool, "_processes", None) or {}).values()]
        for process in processes:
            process.terminate()
        killing = threading.Timer(CLOSING_SECONDS, lambda: [process.kill() for process in processes])
        killing.start()
        for pool in self.pools:
            pool.shutdown(wait=True, cancel_futures=True)
        killing.cancel()


@dataclass
class RayExecutor:
    """Tasks of a Ray cluster whose machines share the store's folder. The task of a killed worker is started again.

    Parameters
    ----------
    address : str
        Of the cluster; empty: one is started on this machine.
    cpus, gpus : float
        Of each job.
    call : callable
        What a worker calls with a job's arguments.

    Raises
    ------
    MissingDependencyError
        If ray is not installed.
    InputError
        If the cluster cannot be reached, or has less than a job needs.
    """

    address: str = ""
    cpus: float = 1
    gpus: float = 0
    call: Callable[[Arguments], dict[str, Any]] = run_in_worker
    running: dict[Any, str] = field(default_factory=dict)  # Ray's reference → id of the job

    def __post_init__(self) -> None:
        try:
            import ray
        except ImportError:
            raise MissingDependencyError("ray is not installed", remedy="pip install 'distilcal[ray]'") from None
        self.ray: Any = ray
        self.started_here = not ray.is_initialized()
        if self.started_here:
            self._connect()
        self.slots = self._count_slots()
        threads = str(max(1, int(self.cpus)))
        variables = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OMP_WAIT_POLICY": "PASSIVE",
            "TOKENIZERS_PARALLELISM": "false",
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
        }
        self.remote = ray.remote(self.call).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=ATTEMPTS, runtime_env={"env_vars": variables}
        )

    def _connect(self) -> None:
        try:
            self.ray.init(address=self.address or None, log_to_driver=False, include_dashboard=False, configure_logging=False)
        except (ConnectionError, ValueError) as error:
            where = self.address or "this machine"
            raise InputError(f"no Ray cluster at {where}: {error}", remedy="check --address") from None

    def _count_slots(self) -> int:
        resources = self.ray.cluster_resources()
        cpus, gpus = resources.get("CPU", 0), resources.get("GPU", 0)
        by_cpu = cpus // self.cpus if self.cpus else float("inf")
        by_gpu = gpus // self.gpus if self.gpus else float("inf")
        slots = int(min(by_cpu, by_gpu, 10_000))
        if slots < 1:
            raise InputError(
                f"the cluster has {cpus:g} cores and {gpus:g} GPUs, a job needs {self.cpus:g} and {self.gpus:g}",
                remedy="lower --cpus or --gpus",
            )
        return slots

    def submit(self, id_: str, arguments: Arguments) -> None:
        """Start a job as a task of the cluster."""
        self.running[self.remote.remote(dict(arguments))] = id_

    def finished(self, timeout: float) -> list[tuple[str, Result]]:
        """Return a job that has ended, if one ends within ``timeout`` seconds."""
        if not self.running:
            time.sleep(min(timeout, 0.01))
            return []
        done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=timeout)
        ended: list[tuple[str, Result]] = []
        for reference in done:
            id_ = self.running.pop(reference)
            try:
                ended.append((id_, self.ray.get(reference)))
            except self.ray.exceptions.RayTaskError as error:
                ended.append((id_, error.cause if isinstance(error.cause, BaseException) else error))
            except self.ray.exceptions.RayError as error:
                ended.append((id_, error))
        return ended

    def describe(self) -> dict[str, Any]:
        """Return the number of jobs at a time and the threads of each."""
        return {"processes": self.slots, "threads": max(1, int(self.cpus))}

    def close(self) -> None:
        """Cancel what is running, and stop the cluster if it was started here."""
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        if self.started_here:
            self.ray.shutdown()
