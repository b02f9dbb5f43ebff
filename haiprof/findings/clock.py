"""Sentences about the clocks of hosts.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

import polars as pl

from haiprof.common.numbers import milliseconds


def lines(clock: pl.DataFrame) -> list[str]:
    """Say in one sentence how far hosts' clocks were apart, and in another which are not known.

    Args:
        clock: :attr:`haiprof.views.clock.Clock.frame`.
    """
    sentences = []
    known = clock.filter(pl.col("corrected"))
    if known.height:
        most, bound = known["offset"].abs().max(), known["bound"].max()
        sentences.append(
            f"The clocks of {known['node'].n_unique() + 1} hosts were up to "
            f"{milliseconds(float(most))} apart and are corrected, to "  # type: ignore[arg-type]
            f"{milliseconds(float(bound))} at the worst"  # type: ignore[arg-type]
        )
    unknown = clock.filter(pl.col("offset").is_null())
    if unknown.height:
        some = ", ".join(unknown["node"].head(3).to_list()) + (
            f" and {unknown.height - 3} more" if unknown.height > 3 else ""
        )
        sentences.append(
            f"Nothing shows how far the clock of {some} is from that of {clock['node'][0]}: times "
            "of their ranks side by side are as far apart as these clocks"
        )
    return sentences
