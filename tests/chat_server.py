"""A small server that speaks the chat-completions protocol of OpenAI, with log-probabilities, for tests without a network."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tiny import BAD, GOOD


class ChatServer(ThreadingHTTPServer):
    """Answers by the words of praise and blame in a text, with the tokens that the prompt asks for.

    The first requests get the statuses in ``failures``. ``asked`` counts answers by text.
    """

    daemon_threads = True

    def __init__(self, failures=(), *, logprobs=True, delay=0.0, refused=()):
        super().__init__(("127.0.0.1", 0), ChatHandler)
        self.failures = list(failures)
        self.logprobs, self.delay, self.refused = logprobs, delay, refused
        self.asked: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class ChatHandler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = request["messages"][1]["content"]
        with self.server.lock:
            self.server.requests.append({"path": self.path, "key": self.headers["authorization"], **request})
            status = self.server.failures.pop(0) if self.server.failures else 200
            if text in self.server.refused:
                status = 400
            if status == 200:
                self.server.asked[text] += 1
        time.sleep(self.server.delay)
        if status == 200:
            self.reply(200, completion(request, logprobs=self.server.logprobs))
        else:
            self.reply(status, {"error": {"message": f"failure {status}", "type": "test", "code": None}})

    def reply(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("retry-after-ms", "5")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def probability_of_praise(text: str) -> float:
    words = text.split()
    lead = sum(word in GOOD for word in words) - sum(word in BAD for word in words)
    return 1 / (1 + math.exp(-1.5 * lead))


def completion(request: dict[str, Any], *, logprobs: bool) -> dict[str, Any]:
    """A reply with one token: the letter of the class where the prompt lists letters, else its name."""
    prompt, text = (message["content"] for message in request["messages"])
    positive, negative = ("positive", "negative") if "positive" in prompt else ("pos", "neg")
    if f"B: {positive}" in prompt:
        positive, negative = "B", "A"
    share = probability_of_praise(text)
    # A space before the word is another token, and some of the mass is on words that are no class.
    tokens = {positive: 0.8 * share, f" {positive}": 0.1 * share, negative: 0.9 * (1 - share), "The": 0.06, "I": 0.03}
    top = sorted(tokens.items(), key=lambda item: -item[1])[: request["top_logprobs"]]
    scores = [{"token": token, "logprob": math.log(p), "bytes": list(token.encode())} for token, p in top]
    best = {**scores[0], "top_logprobs": scores}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": request["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": scores[0]["token"]},
                "finish_reason": "length",
                "logprobs": {"content": [best], "refusal": None} if logprobs else None,
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }


@contextmanager
def serving(**settings):
    """A server in a thread of its own, closed at the end."""
    server = ChatServer(**settings)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
