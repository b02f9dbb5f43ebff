"""The suite for a machine with a GPU, as far as it goes without one."""

from __future__ import annotations

import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gpu.estimates import Estimate, added, at_most, estimate, quantile, student
from gpu.part import Part
from gpu.recorded import demangled, kernels_of_rows, kernels_of_trace
from gpu.results import number, page, parsed, summary, write
from gpu.suite import PLAN, Planned, Suite
from hypothesis import given
from hypothesis import strategies as st

from gpu import cupti

TESTS = Path(__file__).resolve().parents[1]
#: What the parts may take together, s; the rest of nine minutes is for building haiprof.
IN_ALL = 500.0


def _path(*before: Path) -> str:
    found = [*map(str, before), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, found))


# -- estimates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042)]
)
def test_quantiles_of_students_t(freedom: int, expected: float) -> None:
    assert student(freedom) == pytest.approx(expected, rel=0.01)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_an_interval_holds_the_mean_and_is_wider_than_the_normal_one(values: list[float]) -> None:
    found = estimate(values)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high
    normal = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    assert found.high - found.value >= normal * 0.999 - 1e-6


def test_one_value_has_no_interval_and_none_is_an_error() -> None:
    assert estimate([2.0]) == Estimate(2.0, None, None, 1)
    with pytest.raises(ValueError, match="nothing was measured"):
        estimate([])


def test_what_is_added_is_that_of_pairs() -> None:
    # The machine becomes slower meanwhile: the pairs do not mind.
    found = added([1.01, 2.02, 4.04], [1.0, 2.0, 4.0])
    assert found.value == pytest.approx(1.0)
    assert found.high == pytest.approx(1.0)
    with pytest.raises(ValueError, match="is shorter than"):
        added([1.0, 2.0], [1.0])


def test_a_target_is_met_missed_or_undecided() -> None:
    assert at_most(Estimate(0.5, 0.2, 0.9, 9), 1.0) is True
    assert at_most(Estimate(0.5, 0.2, 1.1, 9), 1.0) is None
    assert at_most(Estimate(2.0, 1.1, 3.0, 9), 1.0) is False


def test_quantiles_are_values() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([3, 1, 2], 1.0) == 3
    assert quantile([3, 1, 2], 0.0) == 1


# -- results -------------------------------------------------------------------------------------


def _part(**changes: Any) -> dict[str, Any]:
    return {"name": "p", "title": "P", "state": "done", "reason": "", "seconds": 1.0,
            "rows": [], "facts": {}, "failures": [], **changes}  # fmt: skip


def test_rows_of_a_part_become_lines_of_a_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    part = Part("m", "cpu", 60, out, "")
    part.limited("longer | slower", Estimate(0.12345, 0.1, 0.2, 12), "%", 0.15, "of\n9")
    part.fact("told", ["a", 1])
    part.failed("clock", "it stood still")
    found = parsed(out.read_text() + '{"row": "cut o')
    [row] = found["rows"]
    assert row["met"] is None
    assert row["target"] == "<= 0.15"
    results = {"machine": {"gpu": "H"}, "parts": [_part(**found)]}
    results["summary"] = summary(results["parts"])
    assert results["summary"]["targets_undecided"] == 1
    assert results["summary"]["pieces_failed"] == 1
    text = page(results)
    assert "| longer \\| slower | 0.1235 % | 0.1 to 0.2 | 12 | <= 0.15 | undecided | of 9 |" in text
    assert "Not measured: clock: it stood still" in text
    assert "- gpu: H" in text


def test_every_row_has_as_many_cells_as_the_head(tmp_path: Path) -> None:
    out = tmp_path / "out"
    part = Part("m", "cpu", 60, out, "")
    part.row("a", 1.0, "s")
    part.check("b|c", False, "d|e")
    results = {"machine": {}, "parts": [_part(**parsed(out.read_text()))]}
    write(tmp_path, results)
    assert json.loads((tmp_path / "gpu.json").read_text())["summary"]["targets_not_met"] == 1
    lines = [li for li in (tmp_path / "gpu.md").read_text().splitlines() if li.startswith("|")]
    assert len(lines) == 4
    assert {line.replace("\\|", "").count("|") for line in lines} == {8}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12345678.0, "12 345 678"), (0.012345, "0.01235"), (98765.4, "98 765")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


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


def test_names_with_unequal_numbers_of_kernels_are_told() -> None:
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


def test_a_third_of_another_tools_cost() -> None:
    from gpu.parts.overhead import third

    assert third(Estimate(1, 0.5, 1.5, 9), Estimate(6, 5, 7, 9)) is True
    assert third(Estimate(1, 0.5, 1.5, 9), Estimate(3, 2, 4, 9)) is None
    assert third(Estimate(3, 2.5, 3.5, 9), Estimate(3, 2, 4, 9)) is False
    assert third(Estimate(3, None, None, 1), Estimate(3, 2, 4, 9)) is None


def test_ten_points_of_many() -> None:
    from gpu.parts.soak import ten

    samples = [{"launched": float(n)} for n in range(1, 38)]
    points = ten(samples)
    assert len(points) == 10
    assert points[-1] is samples[-1]
    assert ten(samples[:10]) == samples[:10]


def test_overwritten_records_are_counted_from_what_the_recorder_told() -> None:
    from gpu.parts.soak import overwritten

    told = [
        "lost: 25 records were overwritten before they were read; …",
        "lost: 3 buffers in a rush",
    ]
    assert overwritten([*told, told[0]]) == 50


def test_the_clock_of_a_timestamp_is_told() -> None:
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


@pytest.fixture
def environment(shm: Path, native_build: Path, tmp_path: Path) -> dict[str, str]:
    """Of programs that find the stand-ins for NVIDIA's libraries."""
    places = (native_build / "tests" / "native" / name for name in ("cuda", "cupti"))
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(map(str, places)),
        "PYTHONPATH": _path(TESTS),
        "GPU_SUITE_RESULTS": str(tmp_path),
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
cupti.end_recording(library, cupti.KERNEL)
folder = pathlib.Path(os.environ["GPU_SUITE_RESULTS"])
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


def test_a_function_is_called_at_a_pace_without_python(environment: dict[str, str]) -> None:
    program = (
        LOADED
        + """
probe.pace(library.address("cuptiActivityFlushAll"), 0, 0.01)
begin = time.perf_counter()
while time.perf_counter() - begin < 0.5:
    pass  # the GIL is held nearly all the time
took = probe.stop_pace()
print(json.dumps([len(took), max(took)]))
"""
    )
    calls, longest = _python(program, environment)
    assert 5 <= calls <= 52
    assert 0 < longest < 0.5


def test_fields_of_records_lie_where_the_core_reads_them() -> None:
    record = bytearray(160)
    ctypes.c_uint64.from_buffer(record, 16).value = 11
    ctypes.c_uint64.from_buffer(record, 24).value = 12
    ctypes.c_uint32.from_buffer(record, 48).value = 13
    ctypes.c_uint32.from_buffer(record, 92).value = 14
    ctypes.c_uint64.from_buffer(record, 104).value = 15
    ctypes.c_uint32.from_buffer(record, 156).value = 16
    assert cupti.kernel_of(bytes(record)) == cupti.Kernel(11, 12, 13, 14, 15, 16)


# -- the suite itself ----------------------------------------------------------------------------


def test_the_parts_fit_into_the_time() -> None:
    alone = sum(part.seconds for part in PLAN if not part.beside)
    beside = max(part.seconds for part in PLAN if part.beside)
    # Limits are for what goes wrong; most parts end earlier, and the last are left out otherwise.
    first = PLAN[: [part.name for part in PLAN].index("soak") + 1]
    assert sum(p.seconds for p in first if not p.beside) + beside <= IN_ALL + 10
    assert alone + beside <= IN_ALL * 1.35
    assert len({part.name for part in PLAN}) == len(PLAN)


def _suite(folder: Path, seconds: float = 60) -> Suite:
    environment = {**os.environ, "PYTHONPATH": _path(TESTS, folder)}
    return Suite(folder, time.time() + seconds, "cpu", environment, {})


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a part of a program text, run it and return what the suite tells of it."""
    package = tmp_path / "gpu" / "parts"
    package.mkdir(parents=True)

    def run(body: str, seconds: float = 20) -> dict[str, Any]:
        program = "import os, sys, time\nfrom gpu.part import main\ndef measure(part):\n"
        program += "".join(f"    {line}\n" for line in body.splitlines())
        (package / "made_up.py").write_text(program + "main(measure)\n")
        return _suite(tmp_path).part(Planned("machine", "M", "made_up", seconds))

    return run


def test_a_part_that_works(made_up: Any) -> None:
    told = made_up("part.row('a', 1.0, 's')")
    assert told["state"] == "done"
    assert [row["what"] for row in told["rows"]] == ["a"]


@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        ("raise OSError('it is gone')", "failed", "OSError: it is gone"),
        ("os.kill(os.getpid(), 11)", "failed", "it was ended by SIGSEGV; it said nothing"),
        ("time.sleep(60)", "timeout", "it took more than 3 s; it said nothing"),
        ("sys.exit(7)", "failed", "it said nothing"),
    ],
)
def test_a_part_that_ends_badly_keeps_its_rows(
    made_up: Any, end: str, state: str, reason: str
) -> None:
    told = made_up(f"part.row('a', 1.0, 's')\n{end}", 3)
    assert (told["state"], told["reason"]) == (state, reason)
    assert [row["what"] for row in told["rows"]] == ["a"]


def test_a_part_of_which_no_piece_works_has_failed(made_up: Any) -> None:
    told = made_up("part.piece('b', [].index, 9)")
    assert told["state"] == "failed"
    assert told["reason"].startswith("ValueError: ")


def test_a_part_that_no_longer_fits_is_left_out(tmp_path: Path) -> None:
    told = _suite(tmp_path, 10).part(Planned("machine", "M", "machine", 30))
    assert told["state"] == "skipped"
    assert told["reason"] == "10 s were left, and it takes 30 s"


def test_parts_beside_each_other_are_all_told(tmp_path: Path) -> None:
    suite = _suite(tmp_path, 0)
    plan = tuple(
        Planned(name, "T", "machine", 30, beside=name != "soak")
        for name in ("clock", "forks", "soak", "ends")
    )
    suite.run(plan)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert [part["name"] for part in found["parts"]] == ["clock", "forks", "ends", "soak"]
    assert found["summary"]["parts_skipped"] == 4


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
