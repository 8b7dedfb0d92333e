"""A real server in a process of its own: how it starts and stops, and what it does with slow clients."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from urllib.parse import urlparse

import numpy as np
import pytest
from served import fetch, length_student, post, server_in_thread, server_process, slow_student

from distilcal.errors import InputError
from distilcal.serve import app as app_module
from distilcal.serve import create_app
from distilcal.serve import server as server_module
from distilcal.serve.server import build_server, listen, serve


def connect(url):
    address = urlparse(url)
    return socket.create_connection((address.hostname, address.port), timeout=120)


def post_until(status, url):
    """The first answer that has this status: a server needs a moment to see connections that were opened or closed."""
    end = time.monotonic() + 60
    while (answer := post(f"{url}/predict", {"texts": ["a"]}))[0] != status:
        assert time.monotonic() < end, answer
        time.sleep(0.02)
    return answer


def test_requests_that_run_are_answered_before_it_stops():
    with server_process("slow_student") as (url, process):
        answers = []
        client = threading.Thread(target=lambda: answers.append(post(f"{url}/predict", {"texts": ["abc"]})))
        client.start()
        while fetch(f"{url}/health")[2]["pending"] < 1:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        client.join()
        assert answers[0][0] == 200
        assert process.wait(timeout=120) in (0, -signal.SIGTERM)
        assert process.stderr.read() == ""


def test_a_request_that_takes_too_long_is_told_that_the_service_stops(monkeypatch, caplog):
    monkeypatch.setattr(server_module, "STOP_SECONDS", 0.2)
    with ExitStack() as stack:
        with server_in_thread(length_student()) as url:
            client = stack.enter_context(connect(url))
            client.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            client.sendall(b"Content-Length: 50\r\n\r\n{")
            while fetch(f"{url}/health")[2]["pending"] == 0:
                time.sleep(0.02)
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"the service is stopping" in answer
    assert "Traceback" not in caplog.text


def test_serving_imports_no_torch():
    program = "import sys, distilcal.serve, distilcal.inference; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_missing_packages_are_named():
    program = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from distilcal.errors import MissingDependencyError\n"
        "try:\n    import distilcal.serve\nexcept MissingDependencyError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "serving needs the package fastapi; pip install 'distilcal[serve]'\n"


def test_an_address_in_use_is_one_clear_error():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            serve(length_student(), port=port)
    with pytest.raises(InputError, match="choose another --port or --host"):
        listen("no.such.host.invalid", 0)


def test_a_client_that_sends_no_head_is_disconnected(monkeypatch):
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 1.0)
    with server_in_thread(length_student()) as url:
        with connect(url) as silent:
            assert silent.recv(100) == b""
        with connect(url) as dripping:
            begun = time.monotonic()
            closed = False
            while not closed and time.monotonic() - begun < 60:
                try:
                    dripping.sendall(b"G")
                    time.sleep(0.05)
                except OSError:
                    closed = True
            assert closed
        with connect(url) as client:  # the second request on a connection has a clock of its own
            for _ in range(2):
                client.sendall(b"GET /try.js HTTP/1.1\r\nHost: a\r\n\r\n")
                assert client.recv(20).startswith(b"HTTP/1.1 200")
                time.sleep(0.05)
                while len(client.recv(65536)) == 65536:
                    pass
            client.sendall(b"GET")
            assert client.recv(100) == b""


def test_a_slow_request_is_not_cut_off_by_the_clock_of_its_head(monkeypatch):
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.3)
    with server_in_thread(slow_student()) as url:
        assert post(f"{url}/predict", {"texts": ["a"]})[0] == 200


def test_a_body_that_drips_is_given_up(monkeypatch):
    monkeypatch.setattr(app_module, "BODY_SECONDS", 0.3)
    with server_in_thread(length_student()) as url, connect(url) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{")
        assert client.recv(100).startswith(b"HTTP/1.1 408")
        assert fetch(f"{url}/health")[2]["pending"] == 0


class RecordedTransport(asyncio.Transport):
    """A connection whose end is noted."""

    aborted = False

    def abort(self):
        self.aborted = True

    def close(self):
        pass


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_client_that_takes_no_answer_is_disconnected(monkeypatch, is_taken):
    monkeypatch.setattr(server_module, "SEND_SECONDS", 0.05)
    server = build_server(create_app(length_student()))
    server.config.load()
    transport = RecordedTransport()

    async def send():
        protocol = server_module.TimedHttp(server.config, server.server_state, {})
        protocol.connection_made(transport)
        protocol.pause_writing()  # as asyncio does when its buffer is full
        await asyncio.sleep(0.01)
        if is_taken:
            protocol.resume_writing()
        await asyncio.sleep(0.2)
        protocol.connection_lost(None)

    asyncio.run(send())
    assert transport.aborted is not is_taken


def test_more_connections_than_allowed_are_told_to_come_back(monkeypatch):
    monkeypatch.setattr(server_module, "IDLE_CONNECTIONS", 0)
    monkeypatch.setattr(server_module, "MAX_DEFERRED", 0)
    monkeypatch.setattr(server_module, "REFUSED_CONNECTIONS", 3)
    with server_in_thread(length_student(), max_requests=2) as url, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connect(url)).sendall(b"GET")  # the head does not end
        _, headers, content = post_until(503, url)
        assert headers["Retry-After"] == "1"
        assert content == {"error": "too many connections are open; try again later"}
        for _ in range(2):
            stack.enter_context(connect(url))
        time.sleep(0.2)
        with connect(url) as client, pytest.raises(OSError, match="reset|closed"):
            if client.recv(100) == b"":
                raise OSError("closed")
        stack.close()
        post_until(200, url)


def test_invalid_http_is_refused(caplog):
    with server_in_thread(length_student()) as url:
        for head in (
            b"nonsense\r\n\r\n",
            b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
            b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000,  # a head that does not end
        ):
            with connect(url) as client:
                client.sendall(head)
                assert client.recv(20).startswith(b"HTTP/1.1 400")
        assert fetch(f"{url}/health")[0] == 200


@pytest.mark.parametrize("content_type", [b"", b"Content-Type: application/json\r\n"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_body_that_is_not_http_is_no_fault_of_the_service(content_type, at_once):
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n" + content_type + b"Transfer-Encoding: chunked\r\n\r\n"
    with server_process("length_student") as (url, process):
        with connect(url) as client:
            client.sendall(head + b"zz\r\n" if at_once else head)
            if content_type and not at_once:
                time.sleep(0.2)  # it waits for the body
            elif not at_once:
                assert client.recv(4096).startswith(b"HTTP/1.1 415")
            client.sendall(b"zz\r\nhello\r\n")
            answer = b""
            with suppress(ConnectionError):
                while part := client.recv(4096):  # until the service closes the connection
                    answer += part
            if at_once or content_type:
                assert answer.startswith(b"HTTP/1.1 400")
        assert fetch(f"{url}/health")[0] == 200
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
        errors = process.stderr.read()
    assert "Traceback" not in errors
    assert "Error" not in errors


def test_a_request_of_two_lengths_is_refused():
    """A proxy before the service may take the other one, and see two requests where the service sees one."""
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with server_in_thread(length_student()) as url, connect(url) as client:
        client.sendall(head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        answer = b""
        while part := client.recv(4096):  # until the service closes the connection
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"not both" in answer


def test_nobody_is_sent_to_the_host_that_a_client_names():
    with server_in_thread(length_student()) as url:
        request = urllib.request.Request(f"{url}/predict/", b"{}", {"Content-Type": "application/json", "Host": "elsewhere"})
        status, headers, _ = fetch(request)
    assert (status, headers["Location"]) == (404, None)


def test_a_foreign_name_that_leads_to_this_machine_is_refused():
    known = ("localhost", "LOCALHOST.:80", "[::1]:8000", "127.0.0.1", "me.example:1")
    foreign = ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "[x", "")
    with server_process(allow_hosts=["Me.example"]) as (url, _):
        for host in (*known, *foreign):
            status, headers, content = fetch(urllib.request.Request(f"{url}/health", headers={"Host": host}))
            assert status == (200 if host in known else 421), host
            assert headers["X-Content-Type-Options"] == "nosniff"
    assert content["error"].endswith("start it with --allow-host NAME")


def test_no_client_writes_its_own_address_into_the_log():
    with server_process(access_log=True) as (url, process):
        head = {"X-Forwarded-For": "\x9b2Jevil", "X-Forwarded-Proto": "\x9b2J"}  # \x9b begins commands to a terminal
        assert fetch(urllib.request.Request(f"{url}/health", headers=head))[0] == 200
        process.send_signal(signal.SIGTERM)
        logged = "".join(process.communicate())
    assert '"GET /health HTTP/1.1" 200' in logged
    assert "127.0.0.1:" in logged
    assert "evil" not in logged


def test_many_clients_at_once_are_all_answered():
    with server_in_thread(length_student(), threads=2) as url:
        answers = []

        def ask(number):
            for _ in range(5):
                status, _, content = post(f"{url}/predict", {"texts": ["a" * number]})
                answers.append((status, content["predictions"][0]["probabilities"]["long"], 1 / (1 + np.exp(5.0 - number))))

        clients = [threading.Thread(target=ask, args=(number,)) for number in range(1, 41)]  # no text is empty
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert len(answers) == 200
        for status, got, expected in answers:
            assert status == 200
            assert got == pytest.approx(expected)
