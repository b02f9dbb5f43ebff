"""The file for node_exporter."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from exported import busy_node
from prometheus_client.parser import text_string_to_metric_families

from haiprof.recorder.metrics.textfile import Textfile


def test_it_is_there_as_long_as_the_job_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "haiprof.prom"
    kept = Textfile(str(path))
    for _ in range(2):
        kept.publish(busy_node(1).snapshot([]))
        assert [one.name for one in tmp_path.iterdir()] == ["haiprof.prom"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert any(
        family.name == "haiprof_steps"
        for family in text_string_to_metric_families(path.read_text())
    )
    kept.close()
    assert not list(tmp_path.iterdir())


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (tmp_path / "haiprof.prom").symlink_to(secret)
    kept = Textfile(str(tmp_path / "haiprof.prom"))
    kept.publish(busy_node(1).snapshot([]))
    assert secret.read_text() == "mine"
    assert not (tmp_path / "haiprof.prom").is_symlink()


def test_without_its_folder_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Textfile(str(tmp_path / "none" / "haiprof.prom"))


def test_a_folder_in_its_place_is_an_error_each_time(tmp_path: Path) -> None:
    (tmp_path / "haiprof.prom").mkdir()
    kept = Textfile(str(tmp_path / "haiprof.prom"))
    for _ in range(2):
        with pytest.raises(OSError, match="haiprof"):
            kept.publish(busy_node(1).snapshot([]))
    assert [one.name for one in tmp_path.iterdir()] == ["haiprof.prom"]
    kept.close()
