"""Ranks matched a few at a time, from a file: the same as a slow, plain matching of all at once."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import runs

from haiprof.analyzer import Analyzer
from haiprof.answers import matched, packed
from haiprof.errors import HaiprofError
from haiprof.views.trace import distributed
from haiprof.views.trace.communication import SCHEMA

RANKS, STEPS = 12, 5


def communications(rank: int) -> pl.DataFrame:
    """What a rank of two groups did: odd ranks lack one in step 3, and send what is not matched."""
    chance = random.Random(rank)
    rows: list[dict[str, Any]] = []
    now = 0
    for step in [*range(STEPS), None]:
        for op, group in (
            ("all_reduce", "all"),
            ("all_to_all", "all"),
            ("all_reduce", f"half {rank % 2}"),
            ("all_reduce", "all"),
            ("send", "all"),
            (None, None),
        ):
            if rank % 2 and step == 3 and op == "all_to_all":
                continue
            now += chance.randrange(1, 50)
            took = chance.choice((5, 5, 10, 1000))
            size = rank if op == "all_to_all" else 64
            columns = {"step": step, "op": op, "group": group, "size": size, "bytes": size}
            rows.append({**columns, "start": now, "end": now + took, "activity": len(rows)})
            now += took
    return pl.DataFrame(rows, SCHEMA)


def plainly(ranks: dict[int, pl.DataFrame]) -> dict[tuple[int, int], tuple[int, int] | None]:
    """(rank, activity) -> transfer and waiting, or None where it is matched with none."""
    alike: dict[Any, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for rank, frame in ranks.items():
        for row in frame.rows(named=True):
            size = None if row["op"] == "all_to_all" else row["size"]
            key = (row["step"], row["op"], row["group"], size)
            alike[key][rank].append((row["activity"], row["end"] - row["start"]))
    matches: dict[tuple[int, int], tuple[int, int] | None] = {}
    for (_, op, _, _), found in alike.items():
        is_matched = (
            len({len(rows) for rows in found.values()}) == 1 and len(found) > 1 and op != "send"
        )
        for rank, rows in found.items():
            for nth, (activity, took) in enumerate(rows):
                shortest = min(other[nth][1] for other in found.values()) if is_matched else 0
                matches[rank, activity] = (shortest, took - shortest) if is_matched else None
    return matches


def test_matching_is_what_a_plain_one_tells() -> None:
    ranks = {rank: communications(rank) for rank in range(RANKS)}
    expected = plainly(ranks)
    found = {
        (row["rank"], row["activity"]): None
        if row["transfer"] is None
        else (row["transfer"], row["waiting"])
        for row in distributed.match(ranks).rows(named=True)
    }
    assert found == expected
    assert None in expected.values()
    assert any(times for times in expected.values())


def test_a_few_ranks_at_a_time_tell_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.write_run(tmp_path / "run")
    for rank in range(RANKS):
        runs.write_process(run, rank)
    processes = Analyzer(run).run.processes

    def views() -> tuple[pl.DataFrame, ...]:
        session = matched.Session()
        for process in processes:
            assert process.rank is not None
            session.add(process, packed.pack(communications(process.rank)))
        return session.views(1)

    at_once = views()
    monkeypatch.setattr(matched, "_BATCH_ROWS", 50)
    monkeypatch.setattr(matched, "_KEPT_BYTES", 1)
    monkeypatch.setattr(distributed.Meetings, "_MOST_WAITING", 10)
    for some, whole in zip(views(), at_once, strict=True):
        assert some.schema == whole.schema
        assert some.rows() == whole.rows()
    transfers, collectives, stragglers = at_once
    expected = plainly({rank: communications(rank) for rank in range(RANKS)})
    assert transfers["unmatched_calls"].sum() == sum(times is None for times in expected.values())
    assert collectives["waiting"].sum() == sum(times[1] for times in expected.values() if times)
    assert stragglers["rank"].to_list() != sorted(stragglers["rank"].to_list())
    assert set(stragglers["rank"].to_list()) == set(range(RANKS))


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.write_run(tmp_path / "run")
    runs.write_process(run, 0)
    (process,) = Analyzer(run).run.processes
    session = matched.Session()
    session._waiting.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(session, "_waiting", full)
        with pytest.raises(HaiprofError, match="TMPDIR") as raised:
            session.add(process, packed.pack(communications(0)))
    assert "\n" not in str(raised.value)
