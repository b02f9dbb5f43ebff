"""The size of what models are called with, from real calls to the rows of the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from recording import rows_of
from torch import nn

from haiprof import _core, schema
from haiprof.recorder.tables import RingTables


class Takes(nn.Module):
    """A model that is called in any way, and computes with the tensor that ``pick`` finds."""

    def __init__(self, pick: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)
        self.pick = pick

    def forward(self, *args: Any, **keywords: Any) -> Any:
        return self.inner(self.pick(*args, **keywords).float().reshape(-1, 1)).sum()


def sizes(recorded: Any) -> list[tuple[float, float]]:
    """Return the elements and the rows of each input, in their order."""
    reader = _core.RingReader(str(recorded.ring))
    reader.take()
    raw = reader.rows().get("samples")
    if raw is None:
        return []
    found: dict[str, list[float]] = {"model.input.elements": [], "model.input.rows": []}
    for row in rows_of(RingTables().batch(schema.SAMPLES, raw, reader.texts)):
        if row["metric"] in found:
            found[row["metric"]].append(row["value"])
    return list(zip(*found.values(), strict=True))


def step(model: Any, optimizer: Any, *args: Any, **keywords: Any) -> None:
    model(*args, **keywords).backward()
    optimizer.step()
    optimizer.zero_grad()


IDS = torch.zeros(4, 7, dtype=torch.int64)


@pytest.mark.parametrize(
    ("args", "keywords", "pick"),
    [
        ((IDS,), {}, lambda x: x),
        ((None, 3, IDS), {}, lambda _, n, x: x * n),
        (({"labels": IDS[:, 0], "input_ids": IDS},), {}, lambda batch: batch["input_ids"]),
        (([IDS, IDS[0]],), {}, lambda pair: pair[0]),
        ((), {"labels": IDS[:, 0], "input_ids": IDS}, lambda input_ids, labels: input_ids),
        ((), {"x": IDS}, lambda x: x),
    ],
)
@pytest.mark.usefixtures("rewriting")
def test_the_first_tensor_among_the_arguments(
    args: Any, keywords: Any, pick: Any, recorded: Any
) -> None:
    model = Takes(pick)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        step(model, optimizer, *args, **keywords)
    assert sizes(recorded) == [(28.0, 4.0)] * 3


def test_each_forward_pass_counts_once_whatever_it_calls(recorded: Any) -> None:
    model, loss = Takes(lambda x: x), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for length in (3, 5):
        for _ in range(2):  # microbatches
            loss(model(torch.zeros(2, length)), torch.ones(())).backward()
        optimizer.step()
    assert sizes(recorded) == [(6.0, 2.0), (6.0, 2.0), (10.0, 2.0), (10.0, 2.0)]


def test_evaluation_is_not_recorded_nor_what_has_no_size(recorded: Any) -> None:
    model = Takes(lambda *_: torch.zeros(3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    class Odd(torch.Tensor):
        """Whose shape is its own business."""

        @property
        def shape(self) -> Any:
            raise RuntimeError("nobody is to ask")

    with torch.no_grad():
        model(IDS)
    for each in (torch.zeros(()), torch.zeros(2).as_subclass(Odd), object(), {}, {"a": {}}):
        step(model, optimizer, each)
    step(model, optimizer)
    assert sizes(recorded) == []
