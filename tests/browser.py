"""A real browser for tests: headless chromium, offline, driven through its debugging pipe."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
_PATIENCE_S = 90.0


class Browser:
    """One page; collects what it complains about and which addresses it asks for."""

    def __init__(self, profile: Path) -> None:
        """Prepare; ``profile`` is a folder that does not exist yet."""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._profile = profile
        self._number = 0
        self._buffer = b""
        self._loader = self._loaded = ""
        self._session = ""

    def __enter__(self) -> Browser:
        """Start the browser with an empty page and no network."""
        assert BROWSER is not None
        its_in, self._out = os.pipe()
        self._in, its_out = os.pipe()
        command = [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--window-size=1280,900",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._profile}",
            "about:blank",
        ]
        # The browser speaks on descriptors 3 and 4; the shell puts ours there.
        shell = ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out}', "browser", *command]
        self._process = subprocess.Popen(
            shell,
            pass_fds=(its_in, its_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_in)
        os.close(its_out)
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self._ask(f"{domain}.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self._ask("Network.emulateNetworkConditions", offline)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the browser."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, address: str) -> None:
        """Load a page and wait for it."""
        loader = self._ask("Page.navigate", {"url": address})["loaderId"]
        until = time.monotonic() + _PATIENCE_S
        # The blank page's own event may be late.
        while self._loaded != loader:
            self._receive(until)

    def evaluate(self, script: str) -> Any:
        """Return the value of a script, of a promise what it resolves to."""
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self._ask("Runtime.evaluate", asked)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _ask(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _PATIENCE_S
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                assert "result" in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser did not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser ended"
            self._buffer += piece
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.frameNavigated" and "parentId" not in params["frame"]:
            self._loader = params["frame"]["loaderId"]
        elif method == "Page.loadEventFired":
            self._loaded = self._loader
        elif method == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if not address.startswith("data:"):
                self.requests.append(address)
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(params["entry"]["text"]))
