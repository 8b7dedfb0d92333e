"""Executors: killed processes, Ray, studies that are continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from study_cases import without_times

from distilcal.io.locks import file_lock
from distilcal.study import executors
from distilcal.study.executors import LocalExecutor, RayExecutor, local_processes
from distilcal.study.expand import expand
from distilcal.study.loading import load_study
from distilcal.study.run import measures_of, run_study
from distilcal.study.scheduler import run_graph


def test_processes_and_threads_fit_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert local_processes() == (8, 1)
    assert local_processes(2) == (2, 4)
    assert local_processes(None, 2) == (4, 2)
    assert local_processes(16) == (16, 1)


def slow_work(arguments):
    """Real work, but the first time a marked job comes, its process is killed in the middle of it."""
    import distilcal.training.loop as loop

    mark = arguments["store"] + "/killed"
    if not os.path.exists(mark) and arguments["keep"]:
        real, calls = loop.add_gradient, []

        def backward(self, *given):
            calls.append(1)
            if len(calls) > 20:
                with open(mark, "w") as file:
                    file.write(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *given)

        loop.add_gradient = backward
    return executors.run_in_worker(arguments)


def run_with(executor, place, folder):
    study = load_study(str(place / "tiny.toml"))
    try:
        run_study(study, folder / "out", folder / "store", executor)
    finally:
        executor.close()
    return json.loads((folder / "out" / "results.json").read_text())


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_the_study_ends_equal(place, finished_study, tmp_path):
    (tmp_path / "store").mkdir()
    found = run_with(LocalExecutor(2, 1, call=slow_work), place, tmp_path)
    assert (tmp_path / "store" / "killed").exists()
    assert not found["failures"]
    whole = json.loads((finished_study[0] / "out" / "results.json").read_text())
    assert without_times(found) == without_times(whole)


def lock_and_wait(arguments):
    with file_lock(Path(arguments["lock"])):
        Path(arguments["began"]).touch()
        time.sleep(600)


def test_jobs_of_a_closed_executor_leave_no_lock_and_no_process(tmp_path):
    executor = LocalExecutor(1, 1, call=lock_and_wait)
    executor.submit("a", {"lock": str(tmp_path / "l"), "began": str(tmp_path / "began")})
    while not (tmp_path / "began").exists():
        assert not executor.finished(0.05)
    (process,) = executor.pools[0]._processes.values()
    executor.close()
    assert not process.is_alive()
    assert not (tmp_path / "l").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no groups of processes that get a signal")
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_a_terminal_that_stops_all_processes_shows_nothing_of_those_that_start(name):
    program = f"""
import os, signal, time
from distilcal.study.executors import LocalExecutor
if __name__ == "__main__":
    signal.signal(signal.{name}, lambda *_: None)
    executor = LocalExecutor(1, 1, call=time.sleep)
    executor.submit("a", 600)
    for _ in range(60):
        os.killpg(0, signal.{name})
        time.sleep(0.01)
    assert not executor.finished(0.5)
    executor.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, start_new_session=True)
    assert (done.returncode, done.stderr) == (0, "")


def always_killed(arguments):
    if arguments["keep"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return executors.run_in_worker(arguments)


@pytest.mark.slow
def test_a_job_that_kills_its_process_every_time_is_given_up(place, tmp_path):
    study = load_study(str(place / "tiny.toml"), seeds=1)
    executor = LocalExecutor(1, 1, call=always_killed)
    graph = expand(study, methods=["Alone"])
    try:
        outcome = run_graph(graph, executor, tmp_path, measures_of(study, graph))
    finally:
        executor.close()
    assert "was killed 3 times" in next(iter(outcome.failed.values()))


@pytest.mark.slow
def test_ray_gives_the_same_and_survives_a_killed_worker(place, finished_study, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed")
    found = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]  # its workers must find slow_work
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))
    (tmp_path / "store").mkdir()
    found = run_with(RayExecutor(call=slow_work), place, tmp_path)
    assert not found["failures"]
    assert (tmp_path / "store" / "killed").exists()
    assert not found["failures"]
    whole = json.loads((finished_study[0] / "out" / "results.json").read_text())
    assert without_times(found) == without_times(whole)


@pytest.mark.slow
def test_a_killed_study_goes_on_where_it_stopped(place, finished_study, tmp_path):
    """The whole command is killed, with its workers; the same command ends it, equal to one that was never stopped."""
    line = [sys.executable, "-m", "distilcal", "study", str(place / "tiny.toml"), "--processes", "1", "--store",
            str(tmp_path / "store"), "--out", str(tmp_path / "out")]  # fmt: skip
    running = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)
    lines = []
    for text in running.stderr:
        lines.append(text)
        if len(lines) == 4:
            os.killpg(running.pid, signal.SIGKILL)
            break
    running.wait()
    running.stderr.close()
    time.sleep(0.2)
    assert not (tmp_path / "out" / "results.json").exists()
    done = subprocess.run(line, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert "from the store" in done.stderr
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert 0 < found["trained"] < 12
    whole = json.loads((finished_study[0] / "out" / "results.json").read_text())
    assert without_times(found) == without_times(whole)


@pytest.mark.parametrize(
    ("error", "is_fault"), [(OSError(28, "No space left on device", "stages"), False), (KeyError("dev"), True)]
)
def test_a_full_disk_is_one_line_and_a_fault_of_ours_is_logged(monkeypatch, caplog, error, is_fault):
    def fails(**_):
        raise error

    monkeypatch.setattr("distilcal.study.job.run_job", fails)
    assert executors.run_in_worker({"name": "big"}) == {"error": executors.error_text(error)}
    assert ("Traceback" in caplog.text) == is_fault
