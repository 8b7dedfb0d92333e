"""The service answers with the student's own probabilities, and refuses what it cannot read with one clear sentence."""

import json
import os
import socket
import threading
import time
from urllib.parse import urlparse

import numpy as np
import pytest
from served import Lengths, fetch, length_student, post, promising_student, server_in_thread

from distilcal.errors import InputError
from distilcal.inference import Student
from distilcal.predictions import Predictions
from distilcal.serve import create_app


@pytest.fixture(scope="module")
def url():
    with server_in_thread(promising_student(), max_batch=5, max_bytes=2000, max_chars=100) as url:
        yield url


def refused(answer):
    """The status and the message of an error; nothing else is in it."""
    status, _, content = answer
    assert list(content) == ["error"]
    return status, content["error"]


def test_answers_are_those_of_the_student(url):
    texts = ["abc", "abcdefghijkl", "abcdef"]
    status, _, content = post(f"{url}/predict", {"texts": texts})
    assert status == 200
    student = promising_student()
    probs = student.predict_proba(texts)
    answers = content["predictions"]
    assert [list(answer["probabilities"].values()) for answer in answers] == probs.tolist()
    assert [answer["label"] for answer in answers] == student.predict(texts) == ["short", "long", "long"]
    assert [answer["confidence"] for answer in answers] == probs.max(axis=1).tolist()
    promised = student.predict(texts, accuracy=0.95)
    assert [answer["hand_over"] for answer in answers] == [answer.label is None for answer in promised] == [True, False, True]
    assert content["threshold"] == student.threshold(0.95).confidence
    assert content["accuracy"] == 0.95
    assert content["model"] == "lengths.onnx"  # not where it is on disk


def test_a_request_may_name_its_accuracy(url):
    _, _, content = post(f"{url}/predict", {"texts": ["abcdefg"], "accuracy": 0.8})
    assert content["accuracy"] == 0.8
    assert content["threshold"] == promising_student().threshold(0.8).confidence
    assert content["predictions"][0]["hand_over"] is False


def test_nothing_is_accepted_with_an_accuracy_of_one(url):
    status, _, content = post(f"{url}/predict", {"texts": ["abcdefghijkl"], "accuracy": 1})
    assert (status, content["accuracy"], content["threshold"]) == (200, 1, None)
    assert content["predictions"][0]["hand_over"] is True


def test_texts_stay_as_they_are(url):
    status, _, content = post(f"{url}/predict", {"texts": ["\0\x1b[2J", "ümläüts", ".", "</script>", "日本語日本語日本語"]})
    assert status == 200
    assert [answer["label"] for answer in content["predictions"]] == ["short", "long", "short", "long", "long"]


def test_pairs_are_read():
    class PairLengths:
        def compute_logits(self, data, on_progress=None):
            return np.array([[len(a), len(b)] for a, b in zip(data.inputs.text, data.inputs.pair, strict=True)], dtype=float)

    with server_in_thread(Student(PairLengths(), ("first", "second"), "texts")) as url:
        _, _, content = post(f"{url}/predict", {"texts": [["long", "a"], ["a", "long"]]})
        assert [answer["label"] for answer in content["predictions"]] == ["first", "second"]
        mixed = refused(post(f"{url}/predict", {"texts": [["long", "a"], "a"]}))
        assert mixed[0] == 422
        assert "expected a pair of texts, got 'a'" in mixed[1]


def test_choices_are_read():
    class EndingLengths:
        def compute_logits(self, data, on_progress=None):
            return np.array([[len(ending) for ending in row] for row in data.inputs.endings], dtype=float)

    with server_in_thread(Student(EndingLengths(), ("0", "1"), "choices"), max_chars=20) as url:
        _, _, content = post(f"{url}/predict", {"choices": [["the cat", ["sleeps", "a"]]]})
        assert content["predictions"][0]["label"] == "0"
        assert refused(post(f"{url}/predict", {"choices": [["the cat", ["sleeps"]]]}))[0] == 422
        assert refused(post(f"{url}/predict", {"choices": [["the cat", ["sleeps", 3]]]}))[0] == 422
        assert "has 27 characters" in refused(post(f"{url}/predict", {"choices": [["the cat", ["a" * 10, "b" * 10]]]}))[1]


def test_vectors_are_read():
    class FirstTwo:
        def compute_logits(self, data, on_progress=None):
            if data.inputs.values.shape[1] != 2:
                raise InputError(f"vectors of {data.inputs.values.shape[1]} numbers", remedy="give 2")
            return data.inputs.values.astype(float)

    with server_in_thread(Student(FirstTwo(), ("a", "b"), "vectors")) as url:
        _, _, content = post(f"{url}/predict", {"vectors": [[1, 2.5], [0, -1]]})
        assert [answer["label"] for answer in content["predictions"]] == ["b", "a"]
        assert refused(post(f"{url}/predict", {"vectors": [[1, 2, 3]]})) == (422, "vectors of 3 numbers; give 2")
        assert "vectors[1] has 1 numbers" in refused(post(f"{url}/predict", {"vectors": [[1, 2], [1]]}))[1]
        assert "not finite" in refused(post(f"{url}/predict", {"vectors": [[1e300, 2]]}))[1]
        for body in (b"[[NaN, 1]]", b"[[Infinity, 1]]", b"[[1e999, 1]]", b'[["1", 2]]', b"[[true, 2]]", b"[[null, 2]]", b"[1]"):
            status, message = refused(post(f"{url}/predict", b'{"vectors": ' + body + b"}"))
            assert status == 422
            assert "expected a list of finite numbers" in message


INVALID = [
    (b"{", 400, "not valid JSON"),
    (b"", 400, "not valid JSON"),
    (b"\xff\xfe", 400, "not valid JSON"),
    (b'{"texts": ["\xff"]}', 400, "not valid JSON"),
    (b'{"texts": ["\\ud800"]}', 400, "not valid JSON"),
    (b'{"texts":' + b"[" * 900 + b"]" * 900 + b"}", 400, "recursion limit"),
    (b'{"texts": ["a"], "accuracy": 1' + b"0" * 1500 + b"}", 422, "between 0 and 1"),
    (b"{}", 422, "the examples are missing"),
    (b"[]", 422, "the examples are missing"),
    (b"null", 422, "the examples are missing"),
    (b'{"text": ["a"]}', 422, 'give {"texts": [...]}'),
    (b'{"texts": ["a"], "acuracy": 0.9}', 422, "unknown key 'acuracy'"),
    (b'{"texts": ["a"], "texts": ["b"]}', 422, "the key 'texts' comes twice; keep one of them"),
    (b'{"texts": ["a"], "accuracy": 0.9, "\\u0061ccuracy": 0.8}', 422, "the key 'accuracy' comes twice"),
    (b'{"accuracy": 1' + b"0" * 1500 + b', "texts": ["a"], "accuracy": 0.9}', 422, "the key 'accuracy' comes twice"),
    (b'{"texts": "a"}', 422, "expected a list of examples"),
    (b'{"texts": []}', 422, "not empty"),
    (b'{"texts": ["a", ""]}', 422, "row 1 (counting from 0): expected a text, got ''"),
    (b'{"texts": ["a", 5]}', 422, "texts[1]: expected a text"),
    (b'{"texts": [["a", "b", "c"]]}', 422, "texts[0]: expected a text"),
    (b'{"texts": ["a"], "accuracy": 2}', 422, "between 0 and 1"),
    (b'{"texts": ["a"], "accuracy": "0.9"}', 422, "between 0 and 1"),
    (b'{"texts": ["a"], "accuracy": NaN}', 422, "between 0 and 1"),
    (b'{"texts": ["a"], "defer": "yes"}', 422, "defer must be true or false"),
    (b'{"texts": ["1", "2", "3", "4", "5", "6"]}', 413, "send at most 5 in one request"),
    (b'{"texts": ["a", "' + b"b" * 101 + b'"]}', 413, "texts[1] has 101 characters; send at most 100"),
    (b'{"texts": ["' + b"b" * 2000 + b'"]}', 413, "larger than 2,000 bytes"),
]


@pytest.mark.parametrize(("body", "status", "message"), INVALID, ids=[body[:32].decode("latin-1") for body, _, _ in INVALID])
def test_what_is_invalid_is_refused(url, body, status, message):
    found = refused(post(f"{url}/predict", body))
    assert found[0] == status
    assert message in found[1]


@pytest.mark.parametrize("body", [b"[" + b"null," * 190_000 + b"null]", b"[[" + b"null," * 190_000 + b"null]]"])
def test_many_faults_cost_no_more_than_one(body):
    """Each fault would be a message of its own, and a million bytes hold many."""
    unknown = b",".join(b'"k%d":0' % number for number in range(80_000))
    with server_in_thread(Student(Lengths(), ("a", "b"), "vectors")) as url:
        begun = time.process_time()  # of the server too, which is a thread; other processes do not count
        assert refused(post(f"{url}/predict", b'{"vectors": ' + body + b"}"))[0] in (413, 422)
        assert refused(post(f"{url}/predict", b"{" + unknown + b', "vectors": [[1]]}'))[0] == 422
        assert time.process_time() - begun < 2


def test_only_json_is_accepted(url):
    status, message = refused(post(f"{url}/predict", {"texts": ["a"]}, content_type="text/plain"))
    assert status == 415
    assert "Content-Type: application/json" in message
    assert post(f"{url}/predict", {"texts": ["a"]}, content_type="application/json; charset=utf-8")[0] == 200


def test_a_body_without_a_length_is_stopped(url):
    """Chunks are counted as they come: the server answers long before the body would end."""
    address = urlparse(url)
    with socket.create_connection((address.hostname, address.port), timeout=120) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
        client.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            client.sendall(b"3e8\r\n" + b"a" * 1000 + b"\r\n")
        answer = client.recv(4096)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in answer.lower()


def test_a_client_that_leaves_does_no_harm(url):
    address = urlparse(url)
    with socket.create_connection((address.hostname, address.port), timeout=120) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{")
    assert post(f"{url}/predict", {"texts": ["a"]})[0] == 200


def test_health_describes_the_model(url):
    _, _, health = fetch(f"{url}/health")
    assert health["status"] == "ok"
    assert health["model"] == "lengths.onnx"
    assert health["classes"] == ["short", "long"]
    assert health["input_kind"] == "texts"
    assert health["threshold"] == promising_student().threshold(0.95).confidence
    assert health["limits"] == {"max_batch": 5, "max_bytes": 2000, "max_chars": 100, "max_requests": 256}
    assert health["uptime_seconds"] > 0


def test_without_dev_predictions_nothing_is_promised():
    with server_in_thread(length_student()) as url:
        _, _, content = post(f"{url}/predict", {"texts": ["abc"]})
        assert content["predictions"][0]["hand_over"] is None
        assert content["threshold"] is content["accuracy"] is None
        assert "no accuracy can be promised" in fetch(f"{url}/health")[2]["hand_over"]
        status, message = refused(post(f"{url}/predict", {"texts": ["abc"], "accuracy": 0.9}))
        assert status == 422
        assert "no dev predictions" in message


def test_everything_is_handed_over_where_no_threshold_is_enough():
    few = Predictions.from_confidences([0.9] * 5, [1] * 5, name="dev")
    with server_in_thread(length_student(dev=few)) as url:
        _, _, content = post(f"{url}/predict", {"texts": ["a" * 90]})
        assert content["predictions"][0]["hand_over"] is True
        assert content["threshold"] is None


def test_every_answer_has_the_security_headers(url):
    for path in ("/", "/docs", "/try.js", "/health", "/nowhere"):
        _, headers, _ = fetch(url + path)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Access-Control-Allow-Origin"] is None


def test_other_paths_and_methods_are_refused(url):
    for path in ("/nowhere", "/../../etc/passwd", "/templates/index.html", "/%2e%2e/app.py"):
        assert refused(fetch(url + path)) == (404, "Not Found")
    assert refused(fetch(f"{url}/predict")) == (405, "Method Not Allowed")


def test_pages_load_nothing_from_elsewhere(url):
    for path in ("/", "/docs", "/style.css", "/try.js"):
        status, _, content = fetch(url + path)
        assert status == 200
        assert "//" not in content.replace("http://127.0.0.1:8000", "").replace("// The page", "")


def test_names_are_escaped():
    with server_in_thread(length_student(name="<script>alert(1)<")) as url:
        for path in ("/", "/docs"):
            content = fetch(url + path)[2]
            assert "&lt;script&gt;" in content
            assert "<script>alert" not in content


def test_a_file_name_that_is_no_text_is_served():
    odd = os.fsdecode(b"caf\xe9.onnx")
    with server_in_thread(length_student(name=f"/models/{odd}")) as url:
        for status, _, content in (post(f"{url}/predict", {"texts": ["a"]}), fetch(f"{url}/health")):
            assert status == 200
            assert content["model"] == "caf\ufffd.onnx"
        assert all(fetch(f"{url}/{page}")[0] == 200 for page in ("", "docs", "openapi.json"))


def test_the_description_is_complete(url):
    schema = fetch(f"{url}/openapi.json")[2]
    assert set(schema["paths"]) == {"/predict", "/health"}
    request = schema["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(request["properties"]) == {"texts", "accuracy", "defer"}
    assert request["properties"]["texts"]["maxItems"] == 5
    docs = fetch(f"{url}/docs")[2]
    for name in ("POST /predict", "GET /health", "predictions[].hand_over", "limits.max_chars", "curl"):
        assert name in docs


def test_more_requests_than_allowed_are_refused_at_once():
    begun, go_on = threading.Semaphore(0), threading.Event()

    class Waits(Lengths):
        def compute_logits(self, data, on_progress=None):
            begun.release()
            go_on.wait(120)
            return super().compute_logits(data)

    with server_in_thread(Student(Waits(), ("short", "long"), "texts"), max_requests=2) as url:
        answers = []
        clients = [
            threading.Thread(target=lambda: answers.append(post(f"{url}/predict", {"texts": ["a"]})[0])) for _ in range(2)
        ]
        for client in clients:
            client.start()
        begun.acquire(timeout=120)
        while fetch(f"{url}/health")[2]["pending"] < 2:
            pass
        status, headers, content = post(f"{url}/predict", {"texts": ["a"]})
        assert status == 503
        assert headers["Retry-After"] == "1"
        assert content == {"error": "2 requests are under way; try again later"}
        go_on.set()
        for client in clients:
            client.join()
        assert answers == [200, 200]
        assert post(f"{url}/predict", {"texts": ["a"]})[0] == 200


def test_requests_whose_client_has_left_are_not_run():
    begun, go_on, rows = threading.Semaphore(0), threading.Event(), []

    class Waits(Lengths):
        def compute_logits(self, data, on_progress=None):
            rows.extend(data.inputs.text)
            begun.release()
            go_on.wait(120)
            return super().compute_logits(data)

    with server_in_thread(Student(Waits(), ("short", "long"), "texts")) as url:
        first = threading.Thread(target=post, args=(f"{url}/predict", {"texts": ["first"]}))
        first.start()
        begun.acquire(timeout=120)
        address = urlparse(url)
        with socket.create_connection((address.hostname, address.port), timeout=120) as client:
            body = b'{"texts": ["second"]}'
            client.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
            client.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            while fetch(f"{url}/health")[2]["pending"] < 2:
                pass
        go_on.set()
        first.join()
        assert post(f"{url}/predict", {"texts": ["third"]})[0] == 200
    assert rows == ["first", "third"]


def test_a_fault_of_ours_says_nothing_of_the_inside(caplog):
    class Fails:
        def compute_logits(self, data, on_progress=None):
            raise RuntimeError("secret path")

    with server_in_thread(Student(Fails(), ("short", "long"), "texts")) as url:
        status, headers, content = post(f"{url}/predict", {"texts": ["a"]})
    assert status == 500
    assert "secret" not in json.dumps(content)
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_an_accuracy_is_a_fraction():
    with pytest.raises(InputError, match="not between 0 and 1"):
        create_app(promising_student(), accuracy=95)
