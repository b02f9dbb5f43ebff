r"""An override of torchtitan's ``MetricsProcessor``, which each step of every rank calls.

    torchrun … -m torchtitan.train --module llama3 --config llama3_8b \
        --override.imports haiprof.integrations.torchtitan.marked

Tests: tests/peers/test_torchtitan.py.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtitan.components.metrics import MetricsProcessor
from torchtitan.config.override import derive, override

import haiprof
from haiprof.integrations import marks
from haiprof.integrations.marks import harmless

__all__ = ["marked"]


@override(  # type: ignore[untyped-decorator]
    target=MetricsProcessor.Config, description="its steps and tokens in haiprof's records"
)
def marked(config: Any) -> Any:
    """Return the configuration of the same processor, of whichever class, with marks."""
    with contextlib.suppress(Exception):

        class Marked(_Marks, config._owner):  # type: ignore[misc]
            @dataclass(kw_only=True, slots=True)
            class Config(type(config)):  # type: ignore[misc]
                pass

        return derive(config, Marked.Config)
    return config


class _Marks:
    """Records what the Trainer knows: run, model, its steps, tokens, validations.

    Nothing is changed in the Trainer, and nothing is raised into it.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._about = keywords
        self._step: int | None = None
        self._done: int | None = None

    def should_log(self, step: int) -> bool:
        """Is asked as each step begins."""
        self._begin(step)
        return super().should_log(step)  # type: ignore[misc, no-any-return]

    def log_validation(self, loss: float, step: int, *args: Any, **keywords: Any) -> None:
        """Is called as each validation ends."""
        super().log_validation(loss, step, *args, **keywords)  # type: ignore[misc]
        harmless(marks.evaluated)(step)

    def close(self) -> None:
        """Is called when training has ended, and when it has failed."""
        self._end()
        super().close()  # type: ignore[misc]

    @harmless
    def _begin(self, step: int) -> None:
        first, self._step = self._step is None, step
        if first:
            self._done = step - 1
            self.optimizers.register_step_post_hook(self._stepped)  # type: ignore[attr-defined]
            self._describe()

    def _describe(self) -> None:
        config, ranks = self._about["config_dict"], self._about["parallel_dims"]
        training = config["training"]
        replicas = ranks.world_size // ranks.non_data_parallel_size
        at_once = training["local_batch_size"] * replicas
        samples = max(training["global_batch_size"], at_once)
        marks.train(
            "torchtitan",
            run=str(Path(self._about["dump_folder"]).absolute()),
            model=" ".join(config["model_spec"][name] for name in ("name", "flavor")),
            steps=training["steps"],
            first_step=self._done,
            accumulation=samples // at_once,
        )
        quantized = self.has_quantization  # type: ignore[attr-defined]
        haiprof.model(
            flops_per_token=self.num_flops_per_token,  # type: ignore[attr-defined]
            samples_per_step=samples / ranks.world_size,
            tokens_per_step=samples * training["seq_len"] / ranks.world_size,
            dtype=None if quantized else training["mixed_precision_param"],
        )

    @harmless
    def _stepped(self, *_: Any) -> None:
        self._done = self._step
        marks.step_done(self._step)  # type: ignore[arg-type]

    @harmless
    def _end(self) -> None:
        if self._done is not None and sys.exc_info()[1] is None:
            marks.train_end(self._done)
