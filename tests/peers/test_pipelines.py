"""The schedules of Megatron and DeepSpeed themselves, two ranks of each, on gloo and the CPU."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import polars as pl
from launched import run_ranks
from recording import wait_recorded

from haiprof.analyzer import Analyzer
from haiprof.views.run.pipeline import Pipeline

RANKS, MICROBATCHES, STEPS = 2, 4, 2
BEGIN = f"""
import _haiprof_boot
_haiprof_boot.arm()
import itertools, sys, time
import torch
torch.set_num_threads(1)
MICROBATCHES, STEPS = {MICROBATCHES}, {STEPS}

class Part(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.01)
        return super().forward(x)
"""
#: Its schedules make a few small tensors on the current CUDA device.
MEGATRON = """
zeros = torch.zeros
torch.zeros = lambda *size, device=None, **options: zeros(*size, **options)
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *device: None
torch.distributed.init_process_group("gloo")
from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func

chunks = int(sys.argv[1])
ranks = torch.distributed.get_world_size()
virtual = chunks if chunks > 1 else None
parallel_state.initialize_model_parallel(
    pipeline_model_parallel_size=ranks, virtual_pipeline_model_parallel_size=virtual
)
config = ModelParallelConfig(
    pipeline_model_parallel_size=ranks, virtual_pipeline_model_parallel_size=virtual,
    pipeline_dtype=torch.float32, batch_p2p_comm=False, batch_p2p_sync=False,
)
config.hidden_size, config.fine_grained_activation_offloading = 8, False

class Model(torch.nn.Module):
    def __init__(self, chunk):
        super().__init__()
        self.part, self.config, self.vp_stage = Part(8, 8), config, chunk
        self.model_type = ModelType.encoder_or_decoder

    def set_input_tensor(self, given):
        self.given = given[0] if isinstance(given, list) else given

    def forward(self, x):
        return self.part(x if self.given is None else self.given)

def forward_step(data, model):
    return model(next(data)), lambda output: (output.sum(), {})

models = [Model(chunk) for chunk in range(chunks)]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)
data = itertools.repeat(torch.randn(4, 2, 8))
for step in range(STEPS):
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward_step, data_iterator=[data] * chunks, model=models,
        num_microbatches=MICROBATCHES, seq_length=4, micro_batch_size=2,
    )
    optimizer.step()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
#: Its sums in shared memory would be compiled first; they have no part in a pipeline.
DEEPSPEED = """
import deepspeed
from deepspeed.pipe import PipelineModule

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
parts = [Part(8, 8), Part(8, 8)]
module = PipelineModule(parts, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
engine, *_ = deepspeed.initialize(
    model=module,
    model_parameters=list(module.parameters()),
    config={
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICROBATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    },
)
data = itertools.repeat((torch.randn(2, 8), torch.randn(2, 8)))
for step in range(STEPS):
    engine.train_batch(data)
torch.distributed.barrier()
"""


def pipeline(
    program: str, packages: Path, shm: Path, folder: Path, *words: object, **more: str
) -> Pipeline:
    script = folder / "train.py"
    script.write_text(BEGIN + program)
    run = run_ranks(RANKS, script, *words, PYTHONPATH=python_path(packages), **more)
    wait_recorded(shm)
    assert not Analyzer(run).events(kind="hook").height
    return Analyzer(run).pipeline()


def python_path(packages: Path) -> str:
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(packages))))


def counted(jobs: pl.DataFrame, *columns: str) -> Counter[tuple[object, ...]]:
    return Counter(jobs.select(columns).rows())


def once_a_step(*rows: tuple[object, ...]) -> Counter[tuple[object, ...]]:
    """Return each row once for each step and microbatch, behind them."""
    each = [(step, n) for step in range(STEPS) for n in range(MICROBATCHES)]
    return Counter((*one, *row) for one in each for row in rows)


def assert_two_stages(found: Pipeline) -> None:
    """Two stages of 1F1B: each does each microbatch, and gives it to the other."""
    jobs = found.jobs.filter(pl.col("kind") != "optimizer")
    assert counted(jobs, "step", "microbatch", "stage", "name") == once_a_step(
        (0, "F"), (0, "send activations"), (0, "recv gradients"), (0, "B"),
        (1, "recv activations"), (1, "F"), (1, "B"), (1, "send gradients"),
    )  # fmt: skip
    assert (jobs["rank"] == jobs["stage"]).all()
    assert found.jobs.filter(pl.col("kind") == "optimizer").height == RANKS * STEPS
    assert found.steps["schedule"].to_list() == ["1F1B"] * STEPS
    assert found.steps["microbatches"].to_list() == [MICROBATCHES] * STEPS
    assert_in_turn(jobs)


def assert_in_turn(jobs: pl.DataFrame) -> None:
    """What a stage needs of another has been sent before: the microbatches are the right ones."""
    one = ["step", "microbatch", "chunk"]
    first, second = (
        jobs.filter(pl.col("stage") == n).with_columns(end=pl.col("start") + pl.col("duration"))
        for n in (0, 1)
    )
    for name, before, after in (("F", first, second), ("B", second, first)):
        both = before.filter(pl.col("name") == name).join(
            after.filter(pl.col("name") == name), on=one, nulls_equal=True
        )
        assert both.height
        assert (both["end"] <= both["start_right"]).all()


def test_megatrons_1f1b(megatron: Path, shm: Path, tmp_path: Path) -> None:
    assert_two_stages(pipeline(MEGATRON, megatron, shm, tmp_path, 1))


def test_megatrons_interleaved_1f1b(megatron: Path, shm: Path, tmp_path: Path) -> None:
    found = pipeline(MEGATRON, megatron, shm, tmp_path, 2)
    jobs = found.jobs.filter(~pl.col("kind").is_in(["optimizer", "recv"]))
    assert counted(jobs, "step", "microbatch", "stage", "chunk", "name") == once_a_step(
        *((stage, chunk, name) for stage in (0, 1) for chunk in (0, 1) for name in "FB"),
        (0, 0, "send activations"), (1, 0, "send activations"), (0, 1, "send activations"),
        (1, 1, "send gradients"), (0, 1, "send gradients"), (1, 0, "send gradients"),
    )  # fmt: skip
    assert found.steps["schedule"].to_list() == ["interleaved 1F1B"] * STEPS
    assert_in_turn(jobs)


def test_deepspeeds_1f1b(deepspeed: Path, shm: Path, tmp_path: Path) -> None:
    found = pipeline(DEEPSPEED, deepspeed, shm, tmp_path, DS_ACCELERATOR="cpu")
    assert_two_stages(found)
