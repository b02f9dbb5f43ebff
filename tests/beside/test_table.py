"""The table "Beside others" of docs/recording.md says what the tests beside this one have shown."""

from __future__ import annotations

import re
from pathlib import Path

from beside_others import ROWS
from fixtures import ROOT


def test_the_docs_have_the_rows_that_are_tested_and_no_others() -> None:
    text = (ROOT / "docs" / "recording.md").read_text()
    section = text.partition("\n## Beside others\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    assert lines[0] == "| beside | job unharmed | recorded |"
    found = [line.strip("|").split("|") for line in lines[1:]]
    # A number in brackets points to a note below the table.
    fields = {
        row.strip(): (un.strip(), re.sub(r" \[\d\]", "", rec).strip()) for row, un, rec in found
    }
    assert fields == ROWS
    for number in re.findall(r" \[(\d)\]", "".join(lines)):
        assert f"\n[{number}]: " in section or f"\n{number}. " in section


def test_every_row_is_tested() -> None:
    here = Path(__file__).parent
    tested = ("tools", "places", "free_threaded")
    tests = "".join((here / f"test_{name}.py").read_text() for name in tested)
    assert [row for row in ROWS if f'"{row}"' not in tests] == []
