"""SIGTERM and SIGHUP end a command as Ctrl-C does: its state is saved, one line is printed, the exit code names the signal."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import click
import pytest
from served import fetch
from small_onnx import write_word_student
from tiny import save_model, write_csv

from distilcal.cli import signals
from distilcal.cli.main import Commands
from distilcal.cli.signals import StoppedBySignal, stop_on_signals

CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129}
LINES = {signal.SIGINT: "stopped", signal.SIGTERM: "stopped by SIGTERM", signal.SIGHUP: "stopped by SIGHUP"}
# A program that gets a signal at a moment of its own choice, and is then the command line.
WHEN_CLICK_IS_IMPORTED = """
class Sender:
    def find_spec(self, name, *_):
        if name == "click":
            send()
sys.meta_path.insert(0, Sender())
"""
WHEN_IT_ENDS = "import atexit\natexit.register(send)\n"
WHEN_PYTHON_ENDS = """
class Last:
    def __del__(self, send=send):
        send()
sys.last = Last()
"""
WITH_A_THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


def start(*arguments, before=None):
    """A command; ``before`` is called in its process, before it is the command."""
    return subprocess.Popen(
        [sys.executable, "-m", "distilcal", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def ignore_hangup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def block_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, LINES)


def exit_code_of(work):
    """The exit code of a command that does this."""

    @click.group(cls=Commands)
    def group():
        pass

    group.command("work")(work)
    with pytest.raises(SystemExit) as ended:
        group(["work"])
    return ended.value.code


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
    process = start("run", recipe, "--out", tmp_path / "run", "--store", tmp_path / "store", before=ignore_hangup)
    wait_for(lambda: checkpoints(tmp_path, "last.safetensors"), process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.terminate()
    process.communicate(timeout=3000)
    assert process.returncode == 143


@pytest.mark.parametrize("before", [None, block_signals], ids=["", "blocked by the parent"])
@pytest.mark.parametrize("number", CODES)
def test_a_service_that_a_signal_stops_says_so(tmp_path, number, before):
    write_word_student(tmp_path / "words.onnx")
    process = start("serve", tmp_path / "words.onnx", "--port", "0", before=before)
    line = process.stdout.readline()
    assert line.startswith("Serving")
    assert fetch(f"{line.split()[-1]}/health")[0] == 200  # by then uvicorn has its handlers
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == CODES[number], errors
    assert errors.strip() == f"stopped by {number.name}"


@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM)])
def test_the_first_of_two_signals_decides_how_a_service_ends(tmp_path, first, second):
    write_word_student(tmp_path / "words.onnx")
    process = start("serve", tmp_path / "words.onnx", "--port", "0")
    url = process.stdout.readline().split()[-1]
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        client.sendall(b"Content-Length: 50\r\n\r\n{")
        wait_for(lambda: fetch(f"{url}/health")[2]["pending"], process)
        process.send_signal(first)
        time.sleep(0.5)  # it waits for the request
        process.send_signal(second)
        if second != signal.SIGINT:
            client.close()
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (128 + first, f"{LINES[first]}\n")


def run_with_signal(number, moment, *arguments):
    program = f"""
import os, runpy, sys
def send(kill=os.kill, process=os.getpid()):
    kill(process, {int(number)})
{moment}
sys.argv = ["distilcal", *{list(arguments)!r}]
runpy.run_module("distilcal", run_name="__main__")
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("number", LINES)
def test_a_signal_while_the_command_line_is_imported_is_one_line(number):
    done = run_with_signal(number, WHEN_CLICK_IS_IMPORTED, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"{LINES[number]}\n")


@pytest.mark.parametrize(
    "moment",
    [WHEN_IT_ENDS, WHEN_PYTHON_ENDS, WITH_A_THREAD + WHEN_PYTHON_ENDS],
    ids=["exit", "finalization", "finalization with a thread"],
)
@pytest.mark.parametrize("number", LINES)
def test_a_signal_after_the_end_of_a_command_leaves_its_exit_code(number, moment):
    done = run_with_signal(number, moment, "eval", "missing.csv")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no such file" in done.stderr


@pytest.mark.parametrize("second", LINES)
@pytest.mark.parametrize("first", LINES)
def test_a_second_signal_interrupts_neither_the_closing_nor_the_message(first, second, capsys):
    closed = []

    def work():
        try:
            signal.raise_signal(first)
        finally:
            signal.raise_signal(second)
            closed.append(True)

    code = exit_code_of(work)
    assert (code, closed) == (128 + first, [True])
    assert capsys.readouterr().err.strip() == LINES[first]


def test_a_signal_that_a_library_keeps_to_itself_can_be_sent_again(monkeypatch):
    monkeypatch.setattr(signals, "CLOSING_SECONDS", 0.01)
    with pytest.raises(StoppedBySignal), stop_on_signals():
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException:
            time.sleep(0.05)
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", LINES)
def test_a_signal_that_comes_in_a_finaliser_stops_the_command_too(number, capfd):
    """Python goes on after it, and would only show a traceback."""

    class Closing:
        def __del__(self):
            signal.raise_signal(number)

    def work():
        Closing()
        time.sleep(300)

    started = time.monotonic()
    code = exit_code_of(work)
    assert time.monotonic() - started < 100  # it did not wait for the end of the system call
    assert (code, capfd.readouterr().err.strip()) == (128 + number, LINES[number])


@pytest.mark.parametrize("number", LINES)
def test_a_signal_waits_until_a_module_is_imported(number, tmp_path, monkeypatch, capfd):
    """In the C++ of torch's import, an exception would abort the process."""
    (tmp_path / f"slow_{number}.py").write_text(f"""
import signal, time
signal.raise_signal({int(number)})
time.sleep(0.1)
open({str(tmp_path / "complete")!r}, "w").close()
""")
    monkeypatch.syspath_prepend(tmp_path)

    def work():
        importlib.import_module(f"slow_{number}")
        time.sleep(10)

    code = exit_code_of(work)
    assert (code, capfd.readouterr().err.strip()) == (128 + number, LINES[number])
    assert (tmp_path / "complete").exists()


@pytest.mark.parametrize("number", LINES)
def test_a_library_that_a_signal_stops_may_fail_in_its_own_way(number, capsys):
    def work():
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise ImportError("cannot load the library") from None

    code = exit_code_of(work)
    assert (code, capsys.readouterr().err) == (128 + number, f"{LINES[number]}\n")


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
