"""torch.compile with and without hooks: the same graphs, the same breaks, no recompilation."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recording import run_python
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from haiprof.capture import hooks

WAYS = ("wrapped model", "model.compile()", "compiled function")

#: Prints, for each way to compile and each model, what Dynamo counted.
COUNTING = """
    import json, sys, torch
    import torch._dynamo as dynamo
    from torch import nn
    from torch._dynamo.utils import counters
    from haiprof.capture import hooks

    hooked, when = sys.argv[1] == "hooks", sys.argv[2]

    def attach():
        if hooked:
            hooks.install(lambda kind, text: print(text, file=sys.stderr))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
        def forward(self, x):
            return self.linear(x).relu()

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Block(), Block()
            self.second.register_forward_hook(lambda module, args, result: result * 1)
        def forward(self, x):
            return self.second(self.first(x)).sum()

    class Broken(Plain):
        def forward(self, x):
            y = self.first(x)
            dynamo.graph_break()
            return self.second(y).sum()

    class OwnCall(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Plain()
        def __call__(self, x):
            return super().__call__(x) * 2
        def forward(self, x):
            return self.inner(x)

    def compiled(way, model):
        whole = type(model) is Plain
        if way == "wrapped model":
            return torch.compile(model, backend="eager", fullgraph=whole)
        if way == "model.compile()":
            model.compile(backend="eager", fullgraph=whole)
            return model
        criterion = nn.MSELoss()
        @torch.compile(backend="eager", fullgraph=whole)
        def function(x):
            return criterion(model(x), torch.zeros(()))
        return function

    if when == "before":
        attach()
    counted = []
    for way in ("wrapped model", "model.compile()", "compiled function"):
        for kind in (Plain, Broken) if when == "between" else (Plain, Broken, OwnCall):
            dynamo.reset()
            counters.clear()
            torch.manual_seed(0)
            model = kind()
            function = compiled(way, model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for n in range(6):
                if n == 2 and when == "between":
                    attach()
                function(torch.randn(4, 8)).backward()
                optimizer.step()
                if n == 4 and when == "between":
                    hooks.uninstall()
            counted.append({k: dict(v) for k, v in counters.items() if v})
    dynamo.reset()
    counters.clear()
    parameter = nn.Parameter(torch.randn(3))
    parameter.grad = torch.ones(3)
    optimizer = torch.optim.Adam([parameter])
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for n in range(4):
        step()
    counted.append({k: dict(v) for k, v in counters.items() if v})
    print(json.dumps(counted))
"""


@pytest.mark.parametrize("when", ["before", "between"])
def test_dynamo_counts_the_same(when: str) -> None:
    plain = json.loads(run_python(COUNTING, "plain", when, warm=True))
    hooked = json.loads(run_python(COUNTING, "hooks", when, warm=True))
    assert any("graph_break" in counts for counts in plain)
    assert hooked == plain


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu())


def train(way: str, backend: str, batches: int = 8) -> None:
    """Train with the loss in the compiled function, or outside of it."""
    torch._dynamo.reset()
    data = TensorDataset(torch.randn(batches * 8, 16), torch.randn(batches * 8, 1))
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if way == "wrapped model":
        forward = torch.compile(model, backend=backend, fullgraph=True)
    elif way == "model.compile()":
        model.compile(backend=backend, fullgraph=True)
        forward = model
    else:
        forward = torch.compile(lambda x: model(x), backend=backend, fullgraph=True)
    for x, y in DataLoader(data, batch_size=8):
        ((forward(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_steps_and_phases_of_compiled_code(recorded: Any, way: str, backend: str) -> None:
    train(way, backend)
    assert len(recorded.steps()) == 8
    # The first step compiles, which may take a gradient of its own.
    for step in range(1, 8):
        assert recorded.counts(step) == {
            "dataloader": 2 if step == 7 else 1,  # and the loader's end
            "forward": 1,
            "backward": 1,
            "optimizer": 2,  # zero_grad() is its work, too
        }


@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler on the CPU")
def test_inductor(recorded: Any) -> None:
    train("wrapped model", "inductor", batches=4)
    assert len(recorded.steps()) == 4


@pytest.mark.parametrize(
    "compiled",
    [
        nn.Linear(4, 4),
        pytest.param(
            torch.sin,
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="not seen: docs/phases.md"),
        ),
    ],
)
def test_forward_compiled_before_the_hooks_came(recorded: Any, compiled: Any) -> None:
    hooks.uninstall()
    torch._dynamo.reset()
    function = torch.compile(compiled, backend="eager")
    function(torch.ones(1, 4))
    hooks.install(lambda kind, text: recorded.reports.append((kind, text)))
    function(torch.ones(1, 4))
    assert [row.name for row in recorded.spans()] == ["forward"]


@functools.cache
def scaled() -> Callable[[Any], Any]:
    """Not compiled while tests are collected: that imports a second of torch."""
    return torch.compile(lambda x: x * 0.01, backend="eager")


class Muon(torch.optim.Optimizer):
    """Its update is compiled, as Muon's is."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter -= scaled()(parameter.grad)


class CompiledBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x * 0.01

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return scaled()(gradient)


def test_compiled_parts_of_optimizer_and_backward_belong_to_them(recorded: Any) -> None:
    torch._dynamo.reset()
    model = nn.Linear(4, 1)
    optimizer = Muon(model.parameters())
    for x in DataLoader(torch.ones(6, 4)):
        CompiledBackward.apply(model(x)).sum().backward()
        optimizer.step()
    assert len(recorded.steps()) == 6
    assert recorded.counts(3) == {"dataloader": 1, "forward": 1, "backward": 1, "optimizer": 1}


def test_compile_wrapper_is_awaited_not_imported() -> None:
    program = """
        import sys, torch
        from haiprof.capture import hooks
        hooks.install()
        print("torch._dynamo.eval_frame" in sys.modules, hooks.status()["compiled"])
    """
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import torch, sys; print('torch._dynamo.eval_frame' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    there_anyway = done.stdout.strip() == "True"
    out = run_python(program).strip()
    if not there_anyway:
        assert out == "False waiting: torch.compile has not been used"


def test_gradients_zeroed_in_a_compiled_function(recorded: Any) -> None:
    torch._dynamo.reset()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def loss(x: Any) -> Any:
        y = model(x).sum()
        optimizer.zero_grad()
        return y

    for _ in range(3):
        loss(torch.randn(2, 4)).backward()
        assert model.weight.grad is not None
        optimizer.step()
    assert len(recorded.steps()) == 3
    torch._dynamo.reset()


def test_scaled_steps_and_loaders_in_a_compiled_function(recorded: Any) -> None:
    torch._dynamo.reset()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    loader = DataLoader([torch.ones(4) for _ in range(12)], batch_size=4)

    @torch.compile(backend="eager")
    def step(x: Any) -> Any:
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    @torch.compile(backend="eager")
    def total() -> Any:
        return sum(x.sum() for x in loader)

    before = model.weight.detach().clone()
    for batch in loader:
        step(batch)
    assert not torch.equal(model.weight, before)
    assert len(recorded.steps()) == 3
    assert float(total()) == 48
    torch._dynamo.reset()
