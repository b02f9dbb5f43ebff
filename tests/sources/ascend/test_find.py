"""Which folders and files are torch_npu's and msprof's, and which process each belongs to."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from ascend_files import output

from haiprof.errors import HaiprofError
from haiprof.sources.ascend.find import find
from haiprof.sources.imports import formats

HOST = "node-7_4242_20240102030405678_ascend_pt"


def analysed(folder: Path, of: str = "ASCEND_PROFILER_OUTPUT") -> Path:
    analysis = folder / of
    analysis.mkdir(parents=True)
    (analysis / "kernel_details.csv").write_text("Name\n")
    return analysis


def test_of_two_ranks(levels: Path) -> None:
    found = find(str(levels / "level1"))
    assert found is not None
    assert found.folder
    assert found.run == "level1"
    assert [(each.worker, each.rank, each.span) for each in found.sources] == [
        ("rank0", 0, 1),
        ("rank1", 1, 1),
    ]
    read = ("trace_view.json", "communication.json", "kernel_details.csv", "operator_memory.csv",
            "memory_record.csv")  # fmt: skip
    place = output(levels / "level1")
    assert found.sources[0].bytes == sum((place / name).stat().st_size for name in read)


@pytest.mark.parametrize("inside", ["", "ASCEND_PROFILER_OUTPUT",
                                    "ASCEND_PROFILER_OUTPUT/trace_view.json",
                                    "ASCEND_PROFILER_OUTPUT/kernel_details.csv"])  # fmt: skip
def test_one_rank_by_any_of_its_paths(levels: Path, inside: str) -> None:
    found = formats.find(str(levels / "level1" / "rank1_ascend_pt" / inside))
    assert found is not None
    (source,) = found.sources
    assert (source.tool, source.file, source.rank) == ("ascend", "rank1_ascend_pt", 1)


def test_the_name_of_a_folder_tells_the_host_and_the_file_beside_it_the_rank(
    tmp_path: Path,
) -> None:
    analysed(tmp_path / HOST)
    (tmp_path / HOST / "profiler_info_12.json").write_text("{}")
    analysed(tmp_path / HOST.replace("05678", "06789"))
    analysed(tmp_path / "cluster_analysis_output")
    found = find(str(tmp_path))
    assert found is not None
    sources = [(each.worker, each.host, each.rank, each.span) for each in found.sources]
    assert sources == [("node-7_4242", "node-7", 12, 1), ("node-7_4242", "node-7", None, 1)]


def test_times_at_which_one_process_was_profiled_are_its_spans(tmp_path: Path) -> None:
    for stamp in ("06789", "05678"):
        analysed(tmp_path / HOST.replace("05678", stamp))
    found = find(str(tmp_path))
    assert found is not None
    assert [(each.file[-15:-10], each.span) for each in found.sources] == [
        ("05678", 1),
        ("06789", 2),
    ]


def test_msprof_s_folder_and_one_within_torch_npu_s(tmp_path: Path) -> None:
    name = "PROF_000001_20240102030405678_ABCDEF"
    analysed(tmp_path / "raw" / name, "mindstudio_profiler_output")
    analysed(tmp_path / HOST / name, "mindstudio_profiler_output")
    for path in (tmp_path / "raw", tmp_path / "raw" / name):
        found = find(str(path))
        assert found is not None
        assert [each.worker for each in found.sources] == [name]
    within = find(str(tmp_path / HOST))
    assert within is not None
    assert within.sources[0].worker == "node-7_4242"


def test_databases_by_their_names(tmp_path: Path) -> None:
    for name in ("ascend_pytorch_profiler_3.db", "msprof_20240102030405.db", "other.db"):
        sqlite3.connect(tmp_path / name).close()
        (tmp_path / name).touch()
    found = find(str(tmp_path / "ascend_pytorch_profiler_3.db"))
    assert found is not None
    assert not found.folder
    assert found.sources[0].rank == 3
    assert find(str(tmp_path / "other.db")) is None
    every = find(str(tmp_path))
    assert every is not None
    assert len(every.sources) == 2


def test_what_was_not_analysed_says_how(tmp_path: Path) -> None:
    (tmp_path / HOST / "PROF_000001_20240102030405678_ABCDEF").mkdir(parents=True)
    (tmp_path / HOST.replace("4242", "4243")).mkdir()
    with pytest.raises(HaiprofError, match=r"4242_.* and 1 more is recorded but not analysed: run"):
        find(str(tmp_path))
    analysed(tmp_path / HOST.replace("4242", "4244"))
    found = find(str(tmp_path))
    assert found is not None
    assert len(found.sources) == 1
    (problem,) = found.problems
    assert problem.endswith("first: left out")


def test_what_others_wrote_is_not_theirs(tmp_path: Path) -> None:
    (tmp_path / "worker0.pt.trace.json").write_text("[]")
    (tmp_path / "kernel_details.csv").write_text("Name\n")
    for path in (tmp_path, *tmp_path.iterdir(), tmp_path / "nothing"):
        assert find(str(path)) is None
    assert find("s3://bucket/logs") is None


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/rank0_ascend_pt",
        "s3://bucket/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json",
        "memory://ascend_pytorch_profiler_0.db",
    ],
)
def test_urls_are_reported_to_be_read_of_torch_profiler_only(url: str) -> None:
    with pytest.raises(HaiprofError, match=r"torch\.profiler only") as raised:
        formats.find(url)
    assert "\n" not in str(raised.value)


def test_a_copy_of_one_analysis_opens_without_its_folder(job: Callable[[str], Path]) -> None:
    lone = output(job("level1")).rename(job("level0").parent / "ASCEND_PROFILER_OUTPUT")
    found = find(str(lone))
    assert found is not None
    assert found.sources[0].rank is None
