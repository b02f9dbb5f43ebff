"""The source tree is as CONTRIBUTING.md has it, and no two files import each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
#: What every file may import: the package imports what a name needs when it is asked for.
FACE = "haiprof"
#: The Analyzer is the face of the analysis; what is shown of it takes it as its argument.
SHOWN = re.compile(r"haiprof\.(analyzer|answers\.headline|show\..*)")


def rows(heading: str) -> dict[str, list[str]]:
    """Return the cells of a table, by the name in its first column."""
    table = PAGE.partition(f"| `{heading}` | holds")[2].partition("\n\n")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {cells[0].strip("`"): cells[1:] for cells in lines if cells and cells[0].startswith("`")}


def test_every_part_of_the_package_has_a_row() -> None:
    parts = {path.name for path in (ROOT / "haiprof").iterdir() if path.suffix == ".py"}
    parts |= {path.parent.name for path in ROOT.glob("haiprof/*/__init__.py")}
    assert set(rows("haiprof/")) == parts - {"__init__.py"}


def test_every_part_of_deploy_has_a_row() -> None:
    parts = {path.name for path in (ROOT / "deploy").iterdir()}
    parts = {name for name in parts if not name.endswith(".dockerignore")}
    assert set(rows("deploy/")) == parts


def modules() -> list[Path]:
    """Return the files of the package that hold code of their own, from the root."""
    files = (path.relative_to(ROOT) for path in (ROOT / "haiprof").rglob("*.py"))
    return sorted(path for path in files if path.name != "__init__.py")


@pytest.mark.parametrize("module", modules(), ids=str)
def test_one_finds_the_test_of_a_module(module: Path) -> None:
    """It is at the mirrored path, or the module's docstring names it."""
    within = module.relative_to("haiprof")
    mirrored = ROOT / "tests" / within.parent / f"test_{within.name}"
    text = ast.get_docstring(ast.parse((ROOT / module).read_text("utf-8"))) or ""
    named = re.findall(r"^Tests: (tests/\S+\.py)\.$", text, re.MULTILINE)
    assert bool(named) != mirrored.exists(), "name it, or leave the name out: not both"
    assert all((ROOT / path).is_file() for path in named)


def included(folder: Path) -> set[str]:
    """Return the folders of src that a folder includes something of."""
    found: set[str] = set()
    for file in (p for p in folder.iterdir() if p.suffix in (".h", ".cpp", ".c")):
        found.update(re.findall(r'#include "(\w+)/', file.read_text("utf-8")))
    return found - {folder.name}


def test_every_folder_of_src_includes_what_its_row_says() -> None:
    listed = rows("src/")
    folders = {path.name: path for path in (ROOT / "src").iterdir() if path.is_dir()}
    assert set(listed) == set(folders)
    for name, folder in folders.items():
        words = set(re.findall(r"`(\w+)`", listed[name][1]))
        if listed[name][1].startswith("all but"):
            words = set(folders) - words - {name}
        assert included(folder) == words, name


def test_no_folder_of_src_includes_one_that_includes_it() -> None:
    below = {path.name: included(path) for path in (ROOT / "src").iterdir() if path.is_dir()}
    assert not list(circles(below))


def imports() -> dict[str, set[str]]:
    """Return which files of the package each imports, those for types only, too."""
    files = {}
    for path in (ROOT / "haiprof").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = path
    found = {}
    for name, path in files.items():
        named: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    within = f"{node.module}.{alias.name}"
                    named.add(within if within in files else node.module)
        found[name] = (named & set(files)) - {FACE, name}
    found[FACE] = set()
    return found


def circles(below: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield those that reach themselves, each with what it reaches on the way."""
    for name in sorted(below):
        reached: set[str] = set()
        waiting = list(below[name])
        while waiting:
            one = waiting.pop()
            if one not in reached:
                reached.add(one)
                waiting += below.get(one, ())
        if name in reached:
            yield [name, *sorted(reached)]


def test_no_two_files_import_each_other() -> None:
    below = imports()
    for name in [name for name in below if SHOWN.fullmatch(name)]:
        below[name] = {other for other in below[name] if not SHOWN.fullmatch(other)}
    assert [found[0] for found in circles(below)] == []


def test_a_circle_is_found_and_a_line_is_none() -> None:
    line = {"a": {"b"}, "b": {"c"}, "c": set[str]()}
    assert list(circles(line)) == []
    assert [found[0] for found in circles(line | {"c": {"a"}})] == ["a", "b", "c"]
