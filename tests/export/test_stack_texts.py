"""Sampled stacks for other tools: folded text and speedscope's JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import runs
from commands import haiprof, only_line

from haiprof import schema
from haiprof.export.stack_texts import folded, speedscope

THREADS = [("rank 0; main", {("forward", "f (m.py:1)"): 200, ("forward", "g (m.py:2)"): 100})]


def test_folded_lines_end_with_their_weight() -> None:
    assert folded(THREADS) == (
        "rank 0, main;forward;f (m.py:1) 200\nrank 0, main;forward;g (m.py:2) 100\n"
    )


def test_speedscope_names_each_frame_once() -> None:
    document = json.loads(speedscope("r", "milliseconds", THREADS))
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    names = [frame["name"] for frame in document["shared"]["frames"]]
    assert names == ["forward", "f (m.py:1)", "g (m.py:2)"]
    (profile,) = document["profiles"]
    assert profile["samples"] == [[0, 1], [0, 2]]
    assert profile["weights"] == [200, 100]
    assert profile["endValue"] == 300


@pytest.mark.parametrize("form", ["folded", "speedscope"])
def test_a_run_is_exported(form: str, tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r", ranks=2)
    out = tmp_path / "out"
    done = haiprof("export", run, "--to", form, "--out", out, "--rank", "1")
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    text = out.read_text()
    if form == "folded":
        lines = dict(line.rpartition(" ")[::2] for line in text.splitlines())
        ours = "rank 1, worker 1000, thread 1"  # as its made-up samples say
        loop = "<module> (/job/train.py:30)"
        assert lines[f"{ours};forward;{loop};Model.forward (/job/model.py:12)"] == "400"
        assert len(lines) == 3
    else:
        (profile,) = json.loads(text)["profiles"]
        assert profile["unit"] == "milliseconds"
        assert profile["endValue"] == 1200
    again = haiprof("export", run, "--to", form, "--out", out)
    assert again.returncode == 1
    assert "already exists" in only_line(again)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (None, "no stacks were sampled"),
        ({"hz": 0.0}, "no stacks were sampled: stack_hz was 0"),
        ({"hz": 10, "problem": "it may not be read"}, "were sampled: it may not be read"),
    ],
)
def test_why_there_are_none_is_one_line(known: object, why: str, tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    process = runs.write_process(run, stacks=known)
    runs.write_closed(process, schema.SPANS, runs.loop(3))
    done = haiprof("export", run, "--to", "folded", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert only_line(done).endswith(why)
    assert not (tmp_path / "out").exists()
