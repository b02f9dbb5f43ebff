"""Trainers of frameworks themselves, with the callbacks of haiprof.integrations."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from commands import haiprof
from fixtures import ROOT
from recording import run_python

from haiprof.analyzer import Analyzer

HUGGING_FACE = """
import torch
from haiprof.integrations.huggingface import HaiprofCallback
from transformers import Trainer, TrainingArguments

torch.set_num_threads(1)

class Model(torch.nn.Module):
    main_input_name = "input_ids"

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.head = torch.nn.Linear(8, 50)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.embedding(input_ids))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), input_ids.flatten())
        return {"loss": loss, "logits": logits}

data = [{"input_ids": torch.arange(16) % 50} for _ in range(32)]
arguments = TrainingArguments(
    "out", run_name="mine", num_train_epochs=2, per_device_train_batch_size=4,
    gradient_accumulation_steps=2, include_num_input_tokens_seen="all", eval_strategy="epoch",
    save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, label_names=["labels"],
    prediction_loss_only=True,
)
trainer = Trainer(
    Model(), arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[HaiprofCallback()]
)
trainer.train()
assert trainer.state.global_step == 8
"""
LIGHTNING = """
import torch
from haiprof.integrations.lightning import HaiprofCallback
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

torch.set_num_threads(1)

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 8)

    def training_step(self, batch, number):
        return self.head(batch).square().mean()

    def validation_step(self, batch, number):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

loader = DataLoader(torch.rand(32, 8), batch_size=4)
trainer = Trainer(
    max_epochs=2, accumulate_grad_batches=2, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[HaiprofCallback()],
)
trainer.fit(Model(), loader, loader)
assert trainer.global_step == 8
"""


def recorded(program: str, frameworks: Path, folder: Path) -> Analyzer:
    (folder / "train.py").write_text(program)
    words = ("run", "--log-dir", "logs", "--run", "r", "--", "train.py")
    environment = os.environ | {"PYTHONPATH": str(frameworks), "HF_HUB_OFFLINE": "1"}
    done = haiprof(*words, cwd=folder, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    return Analyzer(folder / "logs" / "r")


def marks(run: Analyzer) -> list[tuple[str, dict[str, Any]]]:
    rows = run.events().filter(pl.col("kind") == "mark").sort("time")
    return [
        (row["text"], json.loads(row["attributes"] or "{}")) for row in rows.iter_rows(named=True)
    ]


def numbers(run: Analyzer) -> list[float]:
    rows = run.samples().filter(pl.col("metric") == "trainer.step.count")
    return rows.sort("time")["value"].to_list()


EPOCHS = [
    ("epoch", {"number": 0, "step": 0}),
    ("evaluated", {"step": 4}),
    ("epoch", {"number": 1, "step": 4}),
    ("evaluated", {"step": 8}),
    ("train_end", {"step": 8}),
]


def test_hugging_face(frameworks: Path, tmp_path: Path) -> None:
    run = recorded(HUGGING_FACE, frameworks, tmp_path)
    (begin, about), *others = marks(run)
    assert begin == "train"
    assert about == {
        "framework": "transformers", "run": "mine", "epochs": 2, "steps": 8, "first_step": 0,
        "accumulation": 2,
    }  # fmt: skip
    assert others == EPOCHS
    assert numbers(run) == list(range(1, 9))
    said = run.events().filter(pl.col("kind") == "model").sort("time")["attributes"]
    known = json.loads(said.to_list()[-1])
    assert known["tokens_per_step"] == 4 * 2 * 16
    assert known["samples_per_step"] == 8
    assert known["parameters"] > 0
    assert run.steps().height == 8, "they are found as without it"


def test_lightning(frameworks: Path, tmp_path: Path) -> None:
    run = recorded(LIGHTNING, frameworks, tmp_path)
    (begin, about), *others = marks(run)
    assert begin == "train"
    assert about == {
        "framework": "lightning", "run": None, "epochs": 2, "steps": -1, "first_step": 0,
        "accumulation": 2,
    }  # fmt: skip
    assert others == EPOCHS
    assert numbers(run) == list(range(1, 9))
    assert run.events().filter(pl.col("kind") == "model").height > 0


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_the_programs_of_the_docs(framework: str, frameworks: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "integrations.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (program,) = (each for each in blocks if f"haiprof.integrations.{framework} " in each)
    run = recorded(program, frameworks, tmp_path)
    assert [said for said, _ in marks(run)] == ["train", *["epoch"] * 3, "train_end"]
    assert numbers(run) == list(range(1, 25))


def test_importing_haiprof_imports_none_of_it(frameworks: Path) -> None:
    program = f"""
        import sys
        sys.path.append({str(frameworks)!r})
        import haiprof, haiprof.capture.session
        heavy = ("transformers", "lightning", "pytorch_lightning", "haiprof.integrations")
        print([name for name in heavy if name in sys.modules])
    """
    assert run_python(program) == "[]\n"
