"""NVML through ctypes: what the driver and GPU 0 answer, with no package of NVIDIA's."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

#: Violation times, energy, temperature, power, PCIe, NVLink, clock event reasons.
FIELDS = (74, 76, 82, 83, 185, 186, 197, 198, 138, 139, 269, 270, 271)
#: GPM: SM utilisation and occupancy, tensor, DRAM, PCIe TX and RX.
METRICS = (2, 3, 5, 10, 20, 21)
_ROOM = 4096


class _Field(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint), ("scope", ctypes.c_uint), ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong), ("type", ctypes.c_int), ("result", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    ]  # fmt: skip


class _Support(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("supported", ctypes.c_uint)]


class _Metric(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint), ("result", ctypes.c_int), ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    ]  # fmt: skip


class _Metrics(ctypes.Structure):
    # More metrics than any driver knows; how many are asked for is what counts.
    _fields_ = [
        ("version", ctypes.c_uint), ("count", ctypes.c_uint), ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p), ("metrics", _Metric * 512),
    ]  # fmt: skip


class Nvml:
    """The driver's NVML, initialised, and its GPU 0."""

    def __init__(self) -> None:
        """Raises OSError without a driver, RuntimeError when a call is refused."""
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self._must("nvmlInit_v2")
        self.device = ctypes.c_void_p()
        self._must("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self.device))

    def call(self, name: str, *arguments: Any) -> str:
        """Call a function; return nothing when it succeeds, and else what NVML calls the result."""
        function = getattr(self._library, name, None)
        if function is None:
            return "not in this driver"
        result = function(*arguments)
        return "" if result == 0 else self.text_of(result)

    def text_of(self, result: int) -> str:
        """What NVML calls one of its results."""
        text = self._library.nvmlErrorString(result)
        return f"{result} ({text.decode(errors='replace') if text else '?'})"

    def _must(self, name: str, *arguments: Any) -> None:
        refused = self.call(name, *arguments)
        if refused:
            raise RuntimeError(f"{name} answers {refused}")

    def text(self, name: str, *first: Any) -> str:
        """What a function writes as text."""
        said = ctypes.create_string_buffer(256)
        return self.call(name, *first, said, ctypes.c_uint(256)) or said.value.decode()

    def numbers(self, name: str, count: int = 1) -> Any:
        """What a function of the device answers in numbers, or why it does not."""
        found = [ctypes.c_uint() for _ in range(count)]
        refused = self.call(name, self.device, *map(ctypes.byref, found))
        return refused or [number.value for number in found]

    def fields(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Each field alone: its result, value and NVML's own time for it, us."""
        found: dict[str, Any] = {}
        for number in numbers:
            field = _Field(id=number)
            begin = time.perf_counter()
            refused = self.call("nvmlDeviceGetFieldValues", self.device, 1, ctypes.byref(field))
            took = 1e6 * (time.perf_counter() - begin)
            result = refused or ("ok" if field.result == 0 else self.text_of(field.result))
            found[str(number)] = {
                "result": result, "value": field.value, "type": field.type,
                "latency_us": field.latency_us, "call_us": round(took, 1),
            }  # fmt: skip
        return found

    def gpm(self, seconds: float = 0.2) -> dict[str, Any]:
        """Whether the counters of activity are there, and one reading of them."""
        support = _Support(version=1)
        refused = self.call("nvmlGpmQueryDeviceSupport", self.device, ctypes.byref(support))
        if refused or not support.supported:
            return {"supported": refused or 0}
        metrics = _Metrics(version=1, count=len(METRICS))
        samples = [ctypes.c_void_p(), ctypes.c_void_p()]
        for sample in samples:
            self._must("nvmlGpmSampleAlloc", ctypes.byref(sample))
            self._must("nvmlGpmSampleGet", self.device, sample)
            time.sleep(seconds)
        metrics.first, metrics.second = (sample.value for sample in samples)
        for at, number in enumerate(METRICS):
            metrics.metrics[at].id = number
        refused = self.call("nvmlGpmMetricsGet", ctypes.byref(metrics))
        read = metrics.metrics[: len(METRICS)]
        return {"supported": 1, "result": refused or "ok", "metrics": {
            metric.id: metric.value if metric.result == 0 else self.text_of(metric.result)
            for metric in read
        }}  # fmt: skip


def dump() -> dict[str, Any]:
    """What there is to know, by its name."""
    nvml = Nvml()
    gpus = ctypes.c_uint()
    refused = nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(gpus))
    return {
        "GPUs": refused or gpus.value,
        "driver": nvml.text("nvmlSystemGetDriverVersion"),
        "NVML": nvml.text("nvmlSystemGetNVMLVersion"),
        "name": nvml.text("nvmlDeviceGetName", nvml.device),
        "MIG mode, current and pending": nvml.numbers("nvmlDeviceGetMigMode", 2),
        "ECC mode, current and pending": nvml.numbers("nvmlDeviceGetEccMode", 2),
        "persistence mode": nvml.numbers("nvmlDeviceGetPersistenceMode"),
        "compute mode": nvml.numbers("nvmlDeviceGetComputeMode"),
        "PCIe generation": nvml.numbers("nvmlDeviceGetCurrPcieLinkGeneration"),
        "fields": nvml.fields(FIELDS),
        "GPM": nvml.gpm(),
    }
