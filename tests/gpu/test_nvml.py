"""GPUs as NVML tells of them, from the library that stands in for NVIDIA's to the Analyzer."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from commands import haiprof as command
from recording import process_file, read_table, recorders, run_python, wait_for, wait_recorded

import haiprof

PROGRAM = '''
import ctypes, json, os, sys
from haiprof._core import HostSampler

SECOND = 10**9
now = 1000 * SECOND
sampler = HostSampler(basic=0.0, io=0.0, gpu=1.0)

def gpu(index):
    return f"GPU-00000000-0000-0000-0000-{index:012d}"

def mig(index, part):
    return f"MIG-00000000-0000-0000-{part:04d}-{index:012d}"

def nvml():
    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.fake_advance.argtypes = [ctypes.c_double]
    return library

def tick(seconds=1.0):
    """Let time pass and read; every (metric, instance) comes at most once."""
    global now
    now += round(seconds * SECOND)
    nvml().fake_advance(seconds)
    rows = sampler.read(now)
    values = {f"{metric} {instance}": value for _, metric, instance, value, _ in rows}
    assert len(values) == len(rows), rows
    return {key: value for key, value in values.items() if not key.startswith("haiprof.")}

def source(name="gpu"):
    return next(source for source in sampler.sources() if source["name"] == name)

def changes(*kinds):
    return [change for change in sampler.changes() if change[0] in kinds]

def answer(value):
    print(json.dumps(value))
'''


@pytest.fixture
def place(native_build: Path) -> Path:
    return native_build / "tests" / "native"


@pytest.fixture
def run(place: Path) -> Callable[..., Any]:
    """Run a program with the stand-in in its library path; return what it answered."""

    def run(program: str, library: Path | None = None, **environment: str) -> Any:
        path = str(library if library is not None else place / "nvidia-ml")
        out = run_python(
            PROGRAM + program, env={**os.environ, "LD_LIBRARY_PATH": path, **environment}
        )
        return json.loads(out)

    return run


def test_what_a_gpu_says_becomes_metrics_in_their_units(run: Callable[..., Any]) -> None:
    values = run("sampler.use_gpu(gpu(0)); [tick() for _ in range(3)]; answer(tick())")
    mib = 1 << 20
    assert values == pytest.approx(
        {
            "gpu.util.percent gpu0": 90.0,
            "gpu.mem_util.percent gpu0": 40.0,
            "gpu.memory_used.bytes gpu0": 10 << 30,
            "gpu.power.watts gpu0": 300.0,
            "gpu.power_instant.watts gpu0": 310.0,
            "gpu.energy.joules gpu0": 900.0,
            "gpu.temperature.celsius gpu0": 66.0,
            "gpu.memory_temperature.celsius gpu0": 72.0,
            "gpu.sm_clock.hertz gpu0": 1980e6,
            "gpu.memory_clock.hertz gpu0": 2619e6,
            "gpu.throttle_power.percent gpu0": 25.0,
            "gpu.throttle_thermal.percent gpu0": 50.0,
            "gpu.ecc_corrected.count gpu0": 2.0,
            "gpu.graphics_active.ratio gpu0": 0.01,
            "gpu.sm_active.ratio gpu0": 0.02,
            "gpu.sm_occupancy.ratio gpu0": 0.03,
            "gpu.int_active.ratio gpu0": 0.04,
            "gpu.tensor_active.ratio gpu0": 0.05,
            "gpu.dram_active.ratio gpu0": 0.10,
            "gpu.fp64_active.ratio gpu0": 0.11,
            "gpu.fp32_active.ratio gpu0": 0.12,
            "gpu.fp16_active.ratio gpu0": 0.13,
            "gpu.pcie_tx.bytes_per_s gpu0": 20 * mib,
            "gpu.pcie_rx.bytes_per_s gpu0": 21 * mib,
            "gpu.nvlink_rx.bytes_per_s gpu0": 60 * mib,
            "gpu.nvlink_tx.bytes_per_s gpu0": 61 * mib,
        },
        abs=1.0,
        rel=1e-3,
    )


def test_a_gpu_without_counters_gets_its_traffic_from_fields(run: Callable[..., Any]) -> None:
    values, counters = run(
        "sampler.use_gpu(gpu(0)); [tick() for _ in range(3)]\n"
        "answer([tick(), source('gpu_counters')])",
        FAKE_NVML_HOPPER="0",
    )
    assert values["gpu.pcie_tx.bytes_per_s gpu0"] == pytest.approx(5e6)
    assert values["gpu.pcie_rx.bytes_per_s gpu0"] == pytest.approx(6e6)
    assert values["gpu.nvlink_tx.bytes_per_s gpu0"] == pytest.approx(2 << 20, rel=1e-3)
    assert not any("_active" in name for name in values)
    assert counters["state"] == "absent"
    assert "FAKE A100) is older than Hopper" in counters["reason"]
    assert counters["mend"]


def test_a_newer_nvlink_is_the_sum_of_its_links(run: Callable[..., Any]) -> None:
    values = run(
        "sampler.use_gpu(gpu(0)); [tick() for _ in range(4)]; answer(tick())",
        FAKE_NVML_HOPPER="0",
        FAKE_NVML_FIELDS="138=3,139=3",
    )
    assert values["gpu.nvlink_tx.bytes_per_s gpu0"] == pytest.approx(2 << 20, rel=1e-3)
    assert values["gpu.nvlink_rx.bytes_per_s gpu0"] == pytest.approx(2 << 20, rel=1e-3)


def test_what_the_counters_lack_comes_from_the_fields_and_nothing_from_both(
    run: Callable[..., Any],
) -> None:
    # tick() fails where one metric of one GPU comes twice.
    first, last = run(
        "sampler.use_gpu(gpu(0)); first = tick(); rest = [tick() for _ in range(5)]\n"
        "answer([first, rest[-1]])",
        FAKE_NVML_METRICS="60=3,61=3",
    )
    assert "gpu.pcie_tx.bytes_per_s gpu0" not in first
    assert last["gpu.pcie_tx.bytes_per_s gpu0"] == 20 << 20
    assert last["gpu.nvlink_tx.bytes_per_s gpu0"] == pytest.approx(2 << 20, rel=1e-3)


def test_a_reading_is_a_handful_of_cheap_calls_for_each_gpu(run: Callable[..., Any]) -> None:
    calls = run(
        "[sampler.use_gpu(gpu(i)) for i in range(8)]; [tick() for _ in range(3)]\n"
        "nvml().fake_forget_calls(); tick()\n"
        "names = ['', 'nvmlDeviceGetFieldValues', 'nvmlEventSetWait_v2', 'nvmlGpmSampleGet',\n"
        "         'nvmlGpmMetricsGet', 'nvmlDeviceGetPcieThroughput', 'nvmlDeviceGetFanSpeed',\n"
        "         'nvmlDeviceGetComputeRunningProcesses_v3', 'nvmlInit_v2']\n"
        "answer([nvml().fake_calls(name.encode()) for name in names])",
        FAKE_NVML_GPUS="8",
    )
    assert calls == [8 * 10 + 1, 2 * 8, 1, 8, 8, 0, 0, 0, 0]


def test_nvml_is_not_loaded_before_a_gpu_is_used(run: Callable[..., Any]) -> None:
    before, after, loaded, later = run(
        "loaded = lambda: 'libnvidia-ml' in open('/proc/self/maps').read()\n"
        "sampler.read(now); before = [loaded(), source(), source('gpu_counters')]\n"
        "sampler.use_gpu(gpu(0)); due = sampler.next_due_ns\n"
        "sampler.read(now + 1)\n"
        "answer([before, [due, source()['state']], loaded(), sampler.gpus()])"
    )
    assert before[0] is False
    for source in before[1:]:
        assert source["state"] == "absent"
        assert source["reason"] == "no process of this run has used a GPU yet"
    assert after == [0, "ok"]
    assert loaded
    assert later == [
        {
            "instance": "gpu0",
            "index": 0,
            "mig": None,
            "uuid": "GPU-00000000-0000-0000-0000-000000000000",
            "name": "FAKE H100",
            "driver": "580.95.05",
            "memory_bytes": 80 << 30,
            "pci": "00000000:01:00.0",
            "power_limit_w": 700.0,
        }
    ]


def test_only_the_gpus_that_are_used_are_read_and_only_as_long(run: Callable[..., Any]) -> None:
    first, both, second, none, again = run(
        "instances = lambda: sorted({key.split()[1] for key in tick()})\n"
        "sampler.use_gpu(gpu(1)); first = instances()\n"
        "sampler.use_gpu(gpu(5)); sampler.use_gpu(gpu(5)); both = instances()\n"
        "sampler.unuse_gpu(gpu(1)); second = instances()\n"
        "sampler.unuse_gpu(gpu(5)); sampler.unuse_gpu(gpu(5)); sampler.unuse_gpu('GPU-none')\n"
        "none = [instances(), source()['state'], sampler.gpus()]\n"
        "sampler.use_gpu(gpu(1)); answer([first, both, second, none, instances()])",
        FAKE_NVML_GPUS="8",
    )
    assert (first, both, second, again) == (["gpu1"], ["gpu1", "gpu5"], ["gpu5"], ["gpu1"])
    assert none == [[], "ok", []]


def test_a_mig_device_has_what_nvml_gives_for_it(run: Callable[..., Any]) -> None:
    values, gpus, calls = run(
        "sampler.use_gpu(mig(1, 2)); [tick() for _ in range(3)]; values = tick()\n"
        "answer([values, sampler.gpus(), nvml().fake_calls(b'nvmlGpmMigSampleGet')])",
        FAKE_NVML_GPUS="2",
        FAKE_NVML_MIG="3",
    )
    assert {key.split()[1] for key in values} == {"gpu1/mig2"}
    assert values["gpu.memory_used.bytes gpu1/mig2"] == 10 << 27
    assert values["gpu.sm_active.ratio gpu1/mig2"] == 0.02
    assert not {"gpu.util.percent gpu1/mig2", "gpu.power.watts gpu1/mig2"} & set(values)
    [gpu] = gpus
    assert (gpu["instance"], gpu["index"], gpu["mig"]) == ("gpu1/mig2", 1, 2)
    assert gpu["parent_uuid"] == "GPU-00000000-0000-0000-0000-000000000001"
    assert calls == 4


def test_a_lost_gpu_is_reported_once_and_the_others_go_on(run: Callable[..., Any]) -> None:
    values, lost, state = run(
        "[sampler.use_gpu(gpu(i)) for i in range(2)]; [tick() for _ in range(5)]\n"
        "answer([tick(), changes('gpu_lost'), source()['state']])",
        FAKE_NVML_GPUS="2",
        FAKE_NVML_LOST="2",
    )
    assert {key.split()[1] for key in values} == {"gpu1"}
    [(_, text, attributes)] = lost
    assert text == "gpu0 (FAKE H100) has fallen off the bus; it is not sampled any more"
    assert attributes["instance"] == "gpu0"
    assert state == "ok"


def test_the_only_gpu_that_is_lost_leaves_no_source(run: Callable[..., Any]) -> None:
    values, lost, source = run(
        "sampler.use_gpu(gpu(0)); [tick(61) for _ in range(6)]\n"
        "answer([tick(), changes('gpu_lost'), source()])",
        FAKE_NVML_LOST="2",
    )
    assert values == {}
    assert len(lost) == 1
    assert (source["state"], source["reason"]) == ("absent", "gpu0: GPU is lost")
    assert "Xid" in source["mend"]


def test_an_xid_is_an_event_with_its_meaning(run: Callable[..., Any]) -> None:
    changes = run(
        "[sampler.use_gpu(gpu(i)) for i in range(2)]; [tick() for _ in range(5)]\n"
        "answer(changes('xid'))",
        FAKE_NVML_GPUS="2",
        FAKE_NVML_XID="31@3",
    )
    [(_, text, attributes)] = changes
    assert text.startswith("gpu0: Xid 31, a memory page fault")
    assert (attributes["instance"], attributes["xid"]) == ("gpu0", 31)


XID_AT_THE_END = """
import pathlib
from haiprof.recorder.node import NodeRecorder
node = NodeRecorder(pathlib.Path(sys.argv[1]), {"gpu": 1.0})
ranks = [node.folder / name for name in "ab"]
for index, rank in enumerate(ranks):
    node.use_gpus(rank, [gpu(index)])
node.sample()
for index, xid in XIDS:
    nvml().fake_xid(index, xid)
for rank in ranks:
    node.unuse_gpus(rank)
node.close()
answer(None)
"""


def test_the_xid_that_ended_the_last_rank_is_in_the_events(place: Path, tmp_path: Path) -> None:
    run_python(
        PROGRAM + "XIDS = [(0, 31), (1, 43)]" + XID_AT_THE_END,
        str(tmp_path),
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(place / "nvidia-ml"),
            "FAKE_NVML_GPUS": "2",
        },
    )
    [folder] = tmp_path.iterdir()
    xids = [row for row in read_table(folder, "events").to_pylist() if row["kind"] == "xid"]
    assert [json.loads(row["attributes"])["xid"] for row in xids] == [31, 43]
    assert xids[0]["text"].startswith("gpu0: Xid 31, a memory page fault")
    assert xids[1]["text"].startswith("gpu1: Xid 43, ")


@pytest.mark.parametrize("others", [[], [1]])
def test_an_xid_of_a_gpu_that_nobody_used_is_not_reported_to_the_next_user(
    run: Callable[..., Any], others: list[int]
) -> None:
    changes = run(
        f"[sampler.use_gpu(gpu(i)) for i in [0, *{others}]]; tick(); sampler.unuse_gpu(gpu(0))\n"
        "nvml().fake_xid(0, 31); nvml().fake_xid(1, 74); sampler.use_gpu(gpu(0)); tick()\n"
        "nvml().fake_xid(0, 79); tick(); answer(changes('xid'))",
        FAKE_NVML_GPUS="2",
    )
    xids = [(attributes["instance"], attributes["xid"]) for _, _, attributes in changes]
    assert xids == [*(("gpu1", 74) for _ in others), ("gpu0", 79)]


def test_only_a_change_of_a_reason_that_is_not_normal_is_an_event(run: Callable[..., Any]) -> None:
    changes = run(
        "sampler.use_gpu(gpu(0)); [tick() for _ in range(12)]; answer(changes('throttle'))",
        # idle, a power cap, hot twice, braked as well, a moment of slowdown, nothing, hot by
        # itself, slowdown that stays
        FAKE_NVML_REASONS="1,4,24,20,ac,8,0,0,8,8",
    )
    events = [(text, attributes["reasons"]) for _, text, attributes in changes]
    assert [reasons for _, reasons in events] == [
        "thermal",
        "thermal,power_brake",
        "",
        "hw_slowdown",
    ]
    assert events[0][0] == "gpu0 is slowed down: it or its memory is as hot as it may be"
    assert events[2][0] == "gpu0 is no longer slowed down by heat or the hardware"


def test_memory_errors_that_grow_are_an_event(run: Callable[..., Any]) -> None:
    [(_, text, attributes)] = run(
        "sampler.use_gpu(gpu(0)); [tick() for _ in range(6)]; answer(changes('ecc'))"
    )
    assert text == "gpu0: 2 corrected memory errors, 2 since the driver was loaded"
    assert attributes == {"instance": "gpu0", "type": "corrected", "n": 2, "total": 2}


def test_a_count_of_memory_errors_that_came_late_is_no_new_error(run: Callable[..., Any]) -> None:
    first, values, changes = run(
        "nvml().fake_advance(5); sampler.use_gpu(gpu(0)); first = tick()\n"
        "os.environ['FAKE_NVML_FIELDS'] = ''; tick(); answer([first, tick(), changes('ecc')])",
        FAKE_NVML_FIELDS="3=999",
    )
    assert "gpu.ecc_corrected.count gpu0" not in first
    assert values["gpu.ecc_corrected.count gpu0"] == 2
    assert changes == []


@pytest.mark.parametrize(
    ("environment", "asked_later"),
    [
        ({}, set()),
        ({"FAKE_NVML_METRICS": "60=3,61=3"}, {"138", "139"}),
        ({"FAKE_NVML_HOPPER": "0"}, {"138", "139", "197", "198"}),
        (
            {"FAKE_NVML_HOPPER": "0", "FAKE_NVML_FIELDS": "138=3,139=3"},
            {"197", "198", "202_0", "202_1", "204_0", "204_1"},
        ),
    ],
)
def test_the_cost_of_each_field_is_reported_once_it_is_clear_which_are_read(
    run: Callable[..., Any], environment: dict[str, str], asked_later: set[str]
) -> None:
    changes = run(
        "sampler.use_gpu(gpu(0)); [tick() for _ in range(6)]; answer(changes('source'))",
        **environment,
    )
    [cost] = [attributes for _, _, attributes in changes if "field_values_us" in attributes]
    fields = {name: us for name, us in cost.items() if name.startswith("field_")}
    del fields["field_values_us"]
    assert set(fields.values()) == {3}  # as the stand-in says of each field that it was asked for
    later = {f"field_{number}_us" for number in ("138", "139", "197", "198", "202_0", "202_1",
                                                 "204_0", "204_1")}  # fmt: skip
    assert later & set(fields) == {f"field_{number}_us" for number in asked_later}


def test_what_nvml_costs_is_reported_once_for_each_gpu(run: Callable[..., Any]) -> None:
    changes = run(
        "[sampler.use_gpu(gpu(i)) for i in range(2)]; [tick() for _ in range(6)]\n"
        "answer(changes('source'))",
        FAKE_NVML_GPUS="2",
    )
    start, *costs = [attributes for _, _, attributes in changes]
    assert start["driver"] == "580.95.05"
    assert start["init_us"] > 0
    assert len(costs) == 4
    fields = [cost for cost in costs if "field_values_us" in cost]
    assert [cost["instance"] for cost in fields] == ["gpu0", "gpu1"]
    assert all(cost["field_82_us"] == 3 and cost["energy_us"] > 0 for cost in fields)
    assert all(cost["utilization_us"] > 0 for cost in fields)
    assert sum("gpm_sample_us" in cost and cost["gpm_metrics_us"] > 0 for cost in costs) == 2


def test_an_energy_counter_that_is_slow_is_read_less_often(run: Callable[..., Any]) -> None:
    rows = run(
        "sampler.use_gpu(gpu(0)); answer([tick() for _ in range(24)])", FAKE_NVML_ENERGY_US="3500"
    )
    # The first reading is of no use for how long the others take.
    power = [number for number, row in enumerate(rows) if "gpu.power.watts gpu0" in row]
    steps = [later - earlier for earlier, later in itertools.pairwise(power)]
    assert power[0] == 1
    assert min(steps) >= 4
    assert 24 - power[-1] <= 2 * max(steps)
    assert [rows[number]["gpu.power.watts gpu0"] for number in power] == [300.0] * len(power)
    assert [rows[number]["gpu.energy.joules gpu0"] for number in power] == [
        300.0 * number for number in power
    ]
    assert all("gpu.power_instant.watts gpu0" in row for row in rows)


def test_readings_that_make_the_driver_wait_are_made_less_often(run: Callable[..., Any]) -> None:
    interval, texts = run(
        "sampler.use_gpu(gpu(0)); [tick() for _ in range(20)]\n"
        "answer([source()['interval_s'], [text for _, text, _ in changes('source')]])",
        FAKE_NVML_SLEEP_US="6000",
    )
    assert interval >= 2.0
    [slowed] = [text for text in texts if text.startswith("source gpu spends")][:1]
    assert "of the time" in slowed


@pytest.mark.parametrize(
    ("driver", "share"),
    [("535.54.03", None), ("570.86.15", None), ("575.51.03", 50.0), ("580.65.06", 50.0),
     ("580.76.05", None), ("580.82.07", 50.0), ("590.44.01", 50.0), ("odd", None)],
)  # fmt: skip
def test_fields_that_releases_renumbered_are_asked_for_by_the_numbers_of_this_one(
    run: Callable[..., Any], driver: str, share: float | None
) -> None:
    values = run(
        "sampler.use_gpu(gpu(0)); [tick() for _ in range(3)]; answer(tick())",
        FAKE_NVML_DRIVER=driver,
    )
    assert values.get("gpu.throttle_thermal.percent gpu0") == share
    assert "gpu.throttle_hw_thermal.percent gpu0" not in values
    assert "gpu.throttle_power_brake.percent gpu0" not in values


def test_power_without_an_energy_counter_is_the_drivers_mean(run: Callable[..., Any]) -> None:
    program = "sampler.use_gpu(gpu(0)); [tick() for _ in range(3)]; answer(tick())"
    average = run(program, FAKE_NVML_FIELDS="83=3")
    assert average["gpu.power.watts gpu0"] == 305.0
    assert "gpu.energy.joules gpu0" not in average
    usage = run(program, FAKE_NVML_FIELDS="83=3,185=3,186=2")
    assert usage["gpu.power.watts gpu0"] == 290.0
    assert "gpu.power_instant.watts gpu0" not in usage


def test_a_field_that_fails_for_a_moment_is_asked_for_again(run: Callable[..., Any]) -> None:
    gone, back = run(
        "sampler.use_gpu(gpu(0)); [tick() for _ in range(3)]\n"
        "os.environ['FAKE_NVML_FIELDS'] = '82=999,83=999'; gone = tick()\n"
        "os.environ['FAKE_NVML_FIELDS'] = ''; tick(); answer([gone, tick()])"
    )
    assert not {"gpu.memory_temperature.celsius gpu0", "gpu.power.watts gpu0"} & set(gone)
    assert back["gpu.memory_temperature.celsius gpu0"] == 72.0
    assert back["gpu.power.watts gpu0"] == pytest.approx(300.0)


@pytest.mark.parametrize(
    "function",
    ["FieldValues", "UtilizationRates", "MemoryInfo_v2", "TemperatureV", "ClockInfo"],
)
@pytest.mark.parametrize("result", [3, 4, 999])
def test_a_call_that_fails_takes_no_other_metric_with_it(
    run: Callable[..., Any], function: str, result: int
) -> None:
    values, calls = run(
        f"sampler.use_gpu(gpu(0)); [tick() for _ in range(4)]\n"
        f"answer([tick(), nvml().fake_calls(b'nvmlDeviceGet{function}')])",
        FAKE_NVML_ANSWERS=f"nvmlDeviceGet{function}={result}",
    )
    names = {key.split()[0] for key in values}
    missing = {
        "FieldValues": {"gpu.energy.joules"},
        "UtilizationRates": {"gpu.util.percent", "gpu.mem_util.percent"},
        "MemoryInfo_v2": set() if result != 999 else {"gpu.memory_used.bytes"},
        "TemperatureV": set() if result != 999 else {"gpu.temperature.celsius"},
        "ClockInfo": {"gpu.sm_clock.hertz", "gpu.memory_clock.hertz"},
    }[function]
    assert not names & missing
    everything = {"gpu.util.percent", "gpu.memory_used.bytes", "gpu.temperature.celsius",
                  "gpu.sm_clock.hertz", "gpu.sm_active.ratio", "gpu.power.watts"}  # fmt: skip
    assert everything - missing <= names
    # What will never be there is asked for once; of two clocks, each.
    if result != 999 and missing:
        assert calls <= 2


@pytest.mark.parametrize(
    ("answers", "state", "reason", "fix"),
    [
        ("nvmlInit_v2=9", "absent", "NVML does not start: Driver Not Loaded", "modprobe nvidia"),
        ("nvmlInit_v2=18", "absent", "version mismatch", "reboot"),
        ("nvmlInit_v2=4", "denied", "Insufficient Permissions", "/dev/nvidiactl"),
        ("nvmlInit_v2=17", "denied", "NVML does not start", "control group"),
        ("nvmlInit_v2=999", "absent", "Unknown Error", "nvidia-smi"),
        ("nvmlDeviceGetHandleByUUID=6", "absent", "GPU-0000", "nvidia-smi -L"),
        ("nvmlDeviceGetHandleByUUID=4", "denied", "GPU-0000", "/dev/nvidia"),
        ("nvmlDeviceGetIndex=15", "absent", "GPU is lost", "reset"),
    ],
)
def test_why_there_is_nothing_to_read_is_reported_with_the_fix(
    run: Callable[..., Any], answers: str, state: str, reason: str, fix: str
) -> None:
    values, source = run(
        "sampler.use_gpu(gpu(0)); tick(); answer([tick(), source()])", FAKE_NVML_ANSWERS=answers
    )
    assert values == {}
    assert source["state"] == state
    assert reason in source["reason"]
    assert fix in source["mend"]


def test_a_driver_that_comes_later_is_found(run: Callable[..., Any]) -> None:
    before, after = run(
        "sampler.use_gpu(gpu(0)); before = tick(); os.environ['FAKE_NVML_ANSWERS'] = ''\n"
        "tick(60); answer([before, tick()])",
        FAKE_NVML_ANSWERS="nvmlInit_v2=9",
    )
    assert before == {}
    assert after["gpu.util.percent gpu0"] == 90.0


def test_a_gpu_that_nvml_does_not_know_is_reported_once_beside_one_that_it_does(
    run: Callable[..., Any],
) -> None:
    values, changes = run(
        "sampler.use_gpu('GPU-of-somebody'); sampler.use_gpu(gpu(0))\n"
        "[tick() for _ in range(3)]; answer([tick(), changes('source')])"
    )
    assert {key.split()[1] for key in values} == {"gpu0"}
    unknown = [text for _, text, _ in changes if "GPU-of-somebody" in text]
    assert unknown == ["GPU-of-somebody is not sampled: GPU-of-somebody: Not Found"]


@pytest.mark.parametrize(
    "answers",
    [
        "nvmlGpmSampleGet=999",
        "nvmlGpmMetricsGet=25",
        "nvmlGpmSampleAlloc=20",
        "nvmlGpmQueryDeviceSupport=4",
    ],
)
def test_counters_that_do_not_work_leave_their_traffic_to_the_fields(
    run: Callable[..., Any], answers: str
) -> None:
    values = run(
        "sampler.use_gpu(gpu(0)); [tick() for _ in range(4)]; answer(tick())",
        FAKE_NVML_ANSWERS=answers,
    )
    assert values["gpu.pcie_tx.bytes_per_s gpu0"] == pytest.approx(5e6)
    assert not any("_active" in name for name in values)


def test_counters_are_not_read_more_often_than_they_change(run: Callable[..., Any]) -> None:
    calls = run(
        "sampler = HostSampler(basic=0.0, io=0.0, gpu=0.01); sampler.use_gpu(gpu(0))\n"
        "[tick(0.02) for _ in range(50)]\n"
        "answer([nvml().fake_calls(b'nvmlGpmSampleGet'), nvml().fake_calls(b'nvmlGpmMetricsGet')])"
    )
    assert 2 <= calls[0] <= 11
    assert calls[1] == calls[0] - 1


def test_an_old_driver_gives_what_it_has(run: Callable[..., Any], place: Path) -> None:
    values, counters = run(
        "sampler.use_gpu(gpu(0)); [tick() for _ in range(3)]\n"
        "answer([tick(), source('gpu_counters')])",
        library=place / "old-nvidia-ml",
        FAKE_NVML_REASONS="0",
    )
    assert values["gpu.memory_used.bytes gpu0"] == 11 << 30
    assert values["gpu.temperature.celsius gpu0"] == 65.0
    assert values["gpu.pcie_rx.bytes_per_s gpu0"] == pytest.approx(6e6)
    assert counters["state"] == "absent"
    assert "has no activity counters" in counters["reason"]
    assert "525" in counters["mend"]


def without_driver(program: str, folder: Path) -> Any:
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM + program],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(out.stdout)


def test_a_missing_a_broken_and_a_foreign_library_are_distinguished(
    place: Path, tmp_path: Path
) -> None:
    program = (
        "sampler.use_gpu(gpu(0)); sampler.read(now); answer([source(), sampler.read(now * 2)])"
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "libnvidia-ml.so.1").write_bytes(b"no library")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "libnvidia-ml.so.1").symlink_to(place / "cuda" / "libcuda.so.1")
    broken, _ = without_driver(program, tmp_path / "broken")
    foreign, _ = without_driver(program, tmp_path / "foreign")
    assert broken["reason"].startswith("the driver's library is broken: ")
    assert broken["mend"] == "reinstall the driver"
    assert foreign["reason"].endswith("is not an NVML that haiprof can use, or far too old")
    for path in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu"):
        if Path(path, "libnvidia-ml.so.1").exists():
            return  # a real driver is here
    missing, rows = without_driver(program, tmp_path)
    assert missing["reason"].startswith("no NVIDIA driver: libnvidia-ml.so.1: cannot open")
    assert "--gpus all" in missing["mend"]
    assert {row[1] for row in rows} <= {"haiprof.cost.ratio"}


def test_every_metric_that_comes_is_described_and_documented(run: Callable[..., Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    before, came, described = run(
        "metrics = lambda: [m for s in sampler.sources() for m in s['metrics']]\n"
        "before = metrics(); sampler.use_gpu(gpu(0)); values = [tick() for _ in range(5)][-1]\n"
        "answer([before, sorted({key.split()[0] for key in values}), metrics()])"
    )
    assert set(came) <= set(described) <= set(before)
    assert len(came) > 20
    for metric in before:
        assert f"`{metric}`" in page


# -- from the uuids that jobs tell to the tables -------------------------------------------------


def test_gpus_of_the_ranks_are_sampled_once_into_the_node_until_the_last_has_ended(
    place: Path, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from haiprof.common.places import make_private, ring_dir, ring_root
    from haiprof.options import Options
    from haiprof.recorder.launch import start_recorder
    from haiprof.recorder.run_folder import open_run_folder

    monkeypatch.setenv("LD_LIBRARY_PATH", str(place / "nvidia-ml"))
    monkeypatch.setenv("FAKE_NVML_GPUS", "8")
    monkeypatch.setenv("FAKE_NVML_CLOCK", "real")
    monkeypatch.setenv("FAKE_NVML_XID", "79@3")
    rings, run_dir = ring_dir("run"), tmp_path / "run"
    open_run_folder(run_dir, ["job"], Options())
    make_private(ring_root())
    make_private(rings)

    def uuid(index: int) -> str:
        return f"GPU-00000000-0000-0000-0000-{index:012d}"

    def job(rank: int, *uuids: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [place / "gpu_user", rings / f"{rank}.ring", run_dir, "node1", str(rank), *uuids],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def node() -> dict[str, Any]:
        folders = [f for f in run_dir.glob("*/process.json") if "#" not in f.parent.name]
        return process_file(folders[0].parent) if folders else {}

    jobs = [job(0, uuid(0)), job(1, uuid(0))]
    start_recorder(rings, run_dir, Options(gpu_interval=0.25, drain_hz=20.0))
    wait_for(lambda: len(node().get("gpus", ())) == 1, what="the first GPU")
    assert jobs[1].stdin is not None
    jobs[1].stdin.write(uuid(3) + "\n")
    jobs[1].stdin.flush()
    wait_for(lambda: len(node()["gpus"]) == 2, what="the second GPU")
    jobs[1].communicate("")
    wait_for(
        lambda: process_file(run_dir / "node1#1")["state"] == "closed", what="the second's end"
    )
    left = time.time_ns()
    time.sleep(1.5)
    assert recorders(shm)
    jobs[0].communicate("")
    wait_recorded(shm)

    gpus = {gpu["uuid"]: gpu["instance"] for gpu in node()["gpus"]}
    assert gpus == {uuid(0): "gpu0", uuid(3): "gpu3"}
    found = haiprof.Analyzer(run_dir)
    util = found.samples("gpu.util.percent")
    assert set(util["instance"].cast(pl.String).to_list()) == {"gpu0", "gpu3"}
    for instance, goes_on in (("gpu0", True), ("gpu3", False)):
        times = util.filter(pl.col("instance").cast(pl.String) == instance)["time"].cast(pl.Int64)
        assert times.is_unique().all()  # once for all ranks
        last = times.max()
        assert isinstance(last, int)
        assert (last > left) == goes_on
    events = found.events()
    assert events.filter(pl.col("kind").cast(pl.String) == "xid").height == 1
    sources = {source["name"]: source["state"] for source in node()["sources"]}
    assert sources["gpu"] == sources["gpu_counters"] == "ok"


def doctor(place: Path, **environment: str) -> dict[str, dict[str, Any]]:
    done = command(
        "doctor",
        "--json",
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(place / "nvidia-ml"),
            "FAKE_NVML_CLOCK": "real",
            **environment,
        },
    )
    return {f["what"]: f for f in json.loads(done.stdout)["findings"]}


def test_the_doctor_looks_at_all_gpus(place: Path, shm: Path) -> None:
    found = doctor(place, FAKE_NVML_GPUS="2")
    assert found["GPU sampling"]["state"] == found["GPU counters"]["state"] == "ok"
    found_text = found["GPU sampling"]["found"]
    assert found_text.startswith(
        "driver 580.95.05, gpu0 FAKE H100, gpu1 FAKE H100: gpu.util.percent, "
    )
    assert "gpu.tensor_active.ratio" in found["GPU counters"]["found"]
    assert "host gpu" not in found


def test_the_doctor_says_why_gpus_cannot_be_sampled(place: Path, shm: Path) -> None:
    found = doctor(place, FAKE_NVML_ANSWERS="nvmlInit_v2=18")
    assert found["GPU sampling"]["state"] == "absent"
    assert "reboot" in found["GPU sampling"]["mend"]
    assert "GPU counters" not in found
