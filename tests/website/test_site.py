"""The site that ``make docs`` has built."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import gallery
import pytest

import haiprof

pytestmark = pytest.mark.site
ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
#: Reports are pages of their own.
REPORTS = {SITE / "gallery" / f"{picture.name}.html" for picture in gallery.PICTURES}


class Links(HTMLParser):
    """What a page leads to, what it loads, and what can be led to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon"):
            self.loaded.add(given.get("href", ""))
        elif "src" in given:
            self.loaded.add(given["src"])


@cache
def links(page: Path) -> Links:
    found = Links()
    found.feed(page.read_text("utf-8"))
    return found


def pages() -> list[Path]:
    return sorted(set(SITE.rglob("*.html")) - REPORTS - {SITE / "404.html"})


def broken(page: Path, link: str) -> bool:
    """Return whether a link leads to no file of the site, or to no place in it."""
    address, place = urldefrag(link)
    if re.match(r"[a-z]+:", address):
        return False
    to = (page.parent / unquote(address)).resolve() if address else page
    if to.is_dir():
        to /= "index.html"
    if not to.is_file():
        return True
    return bool(place) and to not in REPORTS and unquote(place) not in links(to).anchors


def test_every_link_leads_somewhere() -> None:
    assert len(pages()) > 50
    found = {(str(page.relative_to(SITE)), link)
             for page in pages()
             for link in links(page).links | links(page).loaded
             if broken(page, link)}  # fmt: skip
    assert found == set()


def test_a_link_that_leads_nowhere_is_found() -> None:
    assert broken(SITE / "index.html", "nothing.html")
    assert broken(SITE / "index.html", "cli.html#nothing")
    assert not broken(SITE / "index.html", "cli.html#haiprof-run")


def test_no_page_loads_anything_from_another_host() -> None:
    loaded = {address for page in pages() for address in links(page).loaded}
    assert len(loaded) > 3
    assert not [address for address in loaded if re.match(r"([a-z]+:)?//", address)]


def test_search_finds_every_page_but_those_of_sources() -> None:
    index = json.loads((SITE / "search" / "search_index.json").read_text("utf-8"))
    found = {urldefrag(entry["location"])[0] or "index.html" for entry in index["docs"]}
    assert {str(page.relative_to(SITE)) for page in pages()} <= found
    texts = " ".join(entry["text"] for entry in index["docs"])
    assert "cpu.util.percent" in texts
    assert "kernels_period" in texts


@pytest.mark.parametrize("report", sorted(REPORTS), ids=lambda report: report.stem)
def test_the_gallery_has_the_report(report: Path) -> None:
    assert report.stat().st_size > 100_000
    assert str(report.name) in links(SITE / "gallery" / "index.html").links


def test_the_notebook_ran_over_the_run_of_the_gallery() -> None:
    text = (SITE / "notebooks" / "analyzer.html").read_text("utf-8")
    assert "Rank 1 is late" in text
    cells = (ROOT / "docs/notebooks/analyzer.py").read_text("utf-8").split("# %%")
    programs = [cell for cell in cells[1:] if not cell.startswith(" [markdown]")]
    assert len(re.findall(r"In\s*\[\d+\]", text)) == len(programs) > 4


def test_the_reference_has_the_docstring_of_each_method() -> None:
    text = re.sub(r"<[^>]*>", "", (SITE / "reference" / "python.html").read_text("utf-8"))
    text = " ".join(text.split())
    for name in dir(haiprof.Analyzer):
        if not name.startswith("_"):
            doc = str(getattr(haiprof.Analyzer, name).__doc__)
            first = re.split(r"[`:(&<'\"]", " ".join(doc.split("\n\n")[0].split()))[0]
            assert first in text, name


def test_anchors_are_those_of_github() -> None:
    import hooks

    assert hooks.anchor("IO — `/proc/<pid>/io`", "-") == "io--procpidio"
    assert hooks.anchor("haiprof ps, stop, flush", "-") == "haiprof-ps-stop-flush"


def test_links_of_pages_lead_to_pages_of_sources() -> None:
    import hooks

    text = (
        "[a](../examples/x.py) [b](hang.md#by-itself) [c](../haiprof/schema.py) [d](../README.md)"
    )
    linked = hooks.linked(text, "docs/a.md", "a.md")
    assert linked == (
        "[a](../examples/x.py) [b](hang.md#by-itself) [c](sources/haiprof/schema.py.md) "
        "[d](index.md)"
    )
    assert hooks.sources(text, "docs/a.md") == {"haiprof/schema.py"}
    assert hooks.linked("[a](docs/cli.md#x)", "README.md", "index.md") == "[a](cli.md#x)"
    assert "`rank_row.py`" not in hooks.source_text("haiprof/schema.py")
    assert "- `train_digits.py`\n" in hooks.source_text("examples")
