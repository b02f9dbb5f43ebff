"""A callback for the Trainer of Lightning.

>>> trainer = Trainer(callbacks=[HaiprofCallback()], ...)

Tests: tests/peers/test_integrations.py.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import haiprof
from haiprof.integrations import marks
from haiprof.integrations.marks import harmless

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules or "lightning.pytorch" in sys.modules:
    from lightning.pytorch.callbacks import Callback
else:  # each package's Trainer takes callbacks of its own only
    from pytorch_lightning.callbacks import Callback

__all__ = ["HaiprofCallback"]


class HaiprofCallback(Callback):  # type: ignore[misc]
    """Records what the Trainer knows: run, model, epochs, its steps, validations.

    Nothing is changed in the Trainer, and nothing is raised into it.
    """

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._step = -1

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the run, and what the model computes in a step."""
        logger = trainer.logger
        marks.train(
            "lightning",
            run=None if logger is None else f"{logger.name}/{logger.version}",
            epochs=trainer.max_epochs,
            steps=trainer.max_steps,
            first_step=trainer.global_step,
            accumulation=trainer.accumulate_grad_batches,
        )
        self._step = trainer.global_step
        haiprof.model(pl_module)

    @harmless
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Record that an epoch begins."""
        marks.epoch(trainer.current_epoch, trainer.global_step)

    @harmless
    def on_train_batch_end(self, trainer: Any, *more: Any, **keywords: Any) -> None:
        """Record the number that the Trainer gives the step, if this batch ended one."""
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            marks.step_done(self._step)

    @harmless
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record that a validation has ended; not the few batches that are tried at the start."""
        if not trainer.sanity_checking:
            marks.evaluated(trainer.global_step)

    @harmless
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Record that training has ended."""
        marks.train_end(trainer.global_step)
