"""Files of rocprofv3 at a path: JSON by content, CSV by name; a process in both forms once."""

from __future__ import annotations

import gzip
from pathlib import Path

import rocprof_files

from haiprof.analyzer import Analyzer
from haiprof.sources.rocprof.find import find


def test_a_folder_has_a_process_for_each_prefix(tmp_path: Path) -> None:
    rocprof_files.write_csv(tmp_path, "41")
    rocprof_files.write_csv(tmp_path, "rank_3")
    rocprof_files.write_json(tmp_path / "41_results.json")
    rocprof_files.write_json(tmp_path / "rank_1_results.json")
    (tmp_path / "other_results.json").write_text('{"a": 1}')
    (tmp_path / "9_agent_info.csv").write_text('"Node_Id"\n')
    found = find(str(tmp_path))
    assert found is not None
    sources = sorted((each.worker, each.rank, each.part) for each in found.sources)
    assert sources == [("41", None, None), ("rank_1", 1, None), ("rank_3", 3, "rank_3")]
    assert find(str(tmp_path / "none")) is None


def test_a_file_stands_for_its_process(tmp_path: Path) -> None:
    rocprof_files.write_csv(tmp_path, "41")
    rocprof_files.write_csv(tmp_path, "42")
    found = find(str(tmp_path / "42_kernel_trace.csv"))
    assert found is not None
    assert [each.part for each in found.sources] == ["42"]
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(
        gzip.compress(rocprof_files.write_json(tmp_path / "a_results.json").read_bytes())
    )
    assert Analyzer(packed).kernels().height == 3
