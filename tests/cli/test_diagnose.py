"""``haiprof diagnose``: of a real job, of traces; as text and as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import runs
import traces
from commands import haiprof, only_line, the_run
from recording import process_file

from haiprof import Analyzer

JOB = """
import json, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
slept = []


class Samples(Dataset):
    def __len__(self):
        return 8 * 120

    def __getitem__(self, index):
        begun = time.perf_counter_ns()
        time.sleep(0.004)
        slept.append(time.perf_counter_ns() - begun)
        return torch.randn(64)


def main():
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Samples(), batch_size=8):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


main()
with open("slept", "w") as file:
    json.dump(slept, file)
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(JOB)
    words = ("run", "--log-dir", folder / "logs", "--", sys.executable, "train.py")
    done = haiprof(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "logs"


def diagnosed(*words: Path | str) -> list[dict[str, Any]]:
    done = haiprof("diagnose", *words, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["format"], document["version"]) == ("haiprof-findings", "1.0")
    found: list[dict[str, Any]] = document["findings"]
    return found


def loader(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the finding on the loader; on a busy machine, others may cost more."""
    (one,) = (each for each in found if each["kind"] == "slow_loader")
    return one


def test_a_slow_loader_is_named_with_its_cost_and_its_line(logs: Path) -> None:
    first = loader(diagnosed(logs))
    assert "Samples.__getitem__" in first["line"]
    # 120 batches of 8 sleeps of 4 ms; the first batch may be part of the start. On a busy machine a
    # sleep takes more, and a share of it is charged to the queue of the CPU.
    causes = Analyzer(the_run(logs)).ledger().group_by("cause").agg(pl.col("duration").sum())
    queued = dict(causes.iter_rows()).get("cpu_queue", 0)
    assert first["lost_ns"] + queued >= 119 * 8 * 4e6
    assert first["lost_ns"] <= 1.1 * sum(json.loads((logs.parent / "slept").read_text()))
    assert first["lost_low_ns"] <= first["lost_ns"] <= first["lost_high_ns"]


def test_it_is_said_in_words(logs: Path) -> None:
    done = haiprof("diagnose", logs)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1. ")
    at = next(
        n for n, line in enumerate(lines) if "The training loop loads its data itself" in line
    )
    assert lines[at + 1].startswith("   slow_loader, rank 0, confidence ")
    assert any(line.startswith("   what to do: load in other processes") for line in lines[at:])


def test_a_part_of_the_run_may_be_chosen(logs: Path) -> None:
    assert loader(diagnosed(logs, "--between", "0:"))
    # Less than three blocks of steps prove nothing.
    (process,) = (process_file(folder) for folder in logs.glob("*/*#0"))
    began = json.loads(next(logs.glob("*/run.json")).read_text())["created_ns"]
    last = (process["ended_ns"] - began) / 1e9 - 1
    assert diagnosed(logs, "--between", f"{last}:") == []


@pytest.mark.parametrize("between", ["8:4", "4", "a:b", "-1:4", "1:nan"])
def test_a_part_that_is_none_is_an_error_in_one_line(logs: Path, between: str) -> None:
    done = haiprof("diagnose", logs, f"--between={between}")
    assert done.returncode == 1
    assert "give seconds into the run as FROM:UNTIL" in only_line(done)


def test_there_is_no_such_rank(logs: Path) -> None:
    done = haiprof("diagnose", logs, "--rank", "5")
    assert done.returncode == 1
    assert "has no rank 5" in only_line(done)


def test_a_healthy_run_is_said_to_be_one(tmp_path: Path) -> None:
    runs.make_gpu_run(tmp_path / "r", ranks=2)
    done = haiprof("diagnose", tmp_path / "r")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Nothing costs as much as 5 % of the time for certain\n"
    assert diagnosed(tmp_path / "r") == []


def compared(folder: Path) -> tuple[Path, Path]:
    """Make a good run, and a later one of the same name, whose steps take longer."""
    good, later = (folder / f"train-2026112{day}-120000-{day}" for day in (7, 8))
    runs.make_run(good, steps=400)
    runs.make_run(later, steps=400, phases=[("dataloader", 6.0), *runs.PHASES[1:]])
    for number, run in enumerate((good, later)):
        document = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(document | {"created_ns": number + 1}))
    return good, later


@pytest.mark.parametrize("how", ["folder", "last"])
def test_beside_a_good_run_it_says_what_takes_longer(tmp_path: Path, how: str) -> None:
    good, later = compared(tmp_path)
    done = haiprof("diagnose", later, "--baseline", good if how == "folder" else "last")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1. A step takes ")
    assert f"in {good.name}: 5 ms more in input: " in lines[0]
    assert lines[1].startswith("   regression, rank 0, ")
    assert "   evidence: input, a step: 6 ms, was 1 ms (baseline)" in lines
    done = haiprof("diagnose", good, "--baseline", later)
    assert done.stdout.splitlines()[0] == (
        f"Steps take no longer than in {later.name}, as far as is certain"
    )


def test_there_is_no_good_run(tmp_path: Path) -> None:
    good, _ = compared(tmp_path)
    done = haiprof("diagnose", good, "--baseline", "last")
    assert done.returncode == 1
    assert "no earlier run of 'train' in" in only_line(done)
    done = haiprof("diagnose", good, "--baseline", tmp_path / "none")
    assert done.returncode == 1
    assert "no such" in only_line(done)


def test_a_run_without_any_process_says_so(tmp_path: Path) -> None:
    runs.write_run(tmp_path / "r")
    runs.write_process(tmp_path / "r", None, pid=5)
    done = haiprof("diagnose", tmp_path / "r")
    assert done.stdout == "Nothing was recorded that time could be charged to\n"


def test_traces_are_diagnosed_alike(tmp_path: Path) -> None:
    traces.write(tmp_path / "rank0.pt.trace.json", traces.small(0))
    found = diagnosed(tmp_path)
    assert [each["ranks"] for each in found] == [[0]] * len(found)
    assert found
