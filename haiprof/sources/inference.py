"""Inference steps as rows of the tables show them: an evaluation if the process also trained.

While a process infers, nobody knows whether it will train. So its steps are recorded as a kind of
their own, counted apart (:data:`haiprof.schema.INFERENCE`), and only a reader can tell. If the
process never trained, they are its steps. If it did, they belong to no step, and their phases are
those of an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import polars as pl

from haiprof import schema

_STEP: Final = "step"
_INFERENCE_STEP: Final = "inference_step"
_AS_EVALUATION: Final = {"forward": "eval", "dataloader": "eval_dataloader"}
_TELLING: Final = ("category", "name", "step")

Keep = Mapping[str, Collection[str]]


class Inference:
    """Reads what is needed of a table to tell inference, and shows it as what it was."""

    def __init__(
        self, table: schema.Table, columns: Sequence[str] | None, keep: Keep | None
    ) -> None:
        """Prepare to read some columns of one table; of text columns the values to ``keep``.

        ``columns`` and ``keep`` are then what has to be read.
        """
        every = [column.name for column in table.columns]
        self._wanted = every if columns is None else [name for name in every if name in columns]
        self._keep = keep or {}
        telling = [name for name in _TELLING if name in every] if "step" in every else []
        self._tells = not set(telling).isdisjoint([*self._wanted, *self._keep])
        self.columns = columns
        self.keep = keep
        if not self._tells:
            return
        if columns is not None:
            self.columns = [*self._wanted, *(n for n in telling if n not in self._wanted)]
        kinds = self._keep.get("category")
        if table is schema.SPANS and kinds is not None and _STEP in kinds:
            self.keep = {**self._keep, "category": [*kinds, _INFERENCE_STEP]}

    def shown(self, frame: pl.DataFrame, trained: Callable[[], bool]) -> pl.DataFrame:
        """Return the rows as they are to be shown, with the columns that are wanted.

        Args:
            frame: what was read.
            trained: says whether the process has a step that is no inference.
        """
        if not self._tells:
            return frame
        newest = frame["step"].max()
        if isinstance(newest, int) and newest >= schema.INFERENCE:
            frame = self._evaluation(frame) if trained() else _steps(frame)
        return frame[self._wanted]

    def _evaluation(self, frame: pl.DataFrame) -> pl.DataFrame:
        infers = pl.col("step") >= schema.INFERENCE
        if "category" in frame.columns:
            name = pl.col("name").cast(pl.String)
            phase = infers & (pl.col("category").cast(pl.String) == "phase")
            frame = frame.with_columns(
                pl.when(phase)
                .then(name.replace(_AS_EVALUATION))
                .otherwise(name)
                .cast(frame.schema["name"])
                .alias("name")
            )
        frame = frame.with_columns(pl.when(~infers).then("step").alias("step"))
        for column, values in self._keep.items():
            frame = frame.filter(pl.col(column).cast(pl.String).is_in(list(values)))
        return frame


def _steps(frame: pl.DataFrame) -> pl.DataFrame:
    step = pl.col("step")
    number = pl.when(step >= schema.INFERENCE).then(step - schema.INFERENCE).otherwise(step)
    frame = frame.with_columns(number.cast(frame.schema["step"]).alias("step"))
    if "category" not in frame.columns:
        return frame
    category = pl.col("category").cast(pl.String).replace(_INFERENCE_STEP, _STEP)
    return frame.with_columns(category.cast(frame.schema["category"]).alias("category"))
