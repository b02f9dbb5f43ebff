"""What a range of NVTX means, by its text alone: an operator, a step, a module, a collective.

Tests: tests/sources/nsys/test_ranges.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from haiprof.sources.kineto.words import collective_of
from haiprof.sources.nsys import nccl, words


def spans(
    frame: pl.DataFrame,
    steps: Mapping[tuple[int, str], int],
    modules: dict[str, int],
    domain: Callable[[int | None], str | None],
) -> pl.DataFrame:
    """Return rows of ``spans``, with ``end`` for ``duration``.

    Args:
        frame: ``start``, ``end``, ``thread``, ``domain`` (0 or null for the default one), ``text``.
        steps: the ranges that are steps, by start and text, each with its number.
        modules: numbers of modules by name; new ones are added.
        domain: returns what ``attributes`` say of a domain.
    """
    at, emitted = pl.col("text"), pl.col("text").str.extract_groups(words.EMITTED)
    texts = (
        frame.select("start", "end", "thread", "domain", at)
        .with_columns(
            emitted.struct.field("name").alias("name"),
            emitted.struct.field("seq").cast(pl.Int64, strict=False).alias("sequence"),
            emitted.struct.field("op").cast(pl.UInt64, strict=False).alias("external"),
            emitted.struct.field("sizes").alias("shapes"),
        )
        .with_columns(pl.col("name").str.extract(words.MODULE).alias("called"))
    )
    plain = pl.col("name") == at
    ours = pl.col("domain").fill_null(0) == 0
    is_op = (
        pl.when(plain)
        .then(at.str.contains(words.PLAIN_OPERATOR))
        .otherwise(pl.col("name").str.contains(words.OPERATOR))
    )
    numbers: list[int | None] = [None] * texts.height
    if steps:
        numbers = [steps.get(row) for row in texts.select("start", "text").rows()]
    numbered = pl.Series("step", numbers, pl.UInt32())
    category = (
        pl.when(numbered.is_not_null())
        .then(pl.lit("step"))
        .when(ours & pl.col("called").is_not_null())
        .then(pl.lit("python"))
        .when(ours & is_op)
        .then(pl.lit("op"))
        .otherwise(pl.lit("user"))
    )
    domains = texts["domain"].to_list()
    said = {number: domain(number) for number in set(domains)}
    return (
        texts.with_columns(
            numbered,
            category.alias("category"),
            pl.coalesce("name", at).alias("name"),
            pl.Series("attributes", [said[number] for number in domains], pl.String()),
        )
        .with_columns(
            pl.when(pl.col("category") == "python")
            .then("nn.Module: " + pl.col("called"))
            .otherwise("name")
            .alias("name"),
            _numbers(texts["called"], modules),
        )
        .with_columns(
            pl.when(pl.col("category") == "python").then(pl.col("module")).alias("module")
        )
        .drop("text", "called", "domain")
    )


def op(name: str) -> str | None:
    """Return the collective that a call of this name is; None if it is none."""
    return nccl.OPS.get(name) or collective_of(name)


def _numbers(called: pl.Series, known: dict[str, int]) -> pl.Series:
    numbers = [
        None if name is None else known.setdefault(name, len(known)) for name in called.to_list()
    ]
    return pl.Series("module", numbers, pl.UInt32())
