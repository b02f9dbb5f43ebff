"""Efficiency and the life of a job, in words.

Tests: tests/views/run/test_efficiency.py.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from haiprof.common.numbers import energy, milliseconds, percent

#: Parts of a life are worth mentioning from this share on.
_SHARE = 0.005


def utilisation(row: dict[str, Any]) -> str:
    """Format MFU, HFU and throughput; empty if none of them is known.

    Args:
        row: of the frame ``run`` of an Efficiency.
    """
    said = []
    if row["mfu"] is not None:
        said.append(f"MFU {percent(row['mfu'])}")
    if row["hfu"] is not None:
        said.append(f"HFU {percent(row['hfu'])}")
    for unit in ("tokens", "samples"):
        if row[f"{unit}_per_s"] is not None:
            said.append(f"{count(row[f'{unit}_per_s'])} {unit}/s")
    return ", ".join(said)


def efficiency(run: pl.DataFrame) -> list[str]:
    """Return one sentence about how efficiently the run uses its hardware, if anything is known.

    Args:
        run: the frame of that name of an Efficiency.
    """
    if not run.height:
        return []
    row = run.row(0, named=True)
    said = [words] if (words := utilisation(row)) else []
    if row["tensor_active"] is not None and row["mfu"] is not None:
        said.append(f"tensor cores measured active {percent(row['tensor_active'])} of the steps")
    if row["gpu_joules_per_step"] is not None:
        spent = f"{energy(row['gpu_joules_per_step'])} of the GPUs a step"
        if row["cpu_joules_per_step"] is not None:
            spent += f" and {energy(row['cpu_joules_per_step'])} of the CPUs"
        if row["joules_per_token"] is not None:
            spent += f", {row['joules_per_token']:.3g} J a token"
        said.append(spent)
    return ["; ".join(said)] if said else []


def ettr(summary: dict[str, Any]) -> str:
    """Format the ETTR of a job that was started more than once; empty for any other.

    Args:
        summary: the row of the frame of that name of a Goodput.
    """
    if summary["attempts"] < 2 or summary["ettr"] is None:
        return ""
    return f"ETTR {percent(summary['ettr'])} over {summary['attempts']} attempts"


def life(summary: pl.DataFrame, parts: pl.DataFrame) -> list[str]:
    """Return one sentence about what the job's whole life was spent on.

    None for a job that started, trained and ended: the other tables show that.

    Args:
        summary: the frame of that name of a Goodput.
        parts: the frame of that name.
    """
    if not summary.height or not summary["wall_ns"].item():
        return []
    row = summary.row(0, named=True)
    hung = parts.filter(pl.col("part") == "hang")["duration"].sum()
    if not (row["attempts"] > 1 or row["died"] or row["checkpoints"] or hung):
        return []
    several = f" in {row['attempts']} attempts" if row["attempts"] > 1 else ""
    line = (
        f"Of {milliseconds(row['wall_ns'])} from the first start to the last end{several}, "
        f"{percent(row['ettr'])} was training that was kept (ETTR)"
    )
    others = parts.filter(pl.col("part") != "productive", pl.col("share") >= _SHARE)
    said = [
        f"{part} {percent(share)}"
        for part, share in others.sort("share", descending=True).select("part", "share").iter_rows()
    ]
    return [line + (f"; {', '.join(said)}" if said else "")]


def count(amount: float) -> str:
    """Format a number of things: ``12 300``, and ``0.41`` when they are few."""
    return f"{amount:,.0f}".replace(",", " ") if amount >= 100 else f"{amount:.3g}"
