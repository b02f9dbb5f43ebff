"""Imports torch_npu's or msprof's analysis of one process, from files or from its database.

Tests: tests/sources/ascend/test_text.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from haiprof.errors import HaiprofError
from haiprof.sources.ascend import communication, csv_files, from_database, kernels, memory, words
from haiprof.sources.ascend.database import Database
from haiprof.sources.ascend.find import DATABASE, recorded
from haiprof.sources.ascend.timeline import Timeline
from haiprof.sources.imports import csv_text
from haiprof.sources.imports.imported import Imported, gpu, whole
from haiprof.sources.imports.segments import Segments

#: What no version records.
_NEVER: Final = {
    "kernels.registers": "not reported for an NPU",
    "kernels.shared_memory": "not reported for an NPU",
    "kernels.occupancy": "Ascend reports none",
    "kernels.block_x": "an NPU has blocks but no threads in them",
    "allocations.address": "Ascend names no address: the number is that of the block in its table",
}
_NO_TIMELINE: Final = (
    "there is no trace_view.json (of msprof: msprof_*.json): analyse the profile again with text"
)
_TIMELINE: Final = "trace_view.json"
_NO_TABLES: Final = "there is only a timeline: open the whole folder that it was written to"
_LEVEL_0: Final = (
    "recorded at level 0, which names neither: record with profiler_level=ProfilerLevel.Level1"
)
#: Columns of msprof's ``step_trace_*.csv``.
_STEPS: Final = {
    "Iteration ID": "step",
    "Iteration End(us)": "end",
    "Iteration Time(us)": "duration",
}


def read(imported: Imported, segments: Segments, on_bytes: Callable[[int], None]) -> None:
    """Read an analysis, or a database; see :data:`haiprof.sources.imports.formats.Read`.

    Raises:
        HaiprofError: nothing of it can be read.
    """
    place = Path(imported.source.path)
    if DATABASE.fullmatch(place.name) and place.is_file():
        _of_database(imported, segments, place)
        on_bytes(imported.source.bytes)
    else:
        _Files(imported, segments, place).read(on_bytes)
    if imported.begin is None:
        raise HaiprofError(
            f"{place}: has no kernels and no spans: see whether the job ran while it was profiled"
        )


def _of_database(imported: Imported, segments: Segments, file: Path) -> None:
    with Database(file) as database:
        imported.lacks = {**_NEVER, **from_database.lacks(database)}
        imported.host = database.word("HOST_INFO", "hostName")
        imported.pid, rank = from_database.process(database)
        imported.rank = imported.source.rank if imported.source.rank is not None else rank
        imported.gpus = [gpu(device, name) for device, name in from_database.devices(database)]
        for name, frame in from_database.tables(database):
            segments.write_frame(name, frame)
    _read_job(imported, recorded(file))


class _Files:
    def __init__(self, imported: Imported, segments: Segments, folder: Path) -> None:
        self._imported = imported
        self._segments = segments
        self._folder = folder

    def read(self, on_bytes: Callable[[int], None]) -> None:
        imported = self._imported
        timeline = Timeline(self._segments)
        timelines = self._all(_TIMELINE, "msprof_[0-9]*.json", "msprof_slice_*.json")
        for file in timelines:
            timeline.read(str(file), on_bytes)
        imported.pid = timeline.pid
        imported.problems += timeline.problems
        ops = timeline.ops
        blocks = memory.blocks(self._read(memory.OPERATORS, "operator_memory*.csv"))
        records = self._read(memory.RECORDS, "memory_record*.csv")
        known = pl.concat((records.select(memory.ordinal()), blocks.select("device")))
        numbers = known["device"].drop_nulls().unique().to_list()
        device = numbers[0] if len(numbers) == 1 else None
        ran = kernels.kernels(self._table(), timeline.tasks(), device)
        self._segments.write_frame("kernels", ran)
        measured = self._communication()
        self._segments.write_frame("collectives", communication.of_device(ran, measured))
        self._segments.write_frame("collectives", communication.of_host(ops))
        self._segments.write_frame("allocations", memory.allocations(blocks, ops))
        self._segments.write_frame("samples", memory.samples(records))
        if "step" not in timeline.has:
            self._write_steps()
        devices = ran["device"].drop_nulls().unique().sort().to_list()
        imported.gpus = [gpu(number) for number in devices]
        imported.lacks = self._lacks(timeline, bool(timelines), ran, blocks, measured)
        _read_job(imported, recorded(self._folder))

    def _all(self, *patterns: str) -> list[Path]:
        if self._folder.is_file():  # a timeline, without any table
            return [self._folder] if _TIMELINE in patterns else []
        found = [file for pattern in patterns for file in sorted(self._folder.glob(pattern))]
        return [file for file in found if file.is_file()]

    def _table(self) -> pl.DataFrame:
        """Read the table of kernels, from the file with the most detail."""
        for pattern, columns in (
            ("kernel_details*.csv", words.KERNEL_DETAILS),
            ("op_summary*.csv", words.OP_SUMMARY),
            ("task_time*.csv", words.TASK_TIME),
        ):
            table, lost = kernels.typed(self._read(columns, pattern))
            self._report_lost(lost, pattern)
            if table.height:
                break
        more, lost = kernels.typed(self._read(words.AI_CPU, "aicpu_[0-9]*.csv", "aicpu.csv"))
        self._report_lost(lost, "aicpu*.csv")
        return kernels.with_ai_cpu(table, more) if more.height else table

    def _read(self, columns: Mapping[str, str], *patterns: str) -> pl.DataFrame:
        """Read the files of one table; name those that cannot be read among the problems."""
        frames = [csv_text.nothing(columns)]
        for file in self._all(*patterns):
            try:
                frames.append(csv_text.read(file, columns))
            except HaiprofError as error:
                self._imported.problems.append(f"{error}: its data is left out")
        return pl.concat(frames)

    def _report_lost(self, rows: int, file: str) -> None:
        if rows:
            self._imported.problems.append(
                f"{self._folder / file}: {rows} rows without a start or a duration: left out; "
                "copy the file again if it was cut"
            )

    def _communication(self) -> pl.DataFrame:
        file = self._folder / "communication.json"
        if not file.is_file():
            return pl.DataFrame(schema=communication.MEASURED)
        try:
            return communication.read(file)
        except HaiprofError as error:
            self._imported.problems.append(f"{error}: its data on collectives is left out")
            return pl.DataFrame(schema=communication.MEASURED)

    def _write_steps(self) -> None:
        """Write the iterations that msprof recorded, for a job without ``ProfilerStep``."""
        duration = csv_files.ns("duration")
        steps = self._read(_STEPS, "step_trace_[0-9]*.csv").select(
            (csv_files.ns("end") - duration).alias("start"),
            duration,
            csv_files.number("step", pl.UInt32),
        )
        self._segments.write_frame(
            "spans",
            steps.drop_nulls().with_columns(
                pl.lit("step").alias("category"),
                pl.format("Iteration {}", "step").alias("name"),
                pl.lit(0, pl.UInt32()).alias("thread"),
            ),
        )

    def _lacks(
        self,
        timeline: Timeline,
        timelines: bool,
        ran: pl.DataFrame,
        blocks: pl.DataFrame,
        measured: pl.DataFrame,
    ) -> dict[str, str]:
        lacks = dict(_NEVER)
        if not timelines:
            lacks |= dict.fromkeys(("spans", "flows", "kernels.correlation"), _NO_TIMELINE)
        elif "op" not in timeline.has:
            lacks["spans.stack"] = lacks["spans.shapes"] = (
                "msprof records no framework: profile with torch_npu.profiler"
            )
        own = ran.filter((pl.col("kind") == "kernel") & (pl.col("unit") != "HCCL"))
        if own.height and own["op_type"].null_count() == own.height:
            lacks["kernels.op_type"] = _LEVEL_0
            lacks["kernels.unit"] = (
                "recorded at level 0, which names the type of the task only: AI_CORE stands for "
                "AI_VECTOR_CORE as well: record with profiler_level=ProfilerLevel.Level1"
            )
        copies = ran.filter(pl.col("kind") == "memcpy")
        if copies.height and copies["bytes"].null_count() == copies.height:
            lacks["kernels.bytes"] = lacks["kernels.copy_kind"] = (
                "this version records neither size nor direction of a copy"
            )
        if not blocks.height:
            lacks["allocations"] = "recorded without memory: profile with profile_memory=True"
        if ran.height and ran["device"].null_count() == ran.height:
            lacks["kernels.device"] = (
                "the timeline does not number its NPU: the tables beside it do"
            )
        if self._folder.is_file():
            lacks |= dict.fromkeys(
                ("allocations", "kernels.op_type", "kernels.unit", "collectives.group"), _NO_TABLES
            )
        elif not measured.height:
            lacks["collectives.group"] = (
                "there is no communication.json, which is written from level 1 on: record with "
                "profiler_level=ProfilerLevel.Level1"
            )
        return lacks


def _read_job(imported: Imported, folder: Path) -> None:
    """Take over what ``profiler_info_<rank>.json`` says."""
    for file in sorted(folder.glob("profiler_info*.json")) if folder.is_dir() else ():
        try:
            profile: Any = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            imported.problems.append(
                f"{file}: is not JSON ({error}): the rank is taken from its name"
            )
            continue
        if isinstance(profile, dict):
            rank = whole(profile.get("rank_id"))
            imported.rank = rank if rank is not None else imported.rank
