"""What a step costs more under haiprof, and under torch.profiler.

One process trains all the time. Blocks of steps with and without follow one another in an order
drawn for each round, and each is compared with the one without of its round. A block is timed as a
whole, with one wait at its end: a wait after each step would hide what launching costs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from gpu.estimates import Estimate, added, at_most, estimate
from gpu.part import Part, main, scratch

from gpu import jobs, modes

#: One block, and the time that torch.profiler's blocks get in the end, s.
BLOCK, PROFILER = 0.5, 16.0
SETTLE = 2
LIMITS = {"sampling": 0.1, "windows": 0.3, "all": 1.0}
#: haiprof has a window in each minute; here in each second, so that every block has one.
PERIOD = 1.0
FEWEST_KERNELS = 10_000


def measure(part: Part) -> None:
    [model] = part.options
    with scratch() as folder, modes.Haiprof(Path(folder), part.device) as haiprof:
        machine = haiprof.machine
        blocks = Blocks(jobs.training(model, machine), haiprof)
        while part.left() > PROFILER + 8 or len(blocks.times["off"]) < 2:
            blocks.round()
        tell(part, model, blocks)
        part.piece("torch.profiler", beside, part, model, blocks)
    part.fact("cupti-python", "not compared: it cannot be installed beside torch's CUPTI")


class Blocks:
    """Times of a step, s, by what was on; those at the same place are of the same round."""

    def __init__(self, training: jobs.Training, haiprof: modes.Haiprof) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        #: Kernels that were recorded, and steps in which they could have been.
        self.kernels: dict[str, int] = defaultdict(int)
        self.steps: dict[str, int] = defaultdict(int)
        self._training = training
        self._haiprof = haiprof
        self._random = random.Random(0)
        training.steps(20)
        training.machine.wait()
        self.count, self.step_s = training.steps_for(BLOCK)

    def timed(self) -> float:
        self._training.steps(SETTLE)
        self._training.machine.wait()
        return self._training.machine.timed(lambda: self._training.steps(self.count)) / self.count

    def round(self) -> None:
        order = ["off", "nothing", *LIMITS]
        self._random.shuffle(order)
        for mode in order:
            if mode in ("off", "nothing"):
                self.times[mode].append(self.timed())
                continue
            before = modes.counts()["kernels"]
            self._haiprof.on({"sampling": "off"}.get(mode, mode), PERIOD)
            self.times[mode].append(self.timed())
            self._haiprof.off()
            self.kernels[mode] += modes.counts()["kernels"] - before
            self.steps[mode] += self.count + SETTLE

    def profiled(self, device: str) -> None:
        before = self.timed()
        with modes.torch_profiler(device):
            during = self.timed()
        after = self.timed()
        self.times["without torch.profiler"].append((before + after) / 2)
        self.times["torch.profiler"].append(during)


def tell(part: Part, model: str, blocks: Blocks) -> None:
    without = blocks.times["off"]
    step = estimate(without)
    part.row(f"{model}: a step without haiprof", step.scaled(1e3), "ms",
             note=f"blocks of {blocks.count} steps")  # fmt: skip
    a_step = blocks.kernels["all"] / blocks.steps["all"]
    rate = a_step / step.value
    part.row(f"{model}: kernels", rate, "kernels/s", note=f"{a_step:.0f} a step")
    for mode, limit in LIMITS.items():
        cost = added(blocks.times[mode], without)
        note, met = "", at_most(cost, limit)
        if mode == "windows" and a_step:
            share = blocks.kernels[mode] / blocks.steps[mode] / a_step
            note = f"a window each {PERIOD:g} s held {100 * share:.0f} % of the kernels"
        if mode != "sampling" and not blocks.kernels[mode]:
            note, met = "no kernel was recorded", False
        elif mode == "all" and rate < FEWEST_KERNELS:
            note, met = f"less than {FEWEST_KERNELS} kernels/s", None
        part.row(f"{model}: {mode}", cost, "% longer steps", target=f"<= {limit:g}", met=met,
                 note=note)  # fmt: skip
    part.row(f"{model}: nothing, measured the same way", added(blocks.times["nothing"], without),
             "% longer steps")  # fmt: skip


def beside(part: Part, model: str, blocks: Blocks) -> None:
    going = part.spend(PROFILER)
    while going():
        blocks.profiled(part.device)
    theirs = added(blocks.times["torch.profiler"], blocks.times["without torch.profiler"])
    ours = added(blocks.times["all"], blocks.times["off"])
    part.row(f"{model}: torch.profiler, CUDA only", theirs, "% longer steps",
             note="its start and stop are not counted")  # fmt: skip
    part.row(f"{model}: all, as a share of torch.profiler", _share(ours, theirs), "",
             target="<= 1/3", met=third(ours, theirs))  # fmt: skip


def _share(ours: Estimate, theirs: Estimate) -> float:
    return ours.value / theirs.value if theirs.value else float("inf")


def third(ours: Estimate, theirs: Estimate) -> bool | None:
    """Whether ours is at most a third of theirs; None when the intervals do not tell."""
    ends: tuple[Any, ...] = (ours.low, ours.high, theirs.low, theirs.high)
    if None in ends:
        return None
    our_low, our_high, their_low, their_high = ends
    if our_high <= their_low / 3:
        return True
    return False if our_low > their_high / 3 else None


if __name__ == "__main__":
    main(measure)
