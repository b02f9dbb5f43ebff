"""What CUPTI and NVML do by themselves: torch, ctypes and the probe, and nothing of haiprof.

Every experiment is a fork of this process, which has imported torch and not begun to use CUDA: what
one of them does to CUPTI, defined or not, is gone with it, and one that hangs is killed.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from gpu.estimates import quantile
from gpu.nvml_dump import dump
from gpu.part import Part, main
from gpu.parts import clock

from gpu import cupti, jobs

LIMITS = (8, 32, 250)
#: Kernels that one buffer of CUPTI in device memory has room for.
A_BUFFER = 100_000
WANTED = 2_000_000
#: Seconds for what runs in parallel, for launching kernel by kernel, for one with graphs.
BESIDE, EAGER, GRAPHS = 22.0, 12.0, 7.0
#: A disable that hangs is waited for so long, s.
HANGS = 10.0
#: How long a kernel runs that others wait behind, s; cycles of the GPU in a second.
PENDING, CYCLES = 0.4, 1.8e9
BEFORE, BEHIND = 100, 50
TOGGLES = 60
NODES = jobs.Launches.NODES
VARIABLES = ("CUDA_INJECTION64_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS",
             "NVTX_INJECTION64_PATH", "LD_LIBRARY_PATH", "TEARDOWN_CUPTI")  # fmt: skip


def measure(part: Part) -> None:
    import torch  # noqa: F401  (seconds, and once for all forks)

    part.needs_kernels()
    part.piece("versions", versions, part)
    part.piece("NVML", lambda: part.fact("NVML", dump()))
    probe = cupti.Probe()  # compiled once
    run = functools.partial(functools.partial, part=part, probe=probe)
    beside: dict[str, Callable[[], None]] = {
        "results of FlushAll": run(flush_results),
        "FlushAll after cuptiFinalize": run(finalized),
        "clock": lambda: clock.measure(part),
    }
    for first, then in ((1, 0), (0, 1), (1, 1), (0, 0)):
        what = f"per thread {first} to {then}"
        beside[what] = run(per_thread, what=what, first=first, then=then)
    if part.device == "cuda":
        for traced in (False, True):
            what = f"graph captured while tracing is off, {'' if traced else 'never '}traced before"
            beside[what] = run(late_graph, what=what, traced=traced)
    part.apart(beside, BESIDE)
    for how in ("eager", "graph"):
        what = f"disabling under load, {how}"
        part.apart({what: run(disabling, what=what, how=how)}, HANGS)
    for limit in LIMITS:
        name = f"pool limit {limit}, graph"
        part.apart(
            {name: run(pool, what=name, limit=limit, how="graph", seconds=GRAPHS)}, 2 * GRAPHS
        )
    # In parallel, so the memory of the GPU is that of all three.
    part.apart({
        f"pool limit {limit}, eager": run(
            pool, what=f"pool limit {limit}, eager", limit=limit, how="eager",
            seconds=min(EAGER, part.left() - 4),
        )
        for limit in LIMITS
    }, part.left())  # fmt: skip


def versions(part: Part) -> None:
    """What is installed, as far as torch and the process know."""
    import torch

    library = cupti.loaded()
    part.fact("torch, its CUDA", [torch.__version__, torch.version.cuda])
    part.fact("CUPTI", [library.version(), library.path])
    part.fact("variables", {name: os.environ.get(name) for name in VARIABLES})


def begun(
    part: Part, probe: cupti.Probe, *, per_thread: int = 1, limit: int = 0
) -> tuple[cupti.Cupti, jobs.Launches]:
    """Record kernels from before the first CUDA context on."""
    library = cupti.loaded()
    if limit:
        library.set_attribute(cupti.POOL_LIMIT, limit)
    library.set_attribute(cupti.ZEROED_OUT, 1)
    library.set_attribute(cupti.PER_THREAD, per_thread)
    probe.register(library, 1 << 20)
    library.must("cuptiActivityEnable", cupti.KERNEL)
    launches = jobs.Launches(jobs.Machine(part.device))
    launches.machine.wait()
    return library, launches


def pool(part: Part, probe: cupti.Probe, what: str, limit: int, how: str, seconds: float) -> None:
    """Launch past CUPTI's limit of buffers in device memory; when do kernels have no time?"""
    library, launches = begun(part, probe, limit=limit)
    wanted = WANTED if limit == max(LIMITS) else max(WANTED, (limit + 3) * A_BUFFER)
    wanted = wanted if launches.machine.cuda else 20_000
    memory = [device_mib(launches.machine)]
    probe.pace(library.address("cuptiActivityFlushAll"), 0, 0.1)
    going = part.spend(seconds)
    launched = 0
    begin = time.monotonic()
    while launched < wanted and going():
        launches.replays(100) if how == "graph" else launches.eager(100 * NODES)
        launches.machine.wait()
        launched += 100 * NODES
        memory.append(device_mib(launches.machine))
    took = time.monotonic() - begin
    probe.stop_pace()
    away = cupti.end_recording(library, probe, cupti.KERNEL)
    kernels, timeless, first = probe.scan(library)
    said = f"the first is number {first}" if timeless else "none"
    beside = " with the others beside" if how == "eager" else ""
    part.row(f"{what}: kernels without a time", timeless, "kernels",
             note=f"{said}; {kernels} records of {launched} launched, (limit + 1) x {A_BUFFER} is "
                  f"{(limit + 1) * A_BUFFER}; {away} buffers kept; "
                  f"{launched / took:.0f} kernels/s; "
                  f"GPU memory {memory[0]:.0f} to {max(memory):.0f} MiB{beside}")  # fmt: skip


def device_mib(machine: jobs.Machine) -> float:
    """Memory of the GPU that is in use, by whomever, MiB."""
    import torch

    if not machine.cuda:
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return float(total - free) / 2**20


class Pending:
    """A kernel that runs for a while."""

    def __init__(self, machine: jobs.Machine) -> None:
        self._machine = machine

    def begin(self) -> None:
        """Launch it."""
        import torch

        if self._machine.cuda:
            torch.cuda._sleep(round(PENDING * CYCLES))
        else:
            self._id = jobs.stand_in().fake_begin(b"pending")

    def end(self) -> None:
        """Wait for it, and for what was launched behind it."""
        if not self._machine.cuda:
            jobs.stand_in().fake_end(self._id)
        self._machine.wait()


def per_thread(part: Part, probe: cupti.Probe, what: str, first: int, then: int) -> None:
    """Change whether each thread has a buffer of its own while CUPTI has buffers with records.

    NVIDIA says that this is undefined. What comes back after each step says what it means.
    """
    library, launches = begun(part, probe, per_thread=first)
    launches.eager(BEFORE)
    launches.machine.wait()
    pending = Pending(launches.machine)
    pending.begin()
    launches.eager(BEHIND)
    library.must("cuptiActivityDisable", cupti.KERNEL)
    result = library.text_of(library.set_attribute(cupti.PER_THREAD, then))
    back: dict[str, list[int]] = {}

    def after(step: str, flag: int) -> None:
        library.call("cuptiActivityFlushAll", flag)
        time.sleep(0.05)
        kernels, timeless, _ = probe.scan(library)
        back[step] = [kernels, timeless, probe.away()]

    after("flushed while it runs", 0)
    pending.end()
    after("flushed when it has ended", 0)
    after("forced", cupti.FORCED)
    missing = probe.away()
    library.set_attribute(cupti.PER_THREAD, first)
    after("flushed with the attribute as it was", 0)
    after("forced with the attribute as it was", cupti.FORCED)
    part.row(f"{what}: buffers that a forced flush does not return", missing, "buffers",
             note=f"setting it answers {result}; [kernels, without a time, buffers away]: {back}; "
                  f"about {BEFORE + BEHIND + 1} kernels were launched")  # fmt: skip


def disabling(part: Part, probe: cupti.Probe, what: str, how: str) -> None:
    """Enable and disable kernels on a thread of its own while this one launches them."""
    library, launches = begun(part, probe)
    library.must("cuptiActivityDisable", cupti.KERNEL)
    took: list[Any] = []
    other = threading.Thread(
        target=lambda: took.append(probe.toggle(library, cupti.KERNEL, TOGGLES, 0.02))
    )
    other.start()
    launched = 0
    while other.is_alive():
        launches.replays(2) if how == "graph" else launches.eager(2 * NODES)
        launched += 2 * NODES
        launches.machine.wait()
    other.join()
    if not took:
        raise RuntimeError("the thread that disables ended with an error")
    for name, times in zip(("enabling", "disabling"), took[0], strict=True):
        part.row(f"{what}: {name}, median", 1e6 * quantile(times, 0.5), "us",
                 note=f"longest {1e6 * max(times):.1f} us of {len(times)}, "
                      f"{launched} kernels launched meanwhile")  # fmt: skip


def late_graph(part: Part, probe: cupti.Probe, what: str, traced: bool) -> None:
    """Capture a graph while nothing is recorded; how many of its kernels does a replay record?"""
    import torch

    library = cupti.loaded()
    if traced:
        # Kept to the end: a graph that goes away during a capture breaks it off.
        library, launches = begun(part, probe)
        cupti.end_recording(library, probe, cupti.KERNEL)
    machine = launches.machine if traced else jobs.Machine(part.device)
    x = torch.zeros(32, device="cuda")
    x.add_(1.0)
    machine.wait()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            x.add_(1.0)
    graph.instantiate()
    graph.replay()
    machine.wait()

    def replayed() -> float:
        before = probe.scan(library)[0]
        for _ in range(4):
            graph.replay()
        machine.wait()
        library.must("cuptiActivityFlushAll", 0)
        time.sleep(0.1)
        return (probe.scan(library)[0] - before) / 4

    cupti.begin_recording(library, probe, cupti.KERNEL)
    for how in ("", ", instantiated again"):
        if how:
            graph.instantiate()
        found = replayed()
        part.row(f"{what}{how}: kernels of a replay", found, "kernels", target=f"= {NODES}",
                 met=found == NODES)  # fmt: skip


def flush_results(part: Part, probe: cupti.Probe) -> None:
    """What FlushAll answers before and after callbacks are registered, and after recording."""
    library = cupti.loaded()
    jobs.Machine(part.device)
    said: dict[str, list[str]] = {}

    def ask(when: str) -> None:
        said[when] = [library.text_of(library.call("cuptiActivityFlushAll", flag))
                      for flag in (0, cupti.FORCED)]  # fmt: skip

    ask("before callbacks are registered")
    probe.register(library, 1 << 20)
    ask("registered")
    library.must("cuptiActivityEnable", cupti.KERNEL)
    ask("recording")
    library.must("cuptiActivityDisable", cupti.KERNEL)
    ask("disabled")
    part.fact("FlushAll(0) and FlushAll(FORCED)", said)


def finalized(part: Part, probe: cupti.Probe) -> None:
    """The same behind the end of CUPTI, and whether it can begin anew."""
    library, launches = begun(part, probe)
    launches.eager(BEFORE)
    launches.machine.wait()
    cupti.end_recording(library, probe, cupti.KERNEL)
    said = {"cuptiFinalize": library.text_of(library.call("cuptiFinalize"))}
    for flag in (0, cupti.FORCED):
        result = library.call("cuptiActivityFlushAll", flag)
        said[f"FlushAll({flag})"] = library.text_of(result)
    before, _, _ = probe.scan(library)
    part.fact("after cuptiFinalize", said)
    cupti.begin_recording(library, probe, cupti.KERNEL)
    launches.eager(BEFORE)
    launches.machine.wait()
    cupti.end_recording(library, probe, cupti.KERNEL)
    again = probe.scan(library)[0] - before
    part.row("after cuptiFinalize: kernels recorded again", again, "kernels",
             target=f"= {BEFORE}", met=again == BEFORE)  # fmt: skip


if __name__ == "__main__":
    main(measure)
