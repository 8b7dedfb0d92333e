"""SIGTERM and SIGHUP end a command as Ctrl-C does: its state is saved, one line is printed, the exit code names the signal."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from served import fetch
from small_onnx import write_word_student
from tiny import save_model, write_csv

from distilcal.cli.signals import StoppedBySignal, stop_on_signals

CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129}


def start(*arguments, ignore_hangup=False):
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    return subprocess.Popen(
        [sys.executable, "-m", "distilcal", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=ignore if ignore_hangup else None,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def wait_for(condition, process, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.02)


def checkpoints(folder, name):
    """The checkpoints of a store; only where they can be, since temporary folders elsewhere vanish while they are listed."""
    return list(folder.glob(f"store/work/*/{name}"))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    write_csv(folder / "train.csv", 300, 0, ids=True)
    save_model(folder / "encoder", head=False)
    (folder / "r.toml").write_text(f"""
name = "long"
[data]
train = {str(folder / "train.csv")!r}
[stages.student]
model = {{ name = {str(folder / "encoder")!r}, head = "new" }}
train = {{ epochs = 2000, lr = 0.005 }}
terms = [{{ loss = "cross_entropy" }}]
""")
    return folder / "r.toml"


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES)
def test_a_run_that_a_signal_stops_has_saved_its_state(recipe, tmp_path, number):
    where = ("--out", tmp_path / "run", "--store", tmp_path / "store")
    process = start("run", recipe, *where)
    wait_for(lambda: checkpoints(tmp_path, "previous.safetensors"), process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=3000)
    assert process.returncode == CODES[number], errors
    assert errors.strip().splitlines()[-1] == f"stopped by {number.name}"
    assert "Traceback" not in errors
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("*.lock"))
    assert not list(tmp_path.glob("store/locks/*"))
    resumed = start("run", recipe, *where, "--set", "data.limit=300")  # the same stage
    wait_for(lambda: checkpoints(tmp_path, "previous.safetensors"), resumed)
    resumed.send_signal(signal.SIGTERM)
    resumed.communicate(timeout=3000)
    assert len(list((tmp_path / "store" / "work").iterdir())) == 1


@pytest.mark.slow
def test_under_nohup_a_run_goes_on(recipe, tmp_path):
    process = start("run", recipe, "--out", tmp_path / "run", "--store", tmp_path / "store", ignore_hangup=True)
    wait_for(lambda: checkpoints(tmp_path, "last.safetensors"), process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.terminate()
    process.communicate(timeout=3000)
    assert process.returncode == 143


@pytest.mark.parametrize("number", CODES)
def test_a_service_that_a_signal_stops_says_so(tmp_path, number):
    write_word_student(tmp_path / "words.onnx")
    process = start("serve", tmp_path / "words.onnx", "--port", "0")
    line = process.stdout.readline()
    assert line.startswith("Serving")
    assert fetch(f"{line.split()[-1]}/health")[0] == 200  # by then uvicorn has its handlers
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == CODES[number], errors
    assert errors.strip() == f"stopped by {number.name}"


def test_handlers_are_restored_and_a_second_signal_does_not_interrupt_the_closing():
    closed = False
    with pytest.raises(StoppedBySignal, match="SIGTERM"), stop_on_signals():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
            closed = True
    assert closed
    assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_signals_that_come_together_are_one_without_a_complaint_of_python(capfd):
    both = {signal.SIGTERM, signal.SIGHUP}
    with pytest.raises(StoppedBySignal), stop_on_signals():
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
        for number in both:
            os.kill(os.getpid(), number)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)  # now both are there before Python handles the first
        finally:
            time.sleep(0.01)
    assert capfd.readouterr().err == ""


def test_other_threads_are_left_alone():
    entered = []

    def enter():
        with stop_on_signals():
            entered.append(1)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered
