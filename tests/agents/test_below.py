"""Which runs there are below a folder, what each is called, and that nothing else is opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import traces
from runs import make_run, write_run

from haiprof import schema
from haiprof.agents.below import HERE, Below
from haiprof.agents.texts import shown
from haiprof.errors import HaiprofError
from haiprof.sources.imports.formats import find
from haiprof.sources.imports.kept import keep, place_of


def names(folder: Path) -> set[str]:
    return {place.name for place in Below(folder).places()}


def imported(path: Path) -> None:
    found = find(str(path))
    assert found is not None
    place = place_of(found)
    assert place is not None
    keep(found, place)


def aged(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (1_600_000_000, 1_600_000_000))


def test_runs_and_imports_at_any_depth(tmp_path: Path) -> None:
    write_run(tmp_path / "logs" / "a")
    write_run(tmp_path / "logs" / "team" / "x" / "b")
    write_run(tmp_path / "logs" / ".hidden")
    traces.write(tmp_path / "logs" / "t" / "w.pt.trace.json", traces.small())
    traces.write(tmp_path / "logs" / "plain" / "w.pt.trace.json", traces.small())
    single = traces.write(tmp_path / "logs" / "one" / "w.pt.trace.json", traces.small())
    imported(tmp_path / "logs" / "t")
    imported(single)
    logs = tmp_path / "logs"
    assert names(logs) == {"a", "team/x/b", "t", "one/w.pt.trace.json"}
    assert names(logs / "a") == {HERE}
    assert names(logs / "t") == {HERE}
    below = Below(logs)
    assert below.run("t").traced
    assert below.run("one/w.pt.trace.json").traced
    assert below.place("team/x/b").folder == logs / "team" / "x" / "b"


def test_no_other_folder_is_opened(tmp_path: Path) -> None:
    make_run(tmp_path / "secret")
    logs = tmp_path / "logs"
    make_run(logs / "r")
    (logs / "link").symlink_to(tmp_path / "secret")
    (logs / "up").symlink_to("..")
    (logs / "document").mkdir()
    (logs / "document" / schema.RUN_FILE).symlink_to(tmp_path / "secret" / schema.RUN_FILE)
    below = Below(logs)
    assert names(logs) == {"r"}
    given = ("../secret", "link", "up/secret", "document", str(tmp_path / "secret"), "r/../r",
             "./r", "r/", "", "/", "\0", "r\0", "x" * 10_000, "a/" * 1000)  # fmt: skip
    for name in given:
        with pytest.raises(HaiprofError, match="no run"):
            below.run(name)
    assert below.run("r").ranks == [0]


def test_odd_names_are_asked_for_as_they_are_shown(tmp_path: Path) -> None:
    for name in ("a\x1b[31mb", "c\nd", "x" * 250, "two\x01", "two\x02"):
        write_run(tmp_path / name / "y" / ("z" * 100))
    below = Below(tmp_path)
    for name in ("a\x1b[31mb", "c\nd", "x" * 250):
        whole = f"{name}/y/{'z' * 100}"
        assert below.place(shown(whole)).name == whole
    with pytest.raises(HaiprofError, match="several runs"):
        below.place(shown(f"two\x01/y/{'z' * 100}"))


def test_a_run_stays_open_until_it_changes_and_only_a_few_do(tmp_path: Path) -> None:
    for number in range(6):
        aged(make_run(tmp_path / f"r{number}"))
    below = Below(tmp_path)
    first = below.run("r0")
    assert below.run("r0") is first
    (file,) = (tmp_path / "r0" / "n0#0").glob("spans*")
    os.utime(file, (1_600_000_001, 1_600_000_001))
    changed = below.run("r0")
    assert changed is not first
    for number in range(1, 6):
        below.run(f"r{number}")
    assert below.run("r5") is below.run("r5")
    assert below.run("r0") is not changed


def test_an_import_of_other_traces_is_none(tmp_path: Path) -> None:
    file = traces.write(tmp_path / "t" / "w.pt.trace.json", traces.small())
    imported(tmp_path / "t")
    traces.write(file, traces.small(begin=5000))
    with pytest.raises(HaiprofError, match=r"the import of 't' .*: run haiprof import"):
        Below(tmp_path).run("t")


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(HaiprofError, match="no such folder"):
        Below(tmp_path / "x").run("r")
