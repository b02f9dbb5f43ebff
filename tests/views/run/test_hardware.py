"""Tables and sentences of hardware counters: what was sampled, beside what the machine can do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.findings import hardware as hardware_findings
from haiprof.views.run import hardware
from haiprof.views.run.overview import Summary

Values = dict[tuple[str, str | None], float]
SECONDS = 10
NO_EVENTS = pl.DataFrame(
    schema={n: pl.String() for n in ("node", "kind", "text", "attributes")} | {"time": pl.Int64()}
)
SLOW_LOADER = (("dataloader", 5.0), ("forward", 4.0), ("backward", 2.0))


def summaries(
    folder: Path,
    of_node: Values,
    of_rank: Values | None = None,
    machine: dict[str, Any] | None = runs.MACHINE,
    more: Sequence[runs.Row] = (),
    steps: int = 50,
    **loop: Any,
) -> tuple[list[Summary], list[Summary]]:
    """Sum up a run of one rank and its node, each with steady values."""
    run = runs.write_run(folder / "r")
    rank = runs.write_process(run)
    runs.write_closed(rank, schema.SPANS, runs.loop(steps, **loop))
    runs.write_closed(rank, schema.SAMPLES, runs.steady(SECONDS, of_rank or {}))
    node = runs.write_node(run, **({} if machine is None else {"machine": machine}))
    runs.write_closed(node, schema.SAMPLES, [*runs.steady(SECONDS, of_node), *more])
    return Analyzer(run).summaries()


def intel(read: tuple[float, float], write: tuple[float, float]) -> Values:
    return runs.with_sockets(hardware.READ, *read) | runs.with_sockets(hardware.WRITE, *write)


def test_traffic_stands_beside_the_peak_for_the_node_and_each_socket(tmp_path: Path) -> None:
    values = intel((100e9, 20e9), (40e9, 0.0)) | runs.with_sockets(hardware.REMOTE, 5e9, 7e9)
    _, nodes = summaries(tmp_path, values)
    rows = hardware.memory_table(nodes).to_dicts()
    assert [r["socket"] for r in rows] == ["all", "socket0", "socket1"]
    assert [r["read_bytes_per_s"] for r in rows] == [120e9, 100e9, 20e9]
    assert [r["sent_to_other_sockets_bytes_per_s"] for r in rows] == [12e9, 5e9, 7e9]
    assert [r["peak_bytes_per_s"] for r in rows] == [400e9, 200e9, 200e9]
    assert [r["of peak_share"] for r in rows] == [0.4, 0.7, 0.1]


def test_a_node_that_cannot_tell_reads_from_writes_has_one_column_for_both(tmp_path: Path) -> None:
    _, nodes = summaries(tmp_path, runs.with_sockets(hardware.TRAFFIC, 90e9, 110e9))
    table = hardware.memory_table(nodes)
    assert "read_bytes_per_s" not in table.columns
    assert table["read_and_write_bytes_per_s"].to_list() == [200e9, 90e9, 110e9]
    assert table["of peak_share"].to_list() == [0.5, 0.45, 0.55]


def test_a_node_without_sockets_distinguished_has_one_row(tmp_path: Path) -> None:
    _, nodes = summaries(tmp_path, {(hardware.READ, None): 1e9, (hardware.WRITE, None): 2e9})
    assert hardware.memory_table(nodes)["socket"].to_list() == ["all"]


@pytest.mark.parametrize("machine", [None, {**runs.MACHINE, "dram_peak_bytes_per_s": None}])
def test_without_a_known_peak_there_is_no_share_of_it(
    tmp_path: Path, machine: dict[str, Any] | None
) -> None:
    _, nodes = summaries(tmp_path, intel((300e9, 1.0), (90e9, 1.0)), machine=machine)
    table = hardware.memory_table(nodes)
    assert table.height == 3
    assert not {"peak_bytes_per_s", "of peak_share"} & set(table.columns)
    assert hardware_findings.near_peak(nodes) == ""


def test_reads_alone_are_no_share_of_the_peak(tmp_path: Path) -> None:
    _, nodes = summaries(tmp_path, {(hardware.READ, None): 300e9})
    assert hardware.memory_table(nodes).columns == ["node", "socket", "read_bytes_per_s"]


def test_energy_is_power_over_the_time_in_which_it_was_sampled(tmp_path: Path) -> None:
    values = runs.with_sockets("cpu.power.watts", 150.0, 50.0)
    values[("node.power.watts", None)] = 700.0
    _, nodes = summaries(tmp_path, values)
    whole, first, _ = hardware.power_table(nodes).to_dicts()
    assert (whole["cpu_mean_watts"], round(whole["cpu_joules"], 6)) == (200.0, 2000.0)
    assert (whole["node_mean_watts"], round(whole["node_joules"], 6)) == (700.0, 7000.0)
    assert (round(first["cpu_joules"], 6), first["node_joules"]) == (1500.0, None)
    assert hardware_findings.power(nodes) == [
        "The node drew 700 W on average, 7 kJ in the run (node.power.watts)",
        "CPU packages drew 200 W on average, 2 kJ in the run (cpu.power.watts)",
    ]


def test_containers_of_one_node_do_not_count_its_power_twice(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    for folder in ("n0", "n0.2", "n1"):
        node = runs.write_node(run, folder)
        document = json.loads((node / schema.PROCESS_FILE).read_text("utf-8"))
        runs.write_json(node / schema.PROCESS_FILE, {**document, "node": folder.partition(".")[0]})
        rows = runs.steady(SECONDS, {("node.power.watts", None): 700.0})
        runs.write_closed(node, schema.SAMPLES, rows[:5] if folder == "n0.2" else rows)
    _, nodes = Analyzer(run).summaries()
    assert hardware_findings.power(nodes) == [
        "The nodes drew 1400 W on average, 14 kJ in the run (node.power.watts)"
    ]


def test_power_that_some_nodes_tell_is_not_that_of_all(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    values: Values = {("node.power.watts", None): 700.0, ("cpu.power.watts", None): 200.0}
    runs.write_closed(runs.write_node(run, "n0"), schema.SAMPLES, runs.steady(SECONDS, values))
    runs.write_node(run, "n1")
    _, nodes = Analyzer(run).summaries()
    assert hardware_findings.power(nodes) == [
        "1 of 2 nodes drew 700 W on average, 7 kJ in the run (node.power.watts)",
        "CPU packages of 1 of 2 nodes drew 200 W on average, 2 kJ in the run (cpu.power.watts)",
    ]


def test_a_port_tells_its_use_and_only_counters_that_grew(tmp_path: Path) -> None:
    values: Values = {
        ("ib.rx.bytes_per_s", "mlx5_0/1"): 20e9,
        ("ib.rx_util.percent", "mlx5_0/1"): 80.0,
        ("ib.rx_packets.per_s", "mlx5_0/1"): 5e6,
        ("ib.tx_wait.ticks_per_s", "mlx5_0/1"): 3.0,
        ("ib.np_cnp_sent.per_s", "mlx5_0/1"): 4.0,
        ("ib.symbol_error.per_s", "mlx5_0/1"): 0.0,
        ("ib.rx.bytes_per_s", "mlx5_1/1"): 1.0,
    }
    _, nodes = summaries(tmp_path, values)
    first, second = hardware.port_table(nodes).to_dicts()
    assert (first["port"], first["received_bytes_per_s"]) == ("mlx5_0/1", 20e9)
    assert (first["received_mean_percent"], first["waits_ticks_per_s"]) == (80.0, 3.0)
    assert first["counters that grew"] == "np_cnp_sent 40"
    assert (second["port"], second["counters that grew"]) == ("mlx5_1/1", None)
    assert hardware_findings.failing_port(nodes) == ""


def test_ethernet_is_reported_where_its_speed_is_known(tmp_path: Path) -> None:
    values: Values = {
        ("net.rx.bytes_per_s", "eth0"): 1e9,
        ("net.rx_util.percent", "eth0"): 32.0,
        ("net.rx.bytes_per_s", "docker0"): 5e9,
    }
    _, nodes = summaries(tmp_path, values)
    (row,) = hardware.ethernet_table(nodes).to_dicts()
    assert (row["interface"], row["received_mean_percent"]) == ("eth0", 32.0)


def test_storage_series_stand_side_by_side_and_are_not_added(tmp_path: Path) -> None:
    rank: Values = {
        ("io.syscall_read.bytes_per_s", None): 1e6,
        ("io.storage_read.bytes_per_s", None): 3e6,
        ("io.submitted_read.bytes_per_s", "libaio"): 2e6,
        ("io.submitted_read.bytes_per_s", "io_uring"): 4e6,
    }
    node: Values = {
        ("io.nfs_read.bytes_per_s", "/data"): 7e6,
        ("io.nfs_read.bytes_per_s", "/home"): 1e6,
        ("io.nfs_read_rtt.milliseconds", "/data"): 2.5,
    }
    ranks, nodes = summaries(tmp_path, node, rank)
    first, second = hardware.storage_table(ranks, nodes).to_dicts()
    assert {k: v for k, v in first.items() if v is not None} == {
        "where": "rank 0",
        "syscall_read_bytes_per_s": 1e6,
        "submitted_read_bytes_per_s": 6e6,
        "storage_read_bytes_per_s": 3e6,
    }
    assert {k: v for k, v in second.items() if v is not None} == {
        "where": "node n0",
        "NFS_server_read_bytes_per_s": 8e6,
    }
    mounts = hardware.mount_table(nodes).to_dicts()
    assert [(m["mount"], m["a_read_took_ms"]) for m in mounts] == [("/data", 2.5), ("/home", None)]


def test_a_command_without_ranks_has_a_row_of_its_own(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    values: Values = {
        ("io.syscall_read.bytes_per_s", "command"): 1e6,
        ("io.submitted_read.bytes_per_s", "command libaio"): 2e6,
        ("disk.read.bytes_per_s", "sda"): 5e6,
    }
    runs.write_closed(runs.write_node(run), schema.SAMPLES, runs.steady(SECONDS, values))
    command, node = hardware.storage_table(*Analyzer(run).summaries()).to_dicts()
    assert (command["where"], command["submitted_read_bytes_per_s"]) == ("command on n0", 2e6)
    assert (node["where"], node["disk_read_bytes_per_s"]) == ("node n0", 5e6)
    assert node["syscall_read_bytes_per_s"] is None


def test_system_calls_alone_make_no_second_table(tmp_path: Path) -> None:
    node: Values = {("disk.read.bytes_per_s", "sda"): 1e6}
    ranks, nodes = summaries(tmp_path, node, {("io.syscall_read.bytes_per_s", None): 1e6})
    assert hardware.storage_table(ranks, nodes).height == 0


@pytest.mark.parametrize(
    ("threads", "memory", "far"),
    [
        ((100.0, 0.0), (4.0, 6.0), 0.6),
        ((50.0, 50.0), (4.0, 6.0), 0.5),
        ((100.0, 0.0), (5.0, 0.0), 0.0),
        ((0.0, 0.0), (5.0, 5.0), None),
        ((10.0, 0.0), (0.0, 0.0), None),
    ],
)
def test_memory_elsewhere_is_what_lies_far_from_the_threads(
    tmp_path: Path, threads: tuple[float, ...], memory: tuple[float, ...], far: float | None
) -> None:
    values = {(hardware.THREADS, f"node{n}"): v for n, v in enumerate(threads)}
    values |= {(hardware.MEMORY, f"node{n}"): v * 2**30 for n, v in enumerate(memory)}
    ranks, _ = summaries(tmp_path, {}, values)  # type: ignore[arg-type]
    assert hardware.far_memory(ranks[0]) == (None if far is None else pytest.approx(far))
    (row,) = hardware.placement_table(ranks).to_dicts()
    assert row.get("memory elsewhere_share") == (None if far is None else pytest.approx(far))


def test_nodes_are_named_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    values: Values = {(hardware.THREADS, f"node{n}"): 50.0 for n in (10, 9)}
    ranks, _ = summaries(tmp_path, {}, {**values, ("proc.far_fills.ratio", None): 0.2})
    (row,) = hardware.placement_table(ranks).to_dicts()
    assert row["threads ran on"] == "node9 50 %, node10 50 %"
    assert row["far_fills_ratio"] == 0.2


def test_a_machine_of_one_numa_node_has_no_placement(tmp_path: Path) -> None:
    rank: Values = {
        (hardware.THREADS, "node0"): 90.0,
        (hardware.MEMORY, "node0"): 2.0**30,
        ("proc.allowed_cpus.count", None): 8.0,
    }
    ranks, _ = summaries(tmp_path, {}, rank)
    assert hardware.placement_table(ranks).height == 0


def test_a_machine_without_counters_has_no_table_and_no_sentence(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=2)
    ranks, nodes = Analyzer(run).summaries()
    assert hardware_findings.lines(ranks, nodes, NO_EVENTS) == []
    for table in (hardware.memory_table, hardware.power_table, hardware.port_table):
        assert table(nodes).height == 0
    assert hardware.ethernet_table(nodes).height == 0
    assert hardware.mount_table(nodes).height == 0
    assert hardware.storage_table(ranks, nodes).height == 0
    assert hardware.placement_table(ranks).height == 0


def test_a_value_that_no_hardware_can_reach_is_in_no_mean_and_is_reported(tmp_path: Path) -> None:
    rows = [
        runs.sample(s, metric, 400e9, None, schema.FLAG_IMPLAUSIBLE)
        for s in (11, 12)
        for metric in (hardware.READ, hardware.WRITE)
    ]
    ranks, nodes = summaries(tmp_path, intel((10e9, 0.0), (5e9, 0.0)), more=rows)
    assert hardware.memory_table(nodes)["read_bytes_per_s"][0] == 10e9
    assert hardware_findings.lines(ranks, nodes, NO_EVENTS) == [
        "4 values were more than the hardware can do and left out of all means (2 of "
        "dram.read.bytes_per_s, 2 of dram.write.bytes_per_s): a counter that went wrong, or is "
        "shared with another tool"
    ]


# -- sentences of trouble: at their thresholds -----------------------------------------------------


@pytest.mark.parametrize(("read", "reported"), [(279.9e9, False), (280e9, True)])
def test_memory_near_its_peak_is_reported_with_what_the_peak_is(
    tmp_path: Path, read: float, reported: bool
) -> None:
    values: Values = {(hardware.READ, None): read, (hardware.WRITE, None): 0.0}
    ranks, nodes = summaries(tmp_path, values)
    line = (
        "The memory of n0 moved 280.0 GB/s on average, 70 % of the 400.0 GB/s that it can "
        "(16 channels of DDR5-3125): what waits for memory there cannot go faster"
    )
    assert hardware_findings.trouble(ranks, nodes, NO_EVENTS) == ([line] if reported else [])
    (*found,) = Analyzer(tmp_path / "r").findings()
    assert [(each.kind, each.problem) for each in found] == (
        [("memory_bandwidth", line)] if reported else []
    )


def test_one_socket_near_its_peak_is_reported_although_the_node_is_not(tmp_path: Path) -> None:
    _, nodes = summaries(tmp_path, runs.with_sockets(hardware.TRAFFIC, 190e9, 10e9))
    assert hardware_findings.near_peak(nodes).startswith(
        "The memory of socket0 of n0 moved 190.0 GB/s on average, 95 % of the 200.0 GB/s that it "
        "can, an even share of the node's"
    )


def test_more_than_the_peak_says_that_the_peak_is_another_one(tmp_path: Path) -> None:
    """A socket with more modules than the other has more than its even part."""
    _, nodes = summaries(tmp_path, runs.with_sockets(hardware.TRAFFIC, 240e9, 0.0))
    assert hardware_findings.near_peak(nodes) == ""


@pytest.mark.parametrize(
    ("remote", "elsewhere", "reported"), [(30e9, 0.6, True), (20e9, 0.6, False), (30e9, 0.2, False)]
)
def test_far_memory_is_reported_only_together_with_traffic_between_sockets(
    tmp_path: Path, remote: float, elsewhere: float, reported: bool
) -> None:
    node: Values = {(hardware.TRAFFIC, None): 100e9, (hardware.REMOTE, None): remote}
    rank: Values = {
        (hardware.THREADS, "node0"): 300.0,
        (hardware.MEMORY, "node0"): 1 - elsewhere,
        (hardware.MEMORY, "node1"): elsewhere,
    }
    ranks, nodes = summaries(tmp_path, node, rank)
    lines = hardware_findings.trouble(ranks, nodes, NO_EVENTS)
    assert len(lines) == reported
    if reported:
        assert lines[0].startswith(
            "60 % of the memory of rank 0 lies on other NUMA nodes than its threads run on, and "
            "the sockets of n0 send each other 30.0 GB/s (numa.remote.bytes_per_s), 30 % of"
        )
    found = Analyzer(tmp_path / "r").findings()
    assert [each.kind for each in found] == (["numa"] if reported else [])
    assert all(each.advice.startswith("bind each rank to one NUMA node") for each in found)


def ranks_of_one_node(
    folder: Path, threads: Sequence[tuple[float, float]], memory: Sequence[tuple[float, float]]
) -> tuple[list[Summary], list[Summary]]:
    """Sum up ranks on a node of two sockets that talk a lot."""
    run = runs.write_run(folder / "r")
    for rank, (ran, lies) in enumerate(zip(threads, memory, strict=True)):
        values: Values = {}
        for n in (0, 1):
            values[hardware.THREADS, f"node{n}"] = ran[n]
            values[hardware.MEMORY, f"node{n}"] = lies[n] * 2**30
        rank_folder = runs.write_process(run, rank)
        runs.write_closed(rank_folder, schema.SPANS, runs.loop(50))
        runs.write_closed(rank_folder, schema.SAMPLES, runs.steady(SECONDS, values))
    node: Values = {(hardware.TRAFFIC, None): 100e9, (hardware.REMOTE, None): 50e9}
    runs.write_closed(runs.write_node(run), schema.SAMPLES, runs.steady(SECONDS, node))
    return Analyzer(run).summaries()


def test_ranks_in_one_container_that_are_bound_well_have_no_far_memory(tmp_path: Path) -> None:
    """The memory is that of their container, so each rank has that of all."""
    found = ranks_of_one_node(tmp_path, [(100.0, 0.0), (0.0, 100.0)], [(8.0, 8.0), (8.0, 8.1)])
    assert hardware_findings.far_memory(*found) == ""


def test_ranks_in_one_container_that_all_run_far_from_its_memory_are_reported(
    tmp_path: Path,
) -> None:
    found = ranks_of_one_node(tmp_path, [(100.0, 0.0), (90.0, 0.0)], [(2.0, 8.0), (2.0, 8.0)])
    assert hardware_findings.far_memory(*found).startswith(
        "80 % of the memory of rank 0 and 1 more lies on other NUMA nodes than their threads run on"
    )


def test_threads_on_all_nodes_are_not_far_from_memory_on_all_nodes(tmp_path: Path) -> None:
    found = ranks_of_one_node(tmp_path, [(100.0, 100.0)], [(8.0, 8.0)])
    assert hardware_findings.far_memory(*found) == ""


@pytest.mark.parametrize(
    ("name", "per_s", "reported"),
    [
        ("link_downed", 0.1, "The link of mlx5_0/1 on n0 went down once (ib.link_downed.per_s)"),
        ("packet_seq_err", 20.0, "mlx5_0/1 on n0 counted 200 of packet_seq_err (20 a second"),
        ("packet_seq_err", 0.5, ""),
        ("np_cnp_sent", 20.0, ""),
    ],
)
def test_a_port_that_fails_is_reported_and_congestion_is_no_failure(
    tmp_path: Path, name: str, per_s: float, reported: str
) -> None:
    _, nodes = summaries(tmp_path, {(f"ib.{name}.per_s", "mlx5_0/1"): per_s})
    line = hardware_findings.downed_port(nodes) or hardware_findings.failing_port(nodes)
    assert line.startswith(reported)
    assert bool(line) == bool(reported)


def test_faults_of_a_moment_are_no_failing_port(tmp_path: Path) -> None:
    """A counter has no rows until it first grows: before that it was 0."""
    more = [runs.sample(s, "ib.symbol_error.per_s", 3.0, "mlx5_0/1") for s in (9, 10)]
    _, nodes = summaries(tmp_path, {("cpu.util.percent", None): 5.0}, more=more)
    assert hardware_findings.failing_port(nodes) == ""
    assert hardware.port_table(nodes)["counters that grew"].to_list() == ["symbol_error 6"]


@pytest.mark.parametrize(
    ("rtt", "phases", "reported"),
    [(45.0, SLOW_LOADER, True), (2.0, SLOW_LOADER, False), (45.0, runs.PHASES, False)],
)
def test_slow_nfs_is_reported_only_while_the_loop_waits_for_data(
    tmp_path: Path, rtt: float, phases: tuple[tuple[str, float], ...], reported: bool
) -> None:
    node: Values = {
        ("io.nfs_read_rtt.milliseconds", "/data"): rtt,
        ("io.nfs_read.bytes_per_s", "/data"): 30e6,
    }
    summaries(tmp_path, node, steps=400, phases=phases)
    third = Analyzer(tmp_path / "r").headline()[2]
    line = (
        "A read from NFS /data took 45 ms on average, at 30 MB/s "
        "(io.nfs_read_rtt.milliseconds), while the training loop on n0 waited 42 % of the time "
        "for the DataLoader"
    )
    assert reported == (line in third)
    assert reported == ("NFS" in third)


def test_a_mount_that_is_seldom_read_makes_no_loop_wait(tmp_path: Path) -> None:
    node: Values = {("io.nfs_read.bytes_per_s", "/home"): 1e3}
    more = [runs.sample(9, "io.nfs_read_rtt.milliseconds", 80.0, "/home")]
    ranks, nodes = summaries(tmp_path, node, more=more, phases=SLOW_LOADER)
    assert hardware_findings.slow_nfs(ranks, nodes) == ""


def test_power_is_never_the_most_telling_remark(tmp_path: Path) -> None:
    summaries(tmp_path, {("cpu.power.watts", None): 900.0})
    assert "W on average" not in "".join(Analyzer(tmp_path / "r").headline())


@pytest.mark.parametrize(
    ("attributes", "text", "reported"),
    [
        ({"state": "DOWN", "before": "ACTIVE"}, "the link of mlx5_0/1 is DOWN", True),
        ({"link_downed": 2}, "the link of mlx5_0/1 went down 2 times", True),
        ({"state": "ACTIVE", "before": "INIT"}, "the link of mlx5_0/1 is ACTIVE", False),
        ({"rate": "25", "before": "100"}, "the link of mlx5_0/1 runs at 25", False),
        ([], "the link of mlx5_0/1 is DOWN", False),
        (None, "the link of mlx5_0/1 is DOWN", False),
    ],
)
def test_a_link_that_went_down_in_the_run_is_reported(
    tmp_path: Path, attributes: Any, text: str, reported: bool
) -> None:
    summaries(tmp_path, {})
    row = runs.event(3, "link", text, attributes=attributes)
    runs.write_closed(tmp_path / "r/n0", schema.EVENTS, [row, runs.event(4, "link", "so what")])
    third = Analyzer(tmp_path / "r").headline()[2]
    assert third.startswith(f"On n0, {text}; to do: look at the cable") == reported
    assert reported or "mlx5" not in third
    assert (
        any(f"On n0, {text}" in x for x in Analyzer(tmp_path / "r").show_overview().lines)
        == reported
    )
