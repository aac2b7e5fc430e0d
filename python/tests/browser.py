"""A headless Chromium for tests, spoken to over a pipe: no driver, no package.

Chromium's --remote-debugging-pipe reads commands of the DevTools protocol from
descriptor 3 and writes answers to descriptor 4, each a JSON object that ends with a
zero byte.
"""

from __future__ import annotations

import itertools
import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: In the order in which they are tried. The first is a Debian package of this name.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "no Chromium on PATH (looked for {}): as root apt-get install chromium-headless-shell, "
    "or set PREFIXCACHE_BROWSER to the path of one"
)


def find() -> str:
    """Path of a Chromium; the test fails, and says what to install, where there is none."""
    given = os.environ.get("PREFIXCACHE_BROWSER")
    for name in [given] if given else PROGRAMS:
        path = shutil.which(name)
        if path:
            return path
    return pytest.fail(MISSING.format(given or ", ".join(PROGRAMS)), pytrace=False)


class Browser:
    """One browser with one tab. A context manager."""

    def __init__(self) -> None:
        path = find()
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        command = [path, "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}", "--no-sandbox"]
        command += ["--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # the network is out of reach
        if "headless-shell" not in path:
            command.append("--headless=new")
        (theirs_in, self._out), (self._in, theirs_out) = os.pipe(), os.pipe()
        # Duplicates beyond 9, so that making them 3 and 4 closes neither.
        high_in, high_out = (os.dup2(fd, 40 + i, inheritable=True) for i, fd in enumerate((theirs_in, theirs_out)))
        self._log = open(Path(self._folder.name) / "log", "w+")  # noqa: SIM115  # until close
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{high_in} 4>&{high_out} {high_in}<&- {high_out}>&-', "browser", *command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(high_in, high_out),
        )
        for fd in (theirs_in, theirs_out, high_in, high_out):
            os.close(fd)
        self._ids, self._buffer = itertools.count(1), b""
        self.events: list[dict[str, Any]] = []
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.tab(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """A command, and its result. Events that arrive meanwhile are kept."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def tab(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command to the tab."""
        return self.call(method, self._session, **parameters)

    def open(self, path: Path, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Load a file at a size of the window, in the light or dark of prefers-color-scheme."""
        self.events.clear()
        self.tab("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.tab("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.tab("Page.navigate", url=path.as_uri())
        self._wait_for("Page.loadEventFired")
        # Observers of sizes have run, and what they drew is laid out.
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        result = self.tab("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what comes some time after a command."""
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, self.complaints()
            self.run("new Promise((done) => setTimeout(done, 20))")  # events come with its answer

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and requests for anything but the file."""
        found = []
        for event in self.events:
            method, parameters = event["method"], event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(str(parameters["args"]))
            elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(str(parameters["entry"]))
            elif method == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(("file:", "data:")) or (parameters.get("type") not in ("Document", "Other")):
                    found.append(f"requested {url[:80]}")
        return found

    def _wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_READ)
            while b"\0" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    pytest.fail(f"the browser does not answer\n{self._said()}", pytrace=False)
                piece = os.read(self._in, 1 << 20)
                if not piece:
                    pytest.fail(f"the browser ended\n{self._said()}", pytrace=False)
                self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-3000:]

    def close(self) -> None:
        """End the process and remove its files."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._log.close()
        # Its other processes end a little later, and write until then.
        end = time.monotonic() + 5
        while os.path.exists(self._folder.name) and time.monotonic() < end:
            shutil.rmtree(self._folder.name, ignore_errors=True)
            time.sleep(0.05)
        self._folder.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
