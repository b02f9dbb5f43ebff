"""A callback for the Trainer of Hugging Face's transformers.

>>> trainer = Trainer(model, arguments, callbacks=[HaiprofCallback()], ...)

Tests: tests/peers/test_integrations.py.
"""

from __future__ import annotations

import contextlib
from typing import Any

from transformers.trainer_callback import TrainerCallback

import haiprof

__all__ = ["HaiprofCallback"]


class HaiprofCallback(TrainerCallback):  # type: ignore[misc]
    """Records what the Trainer knows: run, model, epochs, its steps, tokens, evaluations.

    Tokens are those of the Trainer, if it counts them (``include_num_input_tokens_seen``).
    Nothing is changed in the Trainer, and nothing is raised into it.
    """

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._tokens = 0
        self._said = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record the run, and what the model computes in a step."""
        with contextlib.suppress(Exception):
            self._tokens = state.num_input_tokens_seen
            haiprof.mark(
                "train",
                framework="transformers",
                run=args.run_name,
                epochs=state.num_train_epochs,
                steps=state.max_steps,
                first_step=state.global_step,
                accumulation=args.gradient_accumulation_steps,
            )
            samples = args.train_batch_size * args.gradient_accumulation_steps
            haiprof.model(more.get("model"), samples_per_step=samples)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record that an epoch begins."""
        with contextlib.suppress(Exception):
            haiprof.mark("epoch", number=round(state.epoch or 0), step=state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record the tokens of this step on this rank, if they are another number than before."""
        with contextlib.suppress(Exception):
            seen = state.num_input_tokens_seen
            tokens, self._tokens = (seen - self._tokens) / max(args.world_size, 1), seen
            if tokens > 0 and tokens != self._said:
                self._said = tokens
                haiprof.model(tokens_per_step=tokens)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record the number that the Trainer gives the step."""
        with contextlib.suppress(Exception):
            haiprof.mark("trainer.step.count", state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record that an evaluation has ended."""
        with contextlib.suppress(Exception):
            haiprof.mark("evaluated", step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record that training has ended."""
        with contextlib.suppress(Exception):
            haiprof.mark("train_end", step=state.global_step)
