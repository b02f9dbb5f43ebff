"""The file of a page: the data of the document within the template, as data only."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from haiprof.show.page import write
from haiprof.show.page.build import Built
from haiprof.show.page.document import Document

HOSTILE = "</script><script>boom()</script><!--blobs--><title>haiprof</title>\u2028&"


def built(name: str) -> Built:
    document: Document = {
        "format": 1,
        "title": name,
        "name": name,
        "facts": [],
        "origin_ns": "0",
        "duration": float("nan"),
        "headline": [name],
        "ranks": [],
        "chosen_ranks": [],
        "tabs": [],
        "made_by": "haiprof",
    }
    return Built(document, ["AwA=", "AwA="])


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.html").write_text(
        "<title>haiprof</title><!--document--><script>draw()</script><!--blobs-->", "utf-8"
    )
    monkeypatch.setattr(write, "template", lambda: (tmp_path / "page.html").read_text("utf-8"))


@pytest.mark.usefixtures("template")
def test_a_hostile_name_stays_text() -> None:
    page = write.to_html(built(HOSTILE))
    elements = re.findall(r"<script[^>]*>", page)
    assert elements == [
        '<script type="application/json" id="document">',
        "<script>",
        '<script type="text/plain" id="blob-0">',
        '<script type="text/plain" id="blob-1">',
    ]
    data = re.search(r'id="document">(.*?)</script>', page)
    assert data is not None
    assert json.loads(data[1])["name"] == HOSTILE
    assert "&lt;/script&gt;" in page.split("</title>")[0]


def test_what_is_no_number_of_json_is_null() -> None:
    assert json.loads(write.to_json(built("r")))["duration"] is None
