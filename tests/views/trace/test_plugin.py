"""The TensorBoard plugin's numbers, for all recorded traces: equal, or wrong for a known reason.

The plugin keeps times as doubles of microseconds. So are they given to the views here (in the
largest unit that holds them all exactly), or a trace of 2024 would differ by a quarter of a
microsecond for each interval; :mod:`test_numbers` has the exact ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import polars as pl
import pytest
from plugin_errors import COMPAT, CORRECTED
from trace_numbers import Recorded
from traces import Trace, expected, files

from haiprof.views.trace.kernels import kernels
from haiprof.views.trace.linking.linked import Linked, link
from haiprof.views.trace.operators import operators
from haiprof.views.trace.overview import overview

_PARTS = {
    "Kernel": "kernel", "Memcpy": "memcpy", "Memset": "memset", "Communication": "communication",
    "Runtime": "runtime", "DataLoader": "dataloader", "CpuOp": "cpu", "Other": "other",
    "Total": "duration",
}  # fmt: skip
_DEVICES = {
    "gpu_utilization": ("utilization", 1), "sm_efficiency": ("sm_efficiency", 1),
    "occupancy": ("occupancy", 100), "tc_ratio": ("tensor_core", 1),
}  # fmt: skip
_OPERATORS = {
    "calls": "calls", "host": "host_total", "self_host": "host_self", "device": "device_total",
    "self_device": "device_self", "tc_self": "tensor_core_self", "tc_total": "tensor_core_total",
    "tc_eligible": "tensor_core_eligible",
}  # fmt: skip
_KERNELS = {
    "count": "calls", "sum": "total", "mean": "mean", "min": "min", "max": "max",
    "tc_used": "tensor_core", "blocks_per_sm": "blocks_per_sm", "occupancy": "occupancy",
}  # fmt: skip


class Unit(NamedTuple):
    """A trace whose times are doubles of microseconds, ``per_us`` of a unit each."""

    linked: Linked
    per_us: int


def as_doubles(trace: Trace, devices: bool = True) -> Unit:
    """``devices``: whether the plugin knows the file's kinds of device activity."""
    base = int(trace.header.get("baseTimeNanoseconds") or 0)
    frames = {name: trace.table(name) for name in ("spans", "kernels", "device_spans")}
    latest = max((int(f["start"].max() or 0) for f in frames.values() if f.height), default=base)
    per_us = 2 ** max(0, 52 - math.floor(math.log2(max((latest - base) / 1000, 1))))
    doubles = {}
    for name, frame in frames.items():
        start = [(value - base) / 1000 for value in frame["start"].to_list()]
        end = [a + b / 1000 for a, b in zip(start, frame["duration"].to_list(), strict=True)]
        doubles[name] = frame.with_columns(
            pl.Series("start", [int(a * per_us) for a in start], pl.Int64),
            pl.Series(
                "duration",
                [int(b * per_us) - int(a * per_us) for a, b in zip(start, end, strict=True)],
                pl.Int64,
            ),
        )
    activities = doubles["kernels"] if devices else doubles["kernels"].clear()
    linked = link(doubles["spans"], activities, device_spans=doubles["device_spans"])
    return Unit(linked, per_us)


def theirs(recorded: Recorded) -> dict[str, Any]:
    """The plugin's output for the file: view -> JSON."""
    run, name = recorded.file.parent.name, recorded.file.name
    worker = name.split(".", maxsplit=1)[0]
    spans = [file for file in files(run) if file.name.split(".", maxsplit=1)[0] == worker]
    number = spans.index(recorded.file) + 1
    found = expected(run, "tb_tip")
    return {
        path.rsplit("/", maxsplit=1)[1]: content
        for path, content in found.items()
        if path.startswith((f"{worker}/", f"{worker}.span{number}/"))
    }


def differences(recorded: Recorded, compat: bool) -> Iterator[str]:
    """The names of the numbers that differ."""
    oracle = theirs(recorded)
    assert oracle, "the plugin made nothing of it"
    run = recorded.file.parent.name
    unit = as_doubles(recorded.trace, devices=not (compat and "mtia" in run))
    yield from _overview(unit, oracle["overview"]["raw"], compat)
    if "operator" in oracle:
        yield from _operators(unit, oracle["operator"], compat)
    if "kernel" in oracle:
        # Here the plugin takes durations as they stand.
        yield from _kernels(recorded.linked, oracle["kernel"]["raw"], compat)
        if compat:
            yield from _launches(unit, oracle["kernel"]["kernel_op_table"]["data"]["rows"])


def close(ours: float | None, plugins: float | None) -> bool:
    # Unknown values are 0 in the plugin, or absent.
    mine, wanted = float(ours or 0), float(plugins or 0)
    # As pytest.approx has it, without an object for each of so many numbers.
    return mine == wanted or abs(mine - wanted) <= max(1e-6 * abs(wanted), 1e-9) < math.inf


def _overview(unit: Unit, raw: dict[str, Any], compat: bool) -> Iterator[str]:
    ours = overview(unit.linked, compat=compat)
    steps = [
        (str(step), start / unit.per_us, duration / unit.per_us)
        for step, start, duration in ours.steps.select("step", "start", "duration").iter_rows()
    ]
    plugins = list(zip(raw["steps_names"], raw["steps"], strict=False))
    if len(steps) != len(raw["steps"]) or not all(
        name == number
        and close(duration, end - begin)
        and start == pytest.approx(begin, rel=0, abs=1e-6 * (end - begin))
        for (number, start, duration), (name, (begin, end)) in zip(steps, plugins, strict=True)
    ):
        yield "steps"
    for name, part in _PARTS.items():
        if not close(ours.mean.get(part, 0) / unit.per_us, raw["avg_costs"][name]):
            yield name
    assert (
        set(map(str, ours.devices["device"])) == set(raw["gpu_utilization"]) or not raw["gpu_ids"]
    )
    for name, (column, scale) in _DEVICES.items():
        for row in ours.devices.iter_rows(named=True):
            value = row[column]
            known = raw[name].get(str(row["device"]))
            if not close(None if value is None else value * scale, known):
                yield name
    if not close(ours.tensor_core, raw["tc_used_ratio"]):
        yield "tc_used_ratio"
    if not close(ours.tensor_core_eligible, raw["tc_eligible_ops_kernel_ratio"]):
        yield "tc_eligible_ops_kernel_ratio"


def _operators(unit: Unit, oracle: dict[str, Any], compat: bool) -> Iterator[str]:
    ours = {row["name"]: row for row in operators(unit.linked, compat=compat).to_dicts()}
    plugins = {row["name"]: row for row in oracle["raw"]}
    if set(ours) != set(plugins):
        yield "operators"
    for name, column in _OPERATORS.items():
        scale = 1 if name in ("calls", "tc_eligible") else unit.per_us
        if not all(
            close(ours[op][column] / scale, plugins[op][name]) for op in ours.keys() & plugins
        ):
            yield f"operators.{name}"
    shaped = operators(unit.linked, "shapes", compat=compat).to_dicts()
    found = {(row["name"], row["shapes"] or "[]"): row["calls"] for row in shaped}
    wanted = {
        (row["name"], row["input_shape"].replace(" ", "")): row["calls"]
        for row in oracle["by_name_input"]["data"]
    }
    if found != wanted:
        yield "operators.shapes"


def _kernels(linked: Linked, raw: list[dict[str, Any]], compat: bool) -> Iterator[str]:
    ours = {row["name"]: row for row in kernels(linked, compat=compat).to_dicts()}
    assert set(ours) == {row["name"] for row in raw}
    scales = {"sum": 1e-3, "mean": 1e-3, "min": 1e-3, "max": 1e-3, "occupancy": 100}
    for name, column in _KERNELS.items():
        if not all(
            close((ours[row["name"]][column] or 0) * scales.get(name, 1), row[name]) for row in raw
        ):
            yield f"kernels.{name}"


def _launches(unit: Unit, rows: list[list[Any]]) -> Iterator[str]:
    ours = {
        (
            row["name"],
            row["op"],
            _sizes(row, "grid"),
            _sizes(row, "block"),
            str(row["registers"] or 0),
            str(row["shared_memory"] or 0),
        ): (row["calls"], row["total"] / unit.per_us)
        for row in kernels(unit.linked, "launch", compat=True).to_dicts()
    }
    # Work that no operator launched is its tree's.
    plugins = {tuple(row[:6]): (row[8], row[9]) for row in rows if row[1] != "CallTreeRoot"}
    if ours.keys() != plugins.keys() or not all(
        ours[key] == pytest.approx(plugins[key], rel=1e-6) for key in ours
    ):
        yield "launches"


def _sizes(row: dict[str, Any], of: str) -> str:
    sizes = [row[f"{of}_{axis}"] for axis in "xyz"]
    return "None" if sizes[0] is None else str(sizes)


def test_the_numbers_are_the_plugins_but_where_it_is_wrong(recorded: Recorded) -> None:
    corrected = _known(CORRECTED, recorded)
    for number, reason in corrected.items():
        print(f"{recorded.file.parent.name}: {number}: the plugin is wrong: {reason}")
    assert set(differences(recorded, compat=False)) == set(corrected)


def test_the_plugins_own_numbers_on_request(recorded: Recorded) -> None:
    assert set(differences(recorded, compat=True)) == set(_known(COMPAT, recorded))


def _known(table: dict[str, dict[str, str]], recorded: Recorded) -> dict[str, str]:
    run, worker = recorded.file.parent.name, recorded.file.name.split(".", maxsplit=1)[0]
    return table.get(f"{run}/{worker}", table.get(run, {}))
