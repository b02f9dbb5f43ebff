"""haiprof's plugin as NCCL calls it: every operation is recorded once, as it was."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import nccl_truth
import polars as pl
import pytest
from fixtures import SANITIZERS, build_native
from recording import read_back

from haiprof import _core, schema
from haiprof.recorder.tables import RingTables
from haiprof.views.run.nccl import operations

TURNS, THREADS = 2, 3


def run(
    programs: Path, ring: Path, truth: Path, count: int, *words: str, **environment: str
) -> nccl_truth.Truth:
    """Let the stand-in do that many operations with each thread of each turn."""
    nccl, plugin = (programs / "nccl" / name for name in ("libnccl.so.2", "libhaiprof-nccl.so"))
    done = subprocess.run(
        [programs / "nccl_job", nccl, plugin, ring, truth, str(TURNS), str(THREADS), str(count),
         "0", *words],
        env={**os.environ, "NCCL_PROFILER_PLUGIN": "libhaiprof-nccl.so",
             "TSAN_OPTIONS": "halt_on_error=1", **environment},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-6000:]
    return nccl_truth.read(truth)


def rows(ring: Path) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the operations in a ring, and what was lost."""
    reader = _core.RingReader(ring)
    while reader.take():
        pass
    raw = reader.rows().get("nccl")
    if raw is None:
        return pl.DataFrame(), reader.losses
    batch = RingTables().batch(schema.NCCL, raw, reader.texts)
    frame = pl.from_arrow(read_back(batch))
    assert isinstance(frame, pl.DataFrame)
    return operations(frame), reader.losses


@pytest.fixture
def programs(native_build: Path) -> Path:
    return native_build / "tests" / "native"


@pytest.mark.parametrize(("known", "version"), [("9 8 6 5 4", 6), ("5 4", 5), ("4 3 2", 4)])
def test_each_operation_is_recorded_once_as_it_was(
    programs: Path, shm: Path, tmp_path: Path, known: str, version: int
) -> None:
    truth = run(programs, shm / "ring", tmp_path / "truth", 600, FAKE_NCCL_VERSIONS=known)
    assert truth.plugin["version"] == version
    assert (truth.plugin["loads"], truth.plugin["unloads"]) == (TURNS, TURNS)
    # Collectives, messages and transfers; since version 6 copy engines. No channels of kernels.
    assert truth.plugin["mask"] == (0b1110 | (1 << 12 if version == 6 else 0))
    assert truth.plugin["borrowed"] == 0
    found, losses = rows(shm / "ring")
    nccl_truth.check(truth, found)
    assert len(found) + losses["no_place"] == len(truth.operations)
    assert sum(losses.values()) == losses["no_place"]
    assert found["cut_off"].sum() == TURNS * THREADS * 3
    assert set(found["op"]) == set(nccl_truth.OPS.values())
    assert ("CE" in set(found["algorithm"])) == (version == 6)
    assert found.filter(pl.col("transfers").is_null()).height > 0


@pytest.mark.parametrize("known", ["3 2 1", "12 11"])
def test_an_nccl_of_other_versions_finds_nothing_and_goes_on(
    programs: Path, shm: Path, tmp_path: Path, known: str
) -> None:
    truth = run(programs, shm / "ring", tmp_path / "truth", 20, FAKE_NCCL_VERSIONS=known)
    assert truth.plugin["refusals"] == TURNS
    assert truth.plugin["loads"] == 0
    assert rows(shm / "ring")[0].is_empty()


@pytest.mark.parametrize("how", [[], ["restart"]])
@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_under_the_sanitizers(shm: Path, tmp_path: Path, sanitizers: str, how: list[str]) -> None:
    programs = build_native("nccl_programs", sanitizers) / "tests" / "native"
    truth = run(programs, shm / "ring", tmp_path / "truth", 400, *how)
    assert truth.plugin["unloads"] == TURNS
    if not how:
        nccl_truth.check(truth, rows(shm / "ring")[0])
