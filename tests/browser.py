"""A real browser for the tests: Chromium without a window, spoken to over a pipe.

It tells everything that a page does: errors and messages, requests, and the values of expressions.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip
# The browser reads commands from its descriptor 3 and answers at 4, whatever these are here.
LAUNCHER = """if True:
    import os, sys
    given, taken = (os.dup(int(number)) for number in sys.argv[1:3])
    given, taken = os.dup(given), os.dup(taken)
    os.dup2(given, 3), os.dup2(taken, 4)
    os.execv(sys.argv[3], sys.argv[3:])
"""


class Seen(NamedTuple):
    """What happened while a page was opened."""

    errors: list[str]  # exceptions, messages to the console, entries of the log, failed loads
    requests: list[str]


def find() -> str | None:
    """Where a browser is, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser. Commands and events are those of Chromium's DevTools protocol."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = os.fdopen(commands, "wb", buffering=0)
        self._answers = os.fdopen(answers, "rb")
        self._number, self._session = 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._commands.close()
        self._answers.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command, and its answer; what happens meanwhile is kept in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser is gone"
            text += byte
        return json.loads(text)

    def open(self, path: Path) -> Seen:
        """Open a page, wait until it is loaded and painted, and tell what happened."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(one.get("method") == "Page.loadEventFired" for one in self.events):
            self.events.append(self._read())
        self.tell("new Promise(done => requestAnimationFrame(() => setTimeout(done, 300)))")
        errors = [text for event in self.events for text in _complaints(event)]
        requests = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return Seen(errors, requests)

    def tell(self, expression: str) -> Any:
        """The value of an expression in the page, waited for if it is a promise."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def resize(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """Light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])


def _complaints(event: dict[str, Any]) -> list[str]:
    told = event.get("params", {})
    match event.get("method"):
        case "Runtime.exceptionThrown":
            return [f"exception: {told['exceptionDetails']['text']}"]
        case "Runtime.consoleAPICalled":
            return [f"console: {told['type']} {[one.get('value') for one in told['args']]}"]
        case "Log.entryAdded":
            return [f"log: {told['entry']['level']} {told['entry']['text']}"]
        case "Network.loadingFailed":
            return [f"failed: {told['errorText']}"]
    return []


@contextmanager
def running(program: str, profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, ended afterwards."""
    given, commands = os.pipe()
    answers, taken = os.pipe()
    line = [sys.executable, "-c", LAUNCHER, str(given), str(taken), program]
    with subprocess.Popen(
        [*line, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(given, taken),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(given)
        os.close(taken)
        browser = None
        try:
            browser = Browser(commands, answers)
            yield browser
        finally:
            if browser is not None:
                browser.close()  # which ends it
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
