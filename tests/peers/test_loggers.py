"""Loggers of Lightning, Hugging Face and Accelerate themselves: what they log to shows haiprof's.

They call the trackers that haiprof knows, and Accelerate also those that its user has written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl
import pytest
from commands import haiprof

from haiprof.analyzer import Analyzer

#: What each looks for while it trains, and how long at most.
BEGIN = """
import glob, json, sys, time
from pathlib import Path
import torch

torch.set_num_threads(1)
UNTIL = time.monotonic() + 100

def written(pattern):
    files = glob.glob(pattern, recursive=True)
    return any(b"haiprof/step_seconds" in Path(file).read_bytes() for file in files)

FOUND = {
    "logging.tensorboard": lambda: written("**/haiprof/events*"),
    "logging.wandb": lambda: written("**/wandb/offline*/*.wandb"),
    "logging.mlflow": lambda: glob.glob("**/metrics/haiprof/step_seconds", recursive=True),
}

def over(step):
    if step % 50:
        return False
    shown = [name for name, found in FOUND.items() if found()]
    Path("shown").write_text(json.dumps(shown))
    return len(shown) == len(FOUND) or time.monotonic() > UNTIL
"""
LIGHTNING = """
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch.utils.data import DataLoader

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 8)

    def training_step(self, batch, number):
        time.sleep(0.02)
        loss = self.head(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

class Stop(Callback):
    def on_train_batch_end(self, trainer, *more):
        if over(trainer.global_step):
            trainer.should_stop = True

trainer = Trainer(
    max_epochs=-1, accelerator="cpu", enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, log_every_n_steps=1, callbacks=[Stop()],
    logger=[
        TensorBoardLogger("."), MLFlowLogger(tracking_uri="file:./runs"),
        WandbLogger(offline=True), CSVLogger("."),
    ],
)
trainer.fit(Model(), DataLoader(torch.rand(400, 8), batch_size=4))
(metrics,) = Path().glob("lightning_logs/*/metrics.csv")
assert "haiprof" not in metrics.read_text()
"""
HUGGING_FACE = """
from transformers import Trainer, TrainerCallback, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 8)

    def forward(self, x):
        time.sleep(0.02)
        return {"loss": self.head(x).square().mean()}

class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        control.should_training_stop = over(state.global_step)

arguments = TrainingArguments(
    "out", max_steps=100_000, per_device_train_batch_size=4, logging_steps=1, save_strategy="no",
    report_to=["tensorboard", "wandb", "mlflow"], use_cpu=True, disable_tqdm=True,
)
data = [{"x": torch.rand(8)} for _ in range(400)]
Trainer(Model(), arguments, train_dataset=data, callbacks=[Stop()]).train()
"""
ACCELERATE = """
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

class Mine(GeneralTracker):
    name, requires_logging_directory, tracker = "mine", False, None

    def log(self, values, step=None, **more):
        assert list(values) == ["loss"]

mine = Mine()
accelerator = Accelerator(
    cpu=True, log_with=["tensorboard", "wandb", "mlflow", mine], project_dir="."
)
accelerator.init_trackers("project")
model = torch.nn.Linear(8, 8)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
step = 1
while not over(step):
    time.sleep(0.02)
    optimizer.zero_grad()
    loss = model(torch.rand(4, 8)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.log({"loss": loss.item()}, step=step)
    step += 1
accelerator.end_training()
"""
KNOWN = ["logging.mlflow", "logging.tensorboard", "logging.wandb"]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        pytest.param(LIGHTNING, KNOWN, id="lightning"),
        pytest.param(HUGGING_FACE, KNOWN, id="huggingface"),
        pytest.param(ACCELERATE, ["logging.accelerate", *KNOWN], id="accelerate"),
    ],
)
def test_loggers_show_it(
    program: str, expected: list[str], frameworks: Path, trackers: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(BEGIN + program)
    environment = os.environ | {
        "PYTHONPATH": f"{frameworks}:{trackers}",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": "file:./runs",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    words = ("run", "--log-dir", "logs", "--run", "r", "--trackers", "1", "--", "train.py")
    done = haiprof(*words, cwd=tmp_path, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads((tmp_path / "shown").read_text())) == KNOWN
    run = Analyzer(tmp_path / "logs" / "r")
    assert run.events().filter(pl.col("kind") == "hook").is_empty()
    assert set(run.spans(category="user")["name"].to_list()) >= set(expected)
