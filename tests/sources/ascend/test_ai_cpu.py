"""Time that a job loses to operators on the AI CPU is found, with the line that calls them.

The real files have none: here the two kernels that make the masks of dropout are planted as msprof
shows them where the AI CPU makes the random numbers, type ``DropoutGenMask``, of milliseconds.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from ascend_files import ns, output, rows

from haiprof.analyzer import Analyzer

#: As long as such a kernel lasts, µs.
LONG = "9000.125"
MASK = "DSAGenBitMask"


def plant(file: Path, kind: str, duration: str, chosen: str = MASK, unit: str = "AI_CPU") -> None:
    found = rows(file)
    for row in found:
        if row["Type"] == chosen:
            row |= {"Type": kind, "Accelerator Core": unit, "Duration(us)": duration}
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, list(found[0]))
        writer.writeheader()
        writer.writerows(found)


def alone(file: Path, unit: str = "AI_CPU") -> int:
    """How long kernels of a unit ran while no other kernel did, ns."""
    begun_ended = [
        (ns(row["Start Time(us)"]), ns(row["Duration(us)"]), row["Accelerator Core"] == unit)
        for row in rows(file)
    ]
    edges = sorted({edge for start, length, _ in begun_ended for edge in (start, start + length)})
    total = 0
    for low, high in itertools.pairwise(edges):
        on = [mine for start, length, mine in begun_ended if start <= low < start + length]
        if on and all(on):
            total += high - low
    return total


def test_random_numbers_on_the_ai_cpu(job: Callable[[str], Path]) -> None:
    place = job("level1")
    file = output(place) / "kernel_details.csv"
    plant(file, "DropoutGenMask", LONG)
    run = Analyzer(place)
    found = run.recommendations(0)
    (one,) = [row for row in found.to_dicts() if row["kind"] == "slow_unit"]
    # A copy of two µs ran meanwhile, which the table of kernels does not have.
    assert one["saves_ns"] == pytest.approx(alone(file), abs=10_000)
    assert one["saves_ns"] > 3_000_000
    assert one["step"] == 50
    assert one["operator"] == "aten::dropout"
    assert "main.py(" in one["stack"]
    assert "DropoutGenMask 2 times in 18 ms" in one["evidence"]
    assert "DropoutWithByteMask" in one["advice"]
    (row,) = [
        row
        for row in run.op_statistics(0).to_dicts()
        if (row["op"], row["unit"]) == ("DropoutGenMask", "AI_CPU")
    ]
    assert row["total"] == 2 * ns(LONG)
    # The other rank's files are as they were.
    assert "slow_unit" not in run.recommendations(1)["kind"].to_list()


def test_another_operator_on_the_ai_cpu(job: Callable[[str], Path]) -> None:
    place = job("level1")
    plant(output(place) / "kernel_details.csv", "Equal", LONG, "Equal")
    (one,) = [
        row for row in Analyzer(place).recommendations(0).to_dicts() if row["kind"] == "slow_unit"
    ]
    assert one["operator"] == "aten::eq"
    assert "Equal once in 9 ms" in one["evidence"]
    assert "int32" in one["advice"]


@pytest.mark.parametrize("level", ["level0", "level1"])
def test_the_real_files_have_none(levels: Path, level: str) -> None:
    assert "slow_unit" not in Analyzer(levels / level).recommendations()["kind"].to_list()


def test_what_hardly_costs_time_is_not_reported(job: Callable[[str], Path]) -> None:
    place = job("level1")
    plant(output(place) / "kernel_details.csv", "DropoutGenMask", "900.125")
    assert "slow_unit" not in Analyzer(place).recommendations(0)["kind"].to_list()
