"""Chromium with hands: what tests/browser.py drives, and its keys, pointer and wheel."""

from __future__ import annotations

from browser import Browser
from page.hands import Hands


class Chromium(Browser, Hands):
    """One page of Chromium."""

    _pressed = False

    def __enter__(self) -> Chromium:
        """Start it with an empty page and no network."""
        super().__enter__()
        return self

    def run(self, script: str) -> None:
        """Run a whole script."""
        self.evaluate(f"{script}; 0")

    def size(self, width: int, height: int, scheme: str) -> None:
        """Make it as wide as a phone, or light, or dark."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.media("", scheme)

    def media(self, kind: str, scheme: str = "light") -> None:
        """Show it as on paper ("print") or on a screen ("")."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._ask("Emulation.setEmulatedMedia", {"media": kind, "features": features})

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        # Without its number the browser itself does nothing at it, such as close a dialog.
        event = {"key": key, "windowsVirtualKeyCode": {"Escape": 27, "Enter": 13}.get(key, 0)}
        self._ask("Input.dispatchKeyEvent", {"type": "keyDown", "text": text, **event})
        self._ask("Input.dispatchKeyEvent", {"type": "keyUp", **event})
        self.frames()

    def write(self, text: str) -> None:
        """Replace what is in the field that has the focus."""
        self.evaluate("document.activeElement.select()")
        self._ask("Input.insertText", {"text": text})
        self.frames()

    def _move(self, x: float, y: float) -> None:
        self._mouse("mouseMoved", x, y)

    def _press(self, x: float, y: float) -> None:
        self._pressed = True
        self._mouse("mousePressed", x, y)

    def _release(self, x: float, y: float) -> None:
        self._pressed = False
        self._mouse("mouseReleased", x, y)

    def _turn(self, x: float, y: float, by: float) -> None:
        event = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": by}
        self._ask("Input.dispatchMouseEvent", event)

    def _mouse(self, kind: str, x: float, y: float) -> None:
        event = {"type": kind, "x": x, "y": y, "buttons": int(self._pressed), "clickCount": 1}
        event["button"] = "none" if kind == "mouseMoved" and not self._pressed else "left"
        self._ask("Input.dispatchMouseEvent", event)
