"""What a kill leaves behind: the run resumes to the same weights and numbers."""

import json
import signal
import subprocess
import sys

import pytest
from run_cases import recipe_file

KILLED = """
import os, signal, sys
import distilcal.training.checkpoint as checkpoint
import distilcal.training.loop as loop
point, count = sys.argv[1], int(sys.argv[2])
calls = {"n": 0}
def die():
    calls["n"] += 1
    if calls["n"] == count:
        os.kill(os.getpid(), signal.SIGKILL)
if point == "step":
    step = loop.add_gradient
    def backward(self, *a):
        die(); return step(self, *a)
    loop.add_gradient = backward
elif point == "save":
    save = checkpoint.save_file
    def half(tensors, path, metadata):
        calls["n"] += 1
        if calls["n"] == count:
            save(tensors, path, metadata)
            with open(path, "r+b") as file:
                file.truncate(os.path.getsize(path) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return save(tensors, path, metadata)
    checkpoint.save_file = half
elif point == "rename":
    replace = os.replace
    def renamed(a, b):
        replace(a, b); die()
    os.replace = renamed
from distilcal.cli.main import main
sys.argv = ["distilcal", *sys.argv[3:]]
main()
"""


def launch(program, *arguments):
    command_line = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command_line, capture_output=True, text=True, timeout=1200)


@pytest.fixture(scope="module")
def uninterrupted(place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    path = recipe_file(place, folder / "r.toml", terms='{ loss = "cross_entropy" }, { loss = "kd" }, { loss = "crl" }')
    path.write_text(path.read_text().replace("epochs = 1", "epochs = 3"))
    done = launch(KILLED, "never", 0, "run", path, "--out", folder / "run", "--store", folder / "store")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "count"), [("step", 5), ("step", 30), ("save", 1), ("save", 4), ("rename", 5), ("rename", 14)]
)
def test_a_killed_run_goes_on_to_the_same_weights_and_metrics(uninterrupted, tmp_path, point, count):
    arguments = ("run", uninterrupted / "r.toml", "--out", tmp_path / "run", "--store", tmp_path / "store")
    killed = launch(KILLED, point, count, *arguments)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "run" / "metrics.json").exists()
    done = launch(KILLED, "never", 0, *arguments)
    assert done.returncode == 0, done.stderr
    for stage in ("teacher", "student"):
        a, b = (folder / "run" / stage for folder in (uninterrupted, tmp_path))
        assert (a / "model" / "model.safetensors").read_bytes() == (b / "model" / "model.safetensors").read_bytes()
        histories = [json.loads((f / "history.json").read_text()) for f in (a, b)]
        assert [h["dev"] for h in histories[0]] == [h["dev"] for h in histories[1]]
        sets = [json.loads((f / "stage.json").read_text())["sets"] for f in (a, b)]
        assert sets[0] == sets[1]
    assert not list((tmp_path / "store").rglob("*.part/*")) or point == "rename"


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from distilcal.cli.main import main
main()
"""


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_nothing_is_half_written(place, tmp_path):
    path = recipe_file(place, tmp_path / "r.toml")
    arguments = ["run", path, "--out", tmp_path / "run", "--store", tmp_path / "store"]
    done = launch(FULL, *arguments)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert not list((tmp_path / "store").rglob("*.part"))
    assert launch(KILLED, "never", 0, *arguments).returncode == 0
