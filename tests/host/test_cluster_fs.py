"""Bytes of mounted Lustre and CephFS, in the words of their clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import Key, Node, reason, states

LUSTRE = """\
snapshot_time             1485386454.123456789 secs.nsecs
start_time                0.000000000 secs.nsecs
read_bytes                {reads} samples [bytes] 0 1048576 {read} 99999999999
{writes}open                      276 samples [usecs] 1 9 77 5
"""
CEPH = """\
item          total       avg_sz(bytes)   min_sz(bytes)   max_sz(bytes)  total_sz(bytes)
----------------------------------------------------------------------------------------
read          5           4194304         4194304         4194304         {read}
write         5           4194304         4194304         4194304         {written}
"""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def of(values: dict[Key, float], name: str) -> dict[tuple[str, str | None], float]:
    return {(m, i): v for (_, m, i), v in values.items() if m.startswith(f"io.{name}")}


def test_lustre_by_mount(node: Node) -> None:
    place = "fs/lustre/llite/scratch-ffff8803/stats"
    node.write(place, LUSTRE.format(reads=1, read=1000, writes=""))
    sampler = node.sampler()
    assert states(sampler)["lustre"] == "ok"
    node.tick(sampler)
    written = "write_bytes               7 samples [bytes] 1 9 500\n"
    node.write(place, LUSTRE.format(reads=9, read=5000, writes=written))
    assert of(node.tick(sampler, 2.0), "lustre") == {
        ("io.lustre_read.bytes_per_s", "scratch-ffff8803"): 2000.0
    }
    node.write(place, LUSTRE.format(reads=9, read=5000, writes=written.replace("500", "900")))
    assert of(node.tick(sampler, 2.0), "lustre") == {
        ("io.lustre_read.bytes_per_s", "scratch-ffff8803"): 0.0,
        ("io.lustre_write.bytes_per_s", "scratch-ffff8803"): 200.0,
    }
    (node.procfs / place).unlink()


def test_cephfs_by_client(node: Node) -> None:
    place = "kernel/debug/ceph/0f.client42/metrics/size"
    node.write_sys(place, CEPH.format(read=0, written=1000))
    sampler = node.sampler()
    assert states(sampler)["cephfs"] == "ok"
    node.tick(sampler)
    node.write_sys(place, CEPH.format(read=0, written=3000))
    assert of(node.tick(sampler, 2.0), "cephfs") == {
        ("io.cephfs_write.bytes_per_s", "0f.client42"): 1000.0
    }


def test_nothing_of_that_kind_is_mounted(node: Node) -> None:
    sampler = node.sampler()
    for name in ("lustre", "cephfs"):
        assert states(sampler)[name] == "absent"
        assert "none is needed" in reason(sampler, name)
