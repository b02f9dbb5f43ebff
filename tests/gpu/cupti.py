"""CUPTI through ctypes, beside or instead of haiprof's own use of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MEMCPY, MEMSET, RUNTIME, KERNEL, OVERHEAD = 1, 2, 5, 10, 17
#: CUpti_ActivityAttribute.
POOL_LIMIT, ZEROED_OUT, PER_THREAD = 2, 5, 9
#: cupti_runtime_cbid.h: cudaEventRecord and cudaEventRecordWithFlags, and both per thread.
EVENT_RECORD = (135, 242, 370, 371)
#: cudaGraphLaunch, and the same per thread.
GRAPH_LAUNCH = (311, 312)
FORCED = 1
KEEP, NONE, DISCARD = 0, 1, 2


class Kernel(NamedTuple):
    """What a record of a kernel says."""

    start: int
    end: int
    stream: int
    correlation: int
    name: int
    graph: int


class Call(NamedTuple):
    """What a record of a call of the runtime says."""

    cbid: int
    start: int
    end: int
    thread: int
    correlation: int


def kernel_of(record: bytes) -> Kernel:
    """Read a kernel record's first 160 bytes; src/gpu/cupti_abi.h says where the fields lie."""
    start, end = struct.unpack_from("<QQ", record, 16)
    (stream,) = struct.unpack_from("<I", record, 48)
    (correlation,) = struct.unpack_from("<I", record, 92)
    (name,) = struct.unpack_from("<Q", record, 104)
    (graph,) = struct.unpack_from("<I", record, 156)
    return Kernel(start, end, stream, correlation, name, graph)


def call_of(record: bytes) -> Call:
    """Read a record of a call of the runtime or driver, 40 bytes."""
    _, cbid, start, end, _, thread, correlation, _ = struct.unpack_from("<IIQQIIII", record, 0)
    return Call(cbid, start, end, thread, correlation)


class Cupti:
    """The libcupti that this process uses."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function that answers with a CUptiResult; 0 is success."""
        return int(getattr(self._library, name)(*arguments))

    def address(self, name: str) -> ctypes.c_void_p:
        """Where a function lies."""
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p)

    def must(self, name: str, *arguments: Any) -> None:
        """Call it; raise RuntimeError when it fails."""
        result = self.call(name, *arguments)
        if result != 0:
            raise RuntimeError(f"{name} answers {self.text_of(result)}")

    def text_of(self, result: int) -> str:
        """What CUPTI calls one of its results."""
        text = ctypes.c_char_p()
        if self.call("cuptiGetResultString", result, ctypes.byref(text)) == 0 and text.value:
            return f"{result} ({text.value.decode(errors='replace')})"
        return str(result)

    def timestamp(self) -> int:
        """What cuptiGetTimestamp says."""
        now = ctypes.c_uint64()
        self.must("cuptiGetTimestamp", ctypes.byref(now))
        return now.value

    def version(self) -> int:
        """The version of CUPTI's API."""
        version = ctypes.c_uint32()
        self.must("cuptiGetVersion", ctypes.byref(version))
        return version.value

    def dropped(self) -> int:
        """How many records were dropped since this was asked last, of no context."""
        count = ctypes.c_size_t()
        self.must("cuptiActivityGetNumDroppedRecords", None, 0, ctypes.byref(count))
        return count.value

    def set_attribute(self, attribute: int, value: int) -> int:
        """Set one; return the result."""
        content = ctypes.c_size_t(value) if attribute == POOL_LIMIT else ctypes.c_uint8(value)
        size = ctypes.c_size_t(ctypes.sizeof(content))
        return self.call(
            "cuptiActivitySetAttribute", attribute, ctypes.byref(size), ctypes.byref(content)
        )

    def addresses(self, data: int, valid: int) -> Iterator[int]:
        """Where the records of a buffer lie."""
        record = ctypes.c_void_p()
        while (
            self.call(
                "cuptiActivityGetNextRecord",
                ctypes.c_void_p(data),
                ctypes.c_size_t(valid),
                ctypes.byref(record),
            )
            == 0
        ):
            assert record.value is not None
            yield record.value

    def names_of(self, kernels: Sequence[Kernel]) -> dict[int, str]:
        """Pointer -> name of kernels of this process."""
        found: dict[int, str] = {}
        for kernel in kernels:
            if kernel.name and kernel.name not in found:
                found[kernel.name] = ctypes.string_at(kernel.name).decode(errors="replace")
        return found


def loaded() -> Cupti:
    """Return the libcupti that torch has loaded, or else the one that is found by its name.

    Raises:
        RuntimeError: there is none.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libcupti.so" in line:
            return Cupti(line.split(maxsplit=5)[5])
    for name in ("libcupti.so.13", "libcupti.so.12"):
        with contextlib.suppress(OSError):
            return Cupti(name)
    raise RuntimeError("no libcupti is loaded, and none is found by its name")


def _compiled(source: Path) -> Path:
    """Compile a library, once for all processes that share a folder for temporary files."""
    tag = f"{os.getuid()}-{zlib.crc32(source.read_bytes()):08x}"
    library = Path(tempfile.gettempdir(), f"haiprof-{source.stem}-{tag}.so")
    if library.exists() and library.stat().st_uid == os.getuid():
        return library
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise RuntimeError(f"there is no C++ compiler for {source}")
    new = library.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [compiler, "-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", "-o", str(new),
         str(source)],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{source.name} does not compile: {done.stderr[-500:]}")
    return new.replace(library)


class Probe:
    """``probe.cpp``, compiled."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(_compiled(Path(__file__).with_name("probe.cpp"))))
        self._library.keep_buffer.restype = ctypes.c_void_p
        for name in ("pace_stop", "keep_count", "keep_asked", "keep_refused", "keep_discarded",
                     "keep_away", "ticks"):  # fmt: skip
            getattr(self._library, name).restype = ctypes.c_uint64

    def pace(self, function: ctypes.c_void_p, argument: int, period: float) -> None:
        """Call a function every ``period`` seconds on a thread of its own."""
        self._library.pace_start(function, argument, ctypes.c_uint64(round(period * 1e9)))

    def stop_pace(self) -> list[float]:
        """Stop that; return the seconds that each call took."""
        room = 1 << 20
        times = (ctypes.c_uint64 * room)()
        count = self._library.pace_stop(times, ctypes.c_size_t(room))
        return [ns / 1e9 for ns in times[: min(count, room)]]

    def register(self, cupti: Cupti, size: int) -> None:
        """Have CUPTI use this object's buffers, of ``size`` bytes each.

        Raises:
            RuntimeError: CUPTI refuses.
        """
        result = self._library.keep_register(
            cupti.address("cuptiActivityRegisterCallbacks"), ctypes.c_size_t(size)
        )
        if result != 0:
            raise RuntimeError(f"no callbacks can be registered: {cupti.text_of(result)}")

    def mode(self, mode: int) -> None:
        """Give CUPTI buffers (KEEP), none (NONE), or one that is thrown away (DISCARD)."""
        self._library.keep_mode(mode)

    def buffers(self) -> list[tuple[int, int]]:
        """Address and filled bytes of each buffer that came back, in their order."""
        found = []
        for number in range(self._library.keep_count()):
            valid = ctypes.c_size_t()
            data = self._library.keep_buffer(ctypes.c_size_t(number), ctypes.byref(valid))
            found.append((data, valid.value))
        return found

    def away(self) -> int:
        """How many buffers CUPTI has not given back."""
        return int(self._library.keep_away())

    def scan(self, cupti: Cupti) -> tuple[int, int, int]:
        """Kernels that came back, those without a time, and the number of the first such."""
        found = (ctypes.c_uint64 * 3)()
        self._library.keep_scan(cupti.address("cuptiActivityGetNextRecord"), found)
        return found[0], found[1], found[2]

    def toggle(
        self, cupti: Cupti, kind: int, count: int, pause: float
    ) -> tuple[list[float], list[float]]:
        """Seconds that enabling and disabling a kind take, without the GIL.

        Raises:
            RuntimeError: CUPTI refuses.
        """
        enabling, disabling = (ctypes.c_uint64 * count)(), (ctypes.c_uint64 * count)()
        result = self._library.toggle(
            cupti.address("cuptiActivityEnable"), cupti.address("cuptiActivityDisable"), kind,
            ctypes.c_size_t(count), ctypes.c_uint64(round(pause * 1e9)), enabling, disabling,
        )  # fmt: skip
        if result != 0:
            raise RuntimeError(f"the kind cannot be enabled and disabled: {cupti.text_of(result)}")
        return [ns / 1e9 for ns in enabling], [ns / 1e9 for ns in disabling]

    def ticks(self) -> int:
        """The processor's counter, of which torch.profiler's clock is made."""
        return int(self._library.ticks())

    def clock(self) -> ctypes.c_void_p:
        """Where the function that reads it lies."""
        return ctypes.cast(self._library.ticks, ctypes.c_void_p)

    def counts(self) -> dict[str, int]:
        """How many buffers were asked for, were not given, and came back to be thrown away."""
        return {
            "asked": self._library.keep_asked(),
            "refused": self._library.keep_refused(),
            "discarded": self._library.keep_discarded(),
        }


def begin_recording(cupti: Cupti, probe: Probe, *kinds: int, size: int = 1 << 20) -> None:
    """Record kinds of activity into the probe's buffers.

    Raises:
        RuntimeError: CUPTI refuses.
    """
    # Whether each thread has its own buffer may change only while CUPTI has none, of a session of
    # torch.profiler either; before anyone has registered there is nothing to flush.
    cupti.call("cuptiActivityFlushAll", FORCED)
    if probe.away() == 0:
        cupti.set_attribute(ZEROED_OUT, 1)
        cupti.set_attribute(PER_THREAD, 1)
    probe.register(cupti, size)
    for kind in kinds:
        cupti.must("cuptiActivityEnable", kind)


def end_recording(cupti: Cupti, probe: Probe, *kinds: int, seconds: float = 1.0) -> int:
    """Record no more, and have all buffers back; return how many CUPTI keeps all the same.

    Raises:
        RuntimeError: CUPTI refuses.
    """
    for kind in kinds:
        cupti.must("cuptiActivityDisable", kind)
    until = time.monotonic() + seconds
    cupti.must("cuptiActivityFlushAll", FORCED)
    while probe.away() and time.monotonic() < until:
        time.sleep(0.02)
        cupti.must("cuptiActivityFlushAll", FORCED)
    return probe.away()


def read(
    cupti: Cupti, buffers: Sequence[tuple[int, int]]
) -> tuple[list[Kernel], list[Call], dict[int, int]]:
    """Kernels and calls of the runtime in buffers of this process, and records of each kind."""
    kernels: list[Kernel] = []
    calls: list[Call] = []
    kinds: dict[int, int] = {}
    for data, valid in buffers:
        for address in cupti.addresses(data, valid):
            kind = ctypes.c_uint32.from_address(address).value
            kinds[kind] = kinds.get(kind, 0) + 1
            if kind == KERNEL:
                kernels.append(kernel_of(ctypes.string_at(address, 160)))
            elif kind == RUNTIME:
                calls.append(call_of(ctypes.string_at(address, 40)))
    return kernels, calls, kinds
