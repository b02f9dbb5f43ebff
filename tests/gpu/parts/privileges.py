"""What NVML gives a user without privileges: GPM, the PCIe counters, the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from gpu.part import Part, main, reason_of

NOBODY = 65534


def measure(part: Part) -> None:
    part.needs_gpu()
    mine = part.child("answers", "0", seconds=15)
    for name, answer in mine["answers"].items():
        part.fact(f"as user {mine['user']}: {name}", answer)
    other = part.child("answers", str(NOBODY), seconds=15)
    if other["user"] == 0:
        raise RuntimeError("privileges could not be given up")
    for name, answer in other["answers"].items():
        part.row(f"as user {other['user']}: {name}", float(answer["works"]), "yes = 1",
                 target="yes", met=answer["works"], note=str(answer["says"])[:300])  # fmt: skip


def asked() -> dict[str, Callable[[], Any]]:
    """What is asked of NVML; every call alone."""
    import time

    import pynvml as nvml

    nvml.nvmlInit()
    device = nvml.nvmlDeviceGetHandleByIndex(0)

    def field(number: int) -> Callable[[], Any]:
        def ask() -> Any:
            [value] = nvml.nvmlDeviceGetFieldValues(device, [number])
            if value.nvmlReturn != 0:
                raise nvml.NVMLError(value.nvmlReturn)
            return value.value.ullVal

        return ask

    def gpm() -> Any:
        first, second = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(device, first)
        time.sleep(0.2)
        nvml.nvmlGpmSampleGet(device, second)
        got = nvml.c_nvmlGpmMetricsGet_t()
        got.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted = (2, 5, 10, 20, 21)
        got.numMetrics = len(wanted)
        got.sample1, got.sample2 = first, second
        for at, metric in enumerate(wanted):
            got.metrics[at].metricId = metric
        nvml.nvmlGpmMetricsGet(got)
        return {got.metrics[i].metricId: got.metrics[i].value for i in range(len(wanted))}

    return {
        "GPM is supported": lambda: nvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice,
        "GPM: SM, tensor, DRAM, PCIe TX, PCIe RX": gpm,
        "field 197, PCIe TX bytes": field(197),
        "field 198, PCIe RX bytes": field(198),
        "field 83, energy": field(83),
        "field 186, power": field(186),
        "field 82, memory temperature": field(82),
        "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu,
        "memory": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used,
        "SM clock": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
    }


def _answers(device: str, words: Sequence[str]) -> dict[str, Any]:
    # Its files may not be readable to others.
    import pynvml  # noqa: F401

    wanted = int(words[0])
    if wanted and os.getuid() == 0:
        os.setgroups([])
        os.setgid(wanted)
        os.setuid(wanted)
    answers = {}
    for name, ask in asked().items():
        try:
            answers[name] = {"works": True, "says": str(ask())}
        except Exception as error:
            answers[name] = {"works": False, "says": reason_of(error)}
    return {"user": os.getuid(), "answers": answers}


if __name__ == "__main__":
    main(measure, {"answers": _answers})
