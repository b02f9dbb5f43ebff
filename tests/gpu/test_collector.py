"""Kernels from CUPTI to the ring, with libraries that stand in for NVIDIA's."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from haiprof import _core

DRIVER, CUPTI, BROKEN = "cuda", "cupti", "broken"


def run(
    native_build: Path, ring: Path, libraries: list[Path], *, kernels: int, threads: int,
    **environment: str,
) -> dict[str, Any]:  # fmt: skip
    path = ":".join(map(str, libraries))
    done = subprocess.run(
        [native_build / "tests" / "native" / "gpu_job", ring, str(kernels), str(threads)],
        env={**os.environ, "LD_LIBRARY_PATH": path, **environment},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture
def doubles(native_build: Path, tmp_path: Path) -> dict[str, Path]:
    """Folders of libraries: those that stand in for NVIDIA's, and empty files of their names."""
    broken = tmp_path / BROKEN
    broken.mkdir()
    for name in ("libcuda.so.1", "libcupti.so", *(f"libcupti.so.{n}" for n in (13, 12, 11.8))):
        (broken / name).touch()
    folders = {name: native_build / "tests" / "native" / name for name in (DRIVER, CUPTI)}
    return {**folders, BROKEN: broken}


def names(ring: Path) -> Counter[str]:
    reader = _core.RingReader(str(ring))
    reader.take()
    assert reader.losses["overwritten"] == 0
    rows, _, values, _ = reader.rows()["kernels"]["name"]
    texts = [str(text) for text in reader.texts("kernels", "name")[1]]
    indices = memoryview(values).cast("I")
    assert len(indices) == rows
    return Counter(texts[i] for i in indices)


def test_every_kernel_of_every_thread_is_recorded_until_the_end(
    native_build: Path, doubles: dict[str, Path], shm: Path
) -> None:
    ring = shm / "job.ring"
    result = run(native_build, ring, [doubles[DRIVER], doubles[CUPTI]], kernels=10_000, threads=4)
    assert result["flushed"]
    assert result["kernels_when_flushed"] == 40_000
    assert result["kernels"] == 40_010
    assert result["dropped"] == result["shared"] == result["damaged"] == result["dirty"] == 0
    assert not result["collecting"]
    assert result["version"] == 130001
    assert result["thread_ns"] > 0
    assert names(ring) == {"even": 20_000, "odd": 20_000, "late": 10}


def test_a_rush_is_counted_and_never_a_hang(
    native_build: Path, doubles: dict[str, Path], shm: Path
) -> None:
    # More than all buffers hold, faster than they are emptied: what is not kept is whole buffers.
    kernels = 400_000
    libraries = [doubles[DRIVER], doubles[CUPTI]]
    result = run(native_build, shm / "job.ring", libraries, kernels=kernels, threads=4)
    assert result["kernels"] + result["dropped"] == 4 * kernels + 10
    assert result["shared"] == result["damaged"] == result["dirty"] == 0


@pytest.mark.parametrize("version", [26, 27, 130001])
def test_more_launching_threads_than_the_pool_has_buffers(
    native_build: Path, doubles: dict[str, Path], shm: Path, version: int
) -> None:
    # Each thread fills a buffer of its own, and CUPTI holds all of them at once.
    libraries = [doubles[DRIVER], doubles[CUPTI]]
    result = run(
        native_build, shm / "job.ring", libraries, kernels=4_000, threads=60,
        FAKE_CUPTI_VERSION=str(version),
    )  # fmt: skip
    assert result["kernels"] == 60 * 4_000 + 10
    assert result["dropped"] == result["shared"] == result["damaged"] == result["dirty"] == 0


def test_no_buffer_is_given_twice_when_all_are_taken(
    native_build: Path, doubles: dict[str, Path], shm: Path
) -> None:
    # More threads than there are buffers: CUPTI counts what it has no room for.
    libraries = [doubles[DRIVER], doubles[CUPTI]]
    result = run(native_build, shm / "job.ring", libraries, kernels=1000, threads=200)
    assert result["shared"] == 0
    assert result["dropped"] > 0
    assert result["kernels"] + result["dropped"] == 200 * 1000 + 10


def test_a_cupti_that_may_crash_without_a_buffer_always_gets_one(
    native_build: Path, doubles: dict[str, Path], shm: Path
) -> None:
    # Versions before 12.9 get a buffer for each thread; later ones drop records here.
    libraries = [doubles[DRIVER], doubles[CUPTI]]
    result = run(
        native_build, shm / "job.ring", libraries, kernels=1000, threads=200,
        FAKE_CUPTI_VERSION="26",
    )  # fmt: skip
    assert result["kernels"] == 200 * 1000 + 10
    assert result["dropped"] == result["shared"] == result["damaged"] == result["dirty"] == 0


@pytest.mark.parametrize(
    ("which", "environment", "words"),
    [
        ([], {}, ["no NVIDIA driver", "libcuda.so.1", "cannot open"]),
        ([BROKEN, CUPTI], {}, ["no NVIDIA driver", "libcuda.so.1", "too short"]),
        ([DRIVER, BROKEN], {}, ["no libcupti", "too short"]),
        ([DRIVER, CUPTI], {"FAKE_CUDA_INIT": "100"}, ["no CUDA-capable device"]),
        ([DRIVER, CUPTI], {"FAKE_CUPTI_VERSION": "17"}, ["too old", "17"]),
        ([DRIVER, CUPTI], {"FAKE_CUPTI_ANSWERS": "cuptiGetVersion=999"}, ["does not work with"]),
        (
            [DRIVER, CUPTI],
            {"FAKE_CUPTI_ANSWERS": "cuptiActivityEnable=14"},
            ["another tool is using CUPTI", "NOT_COMPATIBLE"],
        ),
        (
            [DRIVER, CUPTI],
            {"FAKE_CUPTI_ANSWERS": "cuptiActivityRegisterCallbacks=15"},
            ["cannot record kernels"],
        ),
        ([DRIVER, CUPTI], {"FAKE_CUPTI_ANSWERS": "cuptiActivityEnable=35"}, ["not allowed"]),
    ],
)
def test_what_is_in_the_way_is_reported_with_a_fix(
    native_build: Path, doubles: dict[str, Path], shm: Path, which: list[str],
    environment: dict[str, str], words: list[str],
) -> None:  # fmt: skip
    libraries = [doubles[name] for name in which]
    result = run(
        native_build, shm / "job.ring", libraries, kernels=10, threads=1,
        CUDA_HOME="/nowhere", **environment,
    )  # fmt: skip
    for word in words:
        assert word in result["reason"], result
    assert result["mend"]
    assert not result["collecting"]
