"""A wrapper of the ``forward_step`` that a job gives Megatron-LM's ``pretrain()``.

>>> pretrain(config, datasets, ModelType.encoder_or_decoder, marked(forward_step))

Its training loop has no callbacks, and calls this function in each step on each rank.

Tests: tests/peers/test_megatron.py.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from megatron.core.num_microbatches_calculator import (
    get_current_global_batch_size,
    get_num_microbatches,
)
from megatron.training import get_args
from megatron.training.training import num_floating_point_operations

import haiprof
from haiprof.integrations import marks
from haiprof.integrations.marks import harmless

__all__ = ["marked"]

_Given = ParamSpec("_Given")
_Output = TypeVar("_Output")


def marked(forward_step: Callable[_Given, _Output]) -> Callable[_Given, _Output]:
    """Return a ``forward_step`` that also records what Megatron knows: run, steps, tokens, FLOPs.

    Nothing is changed in Megatron, and nothing is raised into it.
    """
    iterations = _Iterations()

    @functools.wraps(forward_step)
    def called(*args: _Given.args, **keywords: _Given.kwargs) -> _Output:
        iterations.look()
        return forward_step(*args, **keywords)

    return called


class _Iterations:
    """Which iteration was seen last, and how many samples it has."""

    def __init__(self) -> None:
        self._newest: int | None = None
        self._samples: int | None = None

    @harmless
    def look(self) -> None:
        """Record what is new, if this is the first microbatch of an iteration that trains."""
        if not torch.is_grad_enabled():
            return
        about = get_args()
        iteration = about.curr_iteration
        if iteration == self._newest:
            return
        if self._newest is None:
            marks.train(
                "megatron",
                run=about.save,
                steps=about.train_iters,
                first_step=iteration,
                accumulation=get_num_microbatches(),
            )
        self._newest = iteration
        marks.step_done(iteration)
        if (samples := get_current_global_batch_size()) != self._samples:
            self._samples = samples
            _describe(about, samples)


def _describe(about: Any, samples: int) -> None:
    """Record what one rank computes in a step, of which all compute the same share."""
    ranks = about.world_size
    flops = None
    with contextlib.suppress(Exception):  # it does not know every model
        flops = num_floating_point_operations(about, samples) / ranks
    haiprof.model(
        flops_per_step=flops,
        samples_per_step=samples / ranks,
        tokens_per_step=samples * about.seq_length / ranks,
        dtype="fp8" if about.fp8 else about.params_dtype,
    )
