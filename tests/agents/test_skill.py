"""What SKILL.md, llms.txt and docs/agents.md say is there: commands, options, tools, files."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
import typer

from haiprof.agents.catalog import TOOLS, VERDICT, schema_of
from haiprof.agents.sql import ROWS, SECONDS
from haiprof.agents.texts import LONGEST, MOST
from haiprof.cli.app import app, commands
from haiprof.cli.arguments import flags

ROOT = Path(__file__).parents[2]
SKILL = files("haiprof.agents").joinpath("SKILL.md").read_text("utf-8")
LLMS = files("haiprof.agents").joinpath("llms.txt").read_text("utf-8")
PAGE = (ROOT / "docs" / "agents.md").read_text("utf-8")


@pytest.mark.parametrize("text", [SKILL, LLMS, PAGE], ids=["SKILL.md", "llms.txt", "agents.md"])
def test_every_command_that_is_named_exists(text: str) -> None:
    found = re.findall(r"(?:`|^)haiprof ([a-z]+)\b([^`\n]*)", text, re.MULTILINE)
    assert found
    group = typer.main.get_command(app)
    for name, rest in found:
        assert name in commands(), name
        known = {option for each in group.commands[name].params for option in each.opts}  # type: ignore[attr-defined]
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in known | set(flags(name)), (name, option)


def test_the_skill_names_every_tool_and_no_other() -> None:
    steps = SKILL.partition("## Ask what was recorded")[2].partition("In a shell")[0]
    named = {word for word in re.findall(r"`([a-z]+)`", steps)}
    assert named == set(TOOLS)


def test_the_skill_begins_with_its_name_and_when_to_use_it() -> None:
    head = re.match(r"---\nname: haiprof\ndescription: (.{40,1000})\n---\n", SKILL)
    assert head is not None


def test_the_page_has_a_row_for_each_tool_with_what_it_takes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE)
    taken = {name: re.findall(r"`(\w+)`", arguments) for name, arguments in rows}
    assert taken == {name: list(schema_of(tool)["properties"]) for name, tool in TOOLS.items()}


def test_the_page_has_the_limits_that_there_are() -> None:
    text = " ".join(PAGE.split())
    assert f"A verdict has {VERDICT:,} characters".replace(",", " ") in text
    assert f"every other answer has {MOST:,}".replace(",", " ") in text
    assert f"cut after {LONGEST} characters" in text
    assert f"with {ROWS} rows at most, and is ended after {SECONDS:g} s" in text


def test_every_file_that_llms_txt_names_exists() -> None:
    named = re.findall(r"\]\((.*?)\)", LLMS)
    assert len(named) > 5
    assert all((ROOT / path).is_file() for path in named)
