"""Imports one process of an export: reads its rows piece by piece, and writes its tables.

Tests: tests/sources/nsys/test_activities.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from haiprof import schema
from haiprof.errors import HaiprofError
from haiprof.sources.imports.imported import Imported, gpu
from haiprof.sources.imports.segments import Segments
from haiprof.sources.nsys import nccl, processes
from haiprof.sources.nsys.activities import Activities
from haiprof.sources.nsys.database import Database, Expression
from haiprof.sources.nsys.lacks import lacks
from haiprof.sources.nsys.processes import Target
from haiprof.sources.nsys.ranges import Ranges
from haiprof.sources.nsys.words import FAR

if TYPE_CHECKING:
    import polars as pl

#: Ordinals of devices.
_DEVICES: Final = range(1 << 16)
#: Severities of ``DIAGNOSTIC_EVENT``: warnings and errors.
_SEVERITIES: Final = {2: "warning", 3: "error"}


def read(imported: Imported, segments: Segments, on_bytes: Callable[[int], None]) -> None:
    """Read the process of ``part``; see :data:`haiprof.sources.imports.formats.Read`.

    Raises:
        HaiprofError: the export cannot be read, or has nothing of it.
    """
    with Database(imported.source.path) as db:
        _Process(imported, db, segments).read(on_bytes)


class _Process:
    def __init__(self, imported: Imported, db: Database, segments: Segments) -> None:
        found = processes.targets(db)
        part = imported.source.part
        mine = [target for target in found if target.part == part]
        if not mine:
            raise HaiprofError(
                f"{imported.source.path}: has no process with {part}: open it again, it was changed"
            )
        self._imported = imported
        self._db = db
        self._all = found
        self._target: Target = mine[0]
        self._segments = segments
        self._base = processes.epoch(db)
        #: Rows whose times are missing or impossible.
        self._timeless = 0

    def read(self, on_bytes: Callable[[int], None]) -> None:
        imported, db = self._imported, self._db
        imported.pid = self._target.pid
        imported.host = processes.host(db)
        if len(self._all) == 1:
            imported.rank, imported.world_size = processes.rank_and_world_size(db)
        elif known_ranks := nccl.ranks(db, self._all):
            imported.rank, imported.world_size = known_ranks[self._target.key], len(known_ranks)
        known = processes.gpus(db, self._target)
        sizes = {device: row["multiprocessors"] for device, row in known.items()}
        activities = Activities(db, self._target, {d: n for d, n in sizes.items() if n})
        devices: set[int] = set()
        for frame in activities.kernels():
            # A wait may be for something other than a GPU of this process.
            if frame["kind"][0] != "sync":
                devices.update(d for d in frame["device"].unique().to_list() if d in _DEVICES)
            self._write("kernels", frame)
            on_bytes(0)
        for frame in activities.calls():
            self._write("spans", frame)
            on_bytes(0)
        ranges = Ranges(db, self._target, activities.named)
        for spans, collectives in ranges.frames():
            self._write("spans", spans)
            self._write("collectives", collectives)
            on_bytes(0)
        self._write("samples", _metrics(db, self._target, devices))
        self._write("events", _diagnostics(db, self._target))
        if imported.begin is None:
            raise HaiprofError(f"{imported.source.path}: has no events of {imported.source.part}")
        imported.gpus = [known.get(device) or gpu(device) for device in sorted(devices)]
        imported.lacks = lacks(Path(imported.folder))
        self._report_problems(ranges.open)
        on_bytes(imported.source.bytes // len(self._all))

    def _write(self, table: str, frames: pl.DataFrame | Iterator[pl.DataFrame]) -> None:
        import polars as pl

        for frame in (frames,) if isinstance(frames, pl.DataFrame) else frames:
            if frame.height:
                self._segments.write_frame(table, self._placed(table, frame))

    def _placed(self, table: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Convert times to ns since the epoch, and each column to the schema's type."""
        import polars as pl

        kinds: dict[str, Any] = {
            "text": pl.String,
            "int64": pl.Int64,
            "uint64": pl.UInt64,
            "uint32": pl.UInt32,
            "uint16": pl.UInt16,
            "float64": pl.Float64,
        }
        time = "time" if "time" in frame.columns else "start"
        height = frame.height
        frame = frame.filter(
            pl.col(name).is_between(-FAR, FAR) for name in (time, "end") if name in frame.columns
        )
        self._timeless += height - frame.height
        if "end" in frame.columns:
            length = (pl.col("end") - pl.col("start")).clip(0)
            frame = frame.with_columns(length.alias("duration")).drop("end")
        frame = frame.with_columns(pl.col(time) + (self._base or 0))
        return frame.select(
            pl.col(column.name).cast(kinds[column.kind], strict=False)
            for column in schema.TABLES[table].columns
            if column.name in frame.columns
        )

    def _report_problems(self, still_open: int) -> None:
        """Report what is missing, one line each."""
        path, part = self._imported.source.path, self._imported.source.part
        lines = []
        if self._base is None:
            lines.append(
                "does not say when the session began (no TARGET_INFO_SESSION_START_TIME): its "
                "times count from then; export it again with a newer nsys"
            )
        if still_open:
            lines.append(f"{still_open} ranges of NVTX of {part} had not ended: left out")
        if self._timeless:
            lines.append(
                f"'start' or 'end' is missing or out of range in {self._timeless} rows of "
                f"{part}: left out; export it again with a newer nsys"
            )
        if self._target == self._all[0] and (others := _others(self._db, self._all)):
            lines.append(f"NVTX ranges of {others} processes that used no GPU are left out")
        self._imported.problems = [f"{path}: {line}" for line in lines]


def _metrics(db: Database, target: Target, devices: set[int]) -> Iterator[pl.DataFrame]:
    """Return frames of ``samples``: metrics of the GPUs that the process used."""
    import polars as pl

    table, named = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
    if not db.has(table, "timestamp", "typeId", "metricId", "value"):
        return
    if not devices or not db.has(named, "typeId", "metricId", "metricName"):
        return
    names = {
        (kind, metric): str(name)
        for kind, metric, name in db.rows(
            f"select distinct typeId, metricId, metricName from {named}"
        )
    }
    number = processes.gpu_numbers(db, target)
    # The low byte of a type is the number of the GPU.
    mine = {number.get(device, device): device for device in devices}
    where = ("typeId", f"{{}} & 255 in ({', '.join(map(str, mine))})")
    wanted: dict[str, str | Expression] = {
        "time": "timestamp", "type": "typeId", "metric": "metricId", "value": "value",
    }  # fmt: skip
    for frame in db.frames(table, wanted, where, reals=("value",)):
        rows = frame.select("type", "metric").rows()
        metrics = [names.get(row, str(row[1])) for row in rows]
        instances = [f"gpu{mine[kind & 255]}" for kind, _ in rows]
        yield frame.select(
            "time",
            pl.Series("metric", metrics, pl.String()),
            pl.Series("instance", instances, pl.String()),
            "value",
            pl.lit(0).alias("flags"),
        ).drop_nulls("value")


def _diagnostics(db: Database, target: Target) -> Iterator[pl.DataFrame]:
    """Return frames of ``events``: the warnings of Nsight Systems on this process or on all."""
    import polars as pl

    wanted: dict[str, str | Expression] = {
        "time": "timestamp", "severity": "severity", "text": "text",
    }  # fmt: skip
    chosen = f"{{}} in ({', '.join(map(str, _SEVERITIES))}) and (globalPid = ? or globalPid < 0)"
    if not db.has("DIAGNOSTIC_EVENT", "severity", "globalPid"):
        return
    for frame in db.frames(
        "DIAGNOSTIC_EVENT", wanted, ("severity", chosen), (target.key,), ("text",)
    ):
        yield frame.with_columns(
            pl.col("severity")
            .replace_strict(list(_SEVERITIES), list(_SEVERITIES.values()))
            .alias("kind")
        )


def _others(db: Database, found: list[Target]) -> int:
    """Count the other processes with ranges of NVTX."""
    if not db.has("NVTX_EVENTS", "globalTid"):
        return 0
    known = {target.key >> processes.TID_BITS for target in found}
    sql = f"select distinct globalTid >> {processes.TID_BITS} from NVTX_EVENTS"
    return sum(number is not None and number not in known for (number,) in db.rows(sql))
