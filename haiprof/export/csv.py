"""Every view of a run as a CSV file: one file per table, times in ns.

Texts come from whoever wrote the trace, and a spreadsheet runs a cell that begins as a formula
does: such a text begins with an apostrophe here, as OWASP has it. Numbers stay numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from haiprof.common.owned_files import Folder
from haiprof.errors import HaiprofError
from haiprof.findings import finding

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

View = Callable[["Analyzer"], Any]
#: How a text begins that some spreadsheet takes for a formula; and the apostrophe, so that the one
#: that is put before it can be taken away again.
_BEGINS_FORMULA: Final = "^['=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
_NUMBER: Final = r"^[+-]?\d+(\.\d+)?([eE][+-]?\d+)?$"
#: Rows that are made into text at once.
_AT_ONCE = 1 << 16

#: What can be written: name of the file (or of its beginning) and how to get it. A view of several
#: frames becomes a file for each, named after both.
VIEWS: dict[str, View] = {
    "processes": lambda run: run.processes(),
    "steps": lambda run: run.steps(),
    "phases": lambda run: run.phases(),
    "device_phases": lambda run: run.device_phases(),
    "metrics": lambda run: run.metrics(),
    "samples": lambda run: run.samples(),
    "events": lambda run: run.events(),
    "stacks": lambda run: run.stacks(),
    "flame": lambda run: run.flame(),
    "collectives": lambda run: run.collectives(),
    "nccl": lambda run: run.nccl(),
    "waits": lambda run: run.waits(),
    "efficiency": lambda run: run.efficiency(),
    "goodput": lambda run: run.goodput(),
    "ledger": lambda run: run.ledger(),
    "findings": lambda run: finding.frame(run.findings()),
    "overview": lambda run: run.overview(),
    "operators": lambda run: run.operators(),
    "operators_by_shapes": lambda run: run.operators(by="shapes"),
    "kernels": lambda run: run.kernels(by="name"),
    "kernels_by_launch": lambda run: run.kernels(by="launch"),
    "memory": lambda run: run.memory(),
    "modules": lambda run: run.modules(),
    "flames": lambda run: run.flames(),
    "distributed": lambda run: run.distributed(),
    "stragglers": lambda run: run.stragglers(),
    "imbalance": lambda run: run.imbalance(),
    "clock": lambda run: run.clock(),
    "temporal": lambda run: run.temporal(),
    "idle": lambda run: run.idle(),
    "idle_by_device": lambda run: run.idle(by="device"),
    "overlap": lambda run: run.overlap(),
    "launches": lambda run: run.launches(),
    "queue_length": lambda run: run.queue_length(),
    "full_queue": lambda run: run.full_queue(),
    "operator_kernels": lambda run: run.operator_kernels(),
    "annotations": lambda run: run.annotations(),
    "annotations_by_kernel": lambda run: run.annotations(by="kernel"),
    "bandwidth": lambda run: run.bandwidth(),
    "kernel_kinds": lambda run: run.kernel_kinds(),
    "hardware_counters": lambda run: run.hardware_counters(),
    "sequences": lambda run: run.sequences(),
    "step_trace": lambda run: run.step_trace(),
    "op_statistics": lambda run: run.op_statistics(),
    "roofline": lambda run: run.roofline(),
    "critical_path": lambda run: _paths(run),
    "what_if": lambda run: run.what_if(),
    "pipeline": lambda run: run.pipeline(),
    "slowdown": lambda run: run.slowdown(),
    "recommendations": lambda run: run.recommendations(),
    "unknown": lambda run: run.unknown(),
}


def write(
    analyzer: Analyzer, folder: Path, on_view: Callable[[str], None] | None = None
) -> list[Path]:
    """Write every view that has rows; return the files, in the order of :data:`VIEWS`.

    Args:
        analyzer: the run.
        folder: where; it is made.
        on_view: called with each view's name before it is computed.

    Raises:
        HaiprofError: the folder or a file cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = Folder.at(folder)
        for name, view in VIEWS.items():
            if on_view is not None:
                on_view(name)
            for part, frame in _frames(name, view(analyzer)):
                if frame.height:
                    file = folder / f"{part}.csv"
                    _write(frame, files, file.name)
                    written.append(file)
    except OSError as error:
        where = error.filename or folder
        reason = error.strerror or os.strerror(error.errno or 0)
        raise HaiprofError(
            f"{where}: cannot be written ({reason}): choose another folder"
        ) from None
    return written


def _write(frame: pl.DataFrame, folder: Folder, name: str) -> None:
    flat = frame.with_columns(
        pl.col(column).list.eval(pl.element().cast(pl.String)).list.join(" ")
        for column, kind in frame.schema.items()
        if isinstance(kind, pl.List)
    )
    flat = without_formulas(flat)
    with folder.replacing(name) as out:
        for number, part in enumerate(flat.iter_slices(_AT_ONCE)):
            # Not into the file by polars: its error for a full disk lacks the reason.
            out.write(part.write_csv(include_header=not number).encode())


def without_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with an apostrophe before each text that a spreadsheet would run.

    Texts that are numbers stay as they are. Who takes an apostrophe from the front of each text
    that has one gets the very texts back.
    """
    texts = [
        (name, pl.col(name).cast(pl.String))
        for name, kind in frame.schema.items()
        if isinstance(kind, (pl.String, pl.Categorical, pl.Enum))
    ]
    return frame.with_columns(
        pl.when(text.str.contains(_BEGINS_FORMULA) & ~text.str.contains(_NUMBER))
        .then(pl.lit("'") + text)
        .otherwise(text)
        .alias(name)
        for name, text in texts
    )


def _frames(name: str, result: Any) -> Iterator[tuple[str, pl.DataFrame]]:
    if isinstance(result, pl.DataFrame):
        yield name, result
        return
    for field in result._fields:
        part = getattr(result, field)
        if isinstance(part, pl.DataFrame):  # and no text beside the frames
            yield f"{name}_{field}", part


def _paths(run: Analyzer) -> pl.DataFrame:
    frames = [
        path.path.select(pl.lit(label).alias("of"), pl.all())
        for label, path in run.critical_path().items()
    ]
    return pl.concat(frames) if frames else pl.DataFrame()
