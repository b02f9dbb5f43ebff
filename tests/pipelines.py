"""Pipelines laid out by hand: each job begins when its rank is free and its input is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import polars as pl

from haiprof.views.run import pipeline as view

MS = 1_000_000
WHO = {"node": pl.Categorical(), "rank": pl.Int64(), "pid": pl.Int64()}
#: Kind, microbatch and chunk of each job of a rank, in its order.
Order = list[tuple[str, int, int]]


def one_f_one_b(rank: int, ranks: int, microbatches: int) -> Order:
    ahead = min(ranks - 1 - rank, microbatches)
    order: Order = [("F", n, 0) for n in range(ahead)]
    for n in range(microbatches):
        if n + ahead < microbatches:
            order.append(("F", n + ahead, 0))
        order.append(("B", n, 0))
    return order


def gpipe(rank: int, ranks: int, microbatches: int) -> Order:
    return [(kind, n, 0) for kind in "FB" for n in range(microbatches)]


def chunks_breadth_first(rank: int, ranks: int, microbatches: int) -> Order:
    forward = [("F", n, chunk) for chunk in (0, 1) for n in range(microbatches)]
    return forward + [("B", n, chunk) for chunk in (1, 0) for n in range(microbatches)]


def chunks_interleaved(rank: int, ranks: int, microbatches: int) -> Order:
    """As Megatron orders two chunks, for a multiple of the ranks."""

    def nth(n: int, forward: bool) -> tuple[int, int]:
        group, within = divmod(n, 2 * ranks)
        chunk, at = divmod(within, ranks)
        return group * ranks + at, chunk if forward else 1 - chunk

    total = 2 * microbatches
    ahead = min(total, (ranks - rank - 1) * 2 + ranks)
    order: Order = [("F", *nth(n, True)) for n in range(ahead)]
    for n in range(total):
        if n + ahead < total:
            order.append(("F", *nth(n + ahead, True)))
        order.append(("B", *nth(n, False)))
    return order


def laid_out(
    orders: list[Order], cost: Callable[[str, int], int], begin: int = 0, step: int = 0
) -> list[dict[str, Any]]:
    """Let each job begin when its rank is free and what it needs is done."""
    ranks = len(orders)
    last = max(chunk for order in orders for *_, chunk in order) * ranks + ranks - 1
    done: dict[tuple[str, int, int], int] = {}
    free = [begin] * ranks
    waiting = [list(order) for order in orders]
    rows = []
    while any(waiting):
        for rank, order in enumerate(waiting):
            while order:
                kind, microbatch, chunk = order[0]
                place = chunk * ranks + rank
                need = (kind, microbatch, place + (-1 if kind == "F" else 1))
                if kind == "F" and place == 0:
                    ready = begin
                elif kind == "B" and place == last:
                    ready = done.get(("F", microbatch, place), -1)
                else:
                    ready = done.get(need, -1)
                if ready < 0:
                    break
                start = max(free[rank], ready)
                free[rank] = done[kind, microbatch, place] = start + cost(kind, rank)
                rows.append(
                    {
                        "node": f"n{rank // 2}", "rank": rank, "pid": 100 + rank, "step": step,
                        "kind": view.kind_of(kind), "name": kind, "microbatch": microbatch,
                        "stage": rank, "chunk": chunk, "start": start,
                        "duration": cost(kind, rank),
                    }
                )  # fmt: skip
                order.pop(0)
    return rows


def frame(rows: Iterable[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={**WHO, **view.JOBS}).sort("start")


def even(kind: str, rank: int) -> int:
    return 10 * MS if kind == "F" else 20 * MS
