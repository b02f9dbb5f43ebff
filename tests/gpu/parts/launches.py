"""What recording costs the thread that launches, kernel by kernel, and the kernels themselves.

Launches of tiny kernels are timed by the host, graphs and large kernels by events on the GPU; with
and without take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpu.estimates import added, difference, estimate
from gpu.part import Part, main, scratch

from gpu import jobs, modes

LAUNCHES = 20_000
FASTEST = 50_000


def measure(part: Part) -> None:
    part.needs_kernels()
    with scratch() as folder, modes.Haiprof(Path(folder), part.device) as haiprof:
        machine = haiprof.machine
        work = Work(machine)
        each = part.left() / 7
        part.piece("eager", eager, part, haiprof, work, 2 * each)
        for what, run in work.on_device.items():
            part.piece(what, distortion, part, haiprof, machine, what, run, each)
        part.piece("graphs", graphs, part, haiprof, work, each)
        part.piece("torch.profiler", profiler, part, work, each)


class Work:
    """Things to launch."""

    def __init__(self, machine: jobs.Machine) -> None:
        import torch

        self.machine = machine
        self.launches = jobs.Launches(machine)
        side, length = (4096, 1 << 28) if machine.cuda else (32, 1 << 12)
        kind = torch.bfloat16 if machine.cuda else torch.float32
        a = torch.randn(side, side, device=machine.device, dtype=kind)
        b = torch.zeros(length, device=machine.device, dtype=torch.int8)
        self.on_device: dict[str, Callable[[], object]] = {
            "20 matrix products": lambda: [torch.mm(a, a) for _ in range(20)],
            "20 kernels of very many short blocks": lambda: [b.add_(1) for _ in range(20)],
        }

    def launch(self) -> float:
        """Seconds from the first launch to the end of the last kernel."""
        self.launches.eager(200)
        self.machine.wait()
        return self.machine.timed(lambda: self.launches.eager(LAUNCHES))

    def replay(self) -> float:
        """Seconds on the device of ten graphs."""
        self.launches.replays(2)
        self.machine.wait()
        return self.machine.timed_on_device(lambda: self.launches.replays(10))


def pairs(
    part: Part, haiprof: modes.Haiprof, once: Callable[[], float], seconds: float
) -> tuple[list[float], list[float], int]:
    """Times with all kernels recorded, and without; and how many kernels were recorded."""
    going = part.rounds(seconds)
    during: list[float] = []
    without: list[float] = []
    once()
    before = modes.counts()["kernels"]
    while going() or len(during) < 2:
        order = (True, False) if len(during) % 2 else (False, True)
        for recording in order:
            if not recording:
                without.append(once())
                continue
            haiprof.on("all", hooks=False)
            during.append(once())
            haiprof.off()
    return during, without, modes.counts()["kernels"] - before


def eager(part: Part, haiprof: modes.Haiprof, work: Work, seconds: float) -> None:
    during, without, kernels = pairs(part, haiprof, work.launch, seconds)
    rate = LAUNCHES / estimate(without).value
    part.row("launches without haiprof", rate, "launches/s", target=f">= {FASTEST}",
             met=rate >= FASTEST)  # fmt: skip
    per_launch = difference(during, without).scaled(1e9 / LAUNCHES)
    note = f"{kernels} kernels were recorded in {len(during)} blocks of {LAUNCHES} launches"
    part.limited("a launch costs more, all kernels recorded", per_launch, "ns", 300, note)
    part.row("launch-bound: all", added(during, without), "% longer")


def distortion(
    part: Part, haiprof: modes.Haiprof, machine: jobs.Machine, what: str,
    run: Callable[[], object], seconds: float,
) -> None:  # fmt: skip
    def once() -> float:
        run()
        return machine.timed_on_device(run)

    during, without, kernels = pairs(part, haiprof, once, seconds)
    part.limited(f"{what}, on the GPU", added(during, without), "% longer", 1.0,
                 f"{estimate(without).value * 1e3:.3f} ms without; {kernels} kernels "
                 "were recorded")  # fmt: skip


def graphs(part: Part, haiprof: modes.Haiprof, work: Work, seconds: float) -> None:
    during, without, kernels = pairs(part, haiprof, work.replay, seconds)
    nodes = 10 * work.launches.NODES
    part.row("graphs of 1000 tiny kernels, a kernel without haiprof",
             estimate(without).scaled(1e9 / nodes), "ns")  # fmt: skip
    part.row("graphs of 1000 tiny kernels, a kernel costs more",
             difference(during, without).scaled(1e9 / nodes), "ns",
             note=f"{kernels} kernels were recorded")  # fmt: skip


def profiler(part: Part, work: Work, seconds: float) -> None:
    going = part.rounds(seconds)
    during: list[float] = []
    without: list[float] = []
    while going() or len(during) < 2:
        without.append(work.launch())
        with jobs.torch_profiler(part.device):
            during.append(work.launch())
    part.row("a launch costs more, torch.profiler",
             difference(during, without).scaled(1e9 / LAUNCHES), "ns")  # fmt: skip


if __name__ == "__main__":
    main(measure)
