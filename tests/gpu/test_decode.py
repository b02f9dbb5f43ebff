"""Records of GPU activity: from buffers that NVIDIA's own library walks to the Analyzer's table."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import haiprof
from haiprof.options import Options
from haiprof.recorder.process import RecordedProcess
from haiprof.recorder.run_folder import open_run_folder

#: Packages with a libcupti, and the release whose record sizes it has.
RELEASES = [("nvidia-cuda-cupti-cu12", "12.8"), ("nvidia-cuda-cupti", "13.0")]
RECORDS = 20_000


def libcupti(package: str) -> Path:
    files = importlib.metadata.files(package) or []
    return next(Path(str(file.locate())) for file in files if file.name.startswith("libcupti.so."))


def walk(native_build: Path, package: str, release: str, ring: Path) -> dict[str, Any]:
    done = subprocess.run(
        [native_build / "tests" / "native" / "cupti_walk", libcupti(package), release, ring,
         str(RECORDS)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(("package", "release"), RELEASES)
def test_nvidias_iterator_walks_them_into_the_table(
    native_build: Path, shm: Path, tmp_path: Path, package: str, release: str
) -> None:
    ring = shm / "walk.ring"
    result = walk(native_build, package, release, ring)
    kernels = sum(n % 16 < 11 for n in range(RECORDS))
    assert result == {
        "kernels": kernels, "others": RECORDS - kernels,
        "timeless": 0, "unknown": 0, "damaged": False,
    }  # fmt: skip

    run_dir = tmp_path / "run"
    open_run_folder(run_dir, ["cupti_walk"], Options())
    process = RecordedProcess(ring, run_dir)
    process.drain()
    assert process.ended  # its writer has
    assert process.lost == 0
    found = haiprof.Analyzer(run_dir).kernels().sort("start")
    assert found.height == RECORDS

    names = ["gemm", "softmax", "layer_norm"]
    others = {
        11: ("memcpy", "Memcpy Unknown (Unknown -> Unknown)"),
        12: ("memset", "Memset (Unknown)"),
        13: ("memcpy", "Memcpy Unknown (Unknown -> Unknown)"),
        14: ("sync", "Unknown"),
        15: ("overhead", "Unknown"),
    }
    wanted = [others.get(n % 16, ("kernel", names[n % 3])) for n in range(RECORDS)]
    assert list(found.select("kind", "name").iter_rows()) == wanted
    spaced = found["start"].diff().drop_nulls()
    assert set(spaced.to_list()) == {1000}
    placed = found.filter(pl.col("kind").is_in(["kernel", "memcpy", "memset"]))
    numbers = [n for n in range(RECORDS) if n % 16 < 14]
    assert placed["duration"].to_list() == [1 + n % 900 for n in numbers]
    assert placed["device"].to_list() == [n % 8 for n in numbers]
    assert placed["stream"].to_list() == [n % 5 for n in numbers]
    assert placed["correlation"].to_list() == [n + 1 for n in numbers]
    copied = found.filter(pl.col("kind") == "memcpy")
    assert set(copied["copy_kind"].to_list()) == {"unknown"}
    uncopied = found.filter(pl.col("kind") != "memcpy")
    assert uncopied["copy_kind"].null_count() == uncopied.height


def test_records_of_another_release_are_not_taken_for_its_own(
    native_build: Path, shm: Path
) -> None:
    package, _ = RELEASES[1]
    result = walk(native_build, package, "12.8", shm / "walk.ring")
    assert result["damaged"]
    assert result["kernels"] < RECORDS / 1000
