"""A headless Chromium, spoken to through a pipe: pages as a reader would see them."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

PATH = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
LIMIT = 60  # seconds for an answer


class Browser:
    """One browser with one tab. ``complaints`` are the errors that pages wrote to the console."""

    def __init__(self, profile):
        from_us, to_browser = os.pipe()
        from_browser, to_us = os.pipe()
        command = [PATH, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        line = f'exec "$@" 3<&{from_us} 4>&{to_us}'  # where the flag expects its pipes
        self._process = subprocess.Popen(
            ["bash", "-c", line, "bash", *command],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._out, self._in = to_browser, from_browser
        os.set_blocking(self._in, False)
        self._left, self._events, self._number, self._session = b"", [], 0, None
        self.complaints = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        answer = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = answer["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(OSError):
            self.call("Browser.close")
        self._process.wait(LIMIT)
        os.close(self._out)
        os.close(self._in)

    def call(self, method, **parameters):
        """One command and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda one: one.get("id") == self._number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def look(self, width, scheme):
        """As wide as this, ``light`` or ``dark``."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, url):
        self._events.clear()
        self.call("Page.navigate", url=url)
        self._wait(lambda one: one.get("method") == "Page.loadEventFired")

    def ask(self, expression):
        """The value of a JavaScript expression."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression, seconds=10):
        """Wait until it holds."""
        end = time.monotonic() + seconds
        while not (value := self.ask(expression)):
            assert time.monotonic() < end, expression
            time.sleep(0.05)
        return value

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def _wait(self, wanted):
        end = time.monotonic() + LIMIT
        while True:
            for place, one in enumerate(self._events):
                if wanted(one):
                    return self._events.pop(place)
            assert time.monotonic() < end, "the browser does not answer"
            self._read()

    def _read(self):
        try:
            piece = os.read(self._in, 1 << 20)
        except BlockingIOError:
            time.sleep(0.005)
            return
        if not piece:
            msg = "the browser is gone"
            raise OSError(msg)
        *messages, self._left = (self._left + piece).split(b"\0")
        for message in map(json.loads, messages):
            self._complain(message)
            self._events.append(message)

    def _complain(self, message):
        given = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(given["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if given["type"] == "error":
                self.complaints.append(str(given["args"]))
            case "Log.entryAdded" if given["entry"]["level"] == "error":
                entry = given["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
