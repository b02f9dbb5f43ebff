"""The operations of one step, counted in a job that runs, against counting by hand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import run_python
from torch import nn
from torch.utils import _python_dispatch
from torch.utils.checkpoint import checkpoint

import haiprof
from haiprof import _core
from haiprof.capture import flops, model

BATCH, WIDTH, HIDDEN, OUT = 8, 32, 64, 16
#: Two layers forward, two gradients of weights, and that of the second layer's input.
MLP = 2 * BATCH * (2 * WIDTH * HIDDEN + 3 * HIDDEN * OUT)


def events(ring: Path, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Return text and attributes of the events of one kind."""
    reader = _core.RingReader(str(ring))
    reader.take()
    table = reader.rows().get("events", {})
    if "kind" not in table:
        return []

    def column(name: str) -> list[str]:
        if name not in table:  # no row has any
            return [""] * table["kind"][0]
        rows, _, values, _ = table[name]
        texts = reader.texts("events", name)[1]
        return [texts[n] if n < len(texts) else "" for n in memoryview(values).cast("I")[:rows]]

    rows = zip(column("kind"), column("text"), column("attributes"), strict=True)
    return [(text, json.loads(document or "{}")) for found, text, document in rows if found == kind]


@pytest.fixture
def ring(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An open ring, and one step that is to be counted, in a job that does not compile."""
    # Other tests of this process may have.
    monkeypatch.delitem(sys.modules, "torch._dynamo.eval_frame", raising=False)
    path = shm / "test.ring"
    _core.phases_reset()
    _core.open_ring(str(path))
    flops.arm()
    yield path
    flops.disarm()
    assert not _python_dispatch._get_current_dispatch_mode_stack()
    _core.close_ring()


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))


def train(model: Any, steps: int = 8, forward: Any = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = (forward or model)(torch.ones(BATCH, WIDTH)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_an_mlps_step_is_what_it_is_by_hand(ring: Path) -> None:
    train(mlp())
    [(text, document)] = events(ring, flops.EVENT_KIND)
    assert document["flops"] == MLP
    assert document["dtypes"] == {"fp32": MLP}
    assert (document["recomputed"], document["uncounted"], document["failures"]) == (0, [], 0)
    assert f"{MLP:.4g}" in text
    assert document["begun_ns"] < document["ended_ns"]


def test_accumulated_passes_are_one_step_in_the_dtype_that_autocast_chose(ring: Path) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.ones(BATCH, WIDTH)).sum()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    [(_, document)] = events(ring, flops.EVENT_KIND)
    assert document["dtypes"] == {"bf16": 3 * MLP}


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_the_backward_pass_recomputes_is_counted_separately(
    ring: Path, reentrant: bool
) -> None:
    model = mlp()
    first = model[0]

    def forward(batch: torch.Tensor) -> torch.Tensor:
        hidden = first(batch)
        again = checkpoint(lambda x: model[2](model[1](x)), hidden, use_reentrant=reentrant)
        assert isinstance(again, torch.Tensor)
        return again * again

    train(model, forward=forward)
    [(_, document)] = events(ring, flops.EVENT_KIND)
    assert document["flops"] - document["recomputed"] == MLP
    # torch stops recomputing when the last tensor is there that the backward pass needs.
    assert document["recomputed"] in (
        (2 * BATCH * HIDDEN * OUT,) if reentrant else (0, 2 * BATCH * HIDDEN * OUT)
    )


def test_a_gradient_of_a_gradient_is_not_computed_again(ring: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        batch = torch.ones(BATCH, WIDTH, requires_grad=True)
        gradient = torch.autograd.grad(model(batch).pow(2).sum(), batch, create_graph=True)[0]
        gradient.pow(2).sum().backward()
        optimizer.step()
    [(_, document)] = events(ring, flops.EVENT_KIND)
    assert document["flops"] > MLP
    assert document["recomputed"] == 0


class Doubled(torch.autograd.Function):
    """A linear layer as its own function, as fused layers are: its forward has no gradients."""

    @staticmethod
    def forward(ctx: Any, batch: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(batch, weight)
        return batch @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        batch, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].t() @ batch


class Fused(nn.Linear):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = Doubled.apply(batch, self.weight)
        assert isinstance(result, torch.Tensor)
        return result


def test_an_evaluation_in_the_step_is_counted_separately(ring: Path) -> None:
    model = nn.Sequential(Fused(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        model.train()
        model(torch.ones(BATCH, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(torch.ones(100 * BATCH, WIDTH))
    [(_, document)] = events(ring, flops.EVENT_KIND)
    # The function gives a gradient of its input, too, which nobody needs.
    assert document["flops"] == MLP + 2 * BATCH * WIDTH * HIDDEN
    assert document["evaluated"] == 100 * 2 * BATCH * (WIDTH * HIDDEN + HIDDEN * OUT)
    assert sum(document["dtypes"].values()) == document["flops"]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_computed_with_as_ever(ring: Path, layout: torch.layout) -> None:
    model = nn.Linear(WIDTH, OUT)

    def forward(batch: torch.Tensor) -> torch.Tensor:
        nested = torch.nested.nested_tensor([batch, batch[1:]], layout=layout)
        out: torch.Tensor = torch.nested.to_padded_tensor(model(nested), 0.0)
        return out

    train(model, forward=forward)
    [(_, document)] = events(ring, flops.EVENT_KIND)
    assert document["begun_ns"] < document["ended_ns"]


def test_a_step_that_ends_in_inference_mode_is_left_at_a_later_one(ring: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(8):
        model(torch.ones(BATCH, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.inference_mode() if 2 <= number < 6 else torch.enable_grad():
            model(torch.ones(BATCH, WIDTH))
            haiprof.step()
        assert torch.randn(2).add(1).shape == (2,)
        assert len(_python_dispatch._get_current_dispatch_mode_stack()) <= 1
    assert not _python_dispatch._get_current_dispatch_mode_stack()


def test_a_mode_of_the_job_stays_where_it_is(ring: Path) -> None:
    class Mine(_python_dispatch.TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(10):
        mine = Mine()
        # In the third to the fifth step the optimizer's step, where ours begins, is in a mode.
        with mine if 2 <= number <= 4 else torch.enable_grad():
            model(torch.ones(BATCH, WIDTH)).sum().backward()
            optimizer.step()
            seen = mine.seen
        assert (seen > 0) == (2 <= number <= 4)
        if 2 <= number <= 4:
            assert not _python_dispatch._get_current_dispatch_mode_stack()
    [(_, document)] = events(ring, flops.EVENT_KIND)
    assert document["flops"] == MLP


def test_a_mode_put_over_ours_ends_before_ours(ring: Path) -> None:
    class Mine(_python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    model = mlp()
    train(model, 3)
    assert len(_python_dispatch._get_current_dispatch_mode_stack()) == 1
    mine = Mine()
    with mine:
        train(model, 2)
        assert _python_dispatch._get_current_dispatch_mode_stack()[-1] is mine
    assert len(_python_dispatch._get_current_dispatch_mode_stack()) == 1
    train(model, 20)
    assert not _python_dispatch._get_current_dispatch_mode_stack()


def test_an_optimizer_that_steps_in_the_backward_pass_has_no_step_counted(ring: Path) -> None:
    model = mlp()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(60):
        model(torch.ones(BATCH, WIDTH)).sum().backward()
        assert not _python_dispatch._get_current_dispatch_mode_stack()
    assert events(ring, flops.EVENT_KIND) == []
    [(text, _)] = events(ring, "hook")
    assert "the optimizer steps within the backward pass" in text


def test_a_child_of_fork_does_not_count(ring: Path) -> None:
    train(mlp(), 3)
    assert _python_dispatch._get_current_dispatch_mode_stack()
    child = os.fork()
    if child == 0:
        os._exit(len(_python_dispatch._get_current_dispatch_mode_stack()))
    assert os.waitpid(child, 0)[1] == 0
    assert _python_dispatch._get_current_dispatch_mode_stack()
    train(mlp(), 20)


def test_operators_without_a_formula_are_named(ring: Path) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            heads = self.inner(batch).view(1, 2, BATCH, WIDTH // 2)
            return nn.functional.scaled_dot_product_attention(heads, heads, heads)

    train(Attention())
    [(_, document)] = events(ring, flops.EVENT_KIND)
    counted = 2 * 2 * BATCH * WIDTH * WIDTH
    # Newer versions of torch may have a formula for it.
    assert (document["flops"] > counted) != any(
        "attention" in name for name in document["uncounted"]
    )


def test_what_torch_compile_makes_is_compiled_and_not_counted(tmp_path: Path) -> None:
    program = """
        import sys, torch
        from haiprof import _core
        from haiprof.capture import flops
        _core.open_ring(sys.argv[1])
        flops.arm()
        model = torch.nn.Linear(4, 4)
        graphs = []
        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward
        compiled = torch.compile(model, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(8):
            (compiled if number > 3 else model)(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert len(graphs) == 1, graphs
        flops.disarm()
    """
    assert run_python(program, str(tmp_path / "test.ring"), warm=True) == ""


@pytest.mark.filterwarnings("ignore")
def test_a_branch_that_is_not_taken_is_not_computed(tmp_path: Path) -> None:
    program = """
        import sys, torch
        from haiprof import _core
        from haiprof.capture import flops
        from torch.utils import _python_dispatch
        _core.open_ring(sys.argv[1])
        flops.arm()
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        counted = 0
        for number in range(8):
            model(torch.ones(2, 4)).sum().backward()
            if number > 2:
                counted += len(_python_dispatch._get_current_dispatch_mode_stack())
                batch = torch.ones(4)
                with torch.no_grad():
                    out = torch.cond(batch.sum() < 0, lambda x: x * 2, lambda x: x * 3, (batch,))
                assert out.tolist() == [3] * 4, out
            optimizer.step()
        assert counted == 1, counted
        flops.disarm()
    """
    assert run_python(program, str(tmp_path / "test.ring"), warm=True) == ""


def test_the_counters_trouble_is_not_the_jobs(
    ring: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object, **keywords: object) -> int:
        raise RuntimeError("no")

    from torch.utils import flop_counter

    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.addmm, broken)
    train(mlp())
    [(_, document)] = events(ring, flops.EVENT_KIND)
    assert document["failures"] == 2
    assert document["flops"] == MLP - 2 * BATCH * (WIDTH * HIDDEN + HIDDEN * OUT)


# -- what the job says itself ---------------------------------------------------------------------


class Config:
    """The names of Hugging Face's GPT-2."""

    n_layer, n_head, n_embd = 2, 4, 32


class TinyGPT(nn.Module):
    """Its matrices: one of the output tied to the tokens' table, a table of positions."""

    config = Config()

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 32)
        self.positions = nn.Embedding(64, 32)
        self.blocks = nn.ModuleList([nn.Linear(32, 12 * 32) for _ in range(2)])
        self.head = nn.Linear(32, 100, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


@pytest.fixture
def nothing_said() -> Iterator[None]:
    """A process that has said nothing of its model."""
    model._known.clear()
    yield
    model._known.clear()


@pytest.mark.usefixtures("nothing_said")
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_that_tokens_are_multiplied_with(ring: Path, tied: bool) -> None:
    haiprof.model(
        TinyGPT(tied), tokens_per_step=4096, sequence_length=64, dtype=str(torch.bfloat16)
    )
    [(_, document)] = events(ring, model.EVENT_KIND)
    assert document == {
        "tokens_per_step": 4096.0,
        "dtype": "bfloat16",
        "parameters": 2 * (32 * 384 + 384) + 100 * 32,
        "attention_flops_per_token": 12 * 2 * 4 * 8 * 64,
    }


@pytest.mark.usefixtures("nothing_said")
def test_what_changes_is_said_again_and_the_newer_flops_count(ring: Path) -> None:
    haiprof.model(flops_per_step=1e12, samples_per_step=8)
    haiprof.model(flops_per_step=1e12)
    haiprof.model(flops_per_token=1e9, tokens_per_step=1024)
    documents = [attributes for _, attributes in events(ring, model.EVENT_KIND)]
    assert documents == [
        {"flops_per_step": 1e12, "samples_per_step": 8.0},
        {"flops_per_token": 1e9, "tokens_per_step": 1024.0, "samples_per_step": 8.0},
    ]


@pytest.mark.usefixtures("nothing_said")
@pytest.mark.parametrize("wrong", ["many", float("nan"), -1, True, float("inf")])
def test_what_is_no_number_is_left_out_in_one_line(
    ring: Path, wrong: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    haiprof.model(tokens_per_step=wrong)
    assert events(ring, model.EVENT_KIND) == []
    assert (
        f"tokens_per_step must be a number of at least 0, and is {wrong!r}"
        in capsys.readouterr().err
    )


@pytest.mark.usefixtures("nothing_said")
def test_what_is_said_beside_a_module_without_sizes_holds(
    ring: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    haiprof.model(nn.LazyLinear(4), tokens_per_step=512, flops_per_step=1e9)
    [(_, document)] = events(ring, model.EVENT_KIND)
    assert document == {"tokens_per_step": 512.0, "flops_per_step": 1e9}
    assert "the module's parameters are unknown; give parameters=" in capsys.readouterr().err
