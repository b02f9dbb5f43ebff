"""The training loop of Megatron-LM itself, two stages of a pipeline on gloo and the CPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl
import pytest
from launched import run_ranks
from recording import wait_recorded

from haiprof.analyzer import Analyzer

RANKS, STEPS, SAMPLES, LENGTH = 2, 3, 4, 16
#: What Megatron asks of CUDA, the CPU does; it is made for Python 3.12, and one module for Triton.
ON_CPU = """
import _haiprof_boot
_haiprof_boot.arm()
import contextlib, os, sys, typing
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from unittest.mock import MagicMock
os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch, typing_extensions

class Kernels(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        if name == "megatron.core.transformer.moe.ops.paged_stash":
            return ModuleSpec(name, self)

    def create_module(self, spec):
        return MagicMock(__spec__=spec, __name__=spec.name)

    def exec_module(self, module):
        pass

class OnCpu(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not torch.device:
            args = tuple(map(cpu, args))
        if (given := (kwargs or {}).get("device")) is not None:
            kwargs = kwargs | {"device": cpu("cuda" if isinstance(given, int) else given)}
        return function(*args, **(kwargs or {}))

def cpu(given):
    of_gpu = isinstance(given, (str, torch.device)) and str(given).startswith("cuda")
    return torch.device("cpu") if of_gpu else given

class Stream(contextlib.nullcontext):
    def wait_stream(self, other):
        pass

sys.meta_path.insert(0, Kernels())
typing.override = typing_extensions.override
torch.set_num_threads(1)
import megatron.training  # which imports what decides by whether there is a GPU
import megatron.core.datasets.utils

megatron.core.datasets.utils.compile_helpers = lambda: None
cuda = torch.cuda
cuda.is_available = lambda: True
cuda.device_count = lambda: int(os.environ["WORLD_SIZE"])
cuda.current_device = lambda: "cpu"
cuda.set_device = cuda.synchronize = cuda.empty_cache = cuda._lazy_init = lambda *given: None
cuda.Stream, cuda.Event, cuda.nvtx = Stream, MagicMock(), MagicMock()
cuda.current_stream = cuda.stream = lambda *given: Stream()
cuda.get_device_properties = lambda *given: SimpleNamespace(major=8, minor=0, total_memory=2**34)
cuda.get_device_capability = lambda *given: (8, 0)
cuda.memory_stats = lambda *given: {}
for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
    setattr(cuda, name, lambda *given: 0)
cuda.random.get_rng_state = cuda.get_rng_state = lambda *given, **more: torch.get_rng_state()
cuda.random.set_rng_state = cuda.set_rng_state = lambda s, *given, **more: torch.set_rng_state(s)
cuda.manual_seed = torch.manual_seed
cuda.default_generators = (torch.default_generator,)
for name, kind in {"Float": torch.float, "Long": torch.long, "Int": torch.int}.items():
    setattr(cuda, f"{name}Tensor", lambda values, kind=kind: torch.tensor(values, dtype=kind))
torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *given, **more: self
OnCpu().__enter__()
"""
JOB = f"""
from megatron.core.enums import ModelType
from megatron.training import pretrain
from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
from megatron.training.arguments import parse_and_validate_args

class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, number):
        return torch.arange(number, number + {LENGTH} + 1) % 50

def datasets(sizes, **more):
    return Tokens(), Tokens(), Tokens()

datasets.is_distributed = True

def forward_step(data, model):
    x, y = torch.zeros(2, {LENGTH}, dtype=torch.long), None
    if data is not None:
        tokens = next(data)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    output = model(x, torch.arange({LENGTH}).expand_as(x), None, labels=y)
    return output, lambda losses: (losses.mean(), {{"lm loss": losses.detach().mean()}})

if sys.argv.pop(1) == "marked":
    from haiprof.integrations.megatron import marked
    forward_step = marked(forward_step)
args = parse_and_validate_args(args_defaults={{}})
config = pretrain_cfg_container_from_args(args, gpt_config_from_args(args))
pretrain(config, datasets, ModelType.encoder_or_decoder, forward_step)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
WORDS = f"""
    --num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length {LENGTH}
    --max-position-embeddings {LENGTH} --micro-batch-size 2 --global-batch-size {SAMPLES}
    --train-iters {STEPS} --eval-interval 2 --eval-iters 1 --lr 1e-3 --min-lr 1e-4 --clip-grad 0
    --pipeline-model-parallel-size {RANKS} --distributed-backend gloo --use-cpu-initialization
    --tokenizer-type NullTokenizer --vocab-size 50 --transformer-impl local
    --attention-backend unfused --no-persist-layer-norm --no-gradient-accumulation-fusion
    --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion
    --dataloader-type single --num-workers 0 --mock-data
"""


@pytest.mark.parametrize("how", ["marked", "alone"])
def test_pretrain(how: str, megatron_lm: Path, shm: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ON_CPU + JOB)
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(megatron_lm))))
    folder = run_ranks(
        RANKS, script, how, *WORDS.split(), PYTHONPATH=path, CUDA_DEVICE_MAX_CONNECTIONS="1"
    )
    wait_recorded(shm)
    run = Analyzer(folder)
    assert not run.events(kind="hook").height
    assert sorted(run.steps()["rank"].to_list()) == [0] * STEPS + [1] * STEPS
    jobs = run.pipeline().jobs.filter(pl.col("name") == "B").sort("rank", "step", "microbatch")
    assert jobs.select("rank", "stage", "step", "microbatch").rows() == [
        (stage, stage, step, n) for stage in range(RANKS) for step in range(STEPS) for n in (0, 1)
    ]
    marks = run.events(kind="mark")
    if how == "alone":
        assert not marks.height
        return
    about = {"framework": "megatron", "run": None, "steps": STEPS, "first_step": 0,
             "accumulation": SAMPLES // 2}  # fmt: skip
    assert marks.sort("rank").select("rank", "text").rows() == [(0, "train"), (1, "train")]
    assert [json.loads(each) for each in marks["attributes"]] == [about] * RANKS
    counts = run.samples().filter(pl.col("metric") == "trainer.step.count").sort("rank", "time")
    assert counts.select("rank", "value").rows() == [(r, n) for r in (0, 1) for n in range(STEPS)]
    for row in run.events(kind="model")["attributes"]:
        known = json.loads(row)
        assert known.pop("flops_per_step") > 0
        assert known == {
            "samples_per_step": SAMPLES / RANKS, "tokens_per_step": SAMPLES * LENGTH / RANKS,
            "dtype": "float32",
        }  # fmt: skip
