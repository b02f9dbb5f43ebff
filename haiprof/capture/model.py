"""What the job says about its model: how much a step computes, for how many tokens or samples.

Every call is an event of kind ``model`` with all values known so far. Nothing here raises.

Tests: tests/capture/flops/test_counted_step.py.
"""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any, Final

from haiprof import _core

EVENT_KIND: Final = "model"
_PER_STEP: Final = "flops_per_step"
_PER_TOKEN: Final = "flops_per_token"
_NUMBERS: Final = (_PER_STEP, _PER_TOKEN, "tokens_per_step", "samples_per_step", "parameters")

_known: dict[str, Any] = {}


def model(
    module: Any = None,
    *,
    flops_per_step: float | None = None,
    flops_per_token: float | None = None,
    tokens_per_step: float | None = None,
    samples_per_step: float | None = None,
    parameters: int | None = None,
    sequence_length: int | None = None,
    dtype: str | None = None,
) -> None:
    """Say what this rank's part of the model computes in a step, for MFU and throughput.

    May be called again when something changes, also in every step: what is given holds from the
    step on that it is said in, what is not given stays.

    Without FLOPs of its own, a model's are estimated as ``6 N + 12 L H Q T`` for each token: PaLM
    (Chowdhery et al., arXiv 2204.02311), appendix B. ``N`` are its parameters, without the tables
    of embeddings unless they are the output's weights too. The second term is attention, for
    ``L`` layers of ``H`` heads of size ``Q`` and sequences of ``T`` tokens, not halved for a causal
    mask. It is counted where the ``config`` of a Hugging Face model has those and
    ``sequence_length`` is given. Experts that a token does not pass, and parameters that are not
    trained, are counted in full: give ``flops_per_token`` for such models.

    Args:
        module: the ``torch.nn.Module``, before it is sharded over ranks; only looked at now.
        flops_per_step: floating-point operations of forward and backward pass in one step of this
            rank, without what is computed twice to save memory.
        flops_per_token: the same for one token.
        tokens_per_step: tokens that this rank trains on in a step.
        samples_per_step: samples (sequences, images) of the same.
        parameters: ``N``, where ``module`` is not given.
        sequence_length: ``T``, tokens.
        dtype: what most is multiplied in: bf16, fp16, fp8, tf32, fp32, …; it says which peak of
            the GPU counts.
    """
    with contextlib.suppress(Exception):
        given = dict(
            zip(
                _NUMBERS,
                (flops_per_step, flops_per_token, tokens_per_step, samples_per_step, parameters),
                strict=True,
            )
        )
        values: dict[str, Any] = {
            name: _number(name, value) for name, value in given.items() if value is not None
        }
        values["dtype"] = str(dtype).removeprefix("torch.") if dtype is not None else None
        length = (
            _number("sequence_length", sequence_length) if sequence_length is not None else None
        )
        if module is not None:
            values |= _inspected(module, length)
        values = {name: value for name, value in values.items() if value is not None}
        now = dict(_known)
        if (_PER_TOKEN in values) != (_PER_STEP in values):  # the newer of the two counts
            now.pop(_PER_STEP if _PER_TOKEN in values else _PER_TOKEN, None)
        now |= values
        if now != _known:
            _known.clear()
            _known.update(now)
            report_known()


def report_known() -> None:
    """Record what is known, if anything: a recording may begin after :func:`model` was called."""
    if _known:
        _core.event(EVENT_KIND, "what a step of the model computes", json.dumps(_known))


def _number(name: str, value: Any) -> float | None:
    with contextlib.suppress(TypeError, ValueError):
        number = float(value)
        if math.isfinite(number) and number >= 0 and not isinstance(value, bool):
            return number
    from haiprof.capture.stderr import say_once

    say_once(f"model(): {name} must be a number of at least 0, and is {value!r}; it is left out")
    return None


def _inspected(module: Any, length: float | None) -> dict[str, Any]:
    try:
        return _of_module(module, length)
    except Exception as error:  # parameters of a lazy module have no size yet
        from haiprof.capture.stderr import say_once

        say_once(f"model(): the module's parameters are unknown; give parameters=…: {error!r}")
        return {}


def _of_module(module: Any, length: float | None) -> dict[str, Any]:
    values: dict[str, Any] = {"parameters": _multiplied(module)}
    layers, heads, size = _attention(getattr(module, "config", None))
    if layers and heads and size and length:
        values["attention_flops_per_token"] = 12.0 * layers * heads * size * length
    return values


def _multiplied(module: Any) -> float:
    """Return how many parameters each token is multiplied with."""
    from torch import nn

    tables, weights = set(), set()
    for each in module.modules():
        if isinstance(each, nn.Embedding):
            tables.add(id(each.weight))
        elif isinstance(each, nn.Linear):
            weights.add(id(each.weight))
    looked_up = tables - weights
    return float(sum(p.numel() for p in module.parameters() if id(p) not in looked_up))


def _attention(config: Any) -> tuple[float, float, float]:
    """Return layers, heads and the size of a head; 0 where the config does not say."""

    def first(*names: str) -> float:
        for name in names:
            value = getattr(config, name, None)
            if isinstance(value, int) and value > 0:
                return float(value)
        return 0.0

    layers = first("num_hidden_layers", "n_layer", "num_layers")
    heads = first("num_attention_heads", "n_head", "num_heads")
    width = first("hidden_size", "n_embd", "d_model")
    return layers, heads, first("head_dim") or (width / heads if heads else 0.0)
