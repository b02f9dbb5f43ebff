from __future__ import annotations

import re

import reference

import haiprof
from haiprof import _core, schema
from haiprof.cli.app import commands
from haiprof.options import OPTIONS


def cells(page: str) -> list[list[str]]:
    """Return the rows of a page's tables, without their heads."""
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_python_has_each_public_name_and_each_method_of_the_analyzer() -> None:
    page = reference.python()
    headings = re.findall(r'heading: "(\w+)"', page)
    methods = [name for name in dir(haiprof.Analyzer) if not name.startswith("_")]
    assert sorted(headings) == sorted([*haiprof.__all__, *methods])
    assert "::: haiprof.answers.recorded.RecordedAnswers.waits\n" in page


def test_commands_have_their_help() -> None:
    page = reference.commands()
    assert set(re.findall(r"^## `haiprof (\w+)`$", page, re.MULTILINE)) == commands()
    assert "* `--json`" in page
    assert "--kernels-period FLOAT" in page
    assert page.count("```") % 2 == 0


def test_options_have_their_defaults() -> None:
    rows = {row[0].partition("<br>")[0].strip("`"): row for row in cells(reference.options())}
    assert list(rows) == list(OPTIONS)
    assert rows["hooks"][1] == "on"
    assert rows["trace"][1] == "off"
    assert rows["sample_hz"][0] == "`sample_hz`<br>`--sample-hz`<br>`HAIPROF_SAMPLE_HZ`"
    assert rows["sample_hz"][1] == "`1.0`"
    assert rows["run"][1] == ""


def test_metrics_are_those_of_the_sources() -> None:
    named = {name for row in cells(reference.metrics()) for name in re.findall(r"`(.*?)`", row[1])}
    sources = _core.HostSampler().sources()
    assert named == {name for source in sources for name in source["metrics"]}  # type: ignore[attr-defined]


def test_tables_have_their_columns() -> None:
    page = reference.tables()
    for table in schema.TABLES.values():
        part = page.partition(f"## {table.name}\n")[2].partition("\n## ")[0]
        assert [row[0].strip("`") for row in cells(part)] == [c.name for c in table.columns]
