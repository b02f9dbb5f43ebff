"""The kernel's own uncore drivers on emulated two-socket servers: planned, opened and read.

Not part of the ordinary tests: ``make test-qemu`` runs it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fixtures import ROOT
from machine import Kernel, Machine, boot, fetch_kernel
from real_data import DATA, need

pytestmark = pytest.mark.qemu

BUILD = ROOT / "build" / "qemu"

ICE_LAKE = Machine("Icelake-Server,model=106,-hypervisor", ("intel-uncore.ko",))
SKYLAKE = Machine("Skylake-Server,-hypervisor", ("intel-uncore.ko",))

Row = list[str]


@pytest.fixture(scope="session")
def kernel() -> Kernel:
    return fetch_kernel(BUILD / "kernel")


@pytest.fixture(scope="session")
def guest() -> Path:
    for command in (
        ["cmake", "-S", ROOT / "tests" / "qemu", "-B", BUILD / "guest"],
        ["cmake", "--build", BUILD / "guest", "-j2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return BUILD / "guest" / "guest"


def rows(lines: list[str], kind: str) -> list[Row]:
    """Return what the guest said of one kind of thing, cut into columns."""
    return [line.split("\t")[1:] for line in lines if line.startswith(f"{kind}\t")]


def planned(lines: list[str]) -> set[tuple[str, str, str, str]]:
    return {
        (pmu, cpu, quantity, config)
        for pmu, _, cpu, quantity, config, _, _ in rows(lines, "counter")
    }


def expected(tree: str) -> set[tuple[str, str, str, str]]:
    plans = need(DATA / "host" / "expected_plans.json")
    events = json.loads(plans.read_text(encoding="utf-8"))[tree]["events"]
    return {(e["pmu"], str(e["cpu"]), e["metric"], e["config"]) for e in events}


@pytest.mark.parametrize(
    ("machine", "tree"), [(ICE_LAKE, "qemu_icx"), (SKYLAKE, "qemu_skx4n")], ids=["icx", "skx"]
)
def test_every_counter_of_the_real_driver_is_planned_opened_and_read(
    machine: Machine, tree: str, kernel: Kernel, guest: Path, tmp_path: Path
) -> None:
    said = boot(machine, kernel, guest, tmp_path)
    assert "done" in said, said
    assert rows(said, "module") == [["/intel-uncore.ko", "loaded"]]
    assert not rows(said, "problem")
    assert planned(said) == expected(tree)

    assert not rows(said, "refused")
    readings = rows(said, "reading")
    assert len(readings) == len(planned(said))
    for pmu, cpu, error, _, enabled, running in readings:
        assert error == "0", (pmu, cpu)
        assert int(running) == int(enabled) > 0, (pmu, cpu)  # nobody has to share a counter

    states = {name: state for name, state, _, _ in rows(said, "source")}
    sampled = {(metric, instance) for _, metric, instance, _, _ in rows(said, "sample")}
    assert states["pcie"] == "ok"
    assert {("pcie.in.bytes_per_s", part) for part in ("", "socket0", "socket1")} <= sampled
    if machine is ICE_LAKE:
        assert states["memory_bandwidth"] == "ok"
        for metric in ("dram.read.bytes_per_s", "dram.write.bytes_per_s"):
            assert {(metric, part) for part in ("", "socket0", "socket1")} <= sampled
    else:  # the emulated Skylake has no memory controllers on its PCI bus
        assert states["memory_bandwidth"] == "absent"
    # The counters of an emulated machine stand still.
    counted = [row for row in rows(said, "sample") if row[1] != "haiprof.cost.ratio"]
    assert {float(value) for _, _, _, value, _ in counted} == {0.0}
