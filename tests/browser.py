"""Chromium without a window, driven over its debugging pipe: pages are opened, typed into and looked at."""

import base64
import json
import os
import shutil
import subprocess
from contextlib import contextmanager

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """A page of the browser."""

    def __init__(self, writer, reader):
        self._writer, self._reader = writer, reader
        self._number, self._session = 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.problems = []  # what the console says of errors and of what the page's policy forbids
        self.call("Runtime.enable")
        self.call("Log.enable")

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        self._writer.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition):
        question = f"""new Promise((resolve, reject) => {{
          const start = Date.now();
          const look = () => {{
            if ({condition}) resolve(true);
            else if (Date.now() - start > 120000) reject(new Error("waited in vain"));
            else setTimeout(look, 20);
          }};
          look();
        }})"""
        assert self.evaluate(question)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, code, modifiers=0, **more):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, modifiers=modifiers, **more)

    def show_as(self, *, width, height=800, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _read(self):
        message = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            assert byte, "the browser is gone"
            message += byte
        return json.loads(message)

    def _note(self, event):
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(event["params"]["entry"]["text"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(event["params"]["exceptionDetails"]["text"])


@contextmanager
def browser_page(folder):
    """A page of a new browser, whose profile is in the folder."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder / 'profile'}",
        "--remote-debugging-pipe", "about:blank",
    ]  # fmt: skip
    to_browser, writer = os.pipe()
    reader, from_browser = os.pipe()

    def place_pipes():  # the browser reads from 3 and writes to 4
        ends = [os.dup(to_browser), os.dup(from_browser)]
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=place_pipes, close_fds=False
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        with os.fdopen(writer, "wb") as write, os.fdopen(reader, "rb") as read:
            yield Page(write, read)
    finally:
        process.kill()
        process.wait()
