"""Writes a document as one file that needs no network: the page's template with the data in it."""

from __future__ import annotations

import html
import json
import math
from importlib import resources
from typing import Any, Final

from haiprof.errors import HaiprofError
from haiprof.show.page.build import Built

#: Where the document goes in the template, and behind the script the blobs: so the page is drawn
#: before they are parsed.
_DOCUMENT: Final = "<!--document-->"
_BLOBS: Final = "<!--blobs-->"
_TEMPLATE: Final = "page.html"
#: What could end a script element, or a line of JavaScript.
_ESCAPED: Final = {
    ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"
}  # fmt: skip


def to_json(built: Built) -> str:
    """Return the document as JSON that is safe within a script element."""
    text = json.dumps(_finite(built.document), separators=(",", ":"), ensure_ascii=False)
    return text.translate(_ESCAPED)


def template() -> str:
    """Return the page without data, as ``make page`` builds it.

    Raises:
        HaiprofError: it was not built.
    """
    file = resources.files(__package__).joinpath(_TEMPLATE)
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        raise HaiprofError(f"{file}: missing: build it with `make page`") from None


def to_html(built: Built) -> str:
    """Return the page."""
    blobs = "\n".join(
        f'<script type="text/plain" id="blob-{number}">{blob}</script>'
        for number, blob in enumerate(built.blobs)
    )
    data = f'<script type="application/json" id="document">{to_json(built)}</script>'
    title = f"<title>{html.escape(built.document['title'])}</title>"
    # Never in what was put in before: a name in a run may be that of a place.
    before, rest = template().split(_DOCUMENT, 1)
    between, after = rest.split(_BLOBS, 1)
    before = before.replace("<title>haiprof</title>", title, 1)
    return f"{before}{data}{between}{blobs}{after}"


def _finite(value: Any) -> Any:
    """Return the value with null for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
