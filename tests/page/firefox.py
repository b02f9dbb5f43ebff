"""A real browser for tests: headless Firefox, driven through Marionette, its own protocol."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from page.hands import Hands

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
_PATIENCE_S = 90.0
#: No page may reach a network, and nothing of Firefox's own asks for one.
_SETTINGS = {
    "marionette.port": 0,
    "network.proxy.type": 1,
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.normandy.enabled": False,
}
#: As WebDriver writes keys that are no characters.
_KEYS = {
    "Enter": "\ue006",
    "Escape": "\ue00c",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
}
#: What is wrong with a page, such as exceptions and what its policy forbids.
_LISTEN = """
  // Firefox itself complains, too.
  const ofPage = (file) => /^(file|blob|data):/.test(file);
  const found = (globalThis.haiprofComplaints = []);
  Services.console.registerListener({ observe(message) {
    if (message instanceof Ci.nsIScriptError && ofPage(message.sourceName)) found.push(message.errorMessage);
  } });
"""  # noqa: E501


class Firefox(Hands):
    """One page of Firefox; ``requests`` stays empty: it has no network to ask."""

    def __init__(self, profile: Path) -> None:
        """Prepare; ``profile`` is a folder that does not exist yet."""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._profile = profile
        self._number = 0
        self._buffer = b""

    def __enter__(self) -> Firefox:
        """Start it with an empty page."""
        assert FIREFOX is not None
        self._profile.mkdir(parents=True)
        lines = [f'user_pref("{key}", {json.dumps(value)});' for key, value in _SETTINGS.items()]
        (self._profile / "user.js").write_text("\n".join(lines), "utf-8")
        command = [FIREFOX, "--headless", "--no-remote", "--marionette",
                   "--remote-allow-system-access", "--profile", str(self._profile)]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._socket = socket.create_connection(("127.0.0.1", self._port()))
            self._socket.settimeout(_PATIENCE_S)
            self._receive()  # who it is
            limits = {"script": int(_PATIENCE_S * 1e3), "pageLoad": int(_PATIENCE_S * 1e3)}
            wanted = {"alwaysMatch": {"timeouts": limits}}
            self._ask("WebDriver:NewSession", {"capabilities": wanted})
            self._in_chrome(_LISTEN)
            self.size(1280, 900, "light")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def open(self, address: str) -> None:
        """Load a page and wait for it."""
        self._ask("WebDriver:Navigate", {"url": address})

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, of a promise what it resolves to."""
        body = (
            "const answer = arguments[arguments.length - 1];"
            f"Promise.resolve().then(() => (\n{script}\n))"
            ".then((value) => answer([value === undefined ? null : value]),"
            " (error) => answer([null, String(error)]));"
        )
        found = self._ask("WebDriver:ExecuteAsyncScript", {"script": body, "args": []})["value"]
        assert len(found) == 1, found[1]
        self._collect()
        return found[0]

    def run(self, script: str) -> None:
        """Run a whole script."""
        self._ask("WebDriver:ExecuteScript", {"script": script, "args": []})

    def size(self, width: int, height: int, scheme: str) -> None:
        """Make it as wide as a phone, or light, or dark."""
        # A window cannot be as narrow as a phone: what is in it can.
        self._ask("WebDriver:SetWindowRect", {"width": max(width, 600), "height": height})
        self._in_chrome(
            "const { style } = gBrowser.selectedBrowser;"
            f"style.width = '{width}px'; style.minWidth = style.maxWidth = '{width}px';"
        )
        self.media("", scheme)
        self.until(f"innerWidth === {width}")

    def media(self, kind: str, scheme: str = "light") -> None:
        """Show it as on paper ("print") or on a screen ("")."""
        self._in_chrome(
            "const context = gBrowser.selectedBrowser.browsingContext;"
            f"context.mediumOverride = '{kind}'; context.prefersColorSchemeOverride = '{scheme}';"
        )

    def key(self, key: str) -> None:
        """Press a key."""
        self._type([_KEYS.get(key, key)])

    def write(self, text: str) -> None:
        """Replace what is in the field that has the focus."""
        self.evaluate("document.activeElement.select()")
        self._type(text)

    def _type(self, keys: Sequence[str]) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keys", "actions": actions})

    def _move(self, x: float, y: float) -> None:
        self._point([_move_to(x, y)])

    def _press(self, x: float, y: float) -> None:
        self._point([_move_to(x, y), {"type": "pointerDown", "button": 0}])

    def _release(self, x: float, y: float) -> None:
        self._point([_move_to(x, y), {"type": "pointerUp", "button": 0}])

    def _turn(self, x: float, y: float, by: float) -> None:
        turn = {"type": "scroll", "x": round(x), "y": round(y), "deltaX": 0, "deltaY": round(by)}
        self._act({"type": "wheel", "id": "wheel", "actions": [{**turn, "origin": "viewport"}]})

    def _point(self, actions: list[dict[str, Any]]) -> None:
        kind = {"pointerType": "mouse"}
        self._act({"type": "pointer", "id": "mouse", "parameters": kind, "actions": actions})

    def _act(self, source: dict[str, Any]) -> None:
        self._ask("WebDriver:PerformActions", {"actions": [source]})
        self.frames()

    def _collect(self) -> None:
        taken = self._in_chrome("return haiprofComplaints.splice(0);")
        self.complaints += taken or []

    def _in_chrome(self, script: str) -> Any:
        """Run a script with the rights of the browser itself."""
        self._ask("Marionette:SetContext", {"value": "chrome"})
        try:
            asked = {"script": script, "args": [], "sandbox": "system"}
            return self._ask("WebDriver:ExecuteScript", asked)["value"]
        finally:
            self._ask("Marionette:SetContext", {"value": "content"})

    def _port(self) -> int:
        file = self._profile / "MarionetteActivePort"
        until = time.monotonic() + _PATIENCE_S
        while not (file.exists() and file.read_text().strip()):
            assert time.monotonic() < until, "Firefox did not start"
            assert self._process.poll() is None, "Firefox ended"
            time.sleep(0.05)
        return int(file.read_text())

    def _ask(self, command: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message = json.dumps([0, self._number, command, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, number, error, result = self._receive()
        assert number == self._number
        assert error is None, error
        answer: dict[str, Any] = result if isinstance(result, dict) else {"value": result}
        return answer

    def _receive(self) -> Any:
        while b":" not in self._buffer:
            self._more()
        length, _, self._buffer = self._buffer.partition(b":")
        while len(self._buffer) < int(length):
            self._more()
        message = self._buffer[: int(length)]
        self._buffer = self._buffer[int(length) :]
        return json.loads(message)

    def _more(self) -> None:
        piece = self._socket.recv(1 << 20)
        assert piece, "Firefox ended"
        self._buffer += piece


def _move_to(x: float, y: float) -> dict[str, Any]:
    return {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0}
