"""Findings from the machine's counters: links that went down, failing ports, memory."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from recorded_cases import found, life, node, rank, torch_lines

from haiprof.findings.recorded.case import LINKS_SCHEMA
from haiprof.views.run.series import Stat

SECOND = 10**9


def stat(mean: float, samples: int = 100) -> Stat:
    return Stat(mean, mean, 1, 0, samples * SECOND, samples)


def links(**attributes: Any) -> pl.DataFrame:
    row = ("n0", 5, "link", "the link of mlx5_0/1 is DOWN", json.dumps(attributes))
    return pl.DataFrame([row], LINKS_SCHEMA, orient="row")


def of(summary: Any = None, **more: Any) -> list[Any]:
    nodes = [node(50.0) if summary is None else summary]
    return found(rank(life(), torch_lines(100)), nodes=nodes, **more)


def test_a_link_that_went_down_is_a_finding() -> None:
    (finding,) = of(links=links(state="DOWN", before="ACTIVE"))
    assert finding.kind == "link_down"
    assert finding.problem == "On n0, the link of mlx5_0/1 is DOWN"
    assert finding.lost_ns is None


def test_a_link_that_came_up_is_none() -> None:
    assert of(links=links(state="ACTIVE", before="INIT")) == []


@pytest.mark.parametrize(
    ("counter", "per_s", "kinds"),
    [
        ("link_downed", 0.1, ["link_down"]),
        ("packet_seq_err", 20.0, ["packet_loss"]),
        ("packet_seq_err", 0.1, []),
        ("np_cnp_sent", 20.0, []),
    ],
)
def test_counters_of_ports(counter: str, per_s: float, kinds: list[str]) -> None:
    summary = node(50.0)
    summary.part_stats = {"mlx5_0/1": {f"ib.{counter}.per_s": stat(per_s)}}
    assert [each.kind for each in of(summary)] == kinds
