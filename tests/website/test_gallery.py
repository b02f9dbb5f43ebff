from __future__ import annotations

from pathlib import Path

import gallery
import pytest

from haiprof.cli import arguments


@pytest.mark.parametrize("picture", gallery.PICTURES, ids=lambda picture: picture.name)
def test_a_job_of_the_gallery_can_be_recorded_so(picture: gallery.Picture) -> None:
    record, report = gallery.commands(picture)
    command = arguments.parse(record[2:], record[1])
    scripts = [word for word in command.command if word.endswith(".py")]
    assert [(gallery.ROOT / script).is_file() for script in scripts] == [True]
    assert report[-2:] == ["-o", f"{picture.name}.html"]


def test_each_report_is_of_runs_that_were_recorded_before() -> None:
    recorded: set[str] = set()
    for picture in gallery.PICTURES:
        record, report = gallery.commands(picture)
        recorded.add(f"haiprof-logs/{record[record.index('--run') + 1]}")
        assert set(report[2:-2]) <= recorded


def test_the_page_has_each_report() -> None:
    page = gallery.page()
    for picture in gallery.PICTURES:
        link = f"[Open the report]({picture.name}.html)"
        assert f"## {picture.title}\n\n{picture.text} {link}" in page


@pytest.mark.parametrize(("words", "fails"), [("python -c 1/0", False), ("python -c 1", True)])
def test_a_job_that_ends_otherwise_than_expected_ends_the_gallery(
    tmp_path: Path, words: str, fails: bool
) -> None:
    with pytest.raises(SystemExit, match=r"python -c 1.* ended with"):
        gallery.run(words.split(), tmp_path, fails)


def test_a_job_finds_the_programs_of_the_environment(tmp_path: Path) -> None:
    gallery.run(["python", "-c", "import shutil; assert shutil.which('haiprof')"], tmp_path)
    assert not list(tmp_path.iterdir())
