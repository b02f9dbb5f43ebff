"""A GPU whose PCIe link has fewer lanes than it could have, as far as the job waits for its copies.

A slot may be wired with fewer lanes: without a cost that is no finding, only an event. At most, the
copies that nothing hides take as much longer as lanes are missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import polars as pl

from haiprof.findings.finding import LEAST, Evidence, Finding
from haiprof.findings.recorded.case import Case, Device, Rank
from haiprof.findings.recorded.device_rules import recorded

#: The kind of these events.
PCIE_LINK: Final = "pcie_link"
#: The digits that tell an address: NVML writes four more zeros before it.
_ADDRESS: Final = 12
_MOST_LANES: Final = 32


def narrow(case: Case) -> Iterator[Finding]:
    """Name the GPU with copies that lost lanes slow down most."""
    lanes = _lanes(case.reports)
    found = [
        one
        for device in case.devices
        if (known := lanes.get((device.node, _address(device.pci)))) is not None
        for rank in case.ranks
        if rank.process.node == device.node and rank.process.rank in device.ranks
        if (one := _cost(device, rank, *known)) is not None
    ]
    if found:
        yield max(found, key=lambda one: one.weight)


def _lanes(reports: pl.DataFrame) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the lanes that each link had at last, and could have, by node and address."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    rows = reports.filter(pl.col("kind") == PCIE_LINK).sort("time")
    for node, attributes in rows.select("node", "attributes").iter_rows():
        try:
            known = json.loads(attributes or "")
        except (ValueError, RecursionError):  # of a damaged file
            continue
        if not isinstance(known, dict):
            continue
        used, most = known.get("lanes"), known.get("most_lanes")
        if isinstance(used, int) and isinstance(most, int) and 0 < used <= most <= _MOST_LANES:
            found[node, _address(str(known.get("instance", "")))] = (used, most)
    return {link: (used, most) for link, (used, most) in found.items() if used < most}


def _address(text: str) -> str:
    return text.lower()[-_ADDRESS:]


def _cost(device: Device, rank: Rank, used: int, most: int) -> Finding | None:
    use = recorded(rank)
    if use is None:
        return None
    copying = use.copying_ns / use.recorded_ns
    share = copying * (1 - used / most)
    if share < LEAST:
        return None
    return Finding(
        kind="pcie",
        problem=f"The PCIe link of {device.label} uses {used} of {most} lanes, and the GPU does "
        "nothing but wait for copies over it",
        advice="reseat that GPU or its riser, and look at the slot's width in the firmware; "
        "meanwhile copy ahead, from pinned memory (pin_memory=True, non_blocking=True)",
        ranks=rank.numbers,
        lost_ns=int(share * rank.ledger.stepped),
        share=share,
        confidence=0.75,
        evidence=(
            Evidence("events", "lanes of the link", used, "count", most),
            Evidence("kernels", "copies alone", copying, "share", LEAST),
        ),
        refuted_by=(("nothing waits for copies", True),),
        command="haiprof report",
    )
