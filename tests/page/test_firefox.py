"""The page in Firefox: every tab is drawn there, too."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import BROWSER
from page.hands import Hands

from page import document

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(FIREFOX is None, reason="no firefox on PATH: install it to test the page"),
    pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH, which reads the pictures"),
]
#: Of the figures: phases, and the brightest of the heat map.
FORWARD, BACKWARD, HOT = (0x3F, 0x7F, 0xD6), (0x7A, 0x5B, 0xD0), (0xFE, 0xE8, 0x38)
_COLOURS = """((data) => fetch(data).then((answer) => answer.blob()).then(createImageBitmap).then((image) => {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.width, image.height];
  const ctx = canvas.getContext('2d');
  ctx.drawImage(image, 0, 0);
  return [...new Set(new Uint32Array(ctx.getImageData(0, 0, image.width, image.height).data.buffer))];
}))"""  # noqa: E501


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hands]:
    with Hands(tmp_path_factory.mktemp("browser") / "profile") as hands:
        yield hands


@pytest.mark.parametrize(
    ("tab", "drawn"),
    [
        ("run", [FORWARD, BACKWARD]),
        ("ranks", [FORWARD, HOT]),
        ("step&rank=5&step=12", [FORWARD, BACKWARD]),
    ],
)
def test_a_tab_is_drawn(
    tmp_path: Path, reader: Hands, tab: str, drawn: list[tuple[int, int, int]]
) -> None:
    assert FIREFOX is not None
    document.build()
    page = document.whole(tmp_path / "report.html")
    (tmp_path / "profile").mkdir()
    picture = tmp_path / "picture.png"
    subprocess.run(
        [FIREFOX, "--headless", "--no-remote", "--profile", str(tmp_path / "profile"),
         "--window-size", "1280,900", "--screenshot", str(picture), f"{page.as_uri()}#tab={tab}"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    data = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    found = reader.evaluate(f"{_COLOURS}('{data}')")
    seen = {(value & 255, value >> 8 & 255, value >> 16 & 255) for value in found}
    assert set(drawn) <= seen
