"""An output of a notebook: a page in a frame of its own, whose library the notebook has once.

The first output of a process leaves plotly in the notebook's page, as text that is not run there;
the frames of all outputs ask for it. Each frame is isolated from the notebook: names from a run can
do nothing there, whatever they are.
"""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Final

from haiprof.show.plotly_page import Page

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


def output(page: Page, height: int) -> str:
    """Return the HTML of an output that shows a page, ``height`` pixels high at most."""
    from plotly.offline import get_plotlyjs_version

    version = f"plotly-{get_plotlyjs_version()}"
    here = resources.files(__package__)
    get = here.joinpath("notebook.js").read_text("utf-8")
    draw = here.joinpath("plotly_page.js").read_text("utf-8")
    document = page.with_scripts("", f"{get}({json.dumps(version)}, () => {{{draw}}});")
    # Between single quotes, of which JSON has none, the data becomes hardly longer.
    quoted = html.escape(document, quote=False).replace("'", "&#39;")
    frame = (
        f"<iframe srcdoc='{quoted}' sandbox=\"allow-scripts allow-downloads\" "
        f'style="width:100%;height:{min(height, _MOST_HEIGHT)}px;border:0"></iframe>'
    )
    return f"{_library(version)}{_ANSWERS}{frame}"


def _library(version: str) -> str:
    if version in _held:
        return ""
    from plotly.offline import get_plotlyjs

    _held.add(version)
    text = json.dumps(get_plotlyjs()).replace("<", "\\u003c")
    return f'<script type="application/json" id="haiprof-{version}">{text}</script>'
