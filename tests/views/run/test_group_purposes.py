"""What groups are for: by the job's words, by any use of them, and of real ranks in gloo."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import runs
from hypothesis import given, settings
from hypothesis import strategies as st
from launched import run_ranks
from recording import wait_recorded
from runs import Row, collective, span

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.views.run.collectives import ROW_COLUMNS, by_rank
from haiprof.views.run.group_purposes import said, used_for
from haiprof.views.run.steps import COLUMNS

STEP_MS = 20.0
SIZES = st.lists(st.integers(1024, 1 << 20), min_size=1, max_size=5)


def phases(steps: int) -> pl.DataFrame:
    """Make steps of which forward takes the first half, backward the rest."""
    rows = []
    for n in range(steps):
        at = n * STEP_MS
        rows.append(span(at, STEP_MS, "step", "step", n))
        rows.append(span(at, STEP_MS / 2, "phase", "forward", n))
        rows.append(span(at + STEP_MS / 2, STEP_MS / 2, "phase", "backward", n))
    table = pl.from_arrow(runs.batch(schema.SPANS, rows))
    assert isinstance(table, pl.DataFrame)
    return table.select(COLUMNS)


class Job:
    """What one rank of a group of four asks for, in each of its steps."""

    def __init__(self, steps: int = 3) -> None:
        self.steps = steps
        self.rows: list[Row] = []

    def asks(self, at: float, elements: int, op: str = "all_reduce", **changes: object) -> Job:
        """Ask for something so long, ms, after the begin of each step."""
        sizes = {"elements_in": elements, "elements_out": elements} | changes
        for n in range(self.steps):
            row = collective(n * STEP_MS + at, 0.1, len(self.rows) + 1, op=op, group_size=4)
            self.rows.append({**row, "step": n, **sizes})
        return self

    def purpose(self, spans: pl.DataFrame | None = None) -> str | None:
        table = pl.from_arrow(runs.batch(schema.COLLECTIVES, self.rows))
        assert isinstance(table, pl.DataFrame)
        places = {"group": pl.String(), "place": pl.UInt32()}
        rows = by_rank(
            table.select(ROW_COLUMNS), pl.DataFrame({"group": ["0"], "place": [1]}, places)
        )
        found = used_for(rows, phases(self.steps) if spans is None else spans)
        return dict(found.rows()).get("0")


@given(SIZES, st.integers(0, 9))
def test_gradients_are_reduced_in_backward(buckets: list[int], loss: int) -> None:
    job = Job().asks(5, loss).asks(1, 0, "barrier")
    for number, size in enumerate(buckets):
        job.asks(11 + number, size, "reduce_scatter" if number % 2 else "all_reduce")
        job.asks(2 + number, size, "all_gather")
    assert job.purpose() == "data"


@given(SIZES, st.booleans())
def test_layers_that_are_split_reduce_in_forward_too(sizes: list[int], scattered: bool) -> None:
    job = Job()
    for number, size in enumerate(sizes):
        for at in (1, 11):
            job.asks(at + number, size, "reduce_scatter" if scattered else "all_reduce")
            if scattered:
                job.asks(at + number + 0.5, size, "all_gather")
    assert job.purpose() == "tensor"


def messages(gap: float, *, to: int = 2, of: int = 2) -> Job:
    """Make messages between a rank and its neighbour, in one direction and so much later back."""
    job = Job()
    for n in range(3):
        job.asks(1 + n, 5000, "send", peer=to, elements_out=0)
        job.asks(1 + n + gap, 5000, "recv", peer=of, elements_in=0)
    return job


@pytest.mark.parametrize(
    ("gap", "of", "purpose"),
    [(4.0, 2, "pipeline"), (0.05, 2, "other"), (4.0, 0, "other")],
    ids=["one after the other", "edges at once", "around a ring"],
)
def test_messages_of_a_pipeline_go_both_ways_but_not_at_once(
    gap: float, of: int, purpose: str
) -> None:
    assert messages(gap, of=of).purpose() == purpose


@pytest.mark.parametrize(("got", "purpose"), [(900, "expert"), (1000, "other")])
def test_what_is_exchanged_in_even_parts_may_be_heads_of_attention(got: int, purpose: str) -> None:
    exchange = Job().asks(3, 1000, "all_to_all", elements_out=got).asks(7, 5)
    assert exchange.purpose() == purpose


def test_what_is_of_several_purposes_or_of_none_is_other() -> None:
    assert messages(4.0).asks(12, 50_000).purpose() == "other"
    assert Job().asks(12, 50_000).asks(3, 5000).purpose() == "other"
    assert Job().asks(12, 1).purpose() == "other"  # a norm
    assert Job().asks(2, 5000, "broadcast").purpose() == "other"
    assert Job().asks(2, 0, "barrier").purpose() == "other"


def test_what_cannot_be_known_is_null() -> None:
    assert Job(steps=1).asks(12, 50_000).purpose() is None
    assert Job().asks(12, 50_000).purpose(phases(3).clear()) is None
    assert Job().asks(12, 50_000, step=None).purpose() is None


OPS = st.sampled_from(["all_reduce", "all_gather", "all_to_all", "send", "recv", "broadcast"])
ASKED = st.tuples(st.floats(0, 19), st.integers(0, 1 << 40), OPS, st.integers(0, 3))


@settings(deadline=None)
@given(st.lists(ASKED, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(
    asked: list[tuple[float, int, str, int]], random: object
) -> None:
    job = Job(2)
    for at, elements, op, peer in asked:
        job.asks(at, elements, op, peer=peer)
    purpose = job.purpose()
    assert purpose in ("data", "tensor", "pipeline", "expert", "other")
    random.shuffle(job.rows)  # type: ignore[attr-defined]
    assert job.purpose() == purpose


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
        ("mesh_dp", "data"),
        ("mesh_dp_shard", "data"),
        ("mesh_tp", "tensor"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"),
        ("CONTEXT_PARALLEL_GROUP", "other"),
        ("EXPERT_DATA_PARALLEL_GROUP", None),
        ("DATA_PARALLEL_GROUP_WITH_CP", None),
        ("MODEL_PARALLEL_GROUP", None),
        ("default_pg", None),
        ("undefined", None),
        ("dpkg", None),
        ("", None),
        (None, None),
    ],
)
def test_the_job_s_own_words(words: str | None, purpose: str | None) -> None:
    assert said(words) == purpose


JOB = """
import _haiprof_boot
_haiprof_boot.arm()
import json, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
named = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
stages, experts = dist.new_group(range(4)), dist.new_group(range(4))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
parallelize_module(model, mesh["inner"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
fully_shard(model, mesh=mesh["outer"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def stage(source, target):  # works on what it gets, and gives that to the next one
    buffer = torch.ones(500)
    if 0 <= source < 4:
        dist.recv(buffer, source, group=stages)
    buffer = (torch.ones(300, 300) @ torch.ones(300, 300)).mean() * buffer
    if 0 <= target < 4:
        dist.send(buffer, target, group=stages)

for step in range(6):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    stage(rank - 1, rank + 1)
    for _ in range(20):  # meanwhile the first stage has other microbatches
        torch.ones(300, 300) @ torch.ones(300, 300)
    stage(rank + 1, rank - 1)
    # From rank r to rank s go 1 + r tokens.
    sent, got = [rank + 1] * 4, [1, 2, 3, 4]
    dist.all_to_all_single(torch.empty(10), torch.ones(4 * rank + 4), got, sent, group=experts)
    for name in ("dp", "tp"):
        dist.all_reduce(torch.ones(1), group=named.get_group(name))
    dist.all_reduce(torch.ones(1))
    optimizer.step()
groups = {"outer": mesh, "inner": mesh, "dp": named, "tp": named}
groups = {name: of.get_group(name) for name, of in groups.items()}
groups |= {"stages": stages, "experts": experts, "norm": dist.group.WORLD}
mine = {name: group.group_name for name, group in groups.items()}
everybody = [None] * 4
dist.all_gather_object(everybody, mine)
if rank == 0:
    with open(f"{sys.argv[1]}/groups.json", "w") as file:
        json.dump({name: sorted({each[name] for each in everybody}) for name in mine}, file)
dist.destroy_process_group()
"""


@pytest.mark.jobs
def test_groups_of_real_ranks(shm: Path, tmp_path: Path) -> None:
    """A mesh of data by tensor parallel, stages, experts: without names, and a mesh with names."""
    script = tmp_path / "train.py"
    script.write_text(JOB)
    run = run_ranks(4, script, tmp_path)
    wait_recorded(shm)
    operations = Analyzer(run).collectives()
    names = json.loads((tmp_path / "groups.json").read_text())
    found = dict(operations.select("group", "purpose").unique().iter_rows())
    assert {what: {found[name] for name in groups} for what, groups in names.items()} == {
        "outer": {"data"},
        "inner": {"tensor"},
        "dp": {"data"},
        "tp": {"tensor"},
        "stages": {"pipeline"},
        "experts": {"expert"},
        "norm": {"other"},
    }
