"""Kernels of the same steps by haiprof and by torch.profiler, in processes of their own.

Their numbers are compared whatever else the GPU does; with the option ``times`` the time that they
take, for which the part has to be alone. Then torch.profiler runs between two runs of haiprof:
their difference says how well the time of the same kernels repeats on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.part import Part, main, scratch

from gpu import jobs, recorded

WARM, STEPS = 10, 20
Kernels = dict[str, tuple[int, float]]


def measure(part: Part) -> None:
    part.needs_gpu()
    times = part.options[0] == "times"
    models = part.options[times:]
    for at, model in enumerate(models):
        seconds = part.left() / (len(models) - at)
        part.piece(model, compare_times if times else compare, part, model, seconds)


def compare(part: Part, model: str, seconds: float) -> None:
    ours = part.child("haiprof", model, seconds=seconds)
    tell(part, model, ours, part.child("torch", model, seconds=seconds))


def compare_times(part: Part, model: str, seconds: float) -> None:
    first = part.child("haiprof", model, seconds=seconds)
    theirs = part.child("torch", model, seconds=seconds)
    again = part.child("haiprof", model, seconds=seconds)
    tell_times(part, model, first, theirs, again)


def total(kernels: dict[str, Any], which: int) -> float:
    """All kernels (0) or their ns (1)."""
    return float(sum(found[which] for found in kernels.values()))


def apart(found: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Kernels, and the number of copies and sets.

    In a graph CUPTI takes a copy for what it is, or for a kernel, depending on when it began.
    """
    kernels = {n: k for n, k in found["kernels"].items() if not n.startswith(("memcpy", "memset"))}
    moved = sum(n for kind, n in found["others"].items() if "memcpy" in kind or "memset" in kind)
    return kernels, moved + round(total(found["kernels"], 0) - total(kernels, 0))


def unequal(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """The names whose numbers of kernels differ, with both numbers."""
    return [
        f"{name}: {ours.get(name, [0])[0]} here, {theirs.get(name, [0])[0]} there"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name, [0])[0] != theirs.get(name, [0])[0]
    ]


def tell(part: Part, model: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    (our_kernels, our_moves), (their_kernels, their_moves) = apart(ours), apart(theirs)
    here, there = total(our_kernels, 0), total(their_kernels, 0)
    if not there:
        raise RuntimeError("torch.profiler recorded no kernel")
    differ = unequal(our_kernels, their_kernels)
    part.row(f"{model}: kernels in {STEPS} steps", here, "kernels",
             target=f"= {there:.0f}, as torch.profiler", met=here == there)  # fmt: skip
    part.row(f"{model}: names of kernels with another count", len(differ), "names",
             target="= 0", met=not differ, note="; ".join(differ)[:600])  # fmt: skip
    part.row(f"{model}: copies and sets in {STEPS} steps", our_moves, "activities",
             target=f"= {their_moves}, as torch.profiler",
             met=our_moves == their_moves)  # fmt: skip
    others = {"haiprof": ours["others"], "torch.profiler": theirs["others"]}
    part.fact(f"{model}: other GPU activities", others)
    part.fact(f"{model}: streams", ours["streams"])
    part.fact(f"{model}: haiprof's events", ours["events"])


def tell_times(
    part: Part, model: str, first: dict[str, Any], theirs: dict[str, Any], again: dict[str, Any]
) -> None:
    one, two = total(first["kernels"], 1), total(again["kernels"], 1)
    other = total(theirs["kernels"], 1)
    if not other:
        raise RuntimeError("torch.profiler recorded no kernel")
    part.row(f"{model}: kernel time", (one + two) / 2e6, "ms",
             note=f"torch.profiler: {other / 1e6:.3f} ms")  # fmt: skip
    apart = 100 * ((one + two) / 2 / other - 1)
    part.row(f"{model}: kernel time against torch.profiler", apart, "%",
             target="within 0.5", met=abs(apart) <= 0.5,
             note=f"two runs of haiprof differ by {100 * abs(one / two - 1):.2f} %")  # fmt: skip


def by_haiprof(device: str, words: Sequence[str]) -> dict[str, Any]:
    import haiprof

    with scratch() as folder:
        haiprof.start(folder, run=recorded.RUN, kernels="all", budget=0.0, ring_mib=64)
        machine = jobs.Machine(device)
        training = jobs.training(words[0], machine)
        training.steps(WARM)
        machine.wait()
        # Apart from what came before by more than the clocks of host and GPU may differ.
        time.sleep(0.02)
        begin = time.time_ns()
        time.sleep(0.02)
        training.steps(STEPS)
        machine.wait()
        time.sleep(0.02)
        end = time.time_ns()
        haiprof.stop()
        if not recorded.closed(Path(folder), 20):
            raise RuntimeError("haiprof's recorder has not closed its files after 20 s")
        rows = recorded.rows(Path(folder), "kernels", begin, end)
        events = recorded.events(Path(folder), "gpu", "lost", "hook", "budget", "handover")
    kernels, others = recorded.kernels_of_rows(rows)
    streams = sorted({row["stream"] for row in rows if row["stream"] is not None})
    return {"kernels": kernels, "others": others, "streams": streams, "events": events}


def by_torch(device: str, words: Sequence[str]) -> dict[str, Any]:
    machine = jobs.Machine(device)
    training = jobs.training(words[0], machine)
    training.steps(WARM)
    machine.wait()
    with jobs.torch_profiler(device) as profiler:
        training.steps(STEPS)
        machine.wait()
    with scratch() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        kernels, others = recorded.kernels_of_trace(trace)
    return {"kernels": kernels, "others": others}


if __name__ == "__main__":
    main(measure, {"haiprof": by_haiprof, "torch": by_torch})
