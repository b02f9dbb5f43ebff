"""A link that has lost lanes counts as far as nothing hides the copies over it."""

from __future__ import annotations

import json

import polars as pl
import pytest
from recorded_cases import STEPS, found, life, process, rank, torch_lines

from haiprof.findings.finding import Finding
from haiprof.findings.recorded.case import LINKS_SCHEMA, Device
from haiprof.views.run.gpu_use import Use
from haiprof.views.run.overview import Summary

LINK = "0000:3b:00.0"


def of(copying: float, *lanes: int, address: str = LINK, pci: str = "00000000:3B:00.0") -> Finding:
    """Return what is found of a GPU that only copies for that share; its lanes, as they changed."""
    rows = [
        ("n0", at, "pcie_link", "",
         json.dumps({"instance": address, "lanes": used, "most_lanes": 16}))
        for at, used in enumerate(lanes)
    ]  # fmt: skip
    rows += [("n0", 9, "pcie_link", "", text) for text in ("", "[]", '{"lanes": "4"}', "{}")]
    use = Use(recorded=40, recorded_ns=4000, busy_ns=3900, copying_ns=round(4000 * copying))
    one = rank(life(), torch_lines(100), summary=Summary(process(), gpu=use))
    every = found(
        one,
        devices=[Device("n0", "gpu0", "H100", (0,), pci=pci)],
        reports=pl.DataFrame(rows, LINKS_SCHEMA, orient="row"),
    )
    return every[0] if every else Finding("", "", "")


def test_copies_over_a_link_that_has_lost_lanes() -> None:
    finding = of(0.4, 4)
    assert (finding.kind, finding.ranks) == ("pcie", (0,))
    assert finding.problem.startswith("The PCIe link of gpu0 of n0 uses 4 of 16 lanes")
    assert finding.lost_ns == pytest.approx(STEPS * 100e6 * 0.4 * 0.75)


@pytest.mark.parametrize(
    "finding",
    [
        of(0.02, 4),  # which work hides
        of(0.4, 16),
        of(0.4, 8, 16),  # which came back
        of(0.4),
        of(0.4, 4, address="0000:3c:00.0"),
        of(0.4, 4, pci=""),
    ],
)
def test_otherwise_nothing_is_said(finding: Finding) -> None:
    assert finding.kind == ""
