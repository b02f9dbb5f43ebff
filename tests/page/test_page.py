"""The page in a browser: every tab, keys, links, pins, search, exports; for all eyes and hands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browser import BROWSER
from page.chromium import Chromium
from page.firefox import FIREFOX, Firefox
from page.hands import Hands

from haiprof.answers.all_runs import COLUMNS
from haiprof.show.page import all_runs
from page import document

pytestmark = pytest.mark.jobs
AXE = Path(__file__).parents[2] / "page/node_modules/axe-core/axe.min.js"
TABS = ["wrong", "run", "ranks", "step", "code", "machine", "missing"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    document.build()
    return document.whole(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    document.build()
    return document.whole(tmp_path_factory.mktemp("compared") / "report.html", compared=True)


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def browser(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hands]:
    if (BROWSER if request.param == "chromium" else FIREFOX) is None:
        pytest.skip(f"no {request.param} on PATH: install it to test the page")
    profile = tmp_path_factory.mktemp("browser") / "profile"
    with Chromium(profile) if request.param == "chromium" else Firefox(profile) as hands:
        yield hands


@pytest.fixture(autouse=True)
def _no_complaints(browser: Hands) -> Iterator[None]:
    browser.complaints.clear()
    browser.requests.clear()
    yield
    assert browser.complaints == []
    assert all(address.startswith(("file:", "blob:", "about:")) for address in browser.requests)


def where(browser: Hands) -> dict[str, str]:
    """Return what the address says."""
    pairs = browser.evaluate("[...new URLSearchParams(location.hash.slice(1))]")
    return dict(pairs)


def test_every_tab_is_drawn_and_can_be_reached_by_its_number(browser: Hands, page: Path) -> None:
    browser.show(page)
    for number, tab in enumerate(TABS, 1):
        browser.key(str(number))
        assert where(browser)["tab"] == tab
        browser.settle()
        assert browser.evaluate("document.querySelector('nav a[aria-current]').textContent")
        assert browser.evaluate("document.querySelectorAll('main section').length") > 0
        assert "cannot be shown" not in browser.evaluate("document.querySelector('main').innerText")
    assert browser.evaluate("document.title") == "haiprof: digits-7"
    assert browser.evaluate("document.images.length") == 0


def test_a_finding_leads_to_its_code_in_three_clicks(browser: Hands, page: Path) -> None:
    """Opening the report is none of them."""
    browser.show(page)
    browser.click("a:text(time in load_batch)")
    assert where(browser)["tab"] == "code"
    browser.until("document.querySelector('[data-kind=flame] input').value === 'load_batch'")
    assert "in what matches" in browser.evaluate("document.querySelector('main').innerText")


def test_a_finding_leads_to_the_step_of_its_rank(browser: Hands, page: Path) -> None:
    browser.show(page)
    browser.click("a:text(Rank 5 is late in each step)")
    browser.until("location.hash.includes('view=')")
    assert where(browser) | {"tab": "step", "rank": "5", "step": "12"} == where(browser)
    low, high = map(float, where(browser)["view"].split("~"))
    assert 0.3 < high - low < 0.6


def test_a_rank_without_lanes_is_not_shown_unless_it_is_asked_for(
    browser: Hands, tmp_path: Path
) -> None:
    document.build()
    of_one = document.whole(tmp_path / "report.html", lanes_of=[5])
    browser.show(of_one)
    browser.key("4")
    assert where(browser) | {"tab": "step", "rank": "5"} == where(browser)
    browser.until("document.querySelector('[data-kind=lanes] canvas') !== null")
    browser.show(of_one, "#tab=step&rank=0")
    browser.until("document.querySelector('main').innerText.includes('no more of rank 0')")
    assert where(browser)["rank"] == "0"
    browser.click("button:text(rank 5)")
    browser.until("document.querySelector('[data-kind=lanes] canvas') !== null")
    assert where(browser)["rank"] == "5"


def test_a_link_shows_the_same(browser: Hands, page: Path) -> None:
    browser.show(page, "#tab=run")
    browser.drag("[data-kind=series] .u-over", 0.2, 0.5)
    browser.hover("[data-kind=series] .u-over", 0.7)
    browser.key("m")
    browser.key("w")
    browser.until("location.hash.includes('marks=') && location.hash.includes('view=')")
    shown = where(browser)
    statistics = browser.evaluate("document.querySelector('.panel').innerText")
    browser.show(page, browser.evaluate("location.hash"))
    browser.until("document.querySelector('.panel').innerText.includes('selected')")
    assert where(browser) == shown
    assert browser.evaluate("document.querySelector('.panel').innerText") == statistics


def test_a_range_has_its_statistics(browser: Hands, page: Path) -> None:
    browser.show(page, "#tab=run&from=20&to=30")
    browser.until("document.querySelectorAll('.panel tbody tr').length >= 7")
    assert "10 s selected, from 20 s" in browser.evaluate(
        "document.querySelector('.panel').innerText"
    )
    cells = browser.evaluate(
        "[...document.querySelector('.panel tbody tr').children].map((cell) => cell.textContent)"
    )
    assert cells[0] == "Step time: median of all ranks"
    steps = document.step_times(8, 240)
    ends = 4.0 + steps.max(0).cumsum()
    count = int(((ends >= 20) & (ends <= 30)).sum())
    assert cells[1] == str(count)
    browser.key("Escape")
    browser.until("document.querySelector('.panel').hidden && !location.hash.includes('from=')")


def test_wheel_and_keys_zoom_and_pan(browser: Hands, page: Path) -> None:
    browser.show(page, "#tab=run")

    def view() -> tuple[float, float]:
        browser.until("location.hash.includes('view=')")
        low, high = where(browser)["view"].split("~")
        return float(low), float(high)

    browser.hover("[data-kind=series] .u-over", 0.5)
    browser.wheel("[data-kind=series] .u-over", 0.5, -400)
    first = view()
    browser.key("d")
    moved = view()
    assert moved[0] > first[0]
    assert moved[1] - moved[0] == pytest.approx(first[1] - first[0], rel=1e-6)
    browser.key("w")
    closer = view()
    assert closer[1] - closer[0] < moved[1] - moved[0]
    browser.key("0")
    browser.until("!location.hash.includes('view=')")


def test_pins_compare_two_items(browser: Hands, page: Path) -> None:
    browser.show(page, "#tab=step&rank=5&step=12")
    lanes = "[data-kind=lanes] .scrolled"
    browser.focus(lanes)
    for key in ("ArrowDown", " ", "ArrowRight", "ArrowRight", "ArrowRight", " "):
        browser.key(key)
    text = browser.evaluate("document.querySelector('.panel').innerText")
    assert "Compared" in text
    assert "duration" in text
    assert "difference" in text
    browser.key("Escape")
    assert browser.evaluate("document.querySelector('.panel').hidden")


def test_the_heat_map_leads_to_the_step_of_a_rank(browser: Hands, page: Path) -> None:
    browser.show(page, "#tab=ranks")
    browser.focus("[data-kind=heat] .scrolled")
    for key in ["ArrowRight", *["ArrowDown"] * 5, "ArrowRight"]:
        browser.key(key)
    assert "rank 5, step 1: " in browser.evaluate(
        "document.querySelector('[aria-live]').textContent"
    )
    browser.key("Enter")
    assert where(browser) | {"tab": "step", "rank": "5", "step": "1"} == where(browser)


def test_search_finds_findings_frames_and_lanes(browser: Hands, page: Path) -> None:
    browser.show(page)
    browser.key("/")
    browser.write("attention")
    kinds = browser.evaluate(
        "[...document.querySelectorAll('#found .kind')].map((e) => e.textContent)"
    )
    assert set(kinds) == {"in a step", "code"}
    browser.write("late each")
    browser.key("Enter")
    browser.until("!document.querySelector('dialog[open]')")
    assert where(browser)["tab"] == "step"


def test_a_table_sorts_and_filters(browser: Hands, page: Path) -> None:
    browser.show(page, "#tab=ranks")
    first = "document.querySelector('#section-ranks-ranks tbody tr td').textContent"
    browser.click("#section-ranks-ranks th:nth-child(2) button")
    assert browser.evaluate(first) == "rank 5"
    browser.click("#section-ranks-ranks th:nth-child(5) button")
    browser.click("#section-ranks-ranks th:nth-child(5) button")
    last = browser.evaluate(
        "document.querySelector('#section-ranks-ranks tbody tr:last-child td').textContent"
    )
    assert last == "rank 0", "what is absent comes last"


def test_csv_is_of_all_rows(browser: Hands, page: Path) -> None:
    browser.show(page, "#tab=ranks")
    text = browser.copied("#section-ranks-ranks .tool")
    lines = text.splitlines()
    assert lines[0] == "rank,step (s),dataloader (s),node,memory (B)"
    assert len(lines) == 9
    assert lines[1].split(",")[0] == "rank 0"
    assert float(lines[6].split(",")[1]) == pytest.approx(document.step_times(8, 240)[5].mean())


@pytest.mark.parametrize("kind", ["series", "heat", "lanes", "flame"])
def test_png_is_an_image_of_the_figure(browser: Hands, page: Path, kind: str) -> None:
    tab = {"series": "run", "heat": "ranks", "lanes": "step", "flame": "code"}[kind]
    browser.show(page, f"#tab={tab}")
    saved = browser.saved(f"[data-kind={kind}] [aria-label^='Save as PNG']")
    assert saved["type"] == "image/png"
    assert saved["colours"] > 20, "it is not blank"


def test_what_the_run_wrote_is_text_and_no_markup(browser: Hands, page: Path) -> None:
    browser.show(page)
    assert document.HOSTILE in browser.evaluate("document.querySelector('main').textContent")
    browser.key("/")
    browser.write("onerror")
    assert browser.evaluate("document.querySelectorAll('#found li').length") > 1
    assert browser.evaluate("document.images.length") == 0
    assert browser.evaluate("document.title") == "haiprof: digits-7"
    browser.key("Escape")


def test_a_comparison_shows_what_is_another(browser: Hands, compared: Path) -> None:
    browser.show(compared, "#tab=ranks")
    text = browser.evaluate("document.querySelector('#section-ranks-ranks').innerText")
    assert "+7.53 %" in text
    assert "may be chance" in text
    browser.key("5")
    browser.until("document.querySelector('[data-kind=flame] canvas') !== null")
    assert "red: more than before" in browser.evaluate("document.querySelector('main').innerText")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_everybody_can_use_it(browser: Hands, page: Path, scheme: str, width: int) -> None:
    """axe-core finds nothing serious, and no tab is wider than a phone."""
    browser.size(width, 844, scheme)
    for tab in TABS:
        browser.show(page, f"#tab={tab}&from=20&to=30")
        browser.settle()
        browser.run(AXE.read_text("utf-8"))
        found = browser.evaluate("axe.run().then((result) => result.violations)")
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert serious == [], json.dumps(serious, indent=1)[:4000]
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.size(1280, 900, "light")


def test_all_runs_are_a_page_of_the_same_kind(browser: Hands, tmp_path: Path) -> None:
    document.build()
    shares = {"hang": 0.25, "exposed_communication": 0.1}
    row = {"folder": "alice/<b>r", "run": "r", "user": "alice", "lost_shares": shares}
    row |= {"gpu_hours": 8.0, "gpu_hours_lost": 2.8, "rank_hours": 8.0, "rank_hours_lost": 2.8}
    row |= {"state": "ended", "started": 10**18, "steps": 1000, "step_ns": 1e8}
    browser.show(all_runs.write(pl.DataFrame([row], COLUMNS), "/logs", tmp_path / "runs.html"))
    browser.settle()
    shown = browser.evaluate("document.querySelector('main').innerText")
    assert "alice/<b>r" in shown
    assert "2.8 GPU h" in shown
    assert "1 run: 8 GPU h, 2.8 of them lost" in shown
    assert "cannot be shown" not in shown
    browser.run(AXE.read_text("utf-8"))
    found = browser.evaluate("axe.run().then((result) => result.violations)")
    assert [each for each in found if each["impact"] in ("serious", "critical")] == []


def test_colours_are_chosen_with_a_key_and_kept(browser: Hands, page: Path) -> None:
    browser.show(page)
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = browser.evaluate(background)
    browser.key("t")
    dark = browser.evaluate(background)
    assert dark != light
    browser.show(page)
    assert browser.evaluate(background) == dark
    browser.key("t")
    browser.key("t")
    assert browser.evaluate(background) == light


def test_help_lists_the_keys(browser: Hands, page: Path) -> None:
    browser.show(page)
    browser.key("?")
    assert "search everything" in browser.evaluate(
        "document.querySelector('dialog.help').innerText"
    )
    browser.key("Escape")
    assert not browser.evaluate("document.querySelector('dialog.help').open")


def test_printing_has_no_controls(browser: Hands, page: Path) -> None:
    browser.show(page, "#tab=ranks")
    browser.media("print")
    shown = browser.evaluate(
        "[...document.querySelectorAll('.tools, .panel')]"
        ".filter((each) => each.getClientRects().length).length"
    )
    browser.media("")
    assert shown == 0


def test_what_cannot_be_read_is_said_where_it_would_be(browser: Hands, tmp_path: Path) -> None:
    """One section that is broken leaves the others whole."""
    text = {"kind": "text", "id": "text", "title": "Text", "lines": ["still here"]}
    column = {"type": "f64", "blob": 7, "at": 0, "n": 3}
    broken: dict[str, Any] = {
        "kind": "table", "id": "table", "title": "Table", "rows": 3,
        "columns": [{"name": "x", "values": column}],
    }  # fmt: skip
    page = document.write(tmp_path / "p.html", document.of([broken, text]), [])
    browser.show(page)
    said = browser.evaluate("document.querySelector('main').innerText")
    assert "This cannot be shown: blob 7 is not in this file" in said
    assert "still here" in said


def test_a_document_of_another_format_is_refused_in_one_line(
    browser: Hands, tmp_path: Path
) -> None:
    page = document.write(tmp_path / "p.html", {**document.of([]), "format": 2}, [])
    browser.show(page)
    assert "this page cannot read format 2" in browser.evaluate("document.body.innerText")
