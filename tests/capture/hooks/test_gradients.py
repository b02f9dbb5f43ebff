"""What a backward pass of DistributedDataParallel waits for: real ranks in gloo."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from launched import run_ranks
from recording import run_python, wait_recorded

from haiprof.analyzer import Analyzer

pytestmark = pytest.mark.jobs

RANKS, STEPS, SLOW_FROM = 3, 24, 8
OWN_S, LATE_S = 0.03, 0.3
TRAIN = f"""
import _haiprof_boot
_haiprof_boot.arm()
import time
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()

class Pause(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep({OWN_S} + ({LATE_S} if rank == 1 and step >= {SLOW_FROM} else 0))
        return gradient

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.last(Pause.apply(self.first(x)))

model = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({STEPS}):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


def test_a_rank_that_is_slow_in_backward_alone_is_named(shm: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    analyzer = Analyzer(run_ranks(RANKS, script))
    wait_recorded(shm)
    found = analyzer.imbalance()
    first = found.row(0, named=True)
    assert (first["rank"], first["part"], first["kind"]) == (1, "backward", "compute"), found
    assert abs(first["since"] - SLOW_FROM) <= 1
    assert first["persistent"]
    assert first["in_part"] == pytest.approx(LATE_S * 1e9, rel=0.3)
    # All ranks leave backward together; those that were fast have waited in it.
    late = analyzer.phases().filter(
        pl.col("step").is_between(SLOW_FROM, STEPS - 2), pl.col("name") == "gradient_sync"
    )
    waited = dict(late.group_by("rank").agg(pl.col("duration").median()).rows())
    assert min(waited[0], waited[2]) > 0.7 * LATE_S * 1e9
    assert waited[1] < 0.5 * LATE_S * 1e9


def test_two_models_in_one_backward_pass_are_waited_for_once(shm: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    other = "\nother = torch.nn.parallel.DistributedDataParallel(Model())\noptimizer ="
    script.write_text(
        TRAIN.replace("\noptimizer =", other).replace(
            "model(torch.randn(4, 8))", "(model(torch.randn(4, 8)) + other(torch.randn(4, 8)))"
        )
    )
    spans = Analyzer(run_ranks(2, script)).spans(category="phase")
    wait_recorded(shm)
    waits = spans.filter(pl.col("name") == "gradient_sync").group_by("rank", "step").len()
    assert waits.height >= 2 * (STEPS - 1)
    assert waits["len"].unique().to_list() == [1]


def test_models_are_afterwards_as_they_were() -> None:
    out = run_python(
        """
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from haiprof.capture import hooks

    before = dict(vars(DDP))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    hooks.install()
    assert hooks.status()["gradient_sync"] == "on: DistributedDataParallel"
    model = DDP(torch.nn.Linear(2, 2))
    with model.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    model(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert any(p._post_accumulate_grad_hooks for p in model.parameters())
    hooks.uninstall()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert dict(vars(DDP)) == before
    """,
        warm=True,
    )
    assert out == ""


def test_what_torch_compile_makes_of_a_model_stays_as_it_is() -> None:
    out = run_python(
        """
    import torch, torch.distributed as dist
    from torch._dynamo.utils import counters
    from haiprof.capture import hooks

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def train(compiled_autograd):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        compiled = torch.compile(wrapped, backend="aot_eager")
        with torch._dynamo.config.patch(compiled_autograd=compiled_autograd):
            for number in range(3):
                compiled(torch.full((2, 8), float(number))).sum().backward()
        gradients = [each.grad.tolist() for each in model.parameters()]
        return gradients, sum(counters["graph_break"].values()), dict(counters["stats"])

    before = [train(compiled_autograd) for compiled_autograd in (False, True)]
    hooks.install()
    assert [train(compiled_autograd) for compiled_autograd in (False, True)] == before
    """,
        warm=True,
    )
    assert out == ""
