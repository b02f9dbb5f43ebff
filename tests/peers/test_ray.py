"""Ray Train itself, with the callback of haiprof.integrations.ray."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
from fixtures import ROOT
from recording import run_python

from haiprof.analyzer import Analyzer
from haiprof.runs import Process

#: Without the network.
ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
#: Worker 1 fails after the second of three reports, once; all are started once more then.
FAILS = """
from pathlib import Path
import torch, ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train(config):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    failed = Path(config["failed"])
    again = failed.exists()
    for epoch in range(3):
        for _ in range(4):
            parameter.square().sum().backward()
            optimizer.step()
        ray.train.report({"epoch": epoch})
        if epoch == 1 and not again and ray.train.get_context().get_world_rank() == 1:
            failed.touch()
            raise ValueError("planted")

TorchTrainer(
    train, train_loop_config={"failed": str(Path("failed").resolve())},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        name="mine", storage_path=str(Path("storage").resolve()),
        failure_config=FailureConfig(max_failures=1),
    ),
).fit()
"""


def recorded(program: str, ray: Path, folder: Path, **environment: str) -> Analyzer:
    (folder / "train.py").write_text(program)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HAIPROF_")}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, timeout=900,
        env=kept | ALONE | {"PYTHONPATH": str(ray), "HOME": str(folder)} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return Analyzer(folder / "haiprof-logs" / "mine")


def steps(run: Analyzer) -> list[int]:
    return sorted(run.steps()["rank"].to_list())


def workers(run: Analyzer) -> list[Process]:
    return [each for each in run.run.processes if each.role == "rank"]


def marks(run: Analyzer, text: str) -> list[tuple[int, object]]:
    """Return ranks and attributes of the marks with this text."""
    found = run.events().filter((pl.col("kind") == "mark") & (pl.col("text") == text))
    pairs = zip(found["rank"], map(json.loads, found["attributes"]), strict=True)
    return sorted(pairs, key=str)


def reports(run: Analyzer) -> list[tuple[int, int]]:
    """Return ranks and numbers of what `ray.train.report` was recorded as."""
    spans = run.spans().filter(pl.col("name") == "ray.report")
    assert spans["duration"].min() > 0
    numbers = (json.loads(each)["number"] for each in spans["attributes"])
    return sorted(zip(spans["rank"], numbers, strict=True))


def test_the_program_of_the_docs(ray: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "integrations.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (program,) = (each for each in blocks if "import ray.train" in each)
    run = recorded(program, ray, tmp_path)
    assert steps(run) == [0] * 12 + [1] * 12, "64 / 8 / 2, three times"
    about = {"framework": "ray", "run": "mine"}
    assert marks(run, "train") == [(0, about), (1, about)]
    assert len(marks(run, "epoch")) == 2 * 3
    assert reports(run) == [(rank, number) for rank in (0, 1) for number in (1, 2, 3)]
    phases = set(run.phases()["name"].to_list())
    assert phases >= {"dataloader", "forward", "backward", "gradient_sync", "optimizer"}
    places = sorted((one.rank, one.local_rank, one.world_size) for one in workers(run))
    assert places == [(0, 0, 2), (1, 1, 2)]
    assert {one.ending and one.ending.kind for one in workers(run)} == {"stopped"}


def test_a_wrong_option_is_an_error_of_the_program_not_of_the_workers(ray: Path) -> None:
    program = """
        import os
        from pathlib import Path
        os.environ["HAIPROF_LOG_DIR"] = "logs"
        from haiprof.integrations.ray import HaiprofCallback
        assert HaiprofCallback(stack_hz=0)._options == {
            "log_dir": Path("logs").absolute(), "stack_hz": 0
        }
        try:
            HaiprofCallback(stacks_hz=0)
        except TypeError as error:
            print(error)
    """
    environment = os.environ | {"PYTHONPATH": str(ray)}
    assert (
        run_python(program, env=environment) == "got an unexpected keyword argument 'stacks_hz'\n"
    )


def test_a_worker_that_fails_is_named_and_its_successor_recorded(ray: Path, tmp_path: Path) -> None:
    """Here by Ray's own variable: nothing of haiprof is in the program."""
    callback = "haiprof.integrations.ray.HaiprofCallback"
    run = recorded(FAILS, ray, tmp_path, RAY_TRAIN_CALLBACKS=callback)
    assert steps(run).count(1) == 8 + 12
    assert steps(run).count(0) >= 8 + 12, "it may have gone on before it was stopped"
    assert len(marks(run, "train")) == 2 * 2
    assert [number for rank, number in reports(run) if rank] == [1, 1, 2, 2, 3]
    raised = run.events().filter(pl.col("kind") == "exception")
    assert raised.select("rank", "text").rows() == [(1, "ValueError: planted")]
    endings = [(one.rank, one.ending.text) for one in workers(run) if one.ending]
    assert len(endings) == 4
    ((rank, text),) = [ended for ended in endings if "ValueError" in ended[1]]
    assert rank == 1
    assert text.startswith("ValueError: planted (train.py:")
