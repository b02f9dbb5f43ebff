"""A callback for the Trainer of Hugging Face's transformers.

>>> trainer = Trainer(model, arguments, callbacks=[HaiprofCallback()], ...)

Tests: tests/peers/test_integrations.py.
"""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import TrainerCallback

import haiprof
from haiprof.integrations import marks
from haiprof.integrations.marks import harmless

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

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record the run, and what the model computes in a step."""
        self._tokens = state.num_input_tokens_seen
        marks.train(
            "transformers",
            run=args.run_name,
            epochs=state.num_train_epochs,
            steps=state.max_steps,
            first_step=state.global_step,
            accumulation=args.gradient_accumulation_steps,
        )
        samples = args.train_batch_size * args.gradient_accumulation_steps
        haiprof.model(more.get("model"), samples_per_step=samples)

    @harmless
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record that an epoch begins."""
        marks.epoch(round(state.epoch or 0), state.global_step)

    @harmless
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record the tokens of this step on this rank, if they are another number than before."""
        seen = state.num_input_tokens_seen
        tokens, self._tokens = (seen - self._tokens) / max(args.world_size, 1), seen
        if tokens > 0 and tokens != self._said:
            self._said = tokens
            haiprof.model(tokens_per_step=tokens)

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record the number that the Trainer gives the step."""
        marks.step_done(state.global_step)

    @harmless
    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record that an evaluation has ended."""
        marks.evaluated(state.global_step)

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Record that training has ended."""
        marks.train_end(state.global_step)
