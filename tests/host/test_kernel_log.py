"""What of the kernel's log becomes an event."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from host_trees import Node, reason, states, without_rights

#: As /dev/kmsg answers them; the text after the semicolon is real.
OOM = "3,1201,9000000,-;Out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB"
IN_GROUP = "3,1202,9,-;Memory cgroup out of memory: Killed process 12 (pt_data_worker) total-vm:1kB"
MCE = "0,7,9,-;mce: [Hardware Error]: Machine check events logged"
XID = "4,8,9,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=99, name=python, GPU has fallen off the bus."
NFS = "5,9,9,-;nfs: server store not responding, still trying"
LUSTRE = "3,10,9,-;LustreError: 11-0: scratch-OST0001-osc-ffff: operation ost_read failed: rc = -5"
DISK = "3,11,9,-;I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1"
HUNG = "3,12,9,-;INFO: task python:99 blocked for more than 122 seconds."
LINK = "4,13,9,-;pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    (tmp_path / "kmsg").touch()
    return node


def say(node: Node, *records: str) -> None:
    with (node.procfs.parent / "kmsg").open("a") as log:
        log.write("".join(record + "\n" for record in records))


def test_what_may_have_ended_or_slowed_a_job(node: Node) -> None:
    say(node, OOM.replace("4711", "1"))  # before the recording
    sampler = node.sampler()
    node.tick(sampler)
    assert states(sampler)["kernel_log"] == "ok"
    assert sampler.changes() == []
    records = (OOM, IN_GROUP, MCE, XID, NFS, LUSTRE, DISK, HUNG, LINK)
    say(node, "6,1,9,-;usb 1-1: new device", *records, " SUBSYSTEM=pci", " DEVICE=+pci:0000:00")
    node.tick(sampler)
    abouts = ("oom", "oom", "mce", "xid", "nfs", "lustre", "disk", "hung_task", "pcie")
    assert sampler.changes() == [
        ("kernel_log", record.partition(";")[2], {"about": about})
        for record, about in zip(records, abouts, strict=True)
    ]
    node.tick(sampler)
    assert sampler.changes() == []


def test_what_others_write_into_the_log_is_not_the_kernels(node: Node) -> None:
    sampler = node.sampler()
    say(node, OOM.replace("3,", "12,", 1), OOM.replace("3,", "x,", 1), OOM.replace(";", ":"), "")
    say(node, " " + OOM, "3;" + OOM.partition(";")[2])
    node.tick(sampler)
    assert sampler.changes() == []


def test_a_storm_is_cut_short(node: Node) -> None:
    sampler = node.sampler()
    say(node, *[XID] * 5000, NFS + "x" * 3000)
    node.tick(sampler)
    assert 0 < len(sampler.changes()) <= 16


def test_long_messages_are_cut(node: Node) -> None:
    sampler = node.sampler()
    say(node, NFS + "x" * 3000)
    node.tick(sampler)
    ((_, text, _),) = sampler.changes()
    assert len(text) == 400


@pytest.mark.parametrize("place", ["/dev/null", "/dev/tty"])
def test_a_console_is_no_log(place: str, node: Node) -> None:
    log = node.procfs.parent / "kmsg"
    log.unlink()
    log.symlink_to(place)
    sampler = node.sampler()
    node.tick(sampler)
    assert states(sampler)["kernel_log"] == "absent"


@pytest.mark.skipif(os.geteuid() != 0, reason="to be somebody else for a while needs root")
def test_a_log_that_may_not_be_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        log = Path(folder, "kmsg")
        log.touch(0o600)
        with without_rights(node):
            sampler = node.sampler()
            assert states(sampler)["kernel_log"] == "denied"
            assert "dmesg_restrict" in reason(sampler, "kernel_log")
