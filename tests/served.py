"""Students that need no model, and real servers that serve them, for the tests of the service."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from distilcal.inference import Student
from distilcal.predictions import Predictions


class Lengths:
    """Logits that grow with the length of a text."""

    def compute_logits(self, data, on_progress=None):
        return np.array([[0.0, len(text) - 5.0] for text in data.inputs.text])


class Undecided:
    """The same probability for every class."""

    def __init__(self, classes):
        self.classes = classes

    def compute_logits(self, data, on_progress=None):
        return np.zeros((len(data), self.classes))


def undecided_student(classes=("short", "long"), input_kind="texts"):
    return Student(Undecided(len(classes)), classes, input_kind)


def dev_rows(count=2000):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, count)
    return Predictions.from_confidences(confidence, rng.random(count) < confidence, name="dev")


def length_student(**settings):
    return Student(Lengths(), ("short", "long"), "texts", **settings)


def promising_student():
    return length_student(dev=dev_rows(), name="/somewhere/on/disk/lengths.onnx")


@contextmanager
def server_in_thread(student, **settings):
    """The URL of a server in a thread of this process."""
    from distilcal.serve import create_app
    from distilcal.serve.server import build_server, listen

    app = create_app(student, **settings)
    server = build_server(app, settings.get("max_requests", 256))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


PROGRAM = """
import served
from distilcal.serve import serve
serve(served.{student}(), port=0, on_start=lambda url: print(url, flush=True), **{settings})
"""


@contextmanager
def server_process(student="promising_student", **settings):
    """The URL and the process of a server."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(student=student, settings=settings)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    try:
        url = process.stdout.readline().strip()
        assert url, process.stderr.read()
        yield url, process
    finally:
        process.kill()
        process.communicate()


def post(url, content, *, content_type="application/json"):
    """Status, headers and content of the answer to a request."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    request = urllib.request.Request(url, body, {"Content-Type": content_type})
    return fetch(request)


def fetch(request):
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers, _content(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, _content(error)


def _content(answer):
    text = answer.read().decode()
    return json.loads(text) if answer.headers.get_content_type() == "application/json" else text


class Slow(Lengths):
    """Takes a second."""

    def compute_logits(self, data, on_progress=None):
        time.sleep(1)
        return super().compute_logits(data)


def slow_student():
    return Student(Slow(), ("short", "long"), "texts")
