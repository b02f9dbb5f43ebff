"""Builds one HTML page that needs no network: style, figures and plotly are inside it.

Tests: tests/show/test_report.py.
"""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go


class Page:
    """Collects the parts of a page; figures are drawn when they are scrolled into view."""

    def __init__(self, title: str) -> None:
        """Start an empty page."""
        self._title = title
        self._body: list[str] = []
        self._figures: list[str] = []

    def add(self, fragment: str) -> None:
        """Add HTML; names in it must be escaped already."""
        self._body.append(fragment)

    def card(self, heading: str, *fragments: str) -> None:
        """Add a framed section; ``heading`` is plain text, the fragments are HTML."""
        title = f"<h2>{html.escape(heading)}</h2>" if heading else ""
        self.add(f'<section class="card">{title}{"".join(fragments)}</section>')

    def figure(self, figure: go.Figure) -> str:
        """Add a figure, and return the HTML of the place where it will be drawn."""
        document = json.loads(figure.to_json())
        # The template's colours are those of a white page; ours follow the reader's.
        document["layout"].pop("template", None)
        name = f"figure-{len(self._figures)}"
        # "<" would let a name in a trace end the script element.
        data = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
        self._figures.append(f'<script type="application/json" id="{name}">{data}</script>')
        height = int(document["layout"].get("height") or 450)
        return f'<div class="figure" data-figure="{name}" style="height:{height}px"></div>'

    def to_html(self) -> str:
        """Return the whole page; plotly is in it once, and only if there is a figure."""
        if not self._figures:
            return self.with_scripts("", "")
        from plotly.offline import get_plotlyjs

        draw = resources.files(__package__).joinpath("plotly_page.js").read_text("utf-8")
        return self.with_scripts(get_plotlyjs(), draw)

    def with_scripts(self, library: str, draw: str) -> str:
        """Return the page with these scripts before and behind the data of its figures, if any."""
        style = resources.files(__package__).joinpath("plotly_page.css").read_text("utf-8")
        before, behind = (f"<script>{each}</script>" if each else "" for each in (library, draw))
        scripts = f"{before}{''.join(self._figures)}{behind}" if self._figures else ""
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<link rel="icon" href="data:,">'
            f"<title>{html.escape(self._title)}</title><style>{style}</style></head>"
            f"<body><main>{''.join(self._body)}</main>{scripts}</body></html>\n"
        )
