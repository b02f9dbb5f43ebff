"""Real torch loops that evaluate or roll out before they train: what is a step, and of which kind.

The machine of src/phase/inference.cpp, through the hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from phases import Row
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRAINED = 30
#: The machine calls it inference at the 50th call without a backward pass.
BEFORE_INFERENCE = 49
CONTEXTS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "with gradients": nullcontext,
}
WHOLE = {"dataloader": 1, "forward": 2, "backward": 1, "optimizer": 2}

Context = Callable[[], AbstractContextManager[Any]]


@pytest.fixture(params=CONTEXTS.values(), ids=CONTEXTS.keys())
def context(request: pytest.FixtureRequest) -> Context:
    found: Context = request.param
    return found


def loader(batches: int) -> Any:
    data = TensorDataset(torch.randn(batches * 2, 8), torch.randn(batches * 2, 1))
    return DataLoader(data, batch_size=2)


def network() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def descent(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def update(optimizer: Any, loss: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(model: Any, optimizer: Any, batches: Any) -> None:
    for x, y in batches:
        update(optimizer, (model(x) - y).square().mean())


def evaluate(model: Any, batches: Any, context: Context) -> None:
    for x, _ in batches:
        with context():
            model(x)


def inferences(recorded: Any) -> list[Row]:
    return [row for row in recorded.spans() if row.name == "inference_step"]


def assert_trained(recorded: Any, steps: int = TRAINED) -> None:
    found = recorded.steps()
    assert [step.step for step in found] == list(range(steps))
    last = max((row.end for row in inferences(recorded)), default=0)
    assert last <= found[0].start + 1_000  # ns: each is rounded on its own


@pytest.mark.parametrize("before", [50, 200])
def test_an_evaluation_before_training_makes_no_training_steps(
    recorded: Any, context: Context, before: int
) -> None:
    model = network()
    evaluate(model, loader(before), context)
    train(model, descent(model), loader(TRAINED))
    assert_trained(recorded)
    assert len(inferences(recorded)) == before - BEFORE_INFERENCE
    for step in range(1, TRAINED - 1):  # starting and ending the loader are fetches, too
        assert recorded.counts(step) == WHOLE
    assert recorded.counts(0)["backward"] == 1


def test_an_evaluation_without_a_loader_before_training(recorded: Any, context: Context) -> None:
    model = network()
    with context():
        for _ in range(60):
            model(torch.randn(2, 8))
    optimizer = descent(model)
    for _ in range(TRAINED):
        update(optimizer, model(torch.randn(2, 8)).mean())
    assert_trained(recorded)
    assert recorded.counts(1) == {"forward": 2, "backward": 1, "optimizer": 2}
    # With gradients every call is in doubt, the last before the training as well.
    assert len(inferences(recorded)) == 60 - BEFORE_INFERENCE


def test_rollouts_before_each_round_of_updates(recorded: Any) -> None:
    policy = network()
    optimizer = descent(policy)
    for _ in range(4):
        with torch.no_grad():
            for _ in range(64):
                policy(torch.randn(1, 8))
        for _ in range(5):
            update(optimizer, policy(torch.randn(16, 8)).mean())
    assert_trained(recorded, 20)
    assert len(inferences(recorded)) == 64 - BEFORE_INFERENCE
    assert recorded.counts(4)["eval"] == 64


def test_a_target_network_between_forward_and_backward(recorded: Any) -> None:
    policy, target = network(), network()
    optimizer = descent(policy)
    for n in range(100):
        with torch.no_grad():
            policy(torch.randn(1, 8))
        if n >= 60:
            value = policy(torch.randn(16, 8))
            with torch.no_grad():
                wanted = target(torch.randn(16, 8))
            update(optimizer, (value - wanted).square().mean())
    assert_trained(recorded, 40)


def test_a_gan_after_an_evaluation(recorded: Any) -> None:
    maker, critic = network(), nn.Linear(1, 1)
    makers, critics = descent(maker), descent(critic)
    evaluate(maker, loader(60), torch.no_grad)
    for x, y in loader(TRAINED):
        fake = maker(x)
        update(critics, critic(fake.detach()).mean() - critic(y).mean())
        update(makers, -critic(fake).mean())
    assert_trained(recorded)
    assert recorded.counts(5)["backward"] == 2


def test_accumulation_after_an_evaluation(recorded: Any, context: Context) -> None:
    model = network()
    optimizer = descent(model)
    evaluate(model, loader(60), context)
    for n, (x, y) in enumerate(loader(4 * 6)):
        (model(x) - y).square().mean().backward()
        if n % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    assert_trained(recorded, 6)


def test_closures_after_an_evaluation(recorded: Any) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    evaluate(model, loader(60), torch.no_grad)
    for x, y in loader(6):

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert_trained(recorded, 6)


@pytest.mark.parametrize("as_evaluation", [False, True], ids=["train()", "eval()"])
def test_an_evaluation_in_the_middle_of_training_is_no_step(
    recorded: Any, context: Context, as_evaluation: bool
) -> None:
    model, held_out = network(), loader(60)
    optimizer = descent(model)
    for n, (x, y) in enumerate(loader(TRAINED)):
        update(optimizer, (model(x) - y).square().mean())
        if n % 10 == 9:
            model.train(not as_evaluation)
            evaluate(model, held_out, context)
            model.train()
    assert_trained(recorded)
    assert inferences(recorded) == []


def test_inference_only(recorded: Any, context: Context) -> None:
    model = network()
    evaluate(model, loader(80), context)
    assert recorded.steps() == []
    found = inferences(recorded)
    assert len(found) == 80 - BEFORE_INFERENCE
    last = found[-2].step
    assert last is not None
    assert recorded.counts(last) == {"dataloader": 1, "forward": 1}


def test_gradients_zeroed_before_backward_are_the_optimizers(recorded: Any) -> None:
    model = network()
    train(model, descent(model), loader(4))
    spans = [row for row in recorded.spans() if row.step == 2 and row.name != "step"]
    names = [row.name for row in spans]
    assert names == ["dataloader", "forward", "optimizer", "forward", "backward", "optimizer"]
