"""TensorBoard, wandb and MLflow themselves: what a loop logs to them has a name in the ledger."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
from commands import haiprof

from haiprof.analyzer import Analyzer

STEPS = 40
JOB = f"""
import sys
import torch

torch.set_num_threads(1)
kind = sys.argv[1]
if kind == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter("here")
    log = lambda step, loss: writer.add_scalars("loss", {{"a": loss, "b": loss}}, step)
elif kind == "wandb":
    import wandb
    run = wandb.init(mode="offline", dir=".")
    log = lambda step, loss: run.log({{"loss": loss}}, step=step)
else:
    import mlflow
    mlflow.set_tracking_uri("file:./runs")
    mlflow.start_run()
    log = lambda step, loss: mlflow.log_metric("loss", loss, step=step)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range({STEPS}):
    optimizer.zero_grad()
    loss = model(torch.rand(64, 256)).square().mean()
    loss.backward()
    optimizer.step()
    log(step, loss.item())
if kind == "wandb":
    run.finish()
"""


def logged(kind: str, trackers: Path, folder: Path) -> tuple[int, pl.DataFrame]:
    """Train with a tracker; return how many ranges it has, and what was in no phase."""
    (folder / "train.py").write_text(JOB)
    environment = os.environ | {"PYTHONPATH": str(trackers), "WANDB_SILENT": "true"}
    words = ("run", "--log-dir", "logs", "--run", "r", "--", "train.py", kind)
    done = haiprof(*words, cwd=folder, env=environment | {"MLFLOW_ALLOW_FILE_STORE": "true"})
    assert done.returncode == 0, done.stderr
    run = Analyzer(folder / "logs" / "r")
    ranges = run.spans(category="user")
    count = ranges.filter(pl.col("name") == f"logging.{kind}").height
    return count, run.ledger(rank=0).filter(pl.col("cause") == "other")


def test_tensorboard(trackers: Path, tmp_path: Path) -> None:
    count, other = logged("tensorboard", trackers, tmp_path)
    assert count >= STEPS
    assert "logging.tensorboard" in other["part"].to_list()


def test_wandb(trackers: Path, tmp_path: Path) -> None:
    count, other = logged("wandb", trackers, tmp_path)
    assert count == STEPS
    assert "logging.wandb" in other["part"].to_list()


def test_mlflow(trackers: Path, tmp_path: Path) -> None:
    count, other = logged("mlflow", trackers, tmp_path)
    assert count == STEPS
    assert "logging.mlflow" in other["part"].to_list()
