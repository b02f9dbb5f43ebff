"""Collectives of one rank, by NCCL on a GPU and by gloo without one: each call is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.part import Part, main, scratch

from gpu import recorded

CALLS = 100


def measure(part: Part) -> None:
    found = part.child("job", seconds=50)
    part.fact("backend", found["backend"])
    part.fact("hook", found["hook"])
    part.check("every call is recorded, in order", found["recorded"] == found["called"],
               f"{len(found['recorded'])} of {len(found['called'])}")  # fmt: skip
    part.check("numbers of the group are consecutive", found["consecutive"])
    part.check("the results are right", found["right"])
    part.fact("calls with their end", found["ends"])
    part.fact("events", found["events"])


def _job(device: str, words: Sequence[str]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import haiprof
    from haiprof.capture import hooks

    with scratch() as folder:
        haiprof.start(folder, run=recorded.RUN, kernels="off", ring_mib=16)
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        hook = hooks.status()["collectives"]
        called: list[list[Any]] = []
        right = True
        for n in range(1, CALLS + 1):
            tensor = torch.full((n,), 2.0, device=device)
            dist.all_reduce(tensor)
            whole = torch.empty(n, device=device)
            dist.all_gather_into_tensor(whole, tensor)
            dist.broadcast(whole, 0)
            part = torch.empty(n, device=device)
            dist.reduce_scatter_tensor(part, whole)
            right &= bool((part == 2).all())
            for op in ("all_reduce", "all_gather", "broadcast", "reduce_scatter"):
                called.append([op, 4 * n])
        dist.destroy_process_group()
        haiprof.stop()
        recorded.closed(Path(folder), 10)
        rows = recorded.rows(Path(folder), "collectives")
        rows = sorted((r for r in rows if r["side"] != "wait"), key=lambda row: row["start"])
        events = recorded.events(Path(folder), "hook", "group")
    numbers = [row["sequence"] for row in rows]
    return {"backend": backend, "hook": hook, "called": called, "right": right,
            "recorded": [[row["op"], row["bytes"]] for row in rows],
            "consecutive": numbers == list(range(1, len(called) + 1)),
            "ends": sum(row["side"] == "work" for row in rows), "events": events}  # fmt: skip


if __name__ == "__main__":
    main(measure, {"job": _job})
