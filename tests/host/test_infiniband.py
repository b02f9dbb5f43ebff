"""Ports of InfiniBand and RoCE devices: traffic, links, errors, and the ways drivers differ."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from host_trees import Key, Node, reason, recorded, sentences, states

from haiprof import _core

EDR = "100 Gb/sec (4X EDR)"
FDR = "56 Gb/sec (4X FDR)"
GB = 10**9


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def port(
    node: Node,
    name: str = "mlx5_0/1",
    *,
    state: str = "4: ACTIVE",
    rate: str = EDR,
    layer: str = "InfiniBand",
    **files: Any,
) -> None:
    """Write a port. ``files``: ``counters__symbol_error=3`` is the file counters/symbol_error."""
    device, number = name.split("/")
    folder = f"class/infiniband/{device}/ports/{number}"
    for file, text in (("state", state), ("rate", rate), ("link_layer", layer)):
        node.write_sys(f"{folder}/{file}", f"{text}\n")
    for file, value in files.items():
        node.write_sys(f"{folder}/{file.replace('__', '/')}", f"{value}\n")


def data(
    node: Node, received: int | str, sent: int | str, name: str = "mlx5_0/1", **more: Any
) -> None:
    """Write a port's counters of data, in words of four bytes."""
    port(node, name, counters__port_rcv_data=received, counters__port_xmit_data=sent, **more)


def unplug(node: Node, device: str) -> None:
    shutil.rmtree(node.sysfs / "class/infiniband" / device)


def ib(values: dict[Key, float], instance: str = "mlx5_0/1") -> dict[str, float]:
    return {m: v for (_, m, i), v in values.items() if m.startswith("ib.") and i == instance}


def said(sampler: _core.HostSampler) -> list[str]:
    return [text for kind, text, _ in sampler.changes() if kind == "link"]


# ---- traffic


def test_traffic_of_a_port_and_its_share_of_the_link(node: Node) -> None:
    data(
        node,
        10**12,
        2 * 10**12,
        counters__port_rcv_packets=100,
        counters__port_xmit_packets=200,
        counters__port_xmit_wait=7,
    )
    sampler = node.sampler()
    assert ib(node.tick(sampler)) == {}  # a baseline is no sample
    data(
        node,
        10**12 + 5 * GB,
        2 * 10**12 + 1 * GB,
        counters__port_rcv_packets=1100,
        counters__port_xmit_packets=400,
        counters__port_xmit_wait=1007,
    )
    assert ib(node.tick(sampler, 2.0)) == {
        "ib.rx.bytes_per_s": 10.0 * GB,
        "ib.tx.bytes_per_s": 2.0 * GB,
        "ib.rx_packets.per_s": 500.0,
        "ib.tx_packets.per_s": 100.0,
        "ib.tx_wait.ticks_per_s": 500.0,
        "ib.rx_util.percent": pytest.approx(80.0),
        "ib.tx_util.percent": pytest.approx(16.0),
    }
    assert states(sampler)["infiniband"] == "ok"


def test_ports_of_many_devices_are_distinguished(node: Node) -> None:
    names = [f"mlx5_{i}/1" for i in range(12)] + ["mlx4_0/1", "mlx4_0/2"]
    for name in names:
        data(node, 1000, 1000, name)
    sampler = node.sampler()
    node.tick(sampler)
    for i, name in enumerate(names):
        data(node, 1000 + i, 1000, name)
    values = node.tick(sampler)
    assert [values[0, "ib.rx.bytes_per_s", name] for name in names] == [4.0 * i for i in range(14)]


@pytest.mark.parametrize(
    ("rate", "layer", "gigabits"),
    [
        ("40 Gb/sec (4X QDR)", "InfiniBand", 32.0),  # ten bits for eight
        ("40 Gb/sec (4X QDR)", "Ethernet", 40.0),
        ("10 Gb/sec (4X)", "InfiniBand", 8.0),  # old kernels do not name the slowest
        ("2.5 Gb/sec (1X SDR)", "InfiniBand", 2.0),
        ("40 Gb/sec (4X FDR10)", "InfiniBand", 40.0),
        ("400 Gb/sec (4X NDR)", "InfiniBand", 400.0),
    ],
)
def test_what_a_link_carries(node: Node, rate: str, layer: str, gigabits: float) -> None:
    data(node, 1, 1, rate=rate, layer=layer)
    sampler = node.sampler()
    node.tick(sampler)
    data(node, 1 + GB // 4, 1, rate=rate, layer=layer)
    values = ib(node.tick(sampler))
    assert values["ib.rx_util.percent"] == pytest.approx(8.0 / gigabits * 100.0)


@pytest.mark.parametrize(
    "rate", ["", "fast", "0 Gb/sec (4X)", "-1 Gb/sec", "nan Gb/sec", "inf Gb/sec", "100"]
)
def test_a_link_without_a_rate_has_traffic_and_no_share(node: Node, rate: str) -> None:
    data(node, 1, 1, rate=rate)
    sampler = node.sampler()
    node.tick(sampler)
    data(node, 2, 1, rate=rate)
    assert ib(node.tick(sampler)) == {"ib.rx.bytes_per_s": 4.0, "ib.tx.bytes_per_s": 0.0}


def test_an_unused_port_has_no_series(node: Node) -> None:
    data(node, 0, 0, state="1: DOWN", counters__symbol_error=0)
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    assert ib(node.tick(sampler, 10.0)) == {}
    assert states(sampler)["infiniband"] == "ok"


# ---- how drivers differ


def test_an_old_driver_has_64_bits_in_a_folder_of_its_own(node: Node) -> None:
    more: dict[str, Any] = {
        "counters__port_rcv_data": 2**32 - 1,
        "counters__port_xmit_data": 2**32 - 1,
    }
    port(
        node, **more, counters_ext__port_rcv_data_64=10**12, counters_ext__port_xmit_data_64=10**12
    )
    sampler = node.sampler()
    node.tick(sampler)
    port(
        node,
        **more,
        counters_ext__port_rcv_data_64=10**12 + 25,
        counters_ext__port_xmit_data_64=10**12 + 50,
    )
    values = ib(node.tick(sampler))
    assert values["ib.rx.bytes_per_s"] == 100.0
    assert values["ib.tx.bytes_per_s"] == 200.0


def test_a_32_bit_counter_that_begins_again_goes_on(node: Node) -> None:
    data(node, 2**32 - 1000, 5, rate=FDR)
    sampler = node.sampler()
    node.tick(sampler)
    data(node, 1000, 5, rate=FDR)
    assert ib(node.tick(sampler))["ib.rx.bytes_per_s"] == 8000.0
    data(node, 1500, 5, rate=FDR)
    assert ib(node.tick(sampler))["ib.rx.bytes_per_s"] == 2000.0


def test_a_counter_that_was_cleared_is_no_traffic(node: Node) -> None:
    data(node, 5_000_000, 5, rate=FDR)
    sampler = node.sampler()
    node.tick(sampler)
    data(node, 1000, 5, rate=FDR)  # 17 GB in a second is more than the link carries
    assert "ib.rx.bytes_per_s" not in ib(node.tick(sampler))
    data(node, 1100, 5)
    assert ib(node.tick(sampler))["ib.rx.bytes_per_s"] == 400.0


@pytest.mark.parametrize("rate", [EDR, "200 Gb/sec (4X HDR)", "400 Gb/sec (4X NDR)"])
def test_a_fast_adapter_that_is_reset_has_not_carried_17_gb(node: Node, rate: str) -> None:
    data(node, 2**32 - 1000, 5, rate=rate)
    sampler = node.sampler(interval=10.0)
    node.tick(sampler)
    data(node, 1000, 5, rate=rate)
    assert "ib.rx.bytes_per_s" not in ib(node.tick(sampler, 10.0))


def test_a_counter_at_its_end_is_left_out_and_reported_once(node: Node) -> None:
    data(node, 5, 5, counters__port_xmit_wait=2**32 - 1)
    sampler = node.sampler()
    for _ in range(3):
        values = ib(node.tick(sampler))
    assert "ib.tx_wait.ticks_per_s" not in values
    assert values["ib.rx.bytes_per_s"] == 0.0
    (line,) = said(sampler)
    assert "port_xmit_wait of mlx5_0/1" in line
    assert "4294967295" in line
    assert "perfquery -R" in line


def test_a_driver_without_counters_of_traffic_says_what_the_file_says(node: Node) -> None:
    no = "N/A (no PMA)"
    data(node, no, no, "i40iw0/1", counters__symbol_error=no)
    sampler = node.sampler()
    assert ib(node.tick(sampler), "i40iw0/1") == {}
    for name, file in (("infiniband", "port_rcv_data"), ("infiniband_errors", "symbol_error")):
        assert states(sampler)[name] == "absent"
        assert file in reason(sampler, name)
        assert no in reason(sampler, name)
        assert "net.*" in reason(sampler, name)


def test_soft_roce_counts_packets_only(node: Node) -> None:
    def rxe(packets: int, sequence: int) -> None:
        port(
            node,
            "rxe0/1",
            layer="Ethernet",
            hw_counters__sent_pkts=packets,
            hw_counters__rcvd_pkts=2 * packets,
            hw_counters__out_of_seq_request=sequence,
            hw_counters__link_downed=0,
            hw_counters__lifespan=12,
        )

    rxe(100, 1)
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    rxe(200, 11)
    assert ib(node.tick(sampler, 10.0), "rxe0/1") == {
        "ib.tx_packets.per_s": 10.0,
        "ib.rx_packets.per_s": 20.0,
        "ib.out_of_seq_request.per_s": 1.0,
    }


def test_an_adapter_with_bytes_under_names_of_its_own(node: Node) -> None:
    port(node, "efa_0/1", hw_counters__rx_bytes=500, hw_counters__tx_bytes=10)
    sampler = node.sampler()
    node.tick(sampler)
    port(node, "efa_0/1", hw_counters__rx_bytes=1500, hw_counters__tx_bytes=10)
    values = ib(node.tick(sampler), "efa_0/1")
    assert values["ib.rx.bytes_per_s"] == 1000.0  # bytes, not words
    assert values["ib.rx_util.percent"] == pytest.approx(1000 * 8 / 100e9 * 100)


def test_a_container_of_another_network_namespace_sees_devices_without_counters(
    node: Node,
) -> None:
    for i in range(4):
        port(node, f"mlx5_{i}/1")
    sampler = node.sampler()
    node.tick(sampler)
    for name in ("infiniband", "infiniband_errors"):
        assert states(sampler)[name] == "absent"
        why = reason(sampler, name)
        assert "this network namespace" in why
        assert "hostNetwork: true" in why
        assert "HAIPROF_SYSFS_ROOT=/host/sys" in why


def test_no_device_at_all(node: Node) -> None:
    sampler = node.sampler()
    assert states(sampler)["infiniband"] == states(sampler)["infiniband_errors"] == "absent"
    assert "class/infiniband: No such file" in reason(sampler, "infiniband")
    assert "mlx5_ib" in reason(sampler, "infiniband")
    (node.sysfs / "class/infiniband").mkdir(parents=True)
    node.tick(sampler, 61.0)
    assert "lists no port" in reason(sampler, "infiniband")


def test_a_file_that_the_driver_refuses_does_not_hide_the_others(node: Node) -> None:
    data(node, 5, 5)
    folder = node.sysfs / "class/infiniband/mlx5_0/ports/1/counters"
    (folder / "port_rcv_packets").mkdir()
    sampler = node.sampler()
    node.tick(sampler)
    assert set(ib(node.tick(sampler))) == {
        *("ib.rx.bytes_per_s", "ib.tx.bytes_per_s", "ib.rx_util.percent", "ib.tx_util.percent")
    }


# ---- the link


def test_a_link_that_goes_down_and_comes_back_is_reported_in_words(node: Node) -> None:
    data(node, 5, 5, counters__link_downed=1)
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    assert said(sampler) == []  # how it was found is no news
    data(node, 6, 5, state="1: DOWN", counters__link_downed=2)
    down = ib(node.tick(sampler, 10.0))
    changes = [change for change in sampler.changes() if change[0] == "link"]
    assert [text for _, text, _ in changes] == [
        "the link of mlx5_0/1 is DOWN, it was ACTIVE",
        "the link of mlx5_0/1 went down 1 time since it was last looked at",
    ]
    assert changes[0][2] == {"instance": "mlx5_0/1", "state": "DOWN", "before": "ACTIVE"}
    assert changes[1][2] == {"instance": "mlx5_0/1", "link_downed": 1}
    assert "ib.rx_util.percent" not in down
    assert down["ib.rx.bytes_per_s"] == pytest.approx(0.4)

    data(node, 7, 5, counters__link_downed=4)
    node.tick(sampler, 10.0)
    assert said(sampler) == [
        "the link of mlx5_0/1 is ACTIVE, it was DOWN",
        "the link of mlx5_0/1 went down 2 times since it was last looked at",
    ]
    data(node, 8, 5, counters__link_downed=4)
    assert "ib.rx_util.percent" in ib(node.tick(sampler, 5.0))


def test_a_link_that_has_lost_half_its_lanes_is_reported_and_measured_by_what_is_left(
    node: Node,
) -> None:
    data(node, 1, 1)
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    data(node, 1, 1, rate="50 Gb/sec (2X EDR)")
    node.tick(sampler, 10.0)
    assert said(sampler) == [
        "the link of mlx5_0/1 runs at 50 Gb/sec (2X EDR), it ran at 100 Gb/sec (4X EDR)"
    ]
    data(node, 1 + 5 * GB // 4, 1, rate="50 Gb/sec (2X EDR)")
    assert ib(node.tick(sampler, 1.0))["ib.rx_util.percent"] == pytest.approx(80.0)


def test_devices_that_come_and_go(node: Node) -> None:
    data(node, 5, 5)
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    data(node, 10**9, 5, "mlx5_1/1")
    assert ib(node.tick(sampler, 10.0), "mlx5_1/1") == {}
    assert said(sampler) == ["mlx5_1/1 has appeared"]
    data(node, 10**9 + 25, 5, "mlx5_1/1")
    assert ib(node.tick(sampler, 1.0), "mlx5_1/1")["ib.rx.bytes_per_s"] == 100.0
    unplug(node, "mlx5_1")
    values = node.tick(sampler, 10.0)
    assert ib(values, "mlx5_1/1") == {}
    assert ib(values)["ib.rx.bytes_per_s"] == 0.0
    assert said(sampler) == ["mlx5_1/1 is gone"]
    unplug(node, "mlx5_0")
    node.tick(sampler, 10.0)
    assert states(sampler)["infiniband"] == "absent"
    data(node, 7, 5)
    node.tick(sampler, 61.0)
    lines = sentences(sampler)
    assert "source infiniband is back" in lines
    data(node, 8, 5)
    assert ib(node.tick(sampler, 10.0))["ib.rx.bytes_per_s"] == pytest.approx(0.4)


def test_a_device_that_does_not_answer_for_a_while_starts_anew(node: Node) -> None:
    data(node, 4_000_000_000, 5)
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    node.write_sys("class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "")
    assert set(ib(node.tick(sampler, 1.0))) == {"ib.tx.bytes_per_s", "ib.tx_util.percent"}
    data(node, 100, 5)  # as if it had begun again after 32 bits, but it was reset
    assert "ib.rx.bytes_per_s" not in ib(node.tick(sampler, 1.0))
    node.tick(sampler, 10.0)
    data(node, 200, 5)
    assert ib(node.tick(sampler, 1.0))["ib.rx.bytes_per_s"] == 400.0


# ---- errors


def test_errors_by_the_names_of_the_driver_and_only_what_ever_happened(node: Node) -> None:
    def write(by: int) -> None:
        port(
            node,
            counters__symbol_error=10 + by,
            counters__link_error_recovery=0,
            counters__VL15_dropped=by,
            hw_counters__out_of_sequence=100 + 10 * by,
            hw_counters__np_cnp_sent=7,
            hw_counters__rnr_nak_retry_err=0,
            hw_counters__lifespan=10,
            hw_counters__something_else=5 * by,
        )

    write(0)
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    write(20)
    assert ib(node.tick(sampler, 10.0)) == {
        "ib.symbol_error.per_s": 2.0,
        "ib.VL15_dropped.per_s": 2.0,
        "ib.out_of_sequence.per_s": 20.0,
        "ib.np_cnp_sent.per_s": 0.0,
    }
    assert states(sampler)["infiniband_errors"] == "ok"


def test_errors_are_read_less_often_than_traffic(node: Node) -> None:
    data(node, 5, 5, counters__symbol_error=1)
    sampler = node.sampler(interval=1.0)
    came = [ib(node.tick(sampler, 1.0)) for _ in range(22)]
    assert sum("ib.rx.bytes_per_s" in values for values in came) == 21
    assert sum("ib.symbol_error.per_s" in values for values in came) == 2


def test_counters_that_the_driver_renews_too_seldom_are_left_out(node: Node) -> None:
    def write(number: int, lifespan: int) -> None:
        port(
            node,
            counters__symbol_error=number,
            hw_counters__out_of_sequence=number,
            hw_counters__lifespan=lifespan,
        )

    write(1, 60_000)
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    write(11, 60_000)
    assert ib(node.tick(sampler, 10.0)) == {"ib.symbol_error.per_s": 1.0}


def test_an_error_counter_of_few_bits_that_has_run_out_of_them(node: Node) -> None:
    port(node, counters__link_downed=255, counters__symbol_error=255)
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    assert ib(node.tick(sampler, 10.0)) == {"ib.symbol_error.per_s": 0.0}
    (line,) = said(sampler)
    assert "link_downed of mlx5_0/1" in line
    assert "255" in line


def test_counters_that_belong_to_a_whole_device(node: Node) -> None:
    data(node, 5, 5, "mlx4_0/1")
    data(node, 5, 5, "mlx4_0/2")
    node.write_sys("class/infiniband/mlx4_0/hw_counters/sq_num_oos", "5\n")
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    node.write_sys("class/infiniband/mlx4_0/hw_counters/sq_num_oos", "25\n")
    assert ib(node.tick(sampler, 10.0), "mlx4_0") == {"ib.sq_num_oos.per_s": 2.0}


# ---- odd trees


def test_thousands_of_names_that_are_no_devices(node: Node) -> None:
    top = node.sysfs / "class/infiniband"
    data(node, 5, 5)
    (top / "empty").mkdir()
    for i in range(10_000):
        (top / f"rubbish_device_{i}").symlink_to("nowhere" if i % 2 else "empty")
    (top / "a_file").write_text("x")
    for name in ("0x1", "-1", "", "one"):
        (top / "mlx5_0/ports" / name).mkdir(exist_ok=True)
    sampler = node.sampler(interval=60.0)
    node.tick(sampler, 60.0)
    data(node, 65, 5)
    assert ib(node.tick(sampler, 60.0))["ib.rx.bytes_per_s"] == pytest.approx(4.0)


def test_more_ports_than_any_machine_has(node: Node) -> None:
    for i in range(300):
        data(node, 5, 5, f"mlx5_{i}/1")
    sampler = node.sampler(interval=60.0)
    node.tick(sampler, 60.0)
    values = node.tick(sampler, 60.0)
    seen = {i for _, metric, i in values if metric == "ib.rx.bytes_per_s"}
    assert seen == {f"mlx5_{i}/1" for i in range(256)}
    (line,) = (text for text in sentences(sampler) if "leaves out" in text)
    assert "44 devices and ports" in line


def test_a_device_name_that_is_no_utf8(node: Node) -> None:
    folder = os.fsencode(node.sysfs / "class/infiniband") + b"/m\xff_0/ports/1/counters"
    Path(os.fsdecode(folder)).mkdir(parents=True)
    for name in (b"port_rcv_data", b"port_xmit_data", b"link_downed"):
        Path(os.fsdecode(folder + b"/" + name)).write_text("5\n")
    sampler = node.sampler()
    node.tick(sampler)
    assert ib(node.tick(sampler), "m\ufffd_0/1")["ib.rx.bytes_per_s"] == 0.0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc/self/fd here")
def test_sixteen_adapters_take_no_more_descriptors_than_their_traffic_needs(node: Node) -> None:
    errors = [f"counters__{name}" for name in ("symbol_error", "link_downed", "port_rcv_errors")]
    errors += [
        f"hw_counters__{name}" for name in ("out_of_sequence", "np_cnp_sent", "rnr_nak_retry_err")
    ]
    for i in range(16):
        data(
            node,
            5,
            5,
            f"mlx5_{i}/1",
            counters__port_rcv_packets=1,
            counters__port_xmit_packets=1,
            counters__port_xmit_wait=1,
            **dict.fromkeys(errors, 1),
        )
    before = len(list(Path("/proc/self/fd").iterdir()))
    sampler = node.sampler()
    for _ in range(3):
        node.tick(sampler, 10.0)
    assert ib(node.tick(sampler, 10.0), "mlx5_15/1")["ib.np_cnp_sent.per_s"] == 0.0
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 16 * 5 + 8


# ---- recorded machines


def read(root: Path) -> tuple[_core.HostSampler, dict[Key, float]]:
    sampler = _core.HostSampler(procfs=str(root / "proc"), sysfs=str(root / "sys"))
    sampler.read(10**10)
    return sampler, {row[:3]: row[3] for row in sampler.read(2 * 10**10)}


def grow(file: Path, by: int) -> None:
    """Add to one number in place, as the kernel would."""
    number = int(file.read_text())
    file.chmod(0o644)
    file.write_text(f"{number + by}\n")


def test_recorded_adapters_of_three_drivers(tmp_path: Path) -> None:
    root = recorded("procfs", tmp_path)
    sampler, values = read(root)
    top = root / "sys/class/infiniband"
    for instance in ("mlx5_0/1", "mlx4_0/1", "mlx4_0/2", "hfi1_0/1"):
        assert ib(values, instance)["ib.rx.bytes_per_s"] == 0.0
        device, number = instance.split("/")
        grow(top / device / "ports" / number / "counters/port_xmit_data", 10**9)
    grow(top / "mlx5_0/ports/1/hw_counters/local_ack_timeout_err", 50)
    later = {row[:3]: row[3] for row in sampler.read(3 * 10**10)}
    sent = {i: ib(later, i)["ib.tx_util.percent"] for i in ("mlx5_0/1", "mlx4_0/2", "hfi1_0/1")}
    assert sent == {  # 3.2 Gb/s of 25, 40 of which 32 are data, and 100
        "mlx5_0/1": pytest.approx(12.8),
        "mlx4_0/2": pytest.approx(10.0),
        "hfi1_0/1": pytest.approx(3.2),
    }
    assert later[0, "ib.local_ack_timeout_err.per_s", "mlx5_0/1"] == 5.0
    assert later[0, "ib.resp_cqe_error.per_s", "mlx5_0/1"] == 0.0
    assert (0, "ib.out_of_buffer.per_s", "mlx5_0/1") not in later  # never anything but 0
    assert states(sampler)["infiniband"] == states(sampler)["infiniband_errors"] == "ok"


def test_recorded_adapter_with_counters_in_two_places_beside_one_without(tmp_path: Path) -> None:
    root = recorded("node_exporter", tmp_path)
    sampler, values = read(root)
    assert ib(values, "i40iw0/1") == {}
    assert "ib.tx_wait.ticks_per_s" not in ib(values, "mlx4_0/1")  # stands at 2^32 - 1
    counters = root / "sys/class/infiniband/mlx4_0/ports/1"
    grow(counters / "counters_ext/port_rcv_data_64", 1000)
    grow(counters / "counters/port_rcv_packets", 500)  # counters_ext leaves them at 0
    later = {row[:3]: row[3] for row in sampler.read(3 * 10**10)}
    assert ib(later, "mlx4_0/1")["ib.rx.bytes_per_s"] == 400.0
    assert ib(later, "mlx4_0/1")["ib.rx_packets.per_s"] == 50.0


def test_recorded_server_with_counters_of_the_whole_device(tmp_path: Path) -> None:
    root = recorded("real_bdx_2s_min", tmp_path)
    sampler, values = read(root)
    assert states(sampler)["infiniband"] == states(sampler)["infiniband_errors"] == "ok"
    assert {i for _, metric, i in values if metric.startswith("ib.")} <= {
        *("mlx4_0", "mlx4_0/1", "mlx4_0/2")
    }
