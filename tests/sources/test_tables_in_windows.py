"""What is read of a table for a window of time does not grow with the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from runs import T0, event, span, write_closed, write_live, write_process, write_run

from haiprof import schema
from haiprof.sources import segment_file, tables
from haiprof.sources.own import read_process

HOUR = 3_600_000_000_000


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the segments that are opened, in their order."""
    names: list[str] = []
    original = segment_file.Opened._open

    def counted(
        self: segment_file.Opened, file: Path, how: Callable[[], None]
    ) -> segment_file.Opened:
        names.append(file.name)
        return original(self, file, how)

    monkeypatch.setattr(segment_file.Opened, "_open", counted)
    return names


def long_run(folder: Path, hours: int) -> tuple[Path, int]:
    """Make a process that records one segment an hour; return it and when it records now."""
    process = write_process(write_run(folder))
    for hour in range(hours):
        rows = [span(1000 * 3600 * hour + 600_000 * n, 1, "gc", "g") for n in range(6)]
        write_closed(process, schema.SPANS, rows, hour)
    write_live(process, schema.SPANS, [[span(1000 * 3600 * hours, 1, "gc", "g")]], hours)
    return process, T0 + hours * HOUR


@pytest.mark.parametrize("hours", [3, 48])
def test_a_window_costs_as_much_in_a_long_run_as_in_a_short_one(
    tmp_path: Path, opened: list[str], hours: int
) -> None:
    folder, now = long_run(tmp_path / "run", hours)
    whole = read_process(folder)
    last = replace(whole, window=(now - 60 * 10**9, now + 10**9))
    assert tables.read(last, schema.SPANS).frame["start"].to_list() == [now]
    assert opened == [f"spans-{hours - 1}.arrow", f"spans-{hours}.arrows"]
    opened.clear()
    both = replace(whole, window=(now - HOUR // 2, now + 10**9))
    kept = tables.read(both, schema.SPANS).frame["start"].to_list()
    every = tables.read(whole, schema.SPANS).frame["start"]
    assert kept == every.filter(every >= now - HOUR // 2).to_list()
    assert len(kept) == 4


def test_what_is_damaged_or_closed_late_does_not_hide_what_is_before_it(
    tmp_path: Path, opened: list[str]
) -> None:
    folder, now = long_run(tmp_path / "run", 3)
    (folder / "spans-2.arrow").write_bytes(b"ARROW1")
    early = replace(read_process(folder), window=(now - 3 * HOUR // 2, now + 10**9))
    found = tables.read(early, schema.SPANS)
    assert found.frame.height == 4
    assert len(found.problems) == 1
    # Rows that are written late, as of a kernel that ended late.
    write_closed(folder, schema.SPANS, [span(1000 * 3600 * 3 - 200_000, 1, "gc", "g")], 2)
    late = replace(read_process(folder), window=(now - 1000, now + 10**9))
    assert tables.read(late, schema.SPANS).frame["start"].to_list() == [now]
    assert "spans-2.arrow" in opened


def test_events_that_still_apply_are_found_however_old_they_are(tmp_path: Path) -> None:
    folder, now = long_run(tmp_path / "run", 2)
    kind = sorted(schema.LASTING)[0]
    for number, second in enumerate((0, 3600, 7200)):
        write_closed(folder, schema.EVENTS, [event(second, kind, "it applies")], number)
    last = replace(read_process(folder), window=(now, now + 10**9))
    assert tables.read(last, schema.EVENTS).frame.height == 3
