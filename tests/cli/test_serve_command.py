"""``distilcal serve`` in a process of its own, without torch."""

import os
import signal
import subprocess
import sys

import pytest
from processes import children_seconds
from served import dev_rows, fetch, post
from shell import command
from small_onnx import word_probs, write_word_student

BLOCK = "import sys\nsys.modules['torch'] = sys.modules['transformers'] = None\nfrom distilcal.cli.main import main\nmain()"


def test_an_onnx_is_served_without_torch(tmp_path):
    write_word_student(tmp_path / "words.onnx", dev_rows(), required_accuracy=0.8)
    write_word_student(tmp_path / "teacher.onnx", swapped=True)
    begun = children_seconds()
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCK, "serve", "words.onnx", "--port", "0", "--max-batch", "3", "--defer-to", "teacher.onnx"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving words.onnx on http://127.0.0.1:"), process.stderr.read()
        url = line.split()[-1]
        status, _, content = post(f"{url}/predict", {"texts": ["very good", "bad", "film"]})
        assert status == 200
        probs = [answer["probabilities"]["pos"] for answer in content["predictions"]]
        assert probs == pytest.approx([word_probs("very good"), word_probs("bad"), 1 - word_probs("film")], abs=1e-6)
        assert [answer["answered_by"] for answer in content["predictions"]] == ["student", "student", "teacher"]
        assert content["accuracy"] == 0.8
        assert content["model"] == "words.onnx"
        assert post(f"{url}/predict", {"texts": ["a"] * 4})[0] == 413
        assert fetch(f"{url}/health")[2]["limits"]["max_batch"] == 3
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 130
        assert errors.strip() == "stopped"
        assert children_seconds() - begun < 20
    finally:
        process.kill()
        process.communicate()


def test_mistakes_are_one_line(tmp_path):
    write_word_student(tmp_path / "words.onnx")
    refused = command("serve", tmp_path / "words.onnx", "--accuracy", 0.9, code=2)
    assert "no dev predictions" in refused.stderr
    for host in ("203.0.113.1", "a..b", "a" * 70):
        assert "cannot listen" in command("serve", tmp_path / "words.onnx", "--host", host, code=2).stderr
    assert "there is no such file" in command("serve", tmp_path / "missing.onnx", code=2).stderr
    deferring = ["serve", tmp_path / "words.onnx", "--threshold", 0.8, "--defer-to"]
    assert "there is no such file" in command(*deferring, tmp_path / "missing.onnx", code=2).stderr
    assert "is not the URL of a service" in command(*deferring, "http://", code=2).stderr


def test_the_log_is_shown(tmp_path):
    write_word_student(tmp_path / "words.onnx")
    deferring = ["--threshold", 0.8, "--defer-to", "http://127.0.0.1:1"]
    shown = command("serve", tmp_path / "words.onnx", *deferring, "--host", "203.0.113.1", code=2).stderr
    assert "note: teacher http://127.0.0.1:1: it cannot be reached: Connection refused; what is deferred is handed" in shown
