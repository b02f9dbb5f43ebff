"""``haiprof doctor --sysfs-root``: the counters of the machine whose tree it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, only_line
from host_trees import recorded, recordings

from haiprof.cli.doctor.finding import Finding
from haiprof.cli.doctor.plan import COLUMNS, Plan, summary

CPUINFO = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 23
model\t\t: 49
model name\t: AMD EPYC 7742
physical id\t: 0
"""
#: The data fabric of a Zen 2, and its energy.
PMUS = {
    "amd_df/type": "8",
    "amd_df/cpumask": "0",
    "amd_df/format/event": "config:0-7,32-35,59-60",
    "amd_df/format/umask": "config:8-15",
    "power/type": "9",
    "power/cpumask": "0",
    "power/format/event": "config:0-7",
    "power/events/energy-pkg": "event=0x02",
    "power/events/energy-pkg.scale": "2.3283064365386962890625e-10",
    "power/events/energy-pkg.unit": "Joules",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a machine of one socket with two PMUs shows."""
    files = {f"sys/bus/event_source/devices/{name}": text for name, text in PMUS.items()}
    files["sys/devices/system/cpu/online"] = "0"
    files["sys/devices/system/cpu/cpu0/topology/physical_package_id"] = "0"
    files["sys/devices/system/node/node0/cpulist"] = "0"
    files["proc/cpuinfo"] = CPUINFO
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text + "\n")
    return tmp_path / "tree"


def plan(*words: str | Path) -> dict[str, Any]:
    done = haiprof("doctor", "--json", *words)
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_for_a_tree_of_an_unknown_cpu_it_says_how_to_name_it(tree: Path) -> None:
    (tree / "proc/cpuinfo").unlink()
    (found,) = plan("--sysfs-root", tree)["findings"]
    assert "a CPU that is not known" in found["found"]
    assert "--cpu VENDOR:FAMILY:MODEL" in found["mend"]
    shutil.rmtree(tree / "sys/bus/event_source/devices/power")
    (found,) = plan("--sysfs-root", tree)["findings"]
    assert (found["state"], "--cpu" in found["mend"]) == ("absent", True)
    (found,) = plan("--sysfs-root", tree, "--cpu", "AuthenticAMD:23:49")["findings"]
    assert found["mend"] == ""


def test_a_dumped_tree_gives_its_plan_and_nothing_of_this_machine(tree: Path) -> None:
    document = plan("--sysfs-root", tree)
    assert document["ok"] is None
    assert [f["what"] for f in document["findings"]] == ["counter plan"]
    events = document["uncore_plan"]
    assert {e["metric"] for e in events} == {"dram_rw", "cpu_J"}
    assert {"pmu": "amd_df", "type": 8, "cpu": 0, "metric": "dram_rw", "config": "0x3807",
            "scale": 64.0} in events  # fmt: skip
    assert document["findings"][0]["found"].startswith(f"{len(events)} counters on 2 PMUs: ")


def test_the_folder_itself_and_the_one_that_holds_it_are_the_same(tree: Path) -> None:
    whole = plan("--sysfs-root", tree)
    assert plan("--sysfs-root", tree / "sys") == whole
    assert plan("--sysfs-root", tree / "sys", "--procfs-root", tree / "proc") == whole
    assert plan("--sysfs-root", tree, "--procfs-root", tree) == whole


def test_a_relative_folder_is_one_from_here(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert plan("--sysfs-root", ".")["uncore_plan"] == plan("--sysfs-root", tree)["uncore_plan"]


def test_a_cpu_that_the_tree_does_not_name_can_be_given(tree: Path) -> None:
    whole = plan("--sysfs-root", tree)["uncore_plan"]
    (tree / "proc/cpuinfo").unlink()
    # Never that of this machine.
    assert {e["pmu"] for e in plan("--sysfs-root", tree)["uncore_plan"]} == {"power"}
    given = plan("--sysfs-root", tree, "--cpu", "AuthenticAMD:23:49")["uncore_plan"]
    assert given == whole


def test_what_makes_no_sense_in_a_tree_is_a_problem_and_no_failure(tree: Path) -> None:
    (tree / "sys/bus/event_source/devices/amd_df/type").write_text("eight\n")
    document = plan("--sysfs-root", tree)
    assert {e["pmu"] for e in document["uncore_plan"]} == {"power"}
    (problem,) = document["uncore_problems"]
    assert "amd_df" in problem
    assert problem in document["findings"][0]["found"]


def test_in_words_it_is_one_line_and_with_plan_a_table(tree: Path) -> None:
    done = haiprof("doctor", "--sysfs-root", tree)
    (line,) = done.stdout.splitlines()
    assert line.startswith("ok      counter plan: ")
    assert " on 2 PMUs: " in line
    lines = haiprof("doctor", "--plan", "--sysfs-root", tree).stdout.splitlines()
    assert lines[0] == line
    assert lines[1].split() == ["pmu", "type", "cpu", "metric", "config", "scale"]
    assert len(lines) == 2 + len(plan("--sysfs-root", tree)["uncore_plan"])


def test_a_tree_without_pmus_says_so(tmp_path: Path) -> None:
    (tmp_path / "sys/devices").mkdir(parents=True)
    document = plan("--sysfs-root", tmp_path)
    assert document["uncore_plan"] == []
    (found,) = document["findings"]
    assert (found["state"], found["core"]) == ("absent", False)
    assert found["found"].startswith("no PMU that counts")


def test_pmus_that_haiprof_does_not_know_are_named(tree: Path) -> None:
    devices = tree / "sys/bus/event_source/devices"
    for name in ("hisi_sccl1_hha0", "cstate_core"):
        (devices / name).mkdir()
        (devices / name / "cpumask").write_text("0\n")
    for name in ("amd_df", "power"):
        shutil.rmtree(devices / name)
    document = plan("--sysfs-root", tree)
    assert document["uncore_unknown"] == ["hisi_sccl1_hha0"]
    (found,) = document["findings"]
    assert found["found"].endswith("PMUs that haiprof does not know: hisi_sccl1_hha0")
    assert "virtual machine" not in found["mend"]


def planned(*metrics: str) -> Plan:
    events = [{"pmu": "x", "metric": metric} for metric in metrics]
    return Plan(events, [], [], 0.0, "")


def test_a_plan_of_which_nothing_can_be_read_is_not_ok() -> None:
    refused = Finding("host memory_bandwidth", "denied", "may not", "CAP_PERFMON", "mem")
    hidden = Finding("host links", "absent", "one socket", "", "mem")
    found = summary(planned("dram_rd", "xsock_tx"), [hidden, refused])
    assert (found.state, found.fix) == ("denied", "CAP_PERFMON")
    assert found.found.startswith("none will be read: may not; 2 counters on 1 PMU: ")
    read = Finding("host memory_bandwidth", "ok", "dram.read.bytes_per_s", "", "mem")
    assert summary(planned("dram_rd", "xsock_tx"), [hidden, read]).state == "ok"
    assert summary(planned("dram_rd"), []).state == "ok"  # a copy of another machine's tree


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sysfs-root", "nowhere"], "--sysfs-root nowhere: does not exist"),
        (
            ["--sysfs-root", "empty"],
            "--sysfs-root empty: is not a sysfs: there is no bus, class or",
        ),
        (
            ["--sysfs-root", "tree", "--procfs-root", "empty"],
            "--procfs-root empty: is not a procfs",
        ),
        (["--sysfs-root", "tree", "--cpu", "EPYC"], "VENDOR:FAMILY:MODEL"),
        (
            ["--sysfs-root", "tree", "--cpu", "GenuineIntle:6:143"],
            "'GenuineIntle' is no vendor that haiprof knows; did you mean 'GenuineIntel'?",
        ),
        (["--sysfs-root", "tree", "--require", "mem"], "--require asks about this machine"),
    ],
)
def test_what_cannot_be_looked_at_is_one_line(
    tree: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    (tree.parent / "empty").mkdir()
    monkeypatch.chdir(tree.parent)
    done = haiprof("doctor", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in only_line(done)


def test_the_sysfs_of_this_machine_is_examined_live_wherever_it_is_mounted(shm: Path) -> None:
    document = plan("--sysfs-root", "/sys")
    assert document["ok"] is True
    assert "host cpu" in {f["what"] for f in document["findings"]}


@pytest.mark.parametrize(
    ("name", "cpu"),
    [
        ("real_bdx_2s_min", ""),
        ("qemu_icx", ""),
        ("qemu_skx4n", ""),
        ("qemu_rome", ""),
        ("synth_skx_2s", "GenuineIntel:6:85"),
        ("synth_spr_2s", "GenuineIntel:6:0x8f"),
        ("synth_milan_2s", "AuthenticAMD:25:1"),
        ("synth_genoa_2s", "AuthenticAMD:25:17"),
    ],
)
def test_a_recorded_machine_has_the_counters_that_it_must(
    tmp_path: Path, name: str, cpu: str
) -> None:
    found = recorded(name, tmp_path)
    expected = json.loads((recordings() / "expected_plans.json").read_text())[name]["events"]

    def ordered(events: list[dict[str, Any]]) -> list[tuple[object, ...]]:
        return sorted(tuple(e[c] for c in COLUMNS if c != "scale") for e in events)

    counters = plan("--sysfs-root", found, *(["--cpu", cpu] if cpu else []))["uncore_plan"]
    if name == "synth_genoa_2s":  # What was expected of it is from before its PCIe was counted.
        counters = [each for each in counters if not each["metric"].startswith("pcie_")]
    assert ordered(counters) == ordered(expected)
    assert sorted(e["scale"] for e in counters) == pytest.approx(
        sorted(e["scale"] for e in expected)
    )
