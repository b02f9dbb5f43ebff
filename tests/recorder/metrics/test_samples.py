"""The node's own samples as series: of the machine, and of GPUs by the library that stands in."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from exported import gpu_uuid, samples
from recording import read_table, run_python

from haiprof.recorder.metrics.sample_families import EXPORTED
from haiprof.recorder.metrics.samples import Samples
from haiprof.recorder.node import NodeRecorder


class Clock:
    """A clock that is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def of_node(clock: Clock) -> Samples:
    return Samples(clock)


def exported(
    of_node: Samples, *sources: Mapping[str, Any], gpus: tuple[Mapping[str, Any], ...] = ()
) -> dict[tuple[str, ...], float]:
    """Return values by name and labels."""
    found: dict[tuple[str, ...], float] = {}
    for one in of_node.series(sources, gpus):
        assert isinstance(one.value, float)
        found[(one.family.name, *one.labels)] = one.value
    return found


def test_series_are_the_newest_rows_of_the_table(tmp_path: Path) -> None:
    node, of_node = NodeRecorder(tmp_path, {"basic": 0.01, "io": 0.01}), Samples()
    node.hand_rows_to(of_node.read)
    node.watch_command(os.getpid())
    for _ in range(4):
        time.sleep(max(0.0, (node.next_due_ns - time.monotonic_ns()) / 1e9))
        node.sample()
    node.write()
    series = list(of_node.series(node.sources, node.gpus))
    node.close()
    rows = read_table(node.folder, "samples").to_pylist()
    newest = {(row["metric"], row["instance"]): row["value"] for row in rows}
    wanted = {
        (family.name, *([] if instance is None else [instance])): newest[metric, instance] * scale
        for metric, (family, scale) in EXPORTED.items()
        for instance in [key[1] for key in newest if key[0] == metric]
        if (instance is not None) is bool(family.labels)
    }
    assert {(one.family.name, *one.labels): one.value for one in series} == wanted
    for name in ("haiprof_cpu_util_ratio", "haiprof_mem_used_bytes"):
        assert (name,) in wanted, "of the node, not of a core or socket"


#: The recorder reads a GPU of the stand-in; Exports makes the text that Prometheus gets.
OF_GPUS = """
    import ctypes, json, pathlib, sys, time
    from haiprof.common.metrics_targets import targets_of
    from haiprof.recorder.metrics.exports import Exports
    from haiprof.recorder.node import NodeRecorder

    node = NodeRecorder(pathlib.Path(sys.argv[1]), {"gpu": 0.01})
    exports = Exports(targets_of(sys.argv[2]), {"run": "r", "node": "n"}, print)
    node.hand_rows_to(exports.rows_of_node())
    node.use_gpus(node.folder, json.loads(sys.argv[3]))
    advance = ctypes.CDLL("libnvidia-ml.so.1").fake_advance
    advance.argtypes = [ctypes.c_double]
    for _ in range(3):
        time.sleep(max(0.0, (node.next_due_ns - time.monotonic_ns()) / 1e9))
        advance(0.5)
        node.sample()
    node.write()
    exports.turn(node)
    print(pathlib.Path(sys.argv[4]).read_text())
    exports.close(node)
    node.close()
"""


@pytest.mark.parametrize("host", [True, False])
def test_gpus_have_the_names_that_others_give_them(
    tmp_path: Path, native_build: Path, host: bool
) -> None:
    file, uuids = tmp_path / "a.prom", [gpu_uuid(0), gpu_uuid(1)]
    library = native_build / "tests" / "native" / "nvidia-ml"
    text = run_python(
        OF_GPUS,
        *(str(tmp_path), f"{file},host" if host else str(file)),
        *(json.dumps(uuids), str(file)),
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML_GPUS": "2"},
    )
    lines = [line.split("} ") for line in text.splitlines() if line.startswith("haiprof_gpu")]
    found = {name.removeprefix("haiprof_gpu_"): float(value) for name, value in lines}
    if not host:
        assert found == {}
        return
    for known in (
        {"util_ratio": 0.9, "memory_used_bytes": 10 << 30, "temperature_celsius": 66.0},
        {"sm_clock_hertz": 1980e6, "memory_clock_hertz": 2619e6, "memory_temperature_celsius": 72},
    ):
        for name, value in known.items():
            key = next(key for key in found if key.startswith(name + "{"))
            assert found[key] == pytest.approx(value)
    for n, uuid in enumerate(uuids):
        of_one = [key for key in found if f'gpu="{n}"' in key and f'UUID="{uuid}"' in key]
        assert len(of_one) == len(found) / 2 > 10


def test_what_is_no_longer_sampled_has_no_series(of_node: Samples, clock: Clock) -> None:
    of_node.read(samples(("gpu.util.percent", "gpu0", 90.0), ("cpu.frequency.hertz", None, 2e9)))
    sources = (
        {"name": "gpu", "metrics": ["gpu.util.percent"], "interval_s": 1.0},
        {"name": "frequency", "metrics": ["cpu.frequency.hertz"], "interval_s": 10.0},
    )
    gpus = ({"instance": "gpu0", "uuid": "GPU-1"},)
    assert exported(of_node, *sources, gpus=gpus) == {
        ("haiprof_gpu_util_ratio", "0", "GPU-1"): 0.9,
        ("haiprof_cpu_frequency_hertz",): 2e9,
    }
    clock.now += 15
    assert exported(of_node, *sources) == {("haiprof_cpu_frequency_hertz",): 2e9}
    clock.now += 16
    assert exported(of_node, *sources) == {}


def test_many_instances_are_cut_off_and_counted(of_node: Samples, clock: Clock) -> None:
    many = [("net.rx.bytes_per_s", f"eth{n}", 1.0) for n in range(70)]
    for _ in range(2):  # those that are counted once are not counted again
        of_node.read(samples(*many))
    assert len(exported(of_node)) == 64
    assert of_node.cut_off == 6
    clock.now += 60
    assert exported(of_node) == {}
    of_node.read(samples(("net.rx.bytes_per_s", "eth69", 1.0)))
    assert len(exported(of_node)) == 1, "there is room for it again"


def test_long_names_that_begin_alike_are_not_one_series(of_node: Samples) -> None:
    mounts = ["/mnt/" + "x" * 80 + end for end in "ab"]
    of_node.read(samples(*(("io.nfs_read.bytes_per_s", mount, 1.0) for mount in mounts)))
    assert len(exported(of_node)) == of_node.cut_off == 1


def test_what_is_no_number_and_other_tables_and_metrics_are_left_out(of_node: Samples) -> None:
    of_node.read(samples(("cpu.util.percent", None, float("nan")), ("of.no.use", None, 1.0)))
    of_node.read(samples(("cpu.util.percent", "cpu7", 5.0), ("gpu.util.percent", None, 5.0)))
    assert exported(of_node) == {}
