"""A service defers to a teacher: a model of its own or another service, which may be down, slow or talk nonsense."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from served import dev_rows, fetch, length_student, post, promising_student, server_in_thread, undecided_student

from distilcal.errors import InputError, TeacherError
from distilcal.inference import Student, remote
from distilcal.serve import app as app_module
from distilcal.serve import create_app

# The student is sure of the first and the last.
TEXTS = ["a", "abcdef", "abcd", "abcdef", "abcdefghijklmno"]


class Always:
    """Is sure of the second class."""

    def compute_logits(self, data, on_progress=None):
        return np.array([[0.0, 3.0]] * len(data))


def short_teacher():
    return Student(Always(), ("long", "short"), "texts", name="/somewhere/teacher.onnx")


def answered(answers, key="label"):
    return [answer[key] for answer in answers["predictions"]]


@contextmanager
def fake_service(answer, *, classes=("short", "long"), health=200, **more):
    """The URL of a service that answers every request with what a function makes of it, and the bodies that it got."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(health, {"input_kind": "texts", "classes": classes, **more})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            self.reply(*answer(body))

        def reply(self, status, content):
            content = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if 300 <= status < 400:
                self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
            self.end_headers()
            with suppress(OSError):  # who asked has left
                self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def labels(label, **more):
    return lambda body: (200, {"predictions": [{"label": label, "confidence": 0.9, **more}] * len(body["texts"])})


def test_a_model_answers_what_is_deferred():
    with server_in_thread(promising_student(), confidence=0.8, defer_to=short_teacher()) as url:
        status, _, content = post(f"{url}/predict", {"texts": TEXTS})
        assert status == 200
        assert answered(content) == ["short", "short", "short", "short", "long"]
        assert answered(content, "answered_by") == ["student", "teacher", "teacher", "teacher", "student"]
        assert answered(content, "deferred") == [False, True, True, True, False]
        assert answered(content, "hand_over") == [False] * 5
        assert answered(content, "reason") == [None] * 5
        sure = 1 / (1 + np.exp(-3))
        assert content["predictions"][1]["probabilities"] == pytest.approx({"short": sure, "long": 1 - sure})
        assert content["predictions"][1]["confidence"] == pytest.approx(sure)
        assert (content["accuracy"], content["threshold"]) == (None, 0.8)
        health = fetch(f"{url}/health")[2]
        assert health["teacher"] == {"name": "teacher.onnx", "is_service": False, "failing": False}
        assert health["counts"] == {"examples": 5, "deferred": 3, "by_teacher": 3}
        alone = post(f"{url}/predict", {"texts": TEXTS, "defer": False})[2]
        assert answered(alone) == length_student().predict(TEXTS)
        assert answered(alone, "hand_over") == [False, True, True, True, False]
        assert set(answered(alone, "answered_by")) == {"student"}


def test_a_request_may_choose_the_accuracy():
    with server_in_thread(promising_student(), confidence=0.5, defer_to=short_teacher()) as url:
        assert answered(post(f"{url}/predict", {"texts": TEXTS})[2], "deferred") == [False] * 5
        content = post(f"{url}/predict", {"texts": TEXTS, "accuracy": 0.9})[2]
        assert answered(content, "deferred") == [False, True, True, True, False]
        assert content["threshold"] == promising_student().threshold(0.9).confidence


def test_without_a_teacher_a_request_may_ask_for_no_label():
    with server_in_thread(promising_student(), confidence=0.8) as url:
        content = post(f"{url}/predict", {"texts": TEXTS, "defer": True})[2]
        assert answered(content) == ["short", None, None, None, "long"]
        assert answered(content, "hand_over") == [False, True, True, True, False]
        assert answered(content, "reason")[:2] == [None, "the confidence is below the threshold"]
        assert content["predictions"][1]["confidence"] == length_student().predict_proba(["abcdef"]).max()
        assert fetch(f"{url}/health")[2]["teacher"] is None
        usual = post(f"{url}/predict", {"texts": TEXTS})[2]
        assert answered(usual) == length_student().predict(TEXTS)
        assert answered(usual, "deferred") == [False] * 5


def test_nothing_is_deferred_where_nothing_can_be_promised():
    with server_in_thread(length_student()) as url:
        status, _, content = post(f"{url}/predict", {"texts": TEXTS, "defer": True})
        assert status == 422
        assert "no dev predictions" in content["error"]
    with pytest.raises(InputError, match="no dev predictions"):
        create_app(length_student(), defer_to=short_teacher())


def test_another_service_answers_what_is_deferred():
    with (
        server_in_thread(short_teacher()) as teacher,
        server_in_thread(promising_student(), confidence=0.8, defer_to=f"{teacher}/predict") as url,
    ):
        content = post(f"{url}/predict", {"texts": TEXTS})[2]
        assert answered(content) == ["short", "short", "short", "short", "long"]
        assert answered(content, "answered_by") == ["student", "teacher", "teacher", "teacher", "student"]
        assert content["predictions"][1]["probabilities"]["short"] == pytest.approx(1 / (1 + np.exp(-3)))
        assert fetch(f"{teacher}/health")[2]["counts"]["examples"] == 2  # equal texts are asked about once
        health = fetch(f"{url}/health")[2]
        assert health["teacher"] == {"name": "another service", "is_service": True, "failing": False}
        assert teacher not in json.dumps([health, content])


def test_a_service_that_is_down_hands_over(caplog):
    with server_in_thread(promising_student(), confidence=0.8, defer_to="http://127.0.0.1:1") as url:
        assert "teacher http://127.0.0.1:1: it cannot be reached: Connection refused; what is deferred is handed" in caplog.text
        for _ in range(2):
            status, _, content = post(f"{url}/predict", {"texts": TEXTS})
            assert status == 200
            assert answered(content) == ["short", None, None, None, "long"]
            assert answered(content, "deferred") == answered(content, "hand_over") == [False, True, True, True, False]
            assert answered(content, "reason")[1] == "the teacher failed; the log of the service says why"
        assert len(caplog.records) == 2  # at the start, and for the first request
        assert fetch(f"{url}/health")[2]["teacher"]["failing"] is True


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda body: (200, {"predictions": []}), "expected 2 predictions, got 0"),
        (lambda body: (200, {"predictions": [1, 2]}), "expected 2 predictions, got 2"),
        (lambda body: (200, []), "expected 2 predictions, got none"),
        (lambda body: (200, b"{"), "status 200 and no JSON"),
        (lambda body: (200, b"[" * 100_000), "no JSON"),
        (lambda body: (200, b" " * 20_000), "no JSON"),
        (lambda body: (200, b'"' + b"a" * 3000), "larger than 2,000 bytes"),
        (lambda body: (500, {"error": "out of memory"}), "status 500: out of memory"),
        (lambda body: (404, b"nothing"), "status 404 and no JSON"),
        (lambda body: (302, {}), "status 302"),
        (labels("medium"), "does not know the class 'medium'"),
        (labels(3), "one of its labels is not a text"),
        (labels("long", confidence=7), "7 is not a probability"),
        (labels("long", confidence="high"), "'high' is not a probability"),
        (labels("long", confidence=True), "True is not a probability"),
        (labels("long", probabilities=[1]), "not those of the student's classes"),
        (labels("long", probabilities={"medium": 1}), "not those of the student's classes"),
        (labels("long", probabilities={"long": -1}), "-1 is not a probability"),
        (labels("long", probabilities={"short": 0.4, "long": None}), "do not sum to 1"),
        (labels("long", probabilities={"short": 1, "long": 1}), "do not sum to 1"),
        (labels("long", probabilities={}), "do not sum to 1"),
        (labels("long", probabilities={"short": 0.9, "long": 0.1}), "has the label 'long', but 'short' is more probable"),
    ],
)
def test_a_service_that_talks_nonsense_hands_over(answer, message, caplog, monkeypatch):
    if "larger" in message:
        monkeypatch.setattr(remote, "MAX_ANSWER", 2000)
    with fake_service(answer) as (teacher, _), server_in_thread(promising_student(), confidence=0.8, defer_to=teacher) as url:
        status, _, content = post(f"{url}/predict", {"texts": TEXTS})
        assert status == 200
        assert answered(content) == ["short", None, None, None, "long"]
    assert message in caplog.text


def test_a_service_recovers(caplog):
    broken = [True]

    def answer(body):
        return (500, {}) if broken[0] else labels("long")(body)

    with fake_service(answer) as (teacher, _), server_in_thread(promising_student(), confidence=0.8, defer_to=teacher) as url:
        assert answered(post(f"{url}/predict", {"texts": ["abcd"]})[2]) == [None]
        broken[0] = False
        content = post(f"{url}/predict", {"texts": ["abcd"]})[2]
        assert content["predictions"][0]["label"] == "long"
        assert content["predictions"][0]["probabilities"] is None  # it gave none
        assert fetch(f"{url}/health")[2]["teacher"]["failing"] is False


def test_a_busy_service_is_asked_once_more():
    statuses = [503, 200, 503, 503]

    def answer(body):
        return (status, {"error": "busy"}) if (status := statuses.pop(0)) != 200 else labels("long")(body)

    with fake_service(answer) as (teacher, bodies):
        student = undecided_student()
        assert student.predict(["a"], confidence=0.9, defer_to=teacher)[0].label == "long"
        with pytest.raises(TeacherError, match="status 503: busy"):
            student.predict(["a"], confidence=0.9, defer_to=teacher)
    assert len(bodies) == 4


def test_a_slow_service_is_given_up(monkeypatch):
    go_on = threading.Event()

    def answer(body):
        go_on.wait(120)
        return labels("long")(body)

    with fake_service(answer) as (teacher, bodies):
        slow = remote.remote_teacher(teacher, ("short", "long"), "texts", seconds=1)
        with pytest.raises(TeacherError, match="did not answer within 1 seconds"):
            undecided_student().predict(["a"], confidence=0.9, defer_to=slow)
        go_on.set()
    assert len(bodies) == 1


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["status", "headers", "body"])
def test_a_service_that_sends_byte_after_byte_is_given_up(start):
    def drip(listener):
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # who asked has left
            connection.sendall(start)
            for _ in range(3000):
                connection.sendall(b"1")
                time.sleep(0.02)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=[listener])
        thread.start()
        begin = time.monotonic()
        with pytest.raises(TeacherError, match=r"did not answer within 0\.3 seconds"):
            remote.remote_teacher(f"http://127.0.0.1:{listener.getsockname()[1]}", ("short", "long"), "texts", seconds=0.3)
        assert time.monotonic() - begin < 30  # all of it takes a minute
        thread.join()


def test_the_limits_of_a_service_are_kept():
    limits = {"max_batch": 3, "max_bytes": 60}
    with fake_service(labels("long"), limits=limits) as (teacher, bodies):
        texts = ["a", "b", "c", "d", "e" * 30, "f" * 30, "g", "h"]
        assert len(undecided_student().predict(texts, confidence=0.9, defer_to=teacher)) == 8
    assert [body["texts"] for body in bodies] == [["a", "b", "c"], ["d", "e" * 30], ["f" * 30, "g", "h"]]
    assert all(len(json.dumps(body)) <= 60 for body in bodies)


def test_a_service_that_was_down_is_checked_before_it_is_asked():
    with fake_service(labels("long"), limits={"max_batch": 2}) as (url, bodies):
        teacher = remote.remote_teacher(url, ("short", "long"), "texts", check=False)
        answers = undecided_student().predict(["a", "b", "c"], confidence=0.9, defer_to=teacher)
        assert [answer.label for answer in answers] == ["long"] * 3
    assert [body["texts"] for body in bodies] == [["a", "b"], ["c"]]
    with fake_service(labels("long"), input_kind="images") as (url, bodies):
        teacher = remote.remote_teacher(url, ("short", "long"), "texts", check=False)
        for _ in range(2):
            with pytest.raises(TeacherError, match="it reads images, the student texts"):
                undecided_student().predict(["a"], confidence=0.9, defer_to=teacher)
    assert bodies == []


def test_a_service_that_failed_is_checked_again():
    limits = {"max_batch": 4}

    def answer(body):
        return labels("long")(body) if len(body["texts"]) <= limits["max_batch"] else (413, {"error": "too many"})

    with fake_service(answer, limits=limits) as (url, bodies):
        student = undecided_student()
        teacher = student.teacher(url)
        limits["max_batch"] = 2
        with pytest.raises(TeacherError, match="too many"):
            student.predict(["a", "b", "c"], confidence=0.9, defer_to=teacher)
        assert len(student.predict(["a", "b", "c"], confidence=0.9, defer_to=teacher)) == 3
    assert [len(body["texts"]) for body in bodies] == [3, 2, 1]


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"classes": ["short", "medium"]}, "does not know the class 'medium'"),
        ({"classes": "none"}, "not a service of distilcal"),
        ({"input_kind": "images"}, "it reads images, the student texts"),
        ({"health": 404}, "answered with status 404"),
    ],
)
def test_services_that_do_not_fit_are_refused_at_the_start(service, message):
    with fake_service(labels("long"), **service) as (teacher, _), pytest.raises((InputError, TeacherError), match=message):
        undecided_student().teacher(teacher)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://", "is not the URL of a service"),
        ("http://a:99999999", "is not the URL of a service"),
        ("http://a/?x=1", "is not the URL of a service"),
        ("http://me:secret@a", "holds a user or a password"),
    ],
)
def test_urls_are_checked(url, message):
    with pytest.raises(InputError, match=message):
        undecided_student().teacher(url)


def test_names_that_no_machine_can_have_cannot_be_reached():
    with pytest.raises(TeacherError, match="cannot be reached"):
        undecided_student().teacher("http://a..b")


def test_the_address_is_never_taken_from_a_request():
    with server_in_thread(promising_student(), confidence=0.8) as url:
        for key in ("defer_to", "url", "teacher"):
            status, _, content = post(f"{url}/predict", {"texts": ["abcd"], "defer": True, key: "http://127.0.0.1:1"})
            assert status == 422
            assert f"unknown key '{key}'" in content["error"]


def test_images_and_vectors_are_sent():
    class Bright:
        def compute_logits(self, data, on_progress=None):
            bright = data.inputs.pixels.mean(axis=(1, 2, 3)) > 100
            return np.where(bright[:, None], [[0.0, 5.0]], [[5.0, 0.0]])

    class Positive:
        def compute_logits(self, data, on_progress=None):
            return np.column_stack([-data.inputs.values[:, 0], data.inputs.values[:, 0]])

    classes = ("dark", "bright")
    with server_in_thread(Student(Bright(), classes, "images")) as teacher:
        images = np.array([np.full((4, 4, 3), value) for value in (200, 10)], dtype=np.uint8)
        answers = undecided_student(classes, "images").predict(images, confidence=0.9, defer_to=teacher)
        assert [answer.label for answer in answers] == ["bright", "dark"]
    with server_in_thread(Student(Positive(), classes, "vectors")) as teacher:
        answers = undecided_student(classes, "vectors").predict(np.eye(2) - 0.5, confidence=0.9, defer_to=teacher)
        assert [answer.label for answer in answers] == ["bright", "dark"]


def test_a_slow_teacher_holds_up_nobody_else():
    begun, go_on = threading.Event(), threading.Event()

    def waits(texts):
        begun.set()
        go_on.wait(120)
        return ["long"] * len(texts)

    with server_in_thread(promising_student(), confidence=0.8, defer_to=waits) as url:
        answers = []
        client = threading.Thread(target=lambda: answers.append(post(f"{url}/predict", {"texts": ["abcd"]})[2]))
        client.start()
        assert begun.wait(120)
        assert answered(post(f"{url}/predict", {"texts": ["a"]})[2]) == ["short"]
        go_on.set()
        client.join()
        assert answered(answers[0]) == ["long"]


def test_requests_that_wait_for_the_teacher_leave_the_queue():
    begun, go_on = threading.Event(), threading.Event()

    def waits(texts):
        begun.set()
        go_on.wait(120)
        return ["long"] * len(texts)

    with (
        server_in_thread(promising_student(), confidence=0.8, defer_to=waits, max_requests=2) as url,
        ThreadPoolExecutor(2) as clients,
    ):
        waiting = [clients.submit(post, f"{url}/predict", {"texts": ["abcd"]}) for _ in range(2)]
        assert begun.wait(120)
        while fetch(f"{url}/health")[2]["pending"] < 2:
            time.sleep(0.01)
        status, _, content = post(f"{url}/predict", {"texts": ["a"]})
        assert (status, answered(content)) == (200, ["short"])
        status, _, content = post(f"{url}/predict", {"texts": TEXTS})  # as many wait as may
        assert status == 200
        assert answered(content) == ["short", None, None, None, "long"]
        assert answered(content, "hand_over") == answered(content, "deferred") == [False, True, True, True, False]
        assert answered(content, "reason")[1] == "the teacher is busy"
        assert fetch(f"{url}/health")[2]["teacher"]["failing"] is False
        go_on.set()
        assert [answered(client.result()[2]) for client in waiting] == [["long"]] * 2


def test_a_service_that_is_too_slow_gets_a_pause(monkeypatch):
    now = 100.0
    monkeypatch.setattr(app_module, "time", SimpleNamespace(monotonic=lambda: now))
    go_on = threading.Event()

    def answer(body):
        go_on.wait(120)
        return labels("long")(body)

    with fake_service(answer) as (service, bodies):
        teacher = remote.remote_teacher(service, ("short", "long"), "texts", seconds=1)
        with server_in_thread(promising_student(), confidence=0.8, defer_to=teacher) as url:
            first, second = (post(f"{url}/predict", {"texts": ["abcd"]})[2] for _ in range(2))
            assert answered(first, "reason") == ["the teacher failed; the log of the service says why"]
            assert answered(second) == [None]
            assert answered(second, "reason") == ["the teacher did not answer in time and is not asked for a few seconds"]
            assert len(bodies) == 1
            assert fetch(f"{url}/health")[2]["teacher"]["failing"] is True
            go_on.set()
            now += app_module.PAUSE_SECONDS
            assert answered(post(f"{url}/predict", {"texts": ["abcd"]})[2]) == ["long"]
            assert fetch(f"{url}/health")[2]["teacher"]["failing"] is False


def test_requests_that_wait_when_a_pause_begins_are_handed_over():
    count = 2 * app_module.SERVICE_THREADS  # half of them wait for a thread

    def answer(body):
        time.sleep(2)
        return labels("long")(body)

    with fake_service(answer) as (service, bodies):
        teacher = remote.remote_teacher(service, ("short", "long"), "texts", seconds=1)
        with (
            server_in_thread(promising_student(), confidence=0.8, defer_to=teacher) as url,
            ThreadPoolExecutor(count) as clients,
        ):
            contents = list(clients.map(lambda _: post(f"{url}/predict", {"texts": ["abcd"]})[2], range(count)))
    reasons = [answered(content, "reason")[0] for content in contents]
    assert set(reasons) == {app_module.TEACHER_FAILED, app_module.TEACHER_PAUSED}
    assert len(bodies) <= app_module.SERVICE_THREADS


def test_a_teacher_that_cannot_be_loaded_stops_the_start(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        create_app(length_student(dev=dev_rows()), defer_to=tmp_path / "missing.onnx")
    assert app_module.find_teacher(length_student(), "http://127.0.0.1:1").is_service
