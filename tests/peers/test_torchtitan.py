"""torchtitan's own Trainer, two ranks on gloo and the CPU, with and without haiprof's override."""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl
import pytest
from launched import run_ranks
from recording import wait_recorded

from haiprof.analyzer import Analyzer

RANKS, STEPS, SAMPLES, LENGTH = 2, 4, 8, 32
#: Where torchtitan takes its device from torch, which has none, it is the CPU; gloo cannot scale
#: what it sums, and torch 2.13 has neither `set_timeout` nor FSDP on torchtitan's newest types.
ON_CPU = """
import _haiprof_boot
_haiprof_boot.arm()
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock
import torch
from torch.distributed.fsdp import FSDPModule

torch.set_num_threads(1)
divide = FSDPModule.set_gradient_divide_factor

def sum_only(module, factor):
    module.set_force_sum_reduction_for_comms(True)
    divide(module, factor)

FSDPModule.set_gradient_divide_factor = sum_only
torch.distributed.set_timeout = lambda timeout, group=None: None
torch.cpu.get_device_name = lambda device=None: "CPU"
torch.cpu.get_device_properties = lambda device=None: SimpleNamespace(total_memory=2**30)
torch.cpu.memory_stats = lambda device=None: {}
torch.cpu.current_device = lambda: 0
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *device: None
sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = MagicMock()  # of Triton
from torchtitan.tools import utils

utils.device_type, utils.device_module = "cpu", torch.cpu
utils.get_local_device = lambda: torch.device("cpu")
from torchtitan.train import main

main()
"""
#: The smallest model, with an attention that has a backward pass on the CPU.
CONFIG = f"""
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel

def small():
    config = llama3_debugmodel()
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.hf_assets_path = "assets"
    config.parallelism.spmd_backend = "partial_dtensor"
    config.training.steps, config.training.seq_len = {STEPS}, {LENGTH}
    config.training.local_batch_size = 2
    config.training.global_batch_size = {SAMPLES}
    config.validator.enable, config.validator.freq, config.validator.steps = True, 3, 1
    config.validator.dataloader.dataset = "c4_test"
    return config
"""
WORDS = 50
SPECIAL = ("<unk>", "<bos>", "<eos>")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, a tokenizer and texts: its Trainer needs no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "train.py").write_text(ON_CPU)
    (tmp_path / "mine.py").write_text(CONFIG)
    assets, texts = tmp_path / "assets", tmp_path / "tests" / "assets" / "c4_test"
    assets.mkdir()
    texts.mkdir(parents=True)
    words = [*SPECIAL, *(f"w{n}" for n in range(WORDS))]
    model = {
        "type": "WordLevel",
        "vocab": {w: n for n, w in enumerate(words)},
        "unk_token": "<unk>",
    }
    tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    nothing = dict.fromkeys(
        ("truncation", "padding", "normalizer", "post_processor", "decoder"), None
    )
    (assets / "tokenizer.json").write_text(json.dumps(tokenizer | nothing | {"added_tokens": []}))
    (assets / "tokenizer_config.json").write_text('{"bos_token": "<bos>", "eos_token": "<eos>"}')
    line = json.dumps({"text": " ".join(f"w{n % WORDS}" for n in range(200))})
    (texts / "data.json").write_text("\n".join([line] * 40))
    return tmp_path / "train.py"


def trained(script: Path, torchtitan: Path, shm: Path, *words: str) -> Analyzer:
    given = ("--module", "mine", "--config", "small", *words)
    path = os.pathsep.join(map(str, (torchtitan, script.parent)))
    run = run_ranks(RANKS, script, *given, PYTHONPATH=path)
    wait_recorded(shm)
    return Analyzer(run)


def assert_found_by_hooks(run: Analyzer) -> None:
    assert sorted(run.steps()["rank"].to_list()) == [0] * STEPS + [1] * STEPS
    phases = set(run.phases()["name"].to_list())
    assert phases >= {"dataloader", "forward", "backward", "recompute", "optimizer", "eval"}
    assert not run.events(kind="hook").height


def test_marked(torchtitan: Path, job: Path, shm: Path) -> None:
    override = ("--override.imports", "haiprof.integrations.torchtitan.marked")
    run = trained(job, torchtitan, shm, *override)
    assert_found_by_hooks(run)
    for rank in range(RANKS):
        events = run.events().filter(pl.col("rank") == rank).sort("time")
        marks = events.filter(pl.col("kind") == "mark")
        pairs = zip(marks["text"], map(json.loads, marks["attributes"]), strict=True)
        assert list(pairs) == [
            ("train", {
                "framework": "torchtitan", "run": str(job.parent / "outputs"),
                "model": "llama3 debugmodel", "steps": STEPS, "first_step": 0, "accumulation": 2,
            }),
            ("evaluated", {"step": 1}),
            ("evaluated", {"step": 3}),
            ("train_end", {"step": STEPS}),
        ]  # fmt: skip
        values = run.samples().filter(
            (pl.col("metric") == "trainer.step.count") & (pl.col("rank") == rank)
        )
        assert values.sort("time")["value"].to_list() == list(range(1, STEPS + 1))
        known = json.loads(events.filter(pl.col("kind") == "model")["attributes"].to_list()[-1])
        assert known.pop("flops_per_token") > 0
        assert known == {
            "samples_per_step": SAMPLES / RANKS, "tokens_per_step": SAMPLES * LENGTH / RANKS,
            "dtype": "bfloat16",
        }  # fmt: skip


def test_without_the_override(torchtitan: Path, job: Path, shm: Path) -> None:
    run = trained(job, torchtitan, shm)
    assert_found_by_hooks(run)
    assert not run.events(kind="mark").height
