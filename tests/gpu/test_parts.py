"""The parts of the GPU suite, as far as they go without a GPU."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import runs
from gpu.estimates import Estimate
from gpu.recorded import demangled, kernels_of_rows, kernels_of_trace

from gpu import cupti
from haiprof.analyzer import Analyzer

TESTS = Path(__file__).resolve().parents[1]


def _path(*before: Path) -> str:
    found = [*map(str, before), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, found))


# -- what the other tool wrote -------------------------------------------------------------------


def test_names_are_demangled_like_torch_profilers() -> None:
    assert demangled("_Z3addPfi") == "add(float*, int)"
    assert demangled("ampere_sgemm_128x64_nn") == "ampere_sgemm_128x64_nn"
    assert demangled("_Znonsense") == "_Znonsense"


def test_a_trace_and_the_rows_of_the_same_kernels_are_equal(tmp_path: Path) -> None:
    events = [
        {"cat": "kernel", "name": "add(float*, int)", "dur": 1.5},
        {"cat": "kernel", "name": "add(float*, int)", "dur": 2.0},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD", "dur": 9},
        {"cat": "cpu_op", "name": "aten::add", "dur": 9},
        {"name": "process_name"},
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    theirs, others = kernels_of_trace(tmp_path / "trace.json")
    rows = [
        {"kind": "kernel", "name": "_Z3addPfi", "duration": 1500},
        {"kind": "kernel", "name": "_Z3addPfi", "duration": 2000},
        {"kind": "memcpy", "name": "Memcpy HtoD", "duration": 9000},
    ]
    ours, _ = kernels_of_rows(rows)
    assert ours == theirs == {"add(float*, int)": (2, 3500.0)}
    assert others == {"gpu_memcpy": 1}


def test_names_with_unequal_numbers_of_kernels_are_reported() -> None:
    from gpu.parts.counts import unequal

    assert unequal({"a": [1, 9.0], "b": [2, 9.0]}, {"a": [1, 8.0], "c": [1, 1.0]}) == [
        "b: 2 here, 0 there",
        "c: 0 here, 1 there",
    ]


# -- logic of parts ------------------------------------------------------------------------------


def _kernels(*correlations: int) -> list[cupti.Kernel]:
    return [cupti.Kernel(i, i + 1, 7, c, 0, 0) for i, c in enumerate(correlations)]


def test_ids_that_do_not_grow_and_kernels_on_the_wrong_side_are_found() -> None:
    from gpu.parts.correlations import astray, inversions

    in_order = _kernels(1, 2, 3, 4, 5)
    assert inversions(in_order) == 0
    assert astray(in_order, [0, 3], [1, 4]) == 0
    swapped = _kernels(1, 2, 5, 4, 3)
    assert inversions(swapped) == 2
    # The kernel with id 5 ran before the boundary with id 4, the one with id 3 after it.
    assert astray(swapped, [0, 3], [1, 4]) == 2


def test_kernels_are_placed_in_phases_by_their_order() -> None:
    from gpu.parts.phases import PHASES, STEPS, places

    kernels, spans = [], []
    for step in range(STEPS):
        for at, phase in enumerate(PHASES):
            begin = 1000 * step + 100 * at
            spans.append({"name": phase, "start": begin, "duration": 50})
            kernels += [{"kind": "kernel", "start": begin + n} for n in (1, 2)]
    found = places((2, 2, 2), kernels, spans)
    assert len(found) == 3 * STEPS
    assert all(inside == count == 2 for _, inside, count in found)
    kernels[-1]["start"] += 70  # after its span
    assert places((2, 2, 2), kernels, spans)[-1] == ("optimizer", 1, 2)
    assert places((2, 2, 3), kernels, spans) == []


def test_a_phase_is_within_two_percent_or_not() -> None:
    from gpu.parts.phases import within

    assert within(Estimate(0.1, -1.9, 1.9, 5), 2.0) is True
    assert within(Estimate(1.0, -1.0, 3.0, 5), 2.0) is None
    assert within(Estimate(-4.0, -5.0, -3.0, 5), 2.0) is False


def test_windows_and_what_they_hold() -> None:
    from gpu.parts.late_graphs import held, windows_of

    events = [{"time": at, "attributes": json.dumps({"recording": on})}
              for at, on in ((100, True), (200, False), (500, True))]  # fmt: skip
    windows = windows_of(events, 900)
    assert windows == [(100, 200), (500, 900)]
    # The first is cut through by the beginning of a window, the last lies in none.
    replays = [(90, 110), (120, 130), (600, 610), (950, 960)]
    assert held(replays, windows, [95, 121, 122, 131, 605, 955], 2) == [3, 1]


def test_kernels_are_distinguished_by_when_they_were_launched() -> None:
    from gpu.parts.sessions import told_apart

    names = {
        "void vectorized_elementwise_kernel<4, at::native::neg_kernel_cuda(...)>": (5, 1.0),
        "void vectorized_elementwise_kernel<4, at::native::AbsFunctor<float>, ...>": (3, 1.0),
        "void vectorized_elementwise_kernel<4, at::native::ceil_kernel_cuda(...)>": (2, 1.0),
        "void gemm": (9, 1.0),
    }
    assert told_apart(names) == {"before": 5, "inside": 3, "after": 2}


def test_tables_of_a_page_and_their_rows(tmp_path: Path) -> None:
    from gpu.parts.report import TABLES, rows_of

    run = runs.make_gpu_run(tmp_path / "r")
    page = Analyzer(run).report(tmp_path / "r.html").read_text("utf-8")
    found = rows_of(page)
    assert all(sum(n for name, n in found.items() if name.startswith(t)) > 0 for t in TABLES)
    assert found["Events"] == 0
    assert rows_of("<html></html>") == {}


def test_ten_points_of_many() -> None:
    from gpu.parts.soak import ten

    samples = [{"launched": float(n)} for n in range(1, 38)]
    points = ten(samples)
    assert len(points) == 10
    assert points[-1] is samples[-1]
    assert ten(samples[:10]) == samples[:10]


def test_overwritten_records_are_counted_from_what_the_recorder_reported() -> None:
    from gpu.parts.soak import overwritten

    losses = [
        "lost: 25 records were overwritten before they were read; …",
        "lost: 3 buffers in a rush",
    ]
    assert overwritten([*losses, losses[0]]) == 50


def test_the_clock_of_a_timestamp_is_named() -> None:
    from gpu.parts.clock import compared, domain

    class Ticks:
        def timestamp(self) -> int:
            return time.monotonic_ns() * 2

    class Realtime:
        def timestamp(self) -> int:
            return time.time_ns()

    assert domain(*compared(Realtime())[:2]) == "CLOCK_REALTIME in ns"
    assert domain(*compared(Ticks())[:2]) == "ticks of a counter"
    assert domain(1e18, 1.0000001) == "another clock in ns"


# -- CUPTI through ctypes, with the library that stands in for it ----------------------------------


class _Order:
    """A libcupti and a probe that say what they were asked."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.asked.append((name, *arguments)) or 0

    def away(self) -> int:
        return self.kept


def test_buffers_of_threads_are_chosen_before_cupti_has_any_and_after_a_flush() -> None:
    both: Any = _Order(0)
    cupti.begin_recording(both, both, cupti.KERNEL)
    asked = both.asked
    order = [
        asked.index(("call", "cuptiActivityFlushAll", cupti.FORCED)),
        asked.index(("set_attribute", cupti.PER_THREAD, 1)),
        asked.index(("register", both, 1 << 20)),
        asked.index(("must", "cuptiActivityEnable", cupti.KERNEL)),
    ]
    assert order == sorted(order)


def test_buffers_that_cupti_keeps_are_reported_and_leave_the_attribute_alone() -> None:
    both: Any = _Order(2)
    assert cupti.end_recording(both, both, cupti.KERNEL, seconds=0.1) == 2
    assert both.asked.count(("must", "cuptiActivityFlushAll", cupti.FORCED)) >= 2
    cupti.begin_recording(both, both, cupti.KERNEL)
    assert ("register", both, 1 << 20) in both.asked
    assert not any(name == "set_attribute" for name, *_ in both.asked)


@pytest.fixture
def environment(shm: Path, native_build: Path, tmp_path: Path) -> dict[str, str]:
    """Of programs that find the stand-ins for NVIDIA's libraries."""
    places = (native_build / "tests" / "native" / name for name in ("cuda", "cupti"))
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(map(str, places)),
        "PYTHONPATH": _path(TESTS),
        "GPU_SUITE_FILES": str(tmp_path),
    }


def _python(program: str, environment: dict[str, str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LOADED = """
import ctypes, json, os, pathlib, time
from gpu import cupti
from haiprof.analyzer import Analyzer
fake = ctypes.CDLL("libcupti.so.13")  # as a torch with CUDA has it, before anyone looks for one
library, probe = cupti.loaded(), cupti.Probe()
fake.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
"""


def test_buffers_are_recorded_exactly_and_described(
    environment: dict[str, str], tmp_path: Path
) -> None:
    program = (
        LOADED
        + """
from gpu.parts import capture
cupti.begin_recording(library, probe, cupti.KERNEL, size=128 << 10)
fake.fake_launch(b"gemm", 700)
cupti.end_recording(library, probe, cupti.KERNEL)
folder = pathlib.Path(os.environ["GPU_SUITE_FILES"])
for number, (data, valid) in enumerate(probe.buffers()):
    capture.write(library, folder, f"b{number}", data, valid)
kernels, calls, kinds = cupti.read(library, probe.buffers())
print(json.dumps([len(kernels), kinds, [k.correlation for k in kernels] == list(range(1, 701))]))
"""
    )
    assert _python(program, environment) == [700, {"10": 700}, True]
    records = 0
    for content in sorted(tmp_path.glob("b*.bin")):
        header = json.loads(content.with_suffix(".json").read_text())
        data = content.read_bytes()
        assert len(data) == header["bytes"] <= 200 << 10
        assert header["cupti"] == 130001
        for offset in header["offsets"]:
            kernel = cupti.kernel_of(data[offset : offset + 160])
            assert header["names"][f"{kernel.name:#x}"] == "gemm"
            assert kernel.end - kernel.start == 1000
        records += len(header["offsets"])
    assert records == 700


def test_no_buffer_and_one_that_is_thrown_away(environment: dict[str, str]) -> None:
    program = (
        LOADED
        + """
cupti.begin_recording(library, probe, cupti.KERNEL)
counts = []
for mode in (cupti.NONE, cupti.DISCARD, cupti.KEEP):
    probe.mode(mode)
    fake.fake_launch(b"gemm", 50)
    library.must("cuptiActivityFlushAll", 0)
    counts.append([sum(1 for d, v in probe.buffers() for _ in library.addresses(d, v)),
                   library.dropped()])
print(json.dumps([counts, probe.counts()]))
"""
    )
    counts, asked = _python(program, environment)
    assert counts == [[0, 50], [0, 0], [50, 0]]
    assert asked == {"asked": 52, "refused": 50, "discarded": 1}


def test_what_is_raw_needs_nothing_of_haiprof(environment: dict[str, str]) -> None:
    program = """
import sys
for name in ("haiprof", "pyarrow", "polars", "pynvml"):
    sys.modules[name] = None
import json
from gpu.parts import raw
from gpu import cupti, jobs
assert jobs.stand_in() is not None
library, probe = cupti.loaded(), cupti.Probe()
cupti.begin_recording(library, probe, cupti.KERNEL)
jobs.Launches(jobs.Machine("cpu")).eager(5)
print(json.dumps([cupti.end_recording(library, probe, cupti.KERNEL), probe.scan(library)[0]]))
"""
    assert _python(program, environment) == [0, 5]


def test_kernels_without_a_time_are_found_by_their_number(environment: dict[str, str]) -> None:
    program = (
        LOADED
        + """
cupti.begin_recording(library, probe, cupti.KERNEL)
fake.fake_launch(b"gemm", 700)
timed = probe.scan(library)
pending = fake.fake_begin(b"never ends")
fake.fake_launch(b"gemm", 9)
cupti.end_recording(library, probe, cupti.KERNEL)
print(json.dumps([timed, probe.scan(library), probe.away()]))
"""
    )
    assert _python(program, environment) == [[0, 0, 0], [710, 1, 700], 0]


def test_a_kind_is_toggled_without_python(environment: dict[str, str]) -> None:
    program = (
        LOADED
        + """
cupti.begin_recording(library, probe)
on, off = probe.toggle(library, cupti.KERNEL, 5, 0.001)
print(json.dumps([len(on), len(off), min(on + off) > 0, fake.fake_enabled()]))
"""
    )
    assert _python(program, environment) == [5, 5, True, 0]


def test_a_function_is_called_at_a_pace_without_python(environment: dict[str, str]) -> None:
    program = (
        LOADED
        + """
probe.pace(library.address("cuptiActivityFlushAll"), 0, 0.01)
begin = time.perf_counter()
while time.perf_counter() - begin < 0.5:
    pass  # the GIL is held nearly all the time
took = probe.stop_pace()
lasted = time.perf_counter() - begin
print(json.dumps([len(took), max(took), lasted]))
"""
    )
    calls, longest, lasted = _python(program, environment)
    assert 5 <= calls <= 2 + lasted / 0.01
    assert 0 < longest < lasted


def test_fields_of_records_lie_where_the_core_reads_them() -> None:
    record = bytearray(160)
    ctypes.c_uint64.from_buffer(record, 16).value = 11
    ctypes.c_uint64.from_buffer(record, 24).value = 12
    ctypes.c_uint32.from_buffer(record, 48).value = 13
    ctypes.c_uint32.from_buffer(record, 92).value = 14
    ctypes.c_uint64.from_buffer(record, 104).value = 15
    ctypes.c_uint32.from_buffer(record, 156).value = 16
    assert cupti.kernel_of(bytes(record)) == cupti.Kernel(11, 12, 13, 14, 15, 16)


# -- what is carried to the machine ----------------------------------------------------------------


def test_a_wheel_that_wants_newer_libraries_is_refused() -> None:
    from gpu.wheel import too_new, versions

    symbols = "*UND* (GLIBC_2.9) memcpy\n*UND* (GLIBC_2.34) main\n*UND* (GLIBCXX_3.4.29) x"
    found = versions(symbols)
    assert found == {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29)}
    assert too_new(found) == []
    assert too_new(versions("(GLIBC_2.41) a")) == ["GLIBC 2.41 is wanted, the machine has 2.39"]


def test_what_a_compiled_wheel_wants_is_read_from_it(tmp_path: Path) -> None:
    from gpu.wheel import wanted

    files = importlib.metadata.files("haiprof") or []
    [core] = [file for file in files if file.name.startswith("_core") and file.suffix == ".so"]
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.write(str(core.locate()), "haiprof/_core.so")
        wheel.writestr("haiprof/text.py", "GLIBC_9.9")
    found = wanted(tmp_path / "w.whl")
    assert (2, 2) <= found["GLIBC"] < (9, 9)


def test_without_the_python_of_the_machine_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu.wheel import interpreter

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit, match=r"no python3\.12 on PATH .*install python3\.12") as error:
        interpreter()
    assert "\n" not in str(error.value)


# -- the jobs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["transformer", "resnet50", "graph"])
def test_jobs_train_on_any_device(model: str) -> None:
    import torch
    from gpu.jobs import Machine, training

    found = training(model, Machine("cpu"))
    before = [p.detach().clone() for p in found.model.parameters()]
    count, seconds = found.steps_for(0.01)
    assert count >= 3
    assert seconds > 0
    after = list(found.model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_resnet50_has_the_weights_of_resnet50() -> None:
    from gpu.jobs import Machine, resnet50

    weights = sum(p.numel() for p in resnet50(Machine("cpu")).model.parameters())
    assert weights == 25_557_032


def test_the_same_loop_is_timed_by_hand_in_both_ways() -> None:
    from gpu.jobs import Machine, training
    from gpu.parts.phases import PHASES, STEPS, by_hand

    job = training("transformer", Machine("cpu"))
    for waiting in (False, True):
        times = by_hand(job, waiting)
        assert list(times) == list(PHASES)
        assert all(len(found) == STEPS and min(found) > 0 for found in times.values())
