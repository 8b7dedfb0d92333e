"""Running the service with uvicorn, with limits on connections and on the time that clients may take."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from distilcal.errors import InputError
from distilcal.inference import Student
from distilcal.serve.app import HEADERS, MAX_DEFERRED, MAX_REQUESTS, create_app

HEAD_SECONDS = 10.0  # in which a client must have sent the head of a request
KEEP_ALIVE_SECONDS = 5
STOP_SECONDS = 10  # that running requests get after SIGTERM
BACKLOG = 2048
IDLE_CONNECTIONS = 256  # beside those of the requests under way
REFUSED_CONNECTIONS = 128  # beside all of these: whose requests are refused; still more are closed at once
SEND_SECONDS = 30.0  # in which a client must have taken what it was sent
BUSY = {"error": "too many connections are open; try again later"}
STOPPED = {"error": "the service is stopping; send the request to another one, or again later"}
FOREIGN_HOST = {
    "error": "the service is not known by the name that this request has as its Host; start it with --allow-host NAME"
}


class TimedHttp(H11Protocol):
    """HTTP that closes a connection whose client sends no whole head of a request, or takes no answer, in time.

    uvicorn alone would wait forever, and accept any number of connections.
    """

    _timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first request."""
        super().connection_made(transport)
        self._start_timer()
        assert self.limit_concurrency is not None
        if len(self.connections) >= self.limit_concurrency:  # before uvicorn would refuse its requests
            transport.abort()

    def pause_writing(self) -> None:
        """Start the clock of a client that does not take its answer."""
        super().pause_writing()
        self._send_timer = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop it."""
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, and what comes after the head of a request that is being answered.

        uvicorn alone would send a second answer to the latter, or let the application send one: both are errors in its log.
        """
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.conn.our_state is not h11.SEND_RESPONSE and self.conn.our_state is not h11.IDLE:
                self.transport.close()
                return
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """Start the clock of the next request."""
        super().on_response_complete()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        for timer in (self._timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._close_if_no_request)

    def _close_if_no_request(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class ConnectionLimit:
    """Middleware that refuses requests with 503 while too many connections are open.

    Parameters
    ----------
    app : ASGI application
        What answers the others.
    max_connections : int
        How many may be open.
    """

    def __init__(self, app: ASGIApp, max_connections: int):
        self.app = app
        self.max_connections = max_connections
        self.connections: Sized = ()  # those of the server, which exists later

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and len(self.connections) > self.max_connections:
            app = JSONResponse(BUSY, 503, headers={**HEADERS, "Retry-After": "1", "Connection": "close"})
        await app(scope, receive, send)


class KnownHosts:
    """Middleware that refuses requests to a name that is not known as one of this machine.

    A page on the internet may let its own name lead to this machine: then a browser takes the service for a part of that page.
    Nobody can do that with an address, so that all of these are known.

    Parameters
    ----------
    app : ASGI application
        What answers the others.
    names : sequence of str
        The names that are known, beside ``localhost``.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]):
        self.app = app
        self.names = {"localhost", *(name.lower().rstrip(".") for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and not self._is_known(Headers(scope=scope).get("host", "localhost")):
            app = JSONResponse(FOREIGN_HOST, 421, headers={**HEADERS, "Connection": "close"})
        await app(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            return name in self.names or bool(ipaddress.ip_address(name))
        except ValueError:  # no address, or nothing that could be a host
            return False


class StopAnswer:
    """Middleware that answers requests with 503 which are still under way when the service does not wait for them any longer.

    uvicorn alone would close their connections, and log a traceback for each.

    Parameters
    ----------
    app : ASGI application
        What answers the others.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_answer(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, send_answer)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if not has_begun:
                await JSONResponse(STOPPED, 503, headers={**HEADERS, "Connection": "close"})(scope, receive, send)


class StoppableServer(uvicorn.Server):
    """A server that the first signal stops: it decides on the exit code. A later Ctrl+C only ends the waiting for requests."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Keep further signals from uvicorn, which would send them again after its end, the last one first."""
        if not self.should_exit:
            super().handle_exit(sig, frame)
        elif sig == signal.SIGINT:
            for task in list(self.server_state.tasks):
                task.cancel()


def serve(
    student: Student,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_hosts: Sequence[str] = (),
    max_requests: int = MAX_REQUESTS,
    access_log: bool = False,
    on_start: Callable[[str], None] | None = None,
    **settings: Any,
) -> None:
    """Serve a student over HTTP until the process is asked to stop.

    SIGTERM, SIGHUP and Ctrl+C let requests that run finish for up to ten seconds. A client has ten seconds for the head and
    ten for the body of a request, and thirty to take what it is sent.

    Parameters
    ----------
    student : Student
        What ``distilcal.load`` returned.
    host : str, default "127.0.0.1"
        Address to listen on; the default is reached from this machine only.
    port : int, default 8000
        Port to listen on; 0 takes a free one.
    allow_hosts : sequence of str, default ()
        Names by which clients may call a service that is reached from this machine only, such as that of a proxy which passes
        on its own. Requests to other names than these, ``host`` and ``localhost`` are refused with 421; addresses are not.
    max_requests : int, default 256
        How many requests may be under way; more are refused with 503. There may be 256 idle connections beside them and those
        that wait for a teacher.
    access_log : bool, default False
        Whether to log a line for every request.
    on_start : callable, optional
        Called with the URL before the first request is answered.
    **settings
        Further arguments of `create_app`.

    Raises
    ------
    InputError
        If the address cannot be listened on, or the student cannot be served.
    """
    app = create_app(student, max_requests=max_requests, **settings)
    with listen(host, port) as listener:
        if on_start is not None:
            shown = f"[{host}]" if listener.family == socket.AF_INET6 else host
            on_start(f"http://{shown}:{listener.getsockname()[1]}")
        is_local = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
        server = build_server(app, max_requests, access_log=access_log, hosts=(host, *allow_hosts) if is_local else None)
        with _stop_on_hangup(server):
            server.run(sockets=[listener])


@contextmanager
def _stop_on_hangup(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGHUP stop a server as SIGTERM does, which uvicorn handles by itself; the caller's handler comes afterwards."""
    number = getattr(signal, "SIGHUP", None)  # not on Windows
    is_main_thread = threading.current_thread() is threading.main_thread()
    if number is None or not is_main_thread or signal.getsignal(number) == signal.SIG_IGN:
        yield
        return
    received = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        server.should_exit = True

    previous = signal.signal(number, stop)
    try:
        yield
    finally:
        signal.signal(number, previous)
    if received:
        signal.raise_signal(number)


def build_server(
    app: FastAPI, max_requests: int = MAX_REQUESTS, *, access_log: bool = False, hosts: Sequence[str] | None = None
) -> uvicorn.Server:
    """Return a server for an application, with limits on connections and times.

    Parameters
    ----------
    app : FastAPI
        What `create_app` returned.
    max_requests : int, default 256
        The application's limit; 256 more connections may be open, beside those that wait for a teacher.
    access_log : bool, default False
        Whether to log a line for every request.
    hosts : sequence of str, optional
        The names by which it may be called; all if None.

    Returns
    -------
    uvicorn.Server
        Its ``run(sockets=[...])`` serves until ``should_exit`` is set or a signal comes.
    """
    max_connections = max_requests + MAX_DEFERRED + IDLE_CONNECTIONS
    limited = ConnectionLimit(StopAnswer(app if hosts is None else KnownHosts(app, hosts)), max_connections)
    config = uvicorn.Config(
        limited,
        http=TimedHttp,
        ws="none",
        log_level="info" if access_log else "error",  # a warning for every invalid request would fill disks
        access_log=access_log,
        server_header=False,
        proxy_headers=False,  # the log has the address of a connection, not what a client calls itself
        backlog=BACKLOG,
        limit_concurrency=max_connections + REFUSED_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = StoppableServer(config)
    limited.connections = server.server_state.connections
    return server


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Parameters
    ----------
    host : str
        Name or address of this machine.
    port : int
        The port; 0 takes a free one.

    Returns
    -------
    socket
        Who connects to it is answered as soon as the server runs.

    Raises
    ------
    InputError
        If the address is not of this machine, or in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:  # the latter for names that no machine can have
        reason = getattr(error, "strerror", None) or "no machine has this name"
        problem = f"cannot listen on {host}, port {port}: {reason}"
        raise InputError(problem, remedy="choose another --port or --host") from None
    return listener
