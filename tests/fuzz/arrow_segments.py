"""Fuzzes the readers of table segments: a damaged one beside a sound one, read in every way."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parent.parent))

import pyarrow as pa
import runs
from damage import damaged, forged, with_odd_values
from supervised import fault_of, main

from haiprof import schema
from haiprof.common.owned_files import Folder
from haiprof.errors import HaiprofError
from haiprof.recorder.closing import close_stream
from haiprof.recorder.reach import Reach
from haiprof.recorder.segments import TableWriter, reached
from haiprof.sources import tables
from haiprof.sources.follow import FolderFollower, Wanted

_ROWS = {
    schema.SPANS: runs.loop(40),
    schema.SAMPLES: runs.host_samples(20),
    schema.EVENTS: [runs.event(0.01 * n, "mark", f"mark {n}", n, {"n": n}) for n in range(40)],
    schema.KERNELS: runs.kernel_loop(0, 9),
}
_FOLLOWED = {
    schema.SPANS: ("start", "duration", "category", "name", "step"),
    schema.SAMPLES: ("time", "metric", "instance", "value", "flags"),
    schema.EVENTS: ("time", "kind", "text"),
    schema.KERNELS: ("start", "duration", "kind", "name"),
}
_PIECES = 4
#: Rows of the segment beside the damaged one.
_SOUND = 4


def _seeds(table: schema.Table, folder: Path) -> dict[str, bytes]:
    """Write the rows as a recorder does, live and closed, and as an import of a trace does."""
    rows = _ROWS[table]
    size = len(rows) // _PIECES
    writer = TableWriter(folder, table)
    writer.prepare()
    for n, batch in enumerate(runs.recorded_batches(table, rows, size)):
        writer.append(batch, Reach({0: (n + 1) * size}, {"overwritten": n}))
        writer.push()
    live = folder / f"{table.name}-0.arrows"
    seeds = {"arrows": live.read_bytes()}
    writer.close()
    closed = folder / f"{table.name}-0.arrow"
    seeds["arrow"] = closed.read_bytes()
    with pa.ipc.open_file(str(closed)) as file:
        whole = file.read_all()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, whole.schema) as out:
        out.write_table(whole, max_chunksize=size)
    seeds["plain"] = sink.getvalue().to_pybytes()
    return seeds


def _starts(table: schema.Table) -> list[int]:
    """Return when the rows of a segment that is damaged were, in its order."""
    time = "start" if "start" in _ROWS[table][0] else "time"
    return [row[time] for row in _ROWS[table][: len(_ROWS[table]) // _PIECES * _PIECES]]


_all_seeds: dict[schema.Table, dict[str, bytes]] = {}


def trial(seed: str, number: int, folder: Path) -> list[str]:
    """Damage a segment, and read its folder as each of its readers does."""
    random_ = random.Random(f"{seed} {number}")
    table = random_.choice(list(_ROWS))
    if not _all_seeds:
        for each in _ROWS:
            (place := folder / "seeds" / each.name).mkdir(parents=True)
            _all_seeds[each] = _seeds(each, place)
    kind = random_.choice(("arrows", "arrow", "plain"))
    content = _all_seeds[table][kind]
    other = _all_seeds[random_.choice(list(_ROWS))][kind]
    way = random_.random()
    lies = way < 0.3
    if way < 0.2:
        content = forged(table, _ROWS[table][:40], random_)
        kind = "arrow" if content.startswith(b"ARROW1") else "arrows"
    elif lies:
        content = with_odd_values(table, _ROWS[table][:40], random_)
        kind = "arrow" if content.startswith(b"ARROW1") else "arrows"
    if way > 0.15:
        content = damaged(content, other, random_)
    run = folder / "run"
    run.mkdir()
    runs.write_closed(run, table, _ROWS[table][:_SOUND], 1)
    (run / f"{table.name}-0.{'arrows' if kind == 'arrows' else 'arrow'}").write_bytes(content)
    return _read(run, table, lies)


def _read(folder: Path, table: schema.Table, lies: bool) -> list[str]:
    """Return what is wrong; of a file that ``lies`` nobody knows how many rows it had."""
    faults: list[str] = []
    ways = {
        "read": lambda: _read_all(folder, table, lies, faults),
        "some": lambda: tables.read_table(folder, table, _FOLLOWED[table][:2]),
        "kept": lambda: tables.read_table(folder, table, None, {_text(table): ["step", "mark"]}),
        "filled": lambda: tables.filled(folder, table, [c.name for c in table.columns]),
        "values": lambda: tables.values(folder, table, _text(table)),
        "count_cut": lambda: tables.count_cut(folder),
        "check": lambda: tables.check(folder),
        "follow": lambda: FolderFollower(folder, [Wanted(table, _FOLLOWED[table], 3)]).read(),
        "reached": lambda: reached(Folder.at(folder), table),
        "close": lambda: _closed(folder, table),
        "again": lambda: tables.read_table(folder, table),
    }
    for name, way in ways.items():
        try:
            way()
        except (HaiprofError, OSError):
            pass
        except BaseException as error:
            faults.append(fault_of(name, error))
    return faults


def _read_all(folder: Path, table: schema.Table, lies: bool, faults: list[str]) -> None:
    read = tables.read_table(folder, table)
    read.frame.to_dicts()
    wanted = _starts(table)
    if read.frame.height < _SOUND:
        faults.append(f"the sound segment is lost\n{read.problems}")
    elif not (lies or read.problems or read.cut or tables.check(folder)):
        rows = read.frame.height - _SOUND
        # A stream that ends earlier, and between two batches, is one of a shorter recording.
        live = (folder / f"{table.name}-0.arrows").exists()
        if rows < len(wanted) and not (live and rows % (len(wanted) // _PIECES) == 0):
            faults.append(f"lost without a word\n{len(wanted) - rows} of {len(wanted)} rows")


def _closed(folder: Path, table: schema.Table) -> None:
    if (folder / f"{table.name}-0.arrows").exists():
        close_stream(Folder.at(folder), f"{table.name}-0.arrows")


def _text(table: schema.Table) -> str:
    return next(column.name for column in table.columns if column.kind == "text")


if __name__ == "__main__":
    main(trial)
