"""Pipelines recorded without a change to the job: torch's schedules, Megatron's and DeepSpeed's."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from launched import run_ranks
from recording import run_python, wait_recorded

from haiprof.analyzer import Analyzer
from haiprof.capture import hooks

pytestmark = pytest.mark.jobs

RANKS, MICROBATCHES, EVEN, SLOW = 4, 8, 2, 2
"""Ranks, microbatches of a step, steps with even stages and with a slow one; one more before."""
FORWARD_S = 0.05
TRAIN = f"""
import _haiprof_boot
_haiprof_boot.arm()
import json, os, sys, time
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()

class Pause(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient.clone(), None

class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.seconds = 0.0

    def forward(self, x):
        return Pause.apply(self.linear(x), self.seconds)

by_hand = []  # step, begin and end of all that this rank does

def timed(call, *args, **keywords):
    begin = time.time_ns()
    try:
        return call(*args, **keywords)
    finally:
        by_hand.append((step, begin, time.time_ns()))

class Stage(PipelineStage):
    def forward_one_chunk(self, *args, **keywords):
        return timed(super().forward_one_chunk, *args, **keywords)

    def backward_one_chunk(self, *args, **keywords):
        return timed(super().backward_one_chunk, *args, **keywords)

part = Part()
stage = Stage(part, rank, {RANKS}, torch.device("cpu"))
loss = torch.nn.functional.mse_loss
schedule = Schedule1F1B(stage, n_microbatches={MICROBATCHES}, loss_fn=loss)
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
for step in range({1 + EVEN + SLOW}):
    part.seconds = {FORWARD_S} if step else 0.0
    if rank == 2 and step > {EVEN}:
        part.seconds *= 1.5
    optimizer.zero_grad()
    x = [torch.randn({MICROBATCHES}, 8)] if rank == 0 else []
    target = torch.randn({MICROBATCHES}, 8) if rank == {RANKS - 1} else None
    schedule.step(*x, **({{}} if target is None else {{"target": target}}))
    timed(optimizer.step)
with open(f"{{sys.argv[1]}}/{{rank}}.json", "w") as file:
    json.dump(by_hand, file)
dist.barrier()
dist.destroy_process_group()
"""


def train(tmp_path: Path) -> Path:
    """Run the job of four ranks to its end; return its run folder."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    return run_ranks(RANKS, script, tmp_path)


def bubbles_by_hand(tmp_path: Path) -> list[float]:
    """Return the bubble of each step as the ranks' own timers have it."""
    rows = [row for n in range(RANKS) for row in json.loads((tmp_path / f"{n}.json").read_text())]
    bubbles = []
    for step in range(1 + EVEN + SLOW):
        mine = [(begin, end) for number, begin, end in rows if number == step]
        window = max(end for _, end in mine) - min(begin for begin, _ in mine)
        bubbles.append(1 - sum(end - begin for begin, end in mine) / (RANKS * window))
    return bubbles


def test_four_ranks_with_torchs_1f1b(shm: Path, tmp_path: Path) -> None:
    run = train(tmp_path)
    wait_recorded(shm)
    found = Analyzer(run).pipeline()
    assert found.jobs["stage"].drop_nulls().unique().sort().to_list() == list(range(RANKS))
    each = found.jobs.filter(pl.col("kind").is_in(["forward", "backward"]))
    assert each.group_by("rank", "step", "kind").len()["len"].unique().to_list() == [MICROBATCHES]
    microbatches = each["microbatch"].unique().sort().to_list()
    assert microbatches == list(range(MICROBATCHES))
    assert (found.jobs["rank"] == found.jobs["stage"].fill_null(found.jobs["rank"])).all()

    # Each microbatch once a step over each border between two stages, there and back.
    moved = found.jobs.filter(pl.col("kind").is_in(["send", "recv"]))
    each = [(step, n) for step in range(1 + EVEN + SLOW) for n in range(MICROBATCHES)]
    for name, stages in (
        ("send activations", range(RANKS - 1)),
        ("recv activations", range(1, RANKS)),
        ("send gradients", range(1, RANKS)),
        ("recv gradients", range(RANKS - 1)),
    ):
        rows = moved.filter(pl.col("name") == name).select("step", "microbatch", "stage")
        assert sorted(rows.rows()) == sorted((*one, stage) for one in each for stage in stages)

    even = found.steps.filter(pl.col("step").is_between(1, EVEN))
    assert even["schedule"].to_list() == ["1F1B"] * EVEN
    assert even["microbatches"].to_list() == [MICROBATCHES] * EVEN
    ideal = (RANKS - 1) / (MICROBATCHES + RANKS - 1)
    assert even["ideal"].to_list() == pytest.approx([ideal] * EVEN)
    by_hand = bubbles_by_hand(tmp_path)
    assert found.steps["bubble"].to_list()[1:] == pytest.approx(by_hand[1:], abs=0.02)
    # Other programs on the machine make the bubble larger, and none makes it smaller.
    assert all(bubble > ideal - 0.02 for bubble in even["bubble"])

    slow = found.steps.filter(pl.col("step") > EVEN)
    assert slow["critical"].to_list() == [2] * SLOW
    for step in slow["step"]:
        stages = Analyzer(run).pipeline(step).stages
        assert stages["stage"][0] == 2
        assert stages.sort("waited_for", descending=True)["stage"][0] == 2


def test_torchs_stages_are_afterwards_as_they_were() -> None:
    from torch.distributed.pipelining import stage

    base = stage._PipelineStageBase
    before = dict(vars(base))
    hooks.install()
    assert hooks.status()["pipeline"] == "on: torch.distributed.pipelining.schedules"
    ours = base.forward_one_chunk
    assert ours is not before["forward_one_chunk"]
    assert ours.__doc__ == before["forward_one_chunk"].__doc__
    hooks.uninstall()
    assert dict(vars(base)) == before
    # Under somebody else's wrapper ours stays, and passes through.
    hooks.install()

    def theirs(self: object, *args: object) -> object:
        return inner(self, *args)

    inner = base.forward_one_chunk
    base.forward_one_chunk = theirs
    try:
        hooks.uninstall()
        assert base.forward_one_chunk is theirs
        with pytest.raises(AttributeError, match="is_first"):
            theirs(object(), 0, ())
    finally:
        base.forward_one_chunk = before["forward_one_chunk"]


FAKE = """
    import contextlib, json, sys, types
    from pathlib import Path
    import haiprof
    from haiprof.capture import hooks
    sys.path.insert(0, sys.argv[1])
    haiprof.start(sys.argv[2], run="run", kernels="off")
    import torch
"""


def write_package(folder: Path, name: str, text: str) -> None:
    """Write a module with the packages that it is in."""
    *packages, last = name.split(".")
    for package in packages:
        folder = folder / package
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    (folder / f"{last}.py").write_text(text)


def jobs(run: Path) -> list[tuple[object, ...]]:
    columns = ("kind", "name", "microbatch", "stage", "chunk", "step")
    return Analyzer(run).pipeline().jobs.select(columns).rows()


def test_the_schedules_of_megatron(shm: Path, tmp_path: Path) -> None:
    write_package(
        tmp_path,
        "megatron.core.pipeline_parallel.schedules",
        """
class parallel_state:
    get_pipeline_model_parallel_rank = staticmethod(lambda: 1)

def forward_step(
    function, data, model, num_microbatches, *others, current_microbatch=None, vp_stage=None
):
    return [f"output {current_microbatch} of {vp_stage}"], 0

def backward_step(input_tensor, output_tensor, output_tensor_grad, model_type, config):
    raise ValueError("as the job's own")

def forward_backward_pipelining_with_interleaving():
    outputs = {
        (chunk, n): forward_step(None, None, None, 2, current_microbatch=n, vp_stage=chunk)[0]
        for chunk in (0, 1)
        for n in (0, 1)
    }
    for chunk in (1, 0):
        for n in (0, 1):
            try:
                backward_step(None, outputs[chunk, n], None, None, None)
            except ValueError:
                pass
""",
    )
    program = (
        FAKE
        + """
    assert hooks.status()["pipeline"].startswith("waiting")
    from megatron.core.pipeline_parallel import schedules
    assert hooks.status()["pipeline"] == "on: megatron.core.pipeline_parallel.schedules"
    for step in range(2):
        schedules.forward_backward_pipelining_with_interleaving()
        haiprof.step()
    haiprof.stop()
    assert schedules.forward_step.__name__ == "forward_step"
    assert not hasattr(schedules.forward_step, "__wrapped__")
    assert not hasattr(schedules.backward_step, "__wrapped__")
    """
    )
    run_python(program, str(tmp_path), str(tmp_path / "logs"), warm=True)
    wait_recorded(shm)
    order = [("forward", "F", n, 1, chunk) for chunk in (0, 1) for n in (0, 1)]
    order += [("backward", "B", n, 1, chunk) for chunk in (1, 0) for n in (0, 1)]
    found = jobs(tmp_path / "logs" / "run")
    assert [row[:5] for row in found] == order * 2
    assert len({row[5] for row in found}) == 2


def test_the_instructions_of_deepspeed(shm: Path, tmp_path: Path) -> None:
    write_package(
        tmp_path,
        "deepspeed.runtime.pipe.engine",
        """
from types import MethodType

class ForwardPass: pass
class BackwardPass: pass
class SendActivation: pass
class OptimizerStep: pass

class PipelineEngine:
    stage_id = 2

    def _exec_forward_pass(self, buffer_id): pass
    def _exec_backward_pass(self, buffer_id): pass
    def _exec_send_activations(self, buffer_id): pass
    def _exec_optimizer_step(self): pass

    _INSTRUCTION_MAP = {
        ForwardPass: _exec_forward_pass,
        BackwardPass: _exec_backward_pass,
        SendActivation: _exec_send_activations,
        OptimizerStep: _exec_optimizer_step,
    }

    def _exec_schedule(self, microbatches):
        for n in range(microbatches):
            for instruction in (ForwardPass, SendActivation, BackwardPass):
                MethodType(self._INSTRUCTION_MAP[instruction], self)(buffer_id=n % 2)
        MethodType(self._INSTRUCTION_MAP[OptimizerStep], self)()
""",
    )
    program = (
        FAKE
        + """
    from deepspeed.runtime.pipe.engine import PipelineEngine
    before = {"_exec_forward_pass", "_exec_backward_pass", "_exec_send_activations"}
    engine = PipelineEngine()
    for microbatches in (3, 2, 3):
        engine._exec_schedule(microbatches)
    haiprof.stop()
    assert all(vars(PipelineEngine)[name] in PipelineEngine._INSTRUCTION_MAP.values()
               for name in before)
    """
    )
    run_python(program, str(tmp_path), str(tmp_path / "logs"), warm=True)
    wait_recorded(shm)
    order = [
        (kind, name, n, 2, None)
        for n in (0, 1, 2, 0, 1, 0, 1, 2)
        for kind, name in (("forward", "F"), ("send", "send activations"), ("backward", "B"))
    ]
    assert [row[:5] for row in jobs(tmp_path / "logs" / "run")] == order


def test_a_version_that_is_not_known_is_left_as_it_is(shm: Path, tmp_path: Path) -> None:
    text = "class parallel_state: pass\ndef forward_step(): return 1\n"
    write_package(tmp_path, "megatron.core.pipeline_parallel.schedules", text)
    program = (
        FAKE
        + """
    from megatron.core.pipeline_parallel import schedules
    assert schedules.forward_step() == 1
    assert not hasattr(schedules.forward_step, "__wrapped__")
    with haiprof.range("any"):
        pass
    haiprof.stop()
    """
    )
    run_python(program, str(tmp_path), str(tmp_path / "logs"), warm=True)
    wait_recorded(shm)
    (line,) = Analyzer(tmp_path / "logs" / "run").events(kind="hook")["text"].to_list()
    assert line == (
        "the schedule of megatron.core.pipeline_parallel.schedules is not seen: "
        "KeyError('backward_step')"
    )


def test_ranges_by_hand_are_a_pipeline_without_a_gpu(shm: Path, tmp_path: Path) -> None:
    program = """
    import sys, haiprof
    haiprof.start(sys.argv[1], run="run", kernels="off", hooks=False)
    @haiprof.range("B", device=True, microbatch=4, stage=3, chunk=1)
    def backward(): pass
    haiprof.step()
    with haiprof.range("F", device=True, microbatch=4, stage=3, note="x"): pass
    with haiprof.range("W", microbatch=5, stage=3): pass
    backward()
    span = haiprof.range("F", device=True, microbatch=1, stage="last", chunk=-1)
    assert (span.microbatch, span.stage, span.chunk) == (1, None, None)
    span = haiprof.range("F", device=True, microbatch=1, stage=2, chunk=0)
    assert (span.microbatch, span.stage, span.chunk) == (1, 2, 0)
    haiprof.stop()
    """
    run_python(program, str(tmp_path), warm=True)
    wait_recorded(shm)
    found = [row[:5] for row in jobs(tmp_path / "run")]
    assert found == [
        ("forward", "F", 4, 3, None), ("weight", "W", 5, 3, None), ("backward", "B", 4, 3, 1)
    ]  # fmt: skip
