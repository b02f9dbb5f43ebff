"""What a step costs more under haiprof, and under torch.profiler.

One process trains all the time. Short blocks of steps with and without follow one another in an
order drawn for each round, and each is compared with the one without of its round. A block is timed
as a whole, with one wait at its end: a wait after each step would hide what launching costs.

``windows`` costs what ``all`` does in a window, and between two of them what is left; both are
measured, since a window of two seconds in a minute does not fit into a block.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.estimates import Estimate, added, at_most, estimate
from gpu.part import Part, main, scratch

from gpu import jobs, modes

#: One block, and the time that torch.profiler's blocks get in the end, s.
BLOCK, PROFILER = 0.25, 16.0
SETTLE = 2
LIMITS = {"sampling": 0.1, "windows": 0.3, "all": 1.0}
#: With more time than this, s, what the hooks cost alone can be decided, too.
LONG = 300.0
#: The share of the time that windows take: two seconds in a minute.
WINDOWS = 2.0 / 60.0
#: A window that begins at once, ends after some steps and comes again long after the block, s.
PERIOD, ENDED = 3.0, 0.35
FEWEST_KERNELS = 10_000
#: Seconds between two lots of rows. The suite writes its files in the pause after each of them, and
#: not while a block is timed.
LOT, PAUSE = 10.0, 0.5
Rounds = Sequence[dict[str, float]]


def measure(part: Part) -> None:
    part.needs_kernels()
    [model] = part.options
    profiler = PROFILER if part.device == "cuda" else 2.0
    timed = [mode for mode in LIMITS if mode != "sampling" or part.left() > LONG]
    with scratch() as folder, modes.Haiprof(Path(folder), part.device) as haiprof:
        blocks = Blocks(jobs.training(model, haiprof.machine), haiprof, timed)
        rounds: list[dict[str, float]] = []
        written = 0
        lot = time.monotonic()
        going = part.rounds(part.left() - profiler - 3)
        while going() or len(rounds) < 2:
            rounds.append(blocks.round(counting=not written))
            if len(rounds) >= 2 and time.monotonic() > lot + LOT:
                written = tell(part, model, blocks, rounds, written)
                time.sleep(PAUSE)
                lot = time.monotonic()
        tell(part, model, blocks, rounds, written)
        part.piece("torch.profiler", beside, part, model, blocks, rounds, profiler)
    part.fact("cupti-python", "not compared: it cannot be installed beside torch's CUPTI")


class Blocks:
    """Blocks of steps with one thing on at a time."""

    def __init__(
        self, training: jobs.Training, haiprof: modes.Haiprof, timed: Sequence[str]
    ) -> None:
        #: Kernels that were recorded, and steps in which they could have been.
        self.kernels: dict[str, int] = defaultdict(int)
        self.steps: dict[str, int] = defaultdict(int)
        self._training = training
        self._haiprof = haiprof
        self._order = ["off", *timed]
        self._random = random.Random(0)
        training.steps(20)
        training.machine.wait()
        self.count, self.step_s = training.steps_for(BLOCK)

    def timed(self) -> float:
        """Seconds that a step takes now."""
        self._training.steps(SETTLE)
        self._training.machine.wait()
        return self._training.machine.timed(lambda: self._training.steps(self.count)) / self.count

    def round(self, counting: bool) -> dict[str, float]:
        """Seconds of a step in each mode; counting what is recorded takes time between blocks."""
        self._random.shuffle(self._order)
        found: dict[str, float] = {}
        for mode in self._order:
            if mode == "off":
                found[mode] = self.timed()
                continue
            before = modes.counts()["kernels"] if counting else 0
            self._haiprof.on({"sampling": "off"}.get(mode, mode), PERIOD)
            if mode == "windows":
                self._pass_window(counting, before)
                before = modes.counts()["kernels"] if counting else 0
            found[mode] = self.timed()
            self._haiprof.off()
            if counting:
                self.kernels[mode] += modes.counts()["kernels"] - before
                self.steps[mode] += self.count + SETTLE
        return found

    def _pass_window(self, counting: bool, before: int) -> None:
        self._training.steps(max(5, round(ENDED / self.step_s)))
        self._training.machine.wait()
        if counting:
            self.kernels["window"] += modes.counts()["kernels"] - before

    def profiled(self, device: str) -> dict[str, float]:
        """The same with torch.profiler, between two blocks without."""
        before = self.timed()
        with jobs.torch_profiler(device):
            during = self.timed()
        return {"without torch.profiler": (before + self.timed()) / 2, "torch.profiler": during}


def costs(rounds: Rounds) -> dict[str, Estimate]:
    """What each mode makes a step longer by, in percent; of the rounds of one run or of several."""
    columns: dict[str, list[float]] = {
        mode: [100 * (found[mode] / found["off"] - 1) for found in rounds if mode in found]
        for mode in LIMITS
    }
    pairs = zip(columns["windows"], columns["all"], strict=True)
    between = columns["windows"]
    columns["windows"] = [(1 - WINDOWS) * rest + WINDOWS * inside for rest, inside in pairs]
    columns["between windows"] = between
    return {mode: estimate(values) for mode, values in columns.items() if values}


def tell(
    part: Part, model: str, blocks: Blocks, rounds: list[dict[str, float]], written: int
) -> int:
    """Write what there is so far; return how many rounds that is."""
    for found in rounds[written:]:
        part.round(found)
    step = estimate([found["off"] for found in rounds])
    part.row(f"{model}: a step without haiprof", step.scaled(1e3), "ms",
             note=f"blocks of {blocks.count} steps")  # fmt: skip
    a_step = blocks.kernels["all"] / blocks.steps["all"]
    rate = a_step / step.value
    part.row(f"{model}: kernels", rate, "kernels/s", note=f"{a_step:.0f} a step")
    cost = costs(rounds)
    for mode, limit in LIMITS.items():
        if mode not in cost:
            continue
        note, met = _judged(mode, at_most(cost[mode], limit), blocks, rate)
        part.row(f"{model}: {mode}", cost[mode], "% longer steps", target=f"<= {limit:g}",
                 met=met, note=note)  # fmt: skip
    kernels = blocks.kernels["windows"]
    part.row(f"{model}: windows, between two of them", cost["between windows"], "% longer steps",
             note=f"{kernels} kernels were recorded in counted blocks")  # fmt: skip
    return len(rounds)


def _judged(mode: str, met: bool | None, blocks: Blocks, rate: float) -> tuple[str, bool | None]:
    if mode == "sampling":
        return "hooks and phases, and no kernels", met
    if not blocks.kernels["window" if mode == "windows" else mode]:
        return "no kernel was recorded", False
    if mode == "all" and rate < FEWEST_KERNELS:
        return f"less than {FEWEST_KERNELS} kernels/s", None
    if mode == "windows":
        return f"{WINDOWS:.1%} of the time in windows as all, the rest as between two of them", met
    return "", met


def beside(part: Part, model: str, blocks: Blocks, rounds: Rounds, seconds: float) -> None:
    going = part.rounds(seconds)
    times: list[dict[str, float]] = []
    while going() or len(times) < 2:
        times.append(blocks.profiled(part.device))
        part.round(times[-1])
    theirs = profilers(times)
    ours = costs(rounds)["all"]
    part.row(f"{model}: torch.profiler, CUDA only", theirs, "% longer steps",
             note="its start and stop are not counted")  # fmt: skip
    part.row(f"{model}: all, as a share of torch.profiler", _share(ours, theirs), "",
             target="<= 1/3", met=third(ours, theirs))  # fmt: skip


def profilers(rounds: Rounds) -> Estimate:
    """What torch.profiler makes a step longer by, in percent."""
    return added([found["torch.profiler"] for found in rounds],
                 [found["without torch.profiler"] for found in rounds])  # fmt: skip


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
