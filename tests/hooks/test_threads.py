"""Loops in other threads, in forked children, in several ranks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from phases import read_spans
from recording import run_python
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from haiprof import _core


def loader(batches: int = 6) -> Any:
    return DataLoader(TensorDataset(torch.randn(batches * 4, 8)), batch_size=4)


def train(batches: Any) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for (x,) in batches:
        model(x).sum().backward()
        optimizer.step()


def in_thread(target: Callable[[], None]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


def test_a_thread_that_trains_has_the_steps(recorded: Any) -> None:
    in_thread(lambda: train(loader()))
    assert len(recorded.steps()) == 6


def test_the_next_thread_goes_on_where_the_last_one_ended(recorded: Any) -> None:
    for _ in range(3):
        in_thread(lambda: train(loader()))
    assert [row.step for row in recorded.steps()] == list(range(18))


def test_a_thread_that_only_fetches_does_not_take_the_steps(recorded: Any) -> None:
    fetched: list[Any] = []
    in_thread(lambda: fetched.extend(loader()))
    blocked = threading.Event()
    helper = threading.Thread(target=lambda: (list(loader()), blocked.wait()))
    helper.start()
    train(fetched)
    blocked.set()
    helper.join()
    assert len(recorded.steps()) == 6


def test_modules_called_by_other_threads_do_not_count(recorded: Any) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for (x,) in loader():
        model(x).sum().backward()
        in_thread(lambda x=x: model(x))
        optimizer.step()
    assert recorded.counts(3) == {"dataloader": 1, "forward": 1, "backward": 1, "optimizer": 1}


class Recomputing(torch.autograd.Function):
    """Calls a module in a thread of its own during backward, as the engine's GPU threads do."""

    @staticmethod
    def forward(context: Any, x: Any, model: Any) -> Any:
        context.model = model
        return x * 1

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        in_thread(lambda: context.model(torch.ones(1, 8)))
        return gradient, None


def test_modules_called_by_the_engines_threads_are_recomputation(recorded: Any) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for (x,) in loader():
        Recomputing.apply(model(x), model).sum().backward()
        optimizer.step()
    spans = recorded.spans()
    inside = [row for row in spans if row.name == "recompute"]
    assert [row.step for row in inside] == list(range(6))
    for row in inside:
        around = next(b for b in spans if b.name == "backward" and b.step == row.step)
        assert around.start <= row.start
        assert row.end <= around.end


def test_a_forked_child_begins_anew(recorded: Any) -> None:
    train(loader())
    pid = os.fork()
    if pid == 0:
        _core.phases_reset()
        os._exit(0 if _core.current_step() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    train(loader())
    assert len(recorded.steps()) == 12


DDP = """
    import os
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    from haiprof import _core, hooks

    rank, rings = int(sys.argv[1]), sys.argv[2]
    hooks.install(lambda kind, text: print(text))
    _core.open_ring(f"{rings}/{rank}.ring", rank=rank)
    dist.init_process_group("gloo", f"file://{rings}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters())
    data = TensorDataset(torch.randn(96, 16))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    for epoch in range(2):
        for n, (x,) in enumerate(loader):
            if n % 2 == 0:
                with model.no_sync():
                    model(x).sum().backward()
            else:
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()
    _core.phases_finish()
    _core.close_ring()
    # Not through the interpreter's end: a thread of gloo that still holds a tensor then asks for
    # the GIL in a destructor and ends in std::terminate, now and then (pytorch #179291).
    sys.stdout.flush()
    os._exit(0)
"""


def test_distributed_data_parallel(shm: Path) -> None:
    outcomes: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda rank=rank: outcomes.append(run_python(DDP, str(rank), str(shm)))
        )
        for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == ["", ""]
    for rank in range(2):
        spans = read_spans(shm / f"{rank}.ring")
        steps = [row for row in spans if row.name == "step"]
        assert len(steps) == 12
        assert [r.name for r in spans if r.step == 4 and r.name != "step"] == [
            "dataloader", "forward", "backward", "dataloader", "forward", "backward", "optimizer",
        ]  # fmt: skip
