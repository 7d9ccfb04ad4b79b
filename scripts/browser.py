"""Chromium without a window, driven over its DevTools protocol through two pipes: nothing else is needed."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--window-size=1280,1000", "--hide-scrollbars", "--remote-debugging-pipe", "about:blank"),
)


class Page:
    """One tab.

    Attributes:
        asked: The addresses that it has asked for.
        errors: What its scripts have raised, and written to the console as errors.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._session: str | None = None
        self._gone = False
        self.asked: list[str] = []
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        (target,) = [
            one["targetId"]
            for one in self.send("Target.getTargets")["targetInfos"]
            if one["type"] == "page"
        ]
        found = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.send(f"{domain}.enable")

    def _read(self) -> None:
        kept = b""
        while piece := self._reading.read1(1 << 16):
            *messages, kept = (kept + piece).split(b"\0")
            with self._changed:
                for text in messages:
                    self._take(json.loads(text))
                self._changed.notify_all()
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def close(self) -> None:
        """Close the pipes, once the browser is gone."""
        self._reader.join()
        self._reading.close()
        self._writing.close()

    def _take(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if "id" in message:
            self._answers[message["id"]] = message
        elif message["method"] == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url')}")

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command, and return its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._writing.write(json.dumps(message).encode() + b"\0")
        self._writing.flush()
        with self._changed:
            self._changed.wait_for(lambda: number in self._answers or self._gone, 300)
            answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def run(self, script: str) -> Any:
        """Run JavaScript in the page, and return its value, also of a promise."""
        found = self.send(
            "Runtime.evaluate",
            expression=f"(async () => {{ {script} }})()",
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"]["exception"].get("description"))
        return found["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Wait until an expression of JavaScript is true in the page, and return its value.

        The page is asked again at each frame that it draws; a limit of minutes only ends what hangs.
        """
        return self.run(
            f"for (let n = 0; n < 18000; n++) {{ const found = ({condition}); if (found) return found;"
            " await new Promise((done) => setTimeout(done, 16)); }"
            f" throw new Error({json.dumps('never came: ' + condition)} + '\\n' + document.body.innerText);"
        )

    def open(self, url: str) -> None:
        """Open an address."""
        self.send("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def choose_file(self, selector: str, path: Path) -> None:
        """Choose a file in a field, as a user does."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", files=[str(path.resolve())], nodeId=node)

    def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Show the page on a screen of this size, in pixels, to somebody who likes it light or dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.send("Emulation.setDeviceMetricsOverride", mobile=width < 600, **metrics)
        liked = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[liked])

    def picture(self, kind: str = "png", width: int = 1280) -> bytes:
        """Return what the tab shows, whole, as PNG, JPEG or WebP, on a screen of this width in pixels."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        metrics = {"width": width, "height": int(size["height"]), "deviceScaleFactor": 1}
        self.send("Emulation.setDeviceMetricsOverride", mobile=False, **metrics)
        shown = self.send("Page.captureScreenshot", format=kind)
        return base64.b64decode(shown["data"])


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """Start a browser with an empty profile, and end it after the block."""
    assert CHROMIUM is not None, "install chromium"
    ours, theirs = os.pipe(), os.pipe()
    command = [CHROMIUM, *FLAGS[:-1], f"--user-data-dir={profile}", FLAGS[-1]]
    # The browser reads commands from descriptor 3, and writes answers to 4.
    shell = f'exec "$@" 3<&{ours[0]} 4>&{theirs[1]}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "chromium", *command],
        pass_fds=(ours[0], theirs[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(ours[0])
    os.close(theirs[1])
    page = None
    try:
        page = Page(theirs[0], ours[1])
        yield page
    finally:
        process.terminate()
        process.wait()
        if page is not None:
            page.close()
