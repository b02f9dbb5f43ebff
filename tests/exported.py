"""Rows as a recorder has them, and what it exports of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from haiprof import _core, schema
from haiprof.recorder.arrow_stream import Batch, Texts, packed
from haiprof.recorder.metrics.families import Family, Histogram, Snapshot
from haiprof.recorder.metrics.node import Node
from haiprof.recorder.metrics.sample_families import EXPORTED

_NUMBERED = {
    ("spans", "category"): _core.CATEGORIES,
    ("collectives", "side"): _core.COLLECTIVE_SIDES,
    ("step_parts", "kind"): _core.PART_KINDS,
}


@dataclass
class Process:
    """A recorded process."""

    rank: int | None = 0
    local_rank: int | None = 0
    gpus: tuple[dict[str, Any], ...] = ()
    lost: int = 0
    ending: str | None = None


def rows(table: schema.Table, *given: Mapping[str, Any]) -> Batch:
    """Return rows as one batch."""
    columns = []
    for column in table.columns:
        values = [row.get(column.name) for row in given]
        texts = None
        if column.kind == "text":
            texts = Texts(_NUMBERED.get((table.name, column.name), ()))
            values = [None if value is None else texts.place_of(value) for value in values]
        columns.append(packed(column.kind, values)._replace(texts=texts))
    return Batch(table, len(given), columns)


def step_spans(*seconds: float, category: str = "step") -> Batch:
    """Return steps that took so long, one after the other from the second 100 on."""
    found, start = [], 100_000_000_000
    for each in seconds:
        found.append({"start": start, "duration": round(each * 1e9), "category": category})
        start += round(each * 1e9)
    return rows(schema.SPANS, *found)


def parts(*given: tuple[str, str, float], step: int = 0, device: int | None = None) -> Batch:
    """Return parts of a step: kind, name and seconds."""
    return rows(
        schema.STEP_PARTS,
        *(
            {"kind": k, "name": n, "duration": round(s * 1e9), "step": step, "device": device}
            for k, n, s in given
        ),
    )


def values(snapshot: Snapshot, family: Family) -> dict[tuple[str, ...], Any]:
    """Return the values of one family, by labels; the counts of a histogram."""
    return {
        one.labels: one.value.counts if isinstance(one.value, Histogram) else one.value
        for one in snapshot.series
        if one.family is family
    }


def samples(*given: tuple[str, str | None, float]) -> Batch:
    """Return samples of the node: metric, instance and value."""
    named = [dict(zip(("metric", "instance", "value"), one, strict=True)) for one in given]
    return rows(schema.SAMPLES, *({"time": 1, "flags": 0, **one} for one in named))


def each_sample() -> Batch:
    """Return a sample of each metric that is exported."""
    instances = {"gpu": "gpu0", "interface": "eth0", "disk": "nvme0n1", "port": "mlx5_0/1"}
    instances["mount"] = "/data"
    given = [
        (metric, instances[family.labels[0]] if family.labels else None, 1.0)
        for metric, (family, _) in EXPORTED.items()
    ]
    return samples(*given)


def statement(second: float, **values: object) -> Batch:
    """Return what ``haiprof.model`` records of a statement."""
    given = {"time": round(second * 1e9), "kind": "model", "attributes": json.dumps(values)}
    return rows(schema.EVENTS, given)


def gpu_uuid(number: int) -> str:
    """Return what a GPU is called."""
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def gpu(number: int) -> dict[str, Any]:
    """Return a GPU as a recorder knows it."""
    return {"uuid": gpu_uuid(number), "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85 * 10**9}


def busy_node(ranks: int = 8) -> Node:
    """Return a node with as many series as are to be expected: forty a rank."""
    node = Node({"run": "train-20261129-221240-25538", "node": "node0123"})
    phases = ("dataloader", "forward", "backward", "gradient_sync", "optimizer")
    for number in range(ranks):
        rank = node.begin(Process(number, number, (gpu(number),)))
        assert rank is not None
        for step in range(4):
            rank.read(step_spans(0.3 + 0.01 * number, 0.31))
            own = [("phase", name, 0.061234567) for name in phases]
            rank.read(parts(("step", "step", 0.3), *own, ("other", "other", 0.01), step=step))
            device = [("device_phase", name, 0.1) for name in ("forward", "backward", "optimizer")]
            busy = [("busy", "busy", 0.2), ("exposed", "exposed", 0.05)]
            rank.read(parts(("device_step", "step", 0.3), *device, *busy, device=0))
            rank.read(parts(("gc", "gc", 0.01), ("checkpoint", "save", 0.2)))
        work = {"tokens_per_step": 4096, "samples_per_step": 2, "parameters": 7e9}
        rank.read(statement(100, **work, dtype="bf16"))
        for purpose in ("mesh_dp", "mesh_tp"):
            rank.read(rows(schema.COLLECTIVES, {"side": "wait", "duration": 7, "group": purpose}))
    return node
