"""The front door as a stranger uses it: a killed call, and an .onnx in a light process."""

import json
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import save_model, sentences

EXPORTS = all(find_spec(package) for package in ("onnx", "onnxscript", "onnxruntime"))

KILLED = """
import json, os, signal, sys
import numpy as np
import distilcal as dc
import distilcal.training.loop as loop
from distilcal.pipeline import asking
asking.CHUNK = 50
point, count = sys.argv[1], int(sys.argv[2])
calls = {"answer": 0, "step": 0}

def die(where):
    calls[where] += 1
    if where == point and calls[where] == count:
        os.kill(os.getpid(), signal.SIGKILL)

step = loop.add_gradient
def backward(self, *arguments):
    die("step")
    return step(self, *arguments)
loop.add_gradient = backward

def teacher(texts):
    die("answer")
    positive = np.array([0.1 + 0.8 * (len(text) % 7) / 7 for text in texts])
    return np.column_stack([1 - positive, positive])

rows = json.load(open("rows.json"))
dc.distill(rows, teacher, student="encoder", epochs=2, lr=0.005, out=sys.argv[3], store=sys.argv[4], progress=False)
print(calls["answer"])
"""


def launch(folder, program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("front")
    save_model(folder / "encoder", head=False)
    (folder / "rows.json").write_text(json.dumps(list(zip(*sentences(300, 0), strict=True))))
    done = launch(folder, KILLED, "never", 0, "whole", "store")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 8  # train 210, dev 30 and test 60 in chunks of 50
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("point", "count", "answers"), [("answer", 4, 5), ("step", 9, 0)])
def test_a_killed_call_goes_on_to_the_same_numbers(uninterrupted, tmp_path, point, count, answers):
    where = (tmp_path / "run", tmp_path / "store")
    killed = launch(uninterrupted, KILLED, point, count, *where)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = launch(uninterrupted, KILLED, "never", 0, *where)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == answers  # what was answered is not asked again
    expected = json.loads((uninterrupted / "whole" / "metrics.json").read_text())["stages"]
    stages = json.loads((where[0] / "metrics.json").read_text())["stages"]
    for name, stage in expected.items():
        assert stages[name]["sets"] == stage["sets"]
        assert stages[name]["key"] == stage["key"]
    assert not (where[0] / "data" / "answers").exists()


LIGHT = """
import sys
import distilcal as dc
assert "numpy" not in sys.modules
student = dc.load(sys.argv[1])
print(student.predict(["a great film"])[0], student.predict_proba(["a great film"]).shape)
print(sorted(name for name in ("torch", "transformers", "pydantic", "pandas", "datasets") if name in sys.modules))
"""


@pytest.mark.slow
@pytest.mark.skipif(not EXPORTS, reason="the extra export is not installed")
def test_an_onnx_needs_neither_torch_nor_transformers(tmp_path):
    from distilcal.export import load_student

    load_student(save_model(tmp_path / "model", labels=("neg", "pos"))).export_onnx(tmp_path / "student.onnx")
    done = launch(tmp_path, LIGHT, tmp_path / "student.onnx")
    assert done.returncode == 0, done.stderr
    answer, packages = done.stdout.splitlines()
    assert answer.endswith("(1, 2)")
    assert packages == "[]"
