"""Real torch loops: the steps and phases that the hooks find, against timers written by hand."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from phases import assert_agreement
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from haiprof import _core

BATCHES = 12
BATCH = 128
#: Wide enough for phases of about a ms and more.
WIDTH = 512


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loader(batches: int = BATCHES, workers: int = 0, size: int = BATCH) -> Any:
    data = TensorDataset(torch.randn(batches * size, WIDTH), torch.randn(batches * size, 1))
    return DataLoader(data, batch_size=size, num_workers=workers)


def network() -> Any:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
    )


def squared(a: Any, b: Any) -> Any:
    return ((a - b) ** 2).mean()


def train(model: Any, optimizer: Any, times: Any, batches: Any, every: int = 1) -> None:
    for n, (x, y) in enumerate(times.batches(batches)):
        with times.phase("forward"):
            loss = squared(model(x), y)
        with times.phase("backward"):
            loss.backward()
        if (n + 1) % every == 0:
            with times.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()


def test_plain_loop_over_two_epochs(
    recorded: Any, by_hand: Any, agree: Callable[..., None]
) -> None:
    model, batches = network(), loader()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        train(model, optimizer, by_hand, batches)
    agree(by_hand)


def test_gradients_zeroed_between_loss_and_backward_are_the_optimizers(
    recorded: Any, by_hand: Any, agree: Callable[..., None]
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in by_hand.batches(loader()):
        with by_hand.phase("forward"):
            loss = squared(model(x), y)
        with by_hand.phase("optimizer"):
            optimizer.zero_grad(set_to_none=False)
        with by_hand.phase("backward"):
            loss.backward()
        with by_hand.phase("optimizer"):
            optimizer.step()
    agree(by_hand)
    assert recorded.counts(2) == {"dataloader": 1, "forward": 2, "backward": 1, "optimizer": 2}


def test_each_step_begins_where_the_one_before_ends(recorded: Any, by_hand: Any) -> None:
    model = network()
    train(model, torch.optim.SGD(model.parameters()), by_hand, loader())
    steps = recorded.steps()
    assert [step.step for step in steps] == list(range(BATCHES))
    assert all(abs(a.end - b.start) <= 2 for a, b in itertools.pairwise(steps))


def test_accumulation_over_four_batches(
    recorded: Any, by_hand: Any, agree: Callable[..., None]
) -> None:
    model, batches = network(), loader(32, size=4 * BATCH)
    train(model, torch.optim.AdamW(model.parameters()), by_hand, batches, every=4)
    assert len(recorded.steps()) == 8
    agree(by_hand.merged(4))


def test_loaders_of_other_data_each_left_early(
    recorded: Any, by_hand: Any, agree: Callable[..., None]
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        batches = iter(loader(BATCHES))
        train(model, optimizer, by_hand, itertools.islice(batches, BATCHES // 2))
        del batches
    assert len(recorded.steps()) == 3 * (BATCHES // 2)
    agree(by_hand)


def test_two_loaders_made_anew_for_each_batch(recorded: Any) -> None:
    model, one, other = network(), loader(2), loader(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(BATCHES):
        (x, y), (further, _) = next(iter(one)), next(iter(other))
        squared(model(x + further), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(recorded.steps()) == BATCHES


def test_compiled_model(recorded: Any, by_hand: Any, agree: Callable[..., None]) -> None:
    torch._dynamo.reset()
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    train(compiled, torch.optim.AdamW(model.parameters()), by_hand, loader())
    agree(by_hand)
    torch._dynamo.reset()


def test_two_optimizers_of_a_gan(recorded: Any, by_hand: Any, agree: Callable[..., None]) -> None:
    maker, critic = (
        nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)),
        network(),
    )
    makers = torch.optim.Adam(maker.parameters())
    critics = torch.optim.Adam(critic.parameters())
    for x, _ in by_hand.batches(loader()):
        with by_hand.phase("forward"):
            fake = maker(torch.randn(BATCH, 16))
            loss = critic(fake.detach()).mean() - critic(x).mean()
        with by_hand.phase("backward"):
            loss.backward()
        with by_hand.phase("optimizer"):
            critics.step()
            critics.zero_grad()
        with by_hand.phase("forward"):
            loss = -critic(fake).mean()
        with by_hand.phase("backward"):
            loss.backward()
        with by_hand.phase("optimizer"):
            makers.step()
            makers.zero_grad()
    agree(by_hand)


def test_evaluation_after_each_epoch(
    recorded: Any, by_hand: Any, agree: Callable[..., None]
) -> None:
    model, batches, held_out = network(), loader(4), loader(3)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        train(model, optimizer, by_hand, batches)
        for x, _ in by_hand.batches(held_out, "eval_dataloader"):
            with torch.no_grad(), by_hand.phase("eval"):
                model(x)
    agree(by_hand)
    found = recorded.sums()
    for phase in ("eval", "eval_dataloader"):
        # Other programs may have the processor in between, but hardly in most epochs.
        ours = [found[last][phase] for last in (3, 7, 11)]
        off = [x - by_hand.steps[last][phase] for x, last in zip(ours, (3, 7, 11), strict=True)]
        assert statistics.median(map(abs, off)) <= max(0.01 * statistics.median(ours), 1_500_000)
    assert {n for n, phases in found.items() if "eval" in phases} == {3, 7, 11}


def test_training_data_evaluated_without_gradients_makes_no_step(
    recorded: Any, by_hand: Any
) -> None:
    model, batches = network(), loader(4)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        train(model, optimizer, by_hand, batches)
        with torch.no_grad():
            for x, _ in batches:
                model(x)
    assert len(recorded.steps()) == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_workers(
    recorded: Any, by_hand: Any, agree: Callable[..., None], workers: int
) -> None:
    model, batches = network(), loader(6, workers)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        train(model, optimizer, by_hand, batches)
    agree(by_hand)
    # Starting the workers is loading, too, and belongs to the first step of the epoch.
    firsts, found = (0, 6, 12, 18, 24), recorded.sums()
    ours = [found[first]["dataloader"] for first in firsts]
    # Other programs may have the processor in between, but hardly in most epochs.
    off = [x - by_hand.steps[n]["dataloader"] for x, n in zip(ours, firsts, strict=True)]
    assert statistics.median(map(abs, off)) <= max(0.02 * statistics.median(ours), 1_000_000)


class Squares(Dataset):
    """A data set that uses a module of its own, as torchvision's transforms are."""

    def __init__(self) -> None:
        self.transform = nn.Linear(8, WIDTH)

    def __len__(self) -> int:
        return 4 * 8

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.ones(8)).detach(), torch.zeros(1)


def test_modules_of_the_data_set_are_loading(recorded: Any, by_hand: Any) -> None:
    model = network()
    train(model, torch.optim.SGD(model.parameters()), by_hand, DataLoader(Squares(), batch_size=8))
    assert len(recorded.steps()) == 4
    # zero_grad() is the optimizer's, too.
    assert recorded.counts(2) == {"dataloader": 1, "forward": 1, "backward": 1, "optimizer": 2}


def test_scaler_that_skips_a_step(recorded: Any, by_hand: Any, agree: Callable[..., None]) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for n, (x, y) in enumerate(by_hand.batches(loader())):
        with by_hand.phase("forward"), torch.autocast("cpu", dtype=torch.bfloat16):
            loss = squared(model(x), y) * (float("inf") if n == 5 else 1.0)
        with by_hand.phase("backward"):
            scaler.scale(loss).backward()
        with by_hand.phase("optimizer"):
            scaler.step(optimizer)
        scaler.update()
        with by_hand.phase("optimizer"):
            optimizer.zero_grad()
    assert scaler.get_scale() < 2.0
    agree(by_hand)
    assert recorded.events("skipped_update") == [{"skipped": 1, "updates": 5}]


def test_a_scaler_that_skips_everything_does_not_flood_the_events(recorded: Any) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    for n in range(1001):
        loss = squared(model(torch.ones(1, 8)), torch.zeros(1, 1))
        scaler.scale(loss * (float("inf") if n else 1e-9)).backward()
        scaler.step(optimizer)
        scaler.update(2.0)
        optimizer.zero_grad()
    counts = [event["skipped"] for event in recorded.events("skipped_update")]
    assert counts[:100] == list(range(1, 101))
    assert 950 < counts[-1] <= 1000
    assert len(counts) < 160


def test_a_scaler_of_an_optimizer_that_cannot_be_seen_skips_nothing(recorded: Any) -> None:
    class Unseen:
        def __init__(self, inner: Any) -> None:
            self.param_groups, self._inner = inner.param_groups, inner

        def step(self) -> None:
            with torch.no_grad():
                for group in self.param_groups:
                    for one in group["params"]:
                        one -= 0.1 * one.grad

    model = nn.Linear(8, 1)
    optimizer: Any = Unseen(torch.optim.SGD(model.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for _ in range(3):
        scaler.scale(squared(model(torch.ones(1, 8)), torch.zeros(1, 1))).backward()
        scaler.step(optimizer)
        scaler.update()
    assert recorded.events("skipped_update") == []


def test_lbfgs_closure(recorded: Any, by_hand: Any, agree: Callable[..., None]) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for x, y in by_hand.batches(loader()):

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            with by_hand.phase("forward"):
                loss = squared(model(x), y)
            with by_hand.phase("backward"):
                loss.backward()
            return loss

        with by_hand.phase("optimizer"):
            optimizer.step(closure)
    for step in by_hand.steps:
        step["optimizer"] -= step["forward"] + step["backward"]
    # zero_grad() in the closure is the optimizer's time, as it is by hand.
    agree(by_hand, phases=("dataloader", "optimizer"))
    assert recorded.counts(3)["backward"] >= 2


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(WIDTH, WIDTH), network(), nn.Linear(1, 1)
        self.reentrant = reentrant

    def forward(self, x: Any) -> Any:
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(
    recorded: Any, by_hand: Any, agree: Callable[..., None], reentrant: bool
) -> None:
    model = Checkpointed(reentrant)
    train(model, torch.optim.AdamW(model.parameters()), by_hand, loader())
    agree(by_hand)
    found = recorded.sums()[6]
    assert 0 < found["recompute"] < found["backward"]


def test_optimizer_inside_backward(recorded: Any, by_hand: Any) -> None:
    model = network()
    optimizers = {p: torch.optim.SGD([p], lr=1e-3) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    for x, y in by_hand.batches(loader()):
        squared(model(x), y).backward()
    assert len(recorded.steps()) == BATCHES
    assert recorded.counts(5) == {"dataloader": 1, "forward": 1, "backward": 1}


def test_batch_fetched_ahead(recorded: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters())

    def ahead(batches: Any) -> Any:
        iterator = iter(batches)
        batch = next(iterator)
        for following in iterator:
            yield batch
            batch = following
        yield batch

    for _ in range(2):
        for x, y in ahead(loader(5)):
            squared(model(x), y).backward()
            optimizer.step()
    assert len(recorded.steps()) == 10


class Moody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Any, fail: bool) -> Any:
        y = self.inner(x)
        if fail:
            raise ArithmeticError("not today")
        return y


def test_forward_that_raises_is_survived(recorded: Any, by_hand: Any) -> None:
    model = Moody()
    optimizer = torch.optim.SGD(model.parameters())
    for n, (x, y) in enumerate(by_hand.batches(loader())):
        try:
            with by_hand.phase("forward"):
                loss = squared(model(x, n in (3, 4)), y)
        except ArithmeticError:
            continue
        loss.backward()
        optimizer.step()
    # The two batches that came to nothing have no update of their own.
    assert len(recorded.steps()) == BATCHES - 2
    assert recorded.counts(8) == {"dataloader": 1, "forward": 1, "backward": 1, "optimizer": 1}


def test_forces_inside_a_module(recorded: Any, by_hand: Any) -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = network()

        def forward(self, x: Any) -> Any:
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]

    model = Forces()
    optimizer = torch.optim.SGD(model.parameters())
    for x, _ in by_hand.batches(loader()):
        model(x).square().mean().backward()
        optimizer.step()
    assert len(recorded.steps()) == BATCHES
    assert recorded.counts(4) == {"dataloader": 1, "forward": 2, "backward": 2, "optimizer": 1}


def test_no_loader(recorded: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(6):
        squared(model(torch.randn(4, WIDTH)), 0).backward()
        optimizer.step()
    assert len(recorded.steps()) == 6


def test_users_own_steps_without_loader_and_optimizer(recorded: Any) -> None:
    weight = torch.randn(64, 64)
    for _ in range(5):
        weight = weight @ weight
        _core.step_mark()
    names = {row.name for row in recorded.spans()}
    assert names == {"step"}
    assert len(recorded.steps()) == 4


def test_users_own_steps_and_ranges(recorded: Any, by_hand: Any) -> None:
    weight = torch.randn(WIDTH, WIDTH)
    work = _core.Span("work")
    begin = time.perf_counter_ns()
    _core.step_mark()
    for _ in range(BATCHES):
        by_hand.step()
        with by_hand.phase("work"), work:
            weight = torch.tanh(weight @ weight)
        now = time.perf_counter_ns()
        _core.step_mark()
        by_hand.steps[-1]["step"] = now - begin
        begin = now
    found = [phases for step, phases in sorted(recorded.sums().items())]
    assert_agreement(by_hand.steps, found, ("step", "work"))


def test_users_own_steps_win_over_the_loader(recorded: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    for n, (x, y) in enumerate(loader(12)):
        squared(model(x), y).backward()
        optimizer.step()
        if n % 3 == 2:
            _core.step_mark()
    # Until the user's first boundary each batch was a step.
    assert len(recorded.steps()) == 3 + 3
    assert recorded.counts(4) == {"dataloader": 3, "forward": 3, "backward": 3, "optimizer": 3}


def test_the_step_number_is_visible_while_it_lasts(recorded: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    seen = []
    assert _core.current_step() is None
    for x, y in loader(4):
        loss = squared(model(x), y)
        seen.append(_core.current_step())
        loss.backward()
        optimizer.step()
    assert seen == [0, 1, 2, 3]
    recorded.spans()
    assert _core.current_step() is None
