"""What haiprof does when CUPTI stops giving times, ends by itself, or is gone with its names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_jobs import run
from recording import wait_recorded

import haiprof

#: Replays graphs of 500 kernels; 100 kernels fit into each of CUPTI's 251 buffers on the GPU.
GRAPHS = """
    import time
    cupti.fake_launch_graph.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64]
    def replays(count):
        for _ in range(count):
            cupti.fake_launch_graph(3, b"node", 500)
        haiprof.flush()
    def until(what, seconds=20):
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end
            time.sleep(0.02)
    use_gpu()
    haiprof.start(sys.argv[1], run="run", hooks=False, kernels="all", budget=0, ring_mib=64)
"""
FULL = 251 * 100


def events(log_dir: Path, kind: str) -> list[dict[str, Any]]:
    rows = haiprof.Analyzer(log_dir / "run").events(kind=kind).sort("time").to_dicts()
    return [{"text": row["text"], **json.loads(row["attributes"] or "{}")} for row in rows]


def recorded(log_dir: Path) -> dict[str, int]:
    kernels = haiprof.Analyzer(log_dir / "run").kernels()
    return dict(kernels.group_by("name").len().iter_rows())


def test_as_many_kernels_of_graphs_have_times_as_cupti_has_room_for(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    """CUPTI's own limit stays: a lower one would end the times eight times sooner."""
    assert run(GRAPHS + "\n    replays(50)", tmp_path, native_build, FAKE_CUPTI_DEVICE="100") == ""
    wait_recorded(shm)
    assert recorded(tmp_path) == {"node": 50 * 500}
    assert events(tmp_path, "lost") == []


def test_recording_restarts_once_when_times_are_missing(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    program = """
    replays(54)
    from haiprof import _core
    until(lambda: not cupti.fake_enabled() or _core.gpu_counts()["timeless"] > 1000)
    time.sleep(0.5)
    until(cupti.fake_enabled)
    before = _core.gpu_counts()["timeless"]
    replays(30)
    assert _core.gpu_counts()["timeless"] == before
    launch(b"eager", 7)
    """
    assert run(
        GRAPHS + program, tmp_path, native_build, FAKE_CUPTI_DEVICE="100", FAKE_CUPTI_RECYCLES="1"
    ) == ""  # fmt: skip
    wait_recorded(shm)
    assert recorded(tmp_path) == {"node": FULL + 30 * 500, "eager": 7}
    whys = [(event["recording"], event["why"]) for event in events(tmp_path, "kernels")]
    assert whys == [(True, "start"), (False, "restart"), (True, "restart"), (False, "stop")]
    [hook] = events(tmp_path, "hook")
    assert hook["text"].startswith("the recording of kernels restarts: CUPTI gave ")
    assert "without a time" not in hook["text"]
    assert hook["text"].endswith(" activities no time")
    assert any("records that CUPTI could not time" in e["text"] for e in events(tmp_path, "lost"))


@pytest.mark.parametrize(("version", "restarts"), [("130001", 1), ("130000", 0)])
def test_recording_ends_when_a_restart_does_not_help_or_may_hang(
    shm: Path, tmp_path: Path, native_build: Path, version: str, restarts: int
) -> None:
    program = """
    from haiprof import _core
    end = time.monotonic() + 30
    while _core.gpu_tracing() and time.monotonic() < end:
        replays(20)
    assert not _core.gpu_tracing() and not cupti.fake_enabled()
    launch(b"late", 5)
    """
    assert run(
        GRAPHS + program, tmp_path, native_build, FAKE_CUPTI_DEVICE="100",
        FAKE_CUPTI_VERSION=version,
    ) == ""  # fmt: skip
    wait_recorded(shm)
    assert recorded(tmp_path) == {"node": FULL}
    texts = [event["text"] for event in events(tmp_path, "hook")]
    assert ["restarts" in text for text in texts] == [True] * restarts + [False]
    assert texts[-1].startswith("kernels are no longer recorded: CUPTI gave ")
    whys = [event["why"] for event in events(tmp_path, "kernels")]
    assert whys == ["start", *["restart"] * (2 * restarts), "fault"]


def test_a_fatal_error_ends_cupti_and_recording_begins_anew(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    program = """
    from haiprof import _core
    launch(b"before", 10)
    haiprof.flush()
    cupti.fake_fatal()
    until(lambda: cupti.fake_enabled())
    launch(b"after", 10)
    haiprof.flush()
    cupti.fake_fatal()
    until(lambda: not _core.gpu_tracing())
    launch(b"late", 10)
    """
    assert run(GRAPHS + program, tmp_path, native_build) == ""
    wait_recorded(shm)
    assert recorded(tmp_path) == {"before": 10, "after": 10}
    texts = [event["text"] for event in events(tmp_path, "hook")]
    assert ["restarts" in text for text in texts] == [True, False]
    assert all("CUPTI delivers no records any more" in text for text in texts)


def test_names_that_went_with_cupti_are_not_read(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    """A kernel that was met before keeps its name; one that was not has none."""
    program = """
    from haiprof import _core
    launch(b"known", 10)
    haiprof.flush()
    cupti.fake_fatal_after.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
    cupti.fake_fatal_after(b"known", b"new", 10_000)  # two buffers are full, neither was read
    until(lambda: _core.gpu_counts()["kernels"] > 10)
    haiprof.flush()
    """
    assert run(GRAPHS + program, tmp_path, native_build) == ""
    wait_recorded(shm)
    found = recorded(tmp_path)
    assert found == {"known": 10 + 4_854, "(lost)": 4_854}


def test_flushes_that_always_fail_end_the_recording(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    program = """
    from haiprof import _core
    launch(b"gemm", 10)
    until(lambda: not _core.gpu_tracing())
    assert not cupti.fake_enabled()
    """
    answers = "cuptiActivityFlushAll=999"
    assert run(GRAPHS + program, tmp_path, native_build, FAKE_CUPTI_ANSWERS=answers) == ""
    wait_recorded(shm)
    assert recorded(tmp_path) == {"gemm": 10}
    texts = [event["text"] for event in events(tmp_path, "hook")]
    assert ["restarts" in text for text in texts] == [True, False]
    assert all("CUPTI_ERROR_FAKE" in text for text in texts)


def test_recording_restarts_when_cupti_has_become_slow(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    program = """
    from haiprof import _core
    def million():
        for _ in range(11):
            cupti.fake_launch_graph(3, b"node", 100_000)
            assert _core.gpu_flush(10)
    million()
    cupti.fake_flush_takes.argtypes = [ctypes.c_uint64]
    cupti.fake_flush_takes(200_000_000)
    million()
    cupti.fake_flush_takes(0)
    assert _core.gpu_flush(10)
    """
    assert run(GRAPHS + program, tmp_path, native_build) == ""
    wait_recorded(shm)
    texts = [event["text"] for event in events(tmp_path, "hook")]
    assert texts == [
        "the recording of kernels restarts: taking over what CUPTI recorded costs several times "
        "what it did"
    ]
    whys = [event["why"] for event in events(tmp_path, "kernels")]
    assert whys[:2] == ["start", "restart"]
    assert "fault" not in whys
