"""Kernels of a job in bfloat16 that FSDP shards, against torch.profiler.

Two ranks on one GPU if NCCL lets them; it mostly refuses, and then one rank, which has FSDP's side
streams all the same.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu.part import Part, main, own_rings, reason_of
from gpu.parts.counts import by_haiprof, by_torch, tell

from gpu import sharded


def measure(part: Part) -> None:
    part.needs_gpu()
    world = 2
    try:
        ranks(part, "pair", world, 25)
        part.fact("two ranks on one GPU", "NCCL lets them")
    except RuntimeError as error:
        world = 1
        part.fact("two ranks on one GPU", f"refused, so one rank: {reason_of(error)}")
    ours = ranks(part, "haiprof", world, part.left() / 2)
    theirs = ranks(part, "torch", world, part.left())
    tell(part, f"FSDP, {world} rank{'s' * (world - 1)}", ours, theirs)
    streams = len(ours["streams"])
    part.row("streams with GPU activity", streams, "streams", target=">= 2", met=streams >= 2)


def ranks(part: Part, what: str, world: int, seconds: float) -> dict[str, Any]:
    """Run all ranks of one kind to their end; what rank 0 found."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(world) as pool:
        store = str(Path(folder, "store"))
        found = [
            pool.submit(part.child, what, str(rank), str(world), store, seconds=seconds)
            for rank in range(world)
        ]
        first, *_ = [one.result() for one in found]
        return first


def _rank(words: Sequence[str]) -> None:
    os.environ.update(zip(("RANK", "WORLD_SIZE", "GPU_SUITE_STORE"), words, strict=True))
    os.environ["HAIPROF_SHM_DIR"] = own_rings(os.environ["HAIPROF_SHM_DIR"], words[0])


def _pair(device: str, words: Sequence[str]) -> dict[str, Any]:
    import torch

    torch.cuda.set_device(0)
    dist = sharded.join(int(words[0]), int(words[1]), Path(words[2]))
    one = torch.ones(1, device=device)
    dist.all_reduce(one)
    return {"sum": one.item()}


def _as_rank(
    run: Callable[[str, Sequence[str]], dict[str, Any]],
) -> Callable[[str, Sequence[str]], dict[str, Any]]:
    def child(device: str, words: Sequence[str]) -> dict[str, Any]:
        _rank(words)
        return run(device, ["fsdp"])

    return child


if __name__ == "__main__":
    main(measure, {"pair": _pair, "haiprof": _as_rank(by_haiprof), "torch": _as_rank(by_torch)})
