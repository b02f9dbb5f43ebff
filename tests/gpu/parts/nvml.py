"""How long calls of NVML and GPM take, and what a process that polls does to launches here."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpu.estimates import added, difference, quantile
from gpu.part import Part, main

from gpu import jobs

RATES = (1, 4, 10)
LAUNCHES = 20_000
#: One batch of fields of one GPU, as the recorder asks: energy, memory's temperature, power, times
#: of reduced clocks, PCIe.
FIELDS = (83, 82, 186, 74, 76, 269, 270, 271, 197, 198)


def measure(part: Part) -> None:
    part.needs_gpu()
    machine = jobs.Machine(part.device)
    launches = jobs.Launches(machine)
    machine.wait()
    poller = Poller(part)
    try:
        poller.tell("1")
        for at, rate in enumerate(RATES):
            seconds = (part.left() - 3) / (len(RATES) - at)
            part.piece(f"{rate} Hz", one, part, rate, seconds, launches, poller)
    finally:
        answer = poller.end()
    for name, reason in answer["refused"].items():
        part.failed(name, reason)
    for name, took in answer["took"].items():
        part.row(f"{name}, median", 1e6 * quantile(took, 0.5), "us",
                 note=f"99 %: {1e6 * quantile(took, 0.99):.1f} us, first: {1e6 * took[0]:.1f} us, "
                      f"{len(took)} calls")  # fmt: skip


class Poller:
    """A process that asks everything at a rate."""

    def __init__(self, part: Part) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", part.module, "--device", part.device, "--child", "poll"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def tell(self, rate: str) -> None:
        """Say how often, per second; 0 for not at all. It has begun when this returns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(rate + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        if not self._process.stdout.readline():
            assert self._process.stderr is not None
            said = self._process.stderr.read().strip().splitlines()[-1:]
            raise RuntimeError(f"the process that polls ended: {said}")

    def end(self) -> dict[str, Any]:
        """Stop it; what it found."""
        try:
            out, _ = self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, _ = self._process.communicate()
        lines = out.splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return {"took": {}, "refused": {}} | found


def one(part: Part, rate: int, seconds: float, launches: jobs.Launches, poller: Poller) -> None:
    block = max(0.5, 1.0 / rate)
    going = part.rounds(seconds - 2 * block)
    during: list[float] = []
    without: list[float] = []
    while going() or len(during) < 2:
        for polling in (True, False) if len(during) % 2 else (False, True):
            poller.tell(str(rate if polling else 0))
            (during if polling else without).append(launched_for(part, launches, block))
    part.row(f"polled {rate} times a second: a launch takes longer",
             difference(during, without).scaled(1e9), "ns")  # fmt: skip
    part.limited(f"polled {rate} times a second: launch-bound", added(during, without),
                 "% longer", 1.0)  # fmt: skip


def launched_for(part: Part, launches: jobs.Launches, seconds: float) -> float:
    """Seconds that a launch takes, over so many seconds."""
    going = part.spend(seconds)
    taken = 0.0
    blocks = 0
    while going() or not blocks:
        taken += launches.machine.timed(lambda: launches.eager(LAUNCHES))
        blocks += 1
    return taken / (blocks * LAUNCHES)


def calls() -> dict[str, Callable[[], Any]]:
    """Every call that a sampler may make, by its name."""
    import pynvml as nvml

    nvml.nvmlInit()
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    found: dict[str, Callable[[], Any]] = {
        f"FieldValues of {len(FIELDS)}": lambda: nvml.nvmlDeviceGetFieldValues(
            device, list(FIELDS)
        ),
        "UtilizationRates": lambda: nvml.nvmlDeviceGetUtilizationRates(device),
        "MemoryInfo": lambda: nvml.nvmlDeviceGetMemoryInfo(device),
        "Temperature": lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
        "ClockInfo SM": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
        "ClockInfo MEM": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM),
        "PowerUsage": lambda: nvml.nvmlDeviceGetPowerUsage(device),
        "EnforcedPowerLimit": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(device),
        "CurrentClocksEventReasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(device),
    }
    try:
        found |= _gpm(nvml, device)
    except Exception as error:
        reason = f"{error!r}"

        def refused() -> Any:
            raise RuntimeError(reason)

        found["GPM"] = refused
    return found


def _gpm(nvml: Any, device: Any) -> dict[str, Callable[[], Any]]:
    samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
    nvml.nvmlGpmSampleGet(device, samples[0])
    time.sleep(0.2)
    nvml.nvmlGpmSampleGet(device, samples[1])

    def sample() -> None:
        samples.reverse()
        nvml.nvmlGpmSampleGet(device, samples[1])

    def metrics() -> None:
        got = nvml.c_nvmlGpmMetricsGet_t()
        got.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted = (1, 2, 3, 5, 10, 11, 12, 13, 20, 21, 60, 61)
        got.numMetrics = len(wanted)
        got.sample1, got.sample2 = samples
        for at, metric in enumerate(wanted):
            got.metrics[at].metricId = metric
        nvml.nvmlGpmMetricsGet(got)

    return {"GPM SampleGet": sample, "GPM MetricsGet of 12": metrics}


def _poll(device: str, words: Sequence[str]) -> dict[str, Any]:
    wanted = calls()
    took: dict[str, list[float]] = {}
    refused: dict[str, str] = {}
    rate = 0.0
    due = time.monotonic()
    while True:
        wait = max(0.0, due - time.monotonic()) if rate else None
        if select.select([sys.stdin], [], [], wait)[0]:
            line = sys.stdin.readline()
            if not line:
                return {"took": took, "refused": refused}
            rate = float(line)
            due = time.monotonic() + (0.5 / rate if rate else 0.0)
            print("so it is", flush=True)
            continue
        due += 1.0 / rate
        for name, call in wanted.items():
            if name in refused:
                continue
            begin = time.perf_counter()
            try:
                call()
            except Exception as error:
                refused[name] = f"{error!r}"
                continue
            took.setdefault(name, []).append(time.perf_counter() - begin)


if __name__ == "__main__":
    main(measure, {"poll": _poll})
