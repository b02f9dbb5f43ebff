"""Tables of ``nsys stats`` at a path: by the names of files, or of columns."""

from __future__ import annotations

from pathlib import Path

import nsys_csvs

from haiprof.sources.nsys_csv.find import files_of, find


def test_files_of_a_report_are_a_process(tmp_path: Path) -> None:
    for report in ("report_rank0", "report_rank1"):
        nsys_csvs.write(tmp_path, report=report)
    (tmp_path / "other_cuda_gpu_trace.csv").write_text("a,b\n1,2\n")
    found = find(str(tmp_path))
    assert found is not None
    assert [(each.worker, each.rank) for each in found.sources] == [
        ("report_rank0", 0),
        ("report_rank1", 1),
    ]
    assert len(files_of(found.sources[0])) == len(nsys_csvs.TABLES)
    one = find(str(tmp_path / "report_rank1_cuda_api_trace.csv"))
    assert one is not None
    assert [each.part for each in one.sources] == ["report_rank1"]


def test_what_was_printed_may_have_any_name(tmp_path: Path) -> None:
    file = tmp_path / "stats.txt"
    file.write_text(nsys_csvs.printed())
    found = find(str(file))
    assert found is not None
    assert files_of(found.sources[0]) == [file]
    file.write_text("Start,Duration\n1,2\n")
    assert find(str(file)) is None
    assert find(str(tmp_path / "none")) is None
