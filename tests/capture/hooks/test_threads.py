"""Loops in other threads, in forked children, in several ranks."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from phases import PHASES, assert_agreement, read_spans
from recording import python, read_table, run_python, wait_recorded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from haiprof import _core
from haiprof.capture import hooks


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


class Slow(nn.Module):
    """A module whose call lasts until it gets a signal to end."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.over = threading.Event(), threading.Event()

    def forward(self) -> None:
        self.entered.set()
        assert self.over.wait(10)


def test_a_module_call_that_outlives_the_backward_pass_is_no_recomputation(recorded: Any) -> None:
    slow = Slow()
    other = threading.Thread(target=slow)

    class Meanwhile(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            other.start()
            assert slow.entered.wait(10)
            return gradient

    model = nn.Linear(8, 1)
    Meanwhile.apply(model(torch.ones(1, 8))).sum().backward()
    slow.over.set()
    other.join()
    assert {row.name for row in recorded.spans()} == {"forward", "backward"}


def test_a_call_that_ends_while_the_hooks_are_off_hides_no_later_one(recorded: Any) -> None:
    slow, ended, attached = Slow(), threading.Event(), threading.Event()

    def work() -> None:
        slow()
        ended.set()
        assert attached.wait(10)
        train([(torch.ones(4, 8),)] * 6)

    worker = threading.Thread(target=work)
    worker.start()
    assert slow.entered.wait(10)
    hooks.uninstall()
    _core.phases_finish()
    slow.over.set()
    assert ended.wait(10)
    hooks.install(lambda kind, text: recorded.reports.append((kind, text)))
    attached.set()
    worker.join()
    assert recorded.counts(3) == {"forward": 1, "backward": 1, "optimizer": 1}


FORK = """
    import os, sys
    import haiprof, torch
    from haiprof import _core
    from torch import nn
    from torch.utils.data import DataLoader

    def train(batches):
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for x in DataLoader(torch.ones(batches, 8)):
            model(x).sum().backward()
            optimizer.step()

    torch.set_num_threads(1)
    haiprof.start(sys.argv[1], run="forked")
    train(6)
    assert _core.current_step() == 5
    pid = os.fork()
    if pid == 0:
        begun = _core.current_step()
        train(3)
        haiprof.stop()
        os._exit(0 if begun is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    train(4)
    haiprof.stop()
"""


def test_a_forked_child_begins_anew(shm: Path, tmp_path: Path) -> None:
    run_python(FORK, str(tmp_path), warm=True)
    wait_recorded(shm)
    numbers = []
    for folder in {file.parent for file in (tmp_path / "forked").glob("*/spans-*.arrow")}:
        spans = read_table(folder, "spans").to_pylist()
        numbers.append(sorted(row["step"] for row in spans if row["name"] == "step"))
    assert sorted(numbers, key=len) == [list(range(3)), list(range(10))]


DDP = """
    import contextlib, json, os, sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    from haiprof import _core
    from haiprof.capture import hooks

    rank, rings = int(sys.argv[1]), sys.argv[2]
    sys.path.append(sys.argv[3])
    from phases import HandTimes
    hooks.install(lambda kind, text: print(text))
    _core.open_ring(f"{rings}/{rank}.ring", rank=rank)
    dist.init_process_group("gloo", f"file://{rings}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(2 * 12 * 512, 512))
    loader = DataLoader(data, batch_size=512, sampler=DistributedSampler(data))
    times = HandTimes()
    for epoch in range(2):
        for n, (x,) in enumerate(times.batches(loader)):
            with contextlib.nullcontext() if n % 2 else model.no_sync():
                with times.phase("forward"):
                    loss = model(x).sum()
                with times.phase("backward"):
                    loss.backward()
            if n % 2:
                with times.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
    dist.destroy_process_group()
    _core.phases_finish()
    _core.close_ring()
    print(json.dumps(times.merged(2).steps))
    # Not through the interpreter's end: a thread of gloo that still holds a tensor then asks for
    # the GIL in a destructor and ends in std::terminate, now and then (pytorch #179291).
    sys.stdout.flush()
    os._exit(0)
"""


def test_distributed_data_parallel(shm: Path) -> None:
    tests = str(Path(__file__).parents[2])
    ranks = [python(DDP, str(rank), str(shm), tests, warm=True) for rank in range(2)]
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        by_hand = json.loads(out)  # and nothing else: no hook had anything to report
        spans = read_spans(shm / f"{rank}.ring")
        steps = [row for row in spans if row.name == "step"]
        assert len(steps) == 12
        assert [r.name for r in spans if r.step == 4 and r.name != "step"] == [
            "dataloader", "forward", "backward", "dataloader", "forward", "backward",
            "gradient_sync", "optimizer", "optimizer",  # zero_grad() last
        ]  # fmt: skip
        sums: list[dict[str, int]] = [defaultdict(int) for _ in steps]
        for row in spans:
            if row.name != "step" and row.step is not None:
                sums[row.step][row.name] += row.duration
        assert_agreement(by_hand[2:], sums[2:], PHASES[:4])
