"""Every collective and message of gloo ranks: as the program counts them, and as torch does.

torch's own oracle is its flight recorder, which knows each collective's group, number and sizes.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from launched import free_port, ranks, recorded, run_ranks, torchrun
from recording import run_python, wait_recorded

from haiprof.analyzer import Analyzer
from haiprof.show.live.job import Job

pytestmark = pytest.mark.jobs

RANKS = 4
JOB = """
import _haiprof_boot
_haiprof_boot.arm()
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
counted = []
sends = 0
send = dist.ProcessGroup.send

def counted_send(*arguments):
    global sends
    sends += 1
    return send(*arguments)

# A pipeline sends shapes, too, and torch's flight recorder knows no messages.
dist.ProcessGroup.send = counted_send

def did(op, elements_in, elements_out, group="0"):
    counted.append([op, elements_in, elements_out, group])

def each(elements):
    return [torch.ones(elements) for _ in range(size)]

for n in range(5):
    dist.all_reduce(torch.ones(100 + n))
    did("all_reduce", 100 + n, 100 + n)
dist.barrier()
did("barrier", None, None)
dist.broadcast(torch.ones(10), 1)
did("broadcast", 10, 10)
dist.reduce(torch.ones(12), 0)
did("reduce", 12, 12)
dist.all_gather(each(9), torch.ones(9))
did("all_gather", 9, 9 * size)
dist.all_gather_into_tensor(torch.empty(8 * size), torch.ones(8))
did("all_gather", 8, 8 * size)
dist.reduce_scatter_tensor(torch.empty(7), torch.ones(7 * size))
did("reduce_scatter", 7 * size, 7)
dist.gather(torch.ones(6), each(6) if rank == 0 else None)
did("gather", 6, 6 * size if rank == 0 else 0)
dist.scatter(torch.empty(5), each(5) if rank == 0 else None)
did("scatter", 5 * size if rank == 0 else 0, 5)
# To rank r go r + 1 elements.
sent = [r + 1 for r in range(size)]
dist.all_to_all_single(
    torch.empty(size * (rank + 1)), torch.ones(sum(sent)), [rank + 1] * size, sent
)
did("all_to_all", sum(sent), size * (rank + 1))
works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(4)]
for work in reversed(works):
    work.wait()
    did("all_reduce", 3, 3)
def reduced(ones):
    return functional.all_reduce(ones, "sum", dist.group.WORLD) + 1

reduced(torch.ones(11))
did("all_reduce", 11, 11)
compiled = torch.compile(reduced, backend="aot_eager", fullgraph=True)
for _ in range(2):
    compiled(torch.ones(13))
    did("all_reduce", 13, 13)
pair = dist.new_group([0, 1])
if rank < 2:
    dist.all_reduce(torch.ones(2), group=pair)
    did("all_reduce", 2, 2, "1")
    if rank == 0:
        dist.send(torch.ones(4), 1)
        did("send", 4, 0)
    else:
        dist.recv(torch.empty(4), 0)
        did("recv", 0, 4)
for job in dist.batch_isend_irecv([
    dist.P2POp(dist.isend, torch.ones(20), (rank + 1) % size),
    dist.P2POp(dist.irecv, torch.empty(20), (rank - 1) % size),
]):
    job.wait()
did("send", 20, 0)
did("recv", 0, 20)
for n in range(100):
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(n + 1), group=group)
        did("all_reduce", n + 1, n + 1, group.group_name)
        dist.destroy_process_group(group)
direct = len(counted)

def train(model, parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(3):
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

network = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 8))
ddp = torch.nn.parallel.DistributedDataParallel(network)
train(ddp, ddp.parameters())
sharded = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 8))
for layer in sharded:
    fully_shard(layer)
fully_shard(sharded)
train(sharded, sharded.parameters())
stage = PipelineStage(torch.nn.Linear(16, 16), rank, size, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=lambda found, wanted: (found - wanted).sum())
for _ in range(3):
    first = [torch.ones(4, 16)] if rank == 0 else []
    schedule.step(*first, target=torch.ones(4, 16) if rank == size - 1 else None)
known = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))["entries"]
# One that no rank can do: the error comes back from gloo's thread.
try:
    dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BXOR)
except RuntimeError:
    pass
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump({"counted": counted, "known": known, "sends": sends}, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analyzer, list[dict[str, Any]]]:
    """Return the recorded run, and what each rank has counted and torch knows of it."""
    folder = tmp_path_factory.mktemp("collectives")
    script = folder / "train.py"
    script.write_text(JOB)
    with tempfile.TemporaryDirectory(prefix="haiprof-test-", dir="/dev/shm") as rings:
        run = run_ranks(RANKS, script, folder, HAIPROF_SHM_DIR=rings)
        wait_recorded(Path(rings))
    said = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return Analyzer(run), said


def rows(run: Analyzer, rank: int) -> pl.DataFrame:
    return run.collectives(rank=rank).sort("start", maintain_order=True)


@pytest.mark.parametrize("rank", range(RANKS))
def test_every_direct_call_is_as_the_program_counted_it(
    job: tuple[Analyzer, list[dict[str, Any]]], rank: int
) -> None:
    run, said = job
    counted = [tuple(each) for each in said[rank]["counted"]]
    found = rows(run, rank).select("op", "elements_in", "elements_out", "group").rows()
    # Two messages that are asked for together: which comes first is c10d's choice.
    assert sorted(map(str, found[: len(counted)])) == sorted(map(str, counted))
    assert [r for r in found[: len(counted)] if r[0] not in ("send", "recv")] == [
        r for r in counted if r[0] not in ("send", "recv")
    ]


@pytest.mark.parametrize("rank", range(RANKS))
def test_every_collective_is_one_that_torch_s_flight_recorder_knows(
    job: tuple[Analyzer, list[dict[str, Any]]], rank: int
) -> None:
    run, said = job
    known = [
        (entry["process_group"][0], sum(math.prod(size) for size in entry["input_sizes"]))
        for entry in said[rank]["known"]
        if not entry["is_p2p"] and "barrier" not in entry["profiling_name"]
    ]
    found = rows(run, rank).filter(~pl.col("op").is_in(["send", "recv", "barrier"]))
    found = found.filter(~pl.col("failed"))
    assert len(known) > 20
    mine = found.select("group", pl.col("elements_in").fill_null(0)).rows()
    assert len(mine) == len(known)
    # Of a scatter torch names the inputs of the root alone, too.
    assert [group for group, _ in mine] == [group for group, _ in known]


def test_ranks_agree_on_every_number(job: tuple[Analyzer, list[dict[str, Any]]]) -> None:
    run, said = job
    found = run.collectives()
    assert found.filter(pl.col("op") != "message")["seen"].to_list() == [
        ranks for (ranks,) in found.filter(pl.col("op") != "message").select("ranks").rows()
    ]
    messages = found.filter(pl.col("op") == "message")
    links, microbatches, steps = RANKS - 1, 2, 3
    # Those by hand, and activations and gradients of the pipeline.
    assert messages.height > RANKS + 1 + 2 * links * microbatches * steps
    assert messages.height == sum(each["sends"] for each in said)
    assert messages["seen"].unique().to_list() == [2]
    assert found.filter("failed")["op"].to_list() == ["all_reduce"]
    # Nothing is done before it was asked for.
    assert (found["transfer"].drop_nulls() >= 0).all()
    assert found["end"].null_count() == 0


LATE = """
import _haiprof_boot
_haiprof_boot.arm()
import json, sys, time, torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
came = []
for n in range(60):
    late = n * 7 % size
    time.sleep(0.005)
    if n % 2 and rank == late:
        time.sleep(0.1)
    ones = torch.ones(1000)
    came.append(time.time_ns())
    dist.all_reduce(ones)
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(came, file)
dist.destroy_process_group()
"""


def test_the_late_rank_is_named_in_every_planted_delay(shm: Path, tmp_path: Path) -> None:
    """And in every other, as when a rank had no processor."""
    script = tmp_path / "train.py"
    script.write_text(LATE)
    folder = run_ranks(3, script, tmp_path, HAIPROF_STACK_HZ="100")
    wait_recorded(shm)
    run = Analyzer(folder)
    found = run.collectives().filter(pl.col("op") == "all_reduce")
    assert found.height == 60
    came = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    named = dict(found.select("sequence", "late_rank").rows())
    clear, wrong = 0, []
    for number, times in enumerate(zip(*came, strict=True), 1):
        *_, (second, _), (last, rank) = sorted(zip(times, range(3), strict=True))
        if last - second > 1_000_000:
            clear += 1
            wrong += [number] if named[number] != rank else []
    assert clear >= 20
    # A rank may lose its processor between the clock and the call.
    assert len(wrong) <= 2, wrong
    worst = run.waits().row(0, named=True)
    assert worst["operations"] > 5
    assert worst["longest"] > 75_000_000
    line = LATE.splitlines().index("        time.sleep(0.1)") + 1
    assert worst["line"] == f"<module> ({script}:{line})"
    watched = Job(folder, lambda: None)
    watched.look(float("inf"))
    shares = {late.rank: late.share or 0.0 for late in watched.late()}
    assert set(shares) == {0, 1, 2}
    assert 0.5 < sum(shares.values()) < 1  # 0.1 of every 0.11 s


RESTARTED = """
import _haiprof_boot
_haiprof_boot.arm()
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

torch.set_num_threads(1)
rank, attempt = (int(os.environ[n]) for n in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
# Of each attempt: after a restart gloo now and then takes a rank's old address from the store.
store = dist.FileStore(f"{os.getcwd()}/store-{attempt}", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
left = Path("left")
with open(f"{attempt}-{rank}.txt", "w", buffering=1) as file:
    for n in range(40 + 20 * attempt):
        elements = 100 * attempt + n + 1
        print("all_reduce", elements, "0", False, file=file)
        dist.all_reduce(torch.ones(elements))
    for n in range(3):
        group = dist.new_group([0, 1])
        print("all_reduce", n + 1, group.group_name, False, file=file)
        dist.all_reduce(torch.ones(n + 1), group=group)
        dist.destroy_process_group(group)
    if attempt == 0 and rank == 0:
        print("all_reduce", 7, "0", True, file=file)
        try:
            dist.all_reduce(torch.ones(7))
        except RuntimeError:
            left.touch()
        time.sleep(600)  # torchrun ends it
dist.destroy_process_group()
while attempt == 0 and not left.exists():
    time.sleep(0.05)
sys.exit(3 if attempt == 0 else 0)
"""


def test_every_call_before_and_after_torchrun_starts_the_ranks_again(
    shm: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RESTARTED)
    words = torchrun("--nproc-per-node=2", "--max-restarts=1", f"--master-port={free_port()}")
    done = subprocess.run(
        [*words, script], cwd=tmp_path, env=recorded(tmp_path / "logs", run="run"),
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wait_recorded(shm)
    run = Analyzer(tmp_path / "logs" / "run")
    found = rows(run, 0).vstack(rows(run, 1))
    attempts = ranks(tmp_path / "logs" / "run")
    assert [(each["rank"], each["attempt"]) for each in attempts] == [
        (0, 0), (0, 1), (1, 0), (1, 1),
    ]  # fmt: skip
    for each in attempts:
        mine = found.filter(pl.col("pid") == each["pid"])
        called = mine.select("op", "elements_in", "group", "failed").rows()
        counted = (tmp_path / f"{each['attempt']}-{each['rank']}.txt").read_text().splitlines()
        assert [" ".join(map(str, row)) for row in called] == counted
    # Matched with their own attempt: all but the one to which only one rank came.
    seen = run.collectives().filter(pl.col("seen") == 2).height
    assert seen == 40 + 60 + 2 * 3
    assert run.collectives().height == seen + 1


def test_torch_is_as_it_was_afterwards() -> None:
    program = """
        import os, torch, torch.distributed as dist
        from haiprof import _core
        from haiprof.capture import hooks
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        helper = dist.distributed_c10d._new_process_group_helper
        hooks.install()
        print(hooks.status()["collectives"])
        assert dist.distributed_c10d._new_process_group_helper is not helper
        hooks.uninstall()
        assert dist.distributed_c10d._new_process_group_helper is helper
        print(hooks.status()["collectives"])
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.all_reduce(torch.ones(3))
        hooks.install()  # in the middle of it
        dist.all_reduce(torch.ones(3))
        dist.barrier()
        hooks.uninstall()
        dist.all_reduce(torch.ones(3))
        dist.destroy_process_group()
    """
    assert run_python(program).splitlines() == ["on: gloo", "off: not installed"]


def test_an_unknown_torch_is_left_as_it_was() -> None:
    program = """
        import torch.distributed as dist
        from haiprof.capture import hooks
        helper = dist.distributed_c10d._new_process_group_helper
        del dist.distributed_c10d._world  # of another version
        said = []
        hooks.install(lambda kind, text: said.append(text))
        print(hooks.status()["collectives"])
        assert dist.distributed_c10d._new_process_group_helper is helper
        hooks.uninstall()
    """
    (line,) = run_python(program).splitlines()
    assert line.startswith("off: AttributeError")


def test_forks_while_backends_are_looked_for_do_not_hang() -> None:
    program = """
        import os, threading, torch.distributed
        from haiprof import _core
        ends = threading.Event()
        def again():
            while not ends.is_set():
                _core.watch_collectives()
                _core.leave_collectives()
        thread = threading.Thread(target=again, daemon=True)
        thread.start()
        for _ in range(30):
            child = os.fork()
            if child == 0:
                found = _core.watch_collectives()
                _core.leave_collectives()
                os._exit(0 if found == ["gloo"] else 3)
            assert os.waitpid(child, 0)[1] == 0
        ends.set()
        thread.join()
        print("done")
    """
    assert run_python(program).split() == ["done"]
