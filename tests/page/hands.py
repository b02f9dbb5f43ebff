"""A browser with hands: keys, pointer, wheel, and what is copied or saved."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any

_PATIENCE_S = 60.0
#: A selector of CSS, or one with the text of an element: a:text(…).
_ELEMENT = """((asked) => {
  const [, tag, text] = /^(\\w*):text\\((.*)\\)$/.exec(asked) ?? [];
  if (!text) return document.querySelector(asked);
  return [...document.querySelectorAll(tag || '*')].find((each) => each.textContent === text);
})"""
_WATCH = """
window.copied = undefined; window.saved = undefined;
navigator.clipboard && (navigator.clipboard.writeText = async (text) => { window.copied = text; });
document.execCommand = () => { window.copied = document.activeElement.value; return true; };
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { window.saved = blob; return make.call(URL, blob); };
"""
_IMAGE = """createImageBitmap(window.saved).then((image) => {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.width, image.height];
  const ctx = canvas.getContext('2d');
  ctx.drawImage(image, 0, 0);
  const pixels = new Uint32Array(ctx.getImageData(0, 0, image.width, image.height).data.buffer);
  return { type: window.saved.type, colours: new Set(pixels).size };
})"""


class Hands(ABC):
    """Waits for what it does to be drawn, never for a time."""

    complaints: list[str]
    requests: list[str]

    @abstractmethod
    def __enter__(self) -> Hands:
        """Start the browser with an empty page and no network."""

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the browser."""

    @abstractmethod
    def open(self, address: str) -> None:
        """Load a page and wait for it."""

    @abstractmethod
    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, of a promise what it resolves to."""

    @abstractmethod
    def run(self, script: str) -> None:
        """Run a whole script."""

    @abstractmethod
    def size(self, width: int, height: int, scheme: str) -> None:
        """Make it as wide as a phone, or light, or dark."""

    @abstractmethod
    def media(self, kind: str, scheme: str = "light") -> None:
        """Show it as on paper ("print") or on a screen ("")."""

    @abstractmethod
    def key(self, key: str) -> None:
        """Press a key."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Replace what is in the field that has the focus."""

    @abstractmethod
    def _move(self, x: float, y: float) -> None: ...

    @abstractmethod
    def _press(self, x: float, y: float) -> None: ...

    @abstractmethod
    def _release(self, x: float, y: float) -> None: ...

    @abstractmethod
    def _turn(self, x: float, y: float, by: float) -> None: ...

    def show(self, page: Path, at: str = "") -> None:
        """Open a page anew, wherever one was before."""
        self.open("about:blank")
        self.open(page.as_uri() + at)
        self.run(_WATCH)
        self.settle()

    def settle(self) -> None:
        """Wait until the figures in sight are there and drawn."""
        self.until(
            "[...document.querySelectorAll('main .body')].every((body) => !body.clientHeight"
            " || body.getBoundingClientRect().top > innerHeight || body.childElementCount)"
        )
        self.frames()

    def frames(self) -> None:
        """Wait for what the next two frames draw."""
        self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def until(self, condition: str) -> None:
        """Wait for a condition of the page."""
        end = time.monotonic() + _PATIENCE_S
        while not self.evaluate(condition):
            assert time.monotonic() < end, condition
            self.frames()

    def focus(self, element: str) -> None:
        """Give an element the focus."""
        self.evaluate(f"{_ELEMENT}({json.dumps(element)}).focus()")

    def click(self, element: str) -> None:
        """Click in the middle of an element."""
        x, y = self._at(element, 0.5)
        self._move(x, y)
        self._press(x, y)
        self._release(x, y)
        self.frames()

    def hover(self, element: str, share: float) -> None:
        """Point at a share of the width of an element."""
        self._move(*self._at(element, share))
        self.frames()

    def drag(self, element: str, start: float, end: float) -> None:
        """Drag from one share of the width of an element to another."""
        x, y = self._at(element, start)
        to, _ = self._at(element, end)
        self._move(x, y)
        self._press(x, y)
        for k in range(1, 5):
            self._move(x + (to - x) * k / 4, y)
        self._release(to, y)
        self.frames()

    def wheel(self, element: str, share: float, by: float) -> None:
        """Turn the wheel over an element."""
        x, y = self._at(element, share)
        self._turn(x, y, by)
        self.frames()

    def copied(self, button: str) -> str:
        """Return what a button copies."""
        self.evaluate(f"{_ELEMENT}({json.dumps(button)}).click()")
        self.until("window.copied !== undefined")
        return str(self.evaluate("window.copied"))

    def saved(self, button: str) -> dict[str, Any]:
        """Return of what a button saves the type, and how many colours the image has."""
        self.evaluate(f"{_ELEMENT}({json.dumps(button)}).click()")
        self.until("window.saved !== undefined")
        image: dict[str, Any] = self.evaluate(_IMAGE)
        return image

    def _at(self, element: str, share: float) -> tuple[float, float]:
        found = f"{_ELEMENT}({json.dumps(element)})"
        self.evaluate(f"{found}.scrollIntoView({{ block: 'center' }})")
        self.frames()
        left, top, width, height = self.evaluate(
            f"(({{ left, top, width, height }}) => [left, top, width, height])"
            f"({found}.getBoundingClientRect())"
        )
        return left + share * width, top + height / 2
