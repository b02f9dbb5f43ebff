"""Outputs of a notebook: isolated, small, and drawn by a library that is on the page once."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
import runs
from browser import BROWSER, Browser
from plotly.offline import get_plotlyjs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.show import notebook
from haiprof.show.shown import Shown

HOSTILE = "</script></iframe>'\"><img src=x onerror=boom()>"


def telling(output: str, what: str) -> str:
    """The output, low and scrolled to its figure, whose frame tells the page around it what."""
    script = (
        "<script>setInterval(() => { document.querySelector('.figure').scrollIntoView();"
        f" parent.postMessage({what}, '*'); }}, 100)</script>"
    )
    escaped = html.escape(script, quote=False).replace("'", "&#39;")
    assert "&lt;/main&gt;" in output
    output = re.sub(r"width:100%;height:\d+px", "width:100%;height:300px", output)
    return output.replace("&lt;/main&gt;", f"&lt;/main&gt;{escaped}")


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_held", set())


@pytest.fixture
def shown(tmp_path: Path) -> list[Shown]:
    run = runs.make_run(tmp_path / "r", ranks=2)
    runs.write_closed(run / "n0#0", schema.SPANS, runs.loop(3, [(HOSTILE, 2.0)]))
    opened = Analyzer(run)
    return [opened.show_overview(), opened.show_one_rank(1)]


def test_two_outputs_hold_the_library_once_and_little_but_their_data(shown: list[Shown]) -> None:
    outputs = [each._repr_html_() for each in shown]
    library = len(json.dumps(get_plotlyjs()))
    data = sum(len(json.dumps(json.loads(each.figure.to_json()))) for each in shown)
    assert library < len(outputs[0])
    assert len(outputs[0]) + len(outputs[1]) - library - data < 300_000
    assert len(shown[1]._repr_html_()) < 300_000 + data


def test_a_name_from_a_run_stays_in_its_frame(shown: list[Shown]) -> None:
    outputs = [each._repr_html_() for each in shown]
    for output in outputs:
        outside = re.sub(r"srcdoc='[^']*'", "", output)
        assert 'sandbox="allow-scripts allow-downloads"' in outside
        assert "img" not in re.sub(r'<script type="application/json".*?</script>', "", outside)
        assert outside.count("<iframe") == outside.count("</iframe>") == 1


@pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH: install it to test the page")
def test_both_are_drawn_without_a_network(shown: list[Shown], tmp_path: Path) -> None:
    counts = "{drawn: document.querySelectorAll('.main-svg').length}"
    outputs = [telling(each._repr_html_(), counts) for each in shown]
    # That of the library may come last on the page.
    page = tmp_path / "notebook.html"
    body = "".join(f"<div>{output}</div>" for output in reversed(outputs))
    page.write_text(f"<!DOCTYPE html><body>{body}</body>", "utf-8")
    with Browser(tmp_path / "profile") as browser:
        browser.open(page.as_uri())
        drawn = browser.evaluate("""new Promise((done) => {
          const frames = new Map();
          addEventListener("message", ({ data, source }) => {
            if (data.drawn) frames.set(source, data.drawn);
            if (frames.size === 2) done([...frames.values()]);
          });
        })""")
        complaints = browser.complaints
    assert len(drawn) == 2
    assert complaints == []


@pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH: install it to test the page")
def test_without_the_library_a_figure_says_what_to_do(shown: list[Shown], tmp_path: Path) -> None:
    shown[0]._repr_html_()
    says = "{says: document.querySelector('.figure').textContent}"
    output = telling(shown[1]._repr_html_(), says)
    page = tmp_path / "notebook.html"
    page.write_text(f"<!DOCTYPE html><body>{output}</body>", "utf-8")
    with Browser(tmp_path / "profile") as browser:
        browser.open(page.as_uri())
        text = browser.evaluate("""new Promise((done) => {
          addEventListener("message", ({ data }) => { if (data.says) done(data.says); });
        })""")
    assert "restart the kernel and run the cells again" in text
