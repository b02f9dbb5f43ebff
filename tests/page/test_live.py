"""A page that is served follows its run: what is shown stays, and a server may go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import BROWSER
from page.chromium import Chromium

from page import document

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH: install it to test the page"),
]
#: A server that answers what the test has put there; until then there is nothing new.
_SERVER = """
window.asked = []; window.answer = { status: 204 };
window.fetch = async (address) => {
  window.asked.push(address);
  if (window.answer.status === 0) throw new TypeError('no connection');
  const { status, body } = window.answer;
  if (status === 200) window.answer = { status: 204 };
  return { status, ok: status < 300, json: async () => body };
};"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path / "profile") as hands:
        yield hands
        assert hands.complaints == []


def test_it_follows_and_keeps_what_is_shown(tmp_path: Path, browser: Chromium) -> None:
    def content(steps: int) -> dict[str, object]:
        blob = document.Blob(0)
        line = {"name": "t", "x": blob.column(range(steps)), "y": blob.column(range(steps))}
        series = {
            "kind": "series",
            "id": "s",
            "title": "T",
            "axis": "run",
            "unit": "s",
            "lines": [line],
        }
        text = {"kind": "text", "id": "text", "title": "Steps", "lines": [f"{steps} steps"]}
        of = {**document.of([{**series, "lines": [line]}, text]), "duration": float(steps)}
        return {
            "document": {**of, "live": {"every": 0.05, "version": str(steps)}},
            "blobs": [blob.text()],
        }

    document.build()
    first = content(10)
    page = tmp_path / "page.html"
    blob = document.Blob(0)
    blob.column(range(10))
    blob.column(range(10))
    document.write(page, first["document"], [blob])  # type: ignore[arg-type]
    page.write_text(
        page.read_text("utf-8").replace('<html lang="en">', '<html lang="en" data-live="1">'),
        "utf-8",
    )
    browser._ask("Page.addScriptToEvaluateOnNewDocument", {"source": _SERVER})
    browser.show(page, "#tab=only&from=2&to=4&view=1~6")
    browser.until(
        "document.querySelector('.live').textContent === 'live' && window.asked.length > 1"
    )
    assert browser.evaluate("window.asked[0]") == "document?since=10"

    browser.evaluate(f"window.answer = {{ status: 200, body: {json.dumps(content(20))} }}; 0")
    browser.until("document.querySelector('main').innerText.includes('20 steps')")
    shown = browser.evaluate("location.hash")
    assert "from=2&to=4" in shown
    assert "view=1~6" in shown
    browser.until("window.asked.at(-1) === 'document?since=20'")

    browser.evaluate("window.answer = { status: 0 }; 0")
    browser.until("document.querySelector('.live').textContent === 'not answering'")
    assert "20 steps" in browser.evaluate("document.querySelector('main').innerText")

    ended = content(20)
    del ended["document"]["live"]  # type: ignore[attr-defined]
    browser.evaluate(f"window.answer = {{ status: 200, body: {json.dumps(ended)} }}; 0")
    browser.until("document.querySelector('.live').textContent === 'ended'")
