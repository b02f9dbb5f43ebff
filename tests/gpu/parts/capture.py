"""Activity buffers exactly as CUPTI fills them, small enough to be test data.

Beside each ``.bin`` lies a ``.json``: which CUPTI made it, what is in it, where each record begins,
and the text of each name, since the pointers in the records mean nothing in another process.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu.part import Part, main

from gpu import cupti, jobs

SIZE = 128 << 10
#: Of each kind of job.
FILES = 2
KINDS = (cupti.MEMCPY, cupti.MEMSET, cupti.KERNEL, cupti.OVERHEAD)
KIND_NAMES = {1: "memcpy", 2: "memset", 10: "kernel", 17: "overhead", 38: "synchronization"}


def measure(part: Part) -> None:
    part.needs_kernels()
    # The library that stands in for CUPTI knows kernels alone.
    for what in ("eager", "graphs", "nodes", "copies") if part.device == "cuda" else ("eager",):
        part.piece(what, one, part, what)


def one(part: Part, what: str) -> None:
    # A machine without a GPU may have much else to do.
    result = part.child(what, seconds=25)
    part.row(f"{what}: buffers written", len(result["files"]), "files", target=">= 1",
             met=bool(result["files"]), note="; ".join(result["files"]))  # fmt: skip


def _work(what: str, machine: jobs.Machine) -> Callable[[], object]:
    import torch

    if what == "eager":
        training = jobs.training("small", machine)
        training.steps(3)
        return lambda: training.steps(3)
    if what == "graphs":
        graph = jobs.training("graph", machine)
        return lambda: graph.steps(1)
    if what == "nodes":
        launches = jobs.Launches(machine)
        return lambda: launches.replays(1)
    host = torch.zeros(1 << 16)
    pinned = torch.zeros(1 << 16)
    pinned = pinned.pin_memory() if machine.cuda else pinned

    def copies() -> None:
        for _ in range(20):
            there = host.to(machine.device)
            again = pinned.to(machine.device, non_blocking=True)
            (there + again).cpu()
            there.copy_(again)
            torch.zeros(1 << 12, device=machine.device)

    return copies


def _record(what: str, device: str) -> dict[str, Any]:
    machine = jobs.Machine(device)
    run = _work(what, machine)
    machine.wait()
    library, probe = cupti.loaded(), cupti.Probe()
    cupti.begin_recording(library, probe, *KINDS, size=SIZE)
    run()
    machine.wait()
    cupti.end_recording(library, probe, *KINDS)
    folder = Path(os.environ.get("GPU_SUITE_FILES", "."), "buffers")
    folder.mkdir(exist_ok=True)
    filled = [buffer for buffer in probe.buffers() if buffer[1]]
    if not filled:
        raise RuntimeError("CUPTI gave no buffer back with records in it")
    files = [
        write(library, folder, f"{what}-{number}", data, valid)
        for number, (data, valid) in enumerate(filled[:FILES])
    ]
    return {"files": files}


def write(library: cupti.Cupti, folder: Path, name: str, data: int, valid: int) -> str:
    """Write one buffer and its description; say in a few words what is in it."""
    content = ctypes.string_at(data, valid)
    kernels, _, kinds = cupti.read(library, [(data, valid)])
    header = {
        "cupti": library.version(),
        "bytes": valid,
        "sha256": hashlib.sha256(content).hexdigest(),
        "records": {KIND_NAMES.get(kind, str(kind)): count for kind, count in kinds.items()},
        "offsets": [address - data for address in library.addresses(data, valid)],
        "names": {f"{pointer:#x}": text for pointer, text in library.names_of(kernels).items()},
        "kernel_ns": sum(kernel.end - kernel.start for kernel in kernels),
        "graphs": sorted({kernel.graph for kernel in kernels}),
    }
    (folder / f"{name}.bin").write_bytes(content)
    (folder / f"{name}.json").write_text(json.dumps(header, indent=1) + "\n")
    return f"{name}.bin: {valid} bytes, {header['records']}"


def _eager(device: str, words: Sequence[str]) -> dict[str, Any]:
    return _record("eager", device)


def _graphs(device: str, words: Sequence[str]) -> dict[str, Any]:
    return _record("graphs", device)


def _nodes(device: str, words: Sequence[str]) -> dict[str, Any]:
    return _record("nodes", device)


def _copies(device: str, words: Sequence[str]) -> dict[str, Any]:
    return _record("copies", device)


if __name__ == "__main__":
    main(measure, {"eager": _eager, "graphs": _graphs, "nodes": _nodes, "copies": _copies})
