"""Collectives: HCCL's operators as kernels, with the details in ``communication.json``.

Tests: tests/sources/ascend/test_text.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl

from haiprof.errors import HaiprofError
from haiprof.sources.ascend import words
from haiprof.sources.kineto.words import collective_of

#: Times of a communication: ms in the file -> ns in our table.
_TIMES: Final = {
    "Elapse Time(ms)": "elapse_ns",
    "Transit Time(ms)": "transit_ns",
    "Wait Time(ms)": "wait_ns",
    "Synchronization Time(ms)": "synchronization_ns",
    "Idle Time(ms)": "idle_ns",
}
_NS_PER_MS: Final = 1_000_000
#: Sizes in the file are decimal.
_BYTES_PER_MB: Final = 1_000_000
#: The file rounds the start of a communication to this many ns.
_APART_NS: Final = 1_000
MEASURED: Final = {
    "name": pl.String(),
    "start": pl.Int64(),
    "group": pl.String(),
    "times": pl.String(),
}


def read(file: Path) -> pl.DataFrame:
    """Read ``communication.json``: columns of :data:`MEASURED`, one row a communication.

    Raises:
        HaiprofError: it cannot be read, or is not such a file.
    """
    try:
        document: Any = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise HaiprofError(f"{file}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise HaiprofError(f"{file}: is not JSON ({error}): copy it again") from None
    rows = list(_rows(document))
    return pl.DataFrame(rows, MEASURED, orient="row").sort("start")


def _rows(document: Any) -> Iterator[tuple[str, int, str | None, str]]:
    for step in _members(document).values():
        for family in _members(step).values():
            for key, values in _members(family).items():
                name, _, group = key.partition("@")
                times = _members(_members(values).get("Communication Time Info"))
                start = times.get("Start Timestamp(us)")
                if isinstance(start, int | float):
                    yield name, round(start * 1000), group or None, json.dumps(_one(values, times))


def _one(values: Any, times: dict[str, Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        ours: round(times[theirs] * _NS_PER_MS)
        for theirs, ours in _TIMES.items()
        if isinstance(times.get(theirs), int | float)
    }
    links = {}
    for link, of in _members(_members(values).get("Communication Bandwidth Info")).items():
        size, time, speed = (
            _members(of).get(name)
            for name in ("Transit Size(MB)", "Transit Time(ms)", "Bandwidth(GB/s)")
        )
        if isinstance(size, int | float) and size:
            links[link] = {
                "bytes": round(size * _BYTES_PER_MB),
                "transit_ns": round(time * _NS_PER_MS) if isinstance(time, int | float) else None,
                "bandwidth_gb_s": speed,
            }
    return {**attributes, "links": links}


def _members(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def of_device(kernels: pl.DataFrame, measured: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of ``collectives`` for kernels that communicate.

    Args:
        kernels: :func:`haiprof.sources.ascend.kernels.kernels`.
        measured: columns of :data:`MEASURED`.
    """
    names = kernels["name"].unique()
    ops = {name: op for name in names if (op := words.collective_of(name)) is not None}
    if not ops:
        return pl.DataFrame()
    found = kernels.filter(pl.col("name").is_in(list(ops))).sort("start")
    found = found.join_asof(
        measured,
        on="start",
        by="name",
        strategy="nearest",
        tolerance=_APART_NS,
        check_sortedness=False,
    )
    which = pl.col("name").replace_strict(ops, return_dtype=pl.String())
    kind = pl.col("data_type")
    element = {name: size for name, (_, size) in words.ELEMENTS.items()}
    called = {name: torch for name, (torch, _) in words.ELEMENTS.items()}
    whole = which.is_in(("all_reduce", "broadcast", "send", "recv"))
    scattered = which == "reduce_scatter"
    return found.select(
        "start",
        "duration",
        pl.lit("device").alias("side"),
        which.alias("op"),
        "correlation",
        "external",
        "group",
        kind.replace(called).alias("type"),
        pl.when(~scattered).then("elements").alias("elements_in"),
        pl.when(whole | scattered).then("elements").alias("elements_out"),
        pl.when(~scattered)
        .then(
            pl.col("elements") * kind.replace_strict(element, default=None, return_dtype=pl.Int64())
        )
        .alias("bytes"),
        pl.struct("algorithm", "times").map_elements(_attributes, pl.String()).alias("attributes"),
    )


def _attributes(row: dict[str, str | None]) -> str | None:
    attributes = json.loads(row["times"]) if row["times"] else {}
    if row["algorithm"]:
        attributes = {"algorithm": row["algorithm"], **attributes}
    return json.dumps(attributes) if attributes else None


def of_host(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of ``collectives`` for calls of torch.distributed.

    Args:
        ops: :attr:`haiprof.sources.ascend.timeline.Timeline.ops`.
    """
    names = ops["name"].unique().to_list()
    known = {name: op for name in names if (op := collective_of(name)) is not None}
    return ops.filter(pl.col("name").is_in(list(known))).select(
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        pl.lit("host").alias("side"),
        pl.col("name").replace_strict(known, default=None, return_dtype=pl.String()).alias("op"),
        "thread",
        "external",
    )
