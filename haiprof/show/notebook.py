"""An output of a notebook: words, tables and figures in a frame; the notebook has the library once.

The first output of a process leaves plotly in the notebook's page, as text that is not run there;
the frames of all outputs ask for it. Each frame is isolated from the notebook: names from a run can
do nothing there, whatever they are.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST_HEIGHT: Final = 1400
#: Run in the notebook's page, by each output, once: it answers frames that ask for the library.
_ANSWERS: Final = """<script>
window.haiprofAnswers ??= addEventListener("message", ({ data, source }) => {
  const held = data && data.haiprof && document.getElementById(`haiprof-${data.haiprof}`);
  if (!held) return;
  let library;
  try {
    library = JSON.parse(held.textContent);
  } catch {
    return;  // the page is still being loaded
  }
  source.postMessage({ ...data, library }, "*");
}) ?? true;
</script>"""
#: Versions of the library that an output of this process holds.
_held: set[str] = set()


def output(title: str, body: str, figures: Sequence[go.Figure], height: int) -> str:
    """Return the HTML of an output, ``height`` pixels high at most.

    Args:
        title: its heading, plain text.
        body: what stands above the figures, HTML.
        figures: the figures; each is drawn when it is scrolled into view.
        height: of all of it, in pixels.
    """
    from plotly.offline import get_plotlyjs_version

    version = f"plotly-{get_plotlyjs_version()}"
    get, draw = _file("notebook.js"), _file("notebook_figures.js")
    places, data = zip(*map(_figure, range(len(figures)), figures), strict=True)
    heading = html.escape(title)
    document = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{heading}</title><style>{_file('notebook.css')}</style></head><body><main>"
        f'<section class="card"><h2>{heading}</h2>{body}{"".join(places)}</section></main>'
        f"{''.join(data)}<script>{get}({json.dumps(version)}, () => {{{draw}}});</script>"
        "</body></html>\n"
    )
    # Between single quotes, of which JSON has none, the data becomes hardly longer.
    quoted = html.escape(document, quote=False).replace("'", "&#39;")
    frame = (
        f"<iframe srcdoc='{quoted}' sandbox=\"allow-scripts allow-downloads\" "
        f'style="width:100%;height:{min(height, _MOST_HEIGHT)}px;border:0"></iframe>'
    )
    return f"{_library(version)}{_ANSWERS}{frame}"


def _figure(number: int, figure: go.Figure) -> tuple[str, str]:
    """Return the HTML of the place where a figure will be drawn, and that of its data."""
    document = json.loads(figure.to_json())
    # The template's colours are those of a white page; ours follow the reader's.
    document["layout"].pop("template", None)
    name = f"figure-{number}"
    # "<" would let a name in a run end the script element.
    data = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    height = int(document["layout"].get("height") or 450)
    return (
        f'<div class="figure" data-figure="{name}" style="height:{height}px"></div>',
        f'<script type="application/json" id="{name}">{data}</script>',
    )


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _library(version: str) -> str:
    if version in _held:
        return ""
    from plotly.offline import get_plotlyjs

    _held.add(version)
    text = json.dumps(get_plotlyjs()).replace("<", "\\u003c")
    return f'<script type="application/json" id="haiprof-{version}">{text}</script>'
