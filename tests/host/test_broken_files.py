"""Cut, odd and hostile files: nothing crashes, nothing is negative, nothing is not a number."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
from host_trees import FILES, STAT, Node, states
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PID = 10

numbers = st.one_of(
    st.integers(0, 1000),
    st.integers(0, 2**64 - 1),
    st.sampled_from([2**31, 2**32, 2**63, 2**64 - 1, 2**64, 10**30]),
)
words = st.one_of(
    numbers.map(str),
    st.sampled_from(["-1", "max", "cpu", "cpu0", "cpu99999999", "eth0:", "sda", "some", "full"]),
    st.sampled_from(["total=7", "N/A", "total=-1", "rchar:", "kB", "MemTotal:", "(x)", "S", "-"]),
    st.sampled_from(["0::/", "/..", "\\040"]),
    st.text(max_size=6),
)
rows = st.lists(words, max_size=14).map(" ".join)
made_up = (
    st.lists(rows, max_size=5).map("\n".join).map(lambda text: text.encode("utf-8", "replace"))
)


@st.composite
def damaged(draw: st.DrawFn, text: bytes) -> bytes:
    """The real text with a piece cut out, doubled, or replaced by bytes or a number."""
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 40)))
    middle = draw(
        st.one_of(
            st.just(b""),
            st.just(text[start:end] * 3),
            st.binary(max_size=8),
            numbers.map(lambda n: str(n).encode()),
        )
    )
    cut = draw(st.one_of(st.none(), st.integers(0, len(text))))
    return (text[:start] + middle + text[end:])[:cut]


@st.composite
def machines(draw: st.DrawFn) -> dict[str, bytes]:
    paths = draw(st.lists(st.sampled_from(sorted(FILES)), unique=True, min_size=1, max_size=4))
    return FILES | {path: draw(st.one_of(damaged(FILES[path]), made_up)) for path in paths}


def lay_out(node: Node, files: dict[str, bytes]) -> None:
    for path, text in files.items():
        if path.startswith("sys/"):
            node.write_sys(path.removeprefix("sys/"), text)
        else:
            node.write(path, text)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(machines(), min_size=2, max_size=3))
def test_no_reading_of_broken_files_crashes_or_goes_negative(
    snapshots: list[dict[str, bytes]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        lay_out(node, snapshots[0])
        sampler = node.sampler()
        sampler.watch(PID)
        for files in snapshots:
            lay_out(node, files)
            for (_, metric, _), value in node.tick(sampler, 61.0).items():
                assert math.isfinite(value), metric
                assert value >= 0.0, metric
                if metric.startswith(("cpu.", "psi.")) and metric.endswith(".percent"):
                    assert value <= 100.0, metric
        assert all(isinstance(row["name"], str) for row in sampler.sources())


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_file_cut_at_any_byte_is_survived(path: str, tmp_path: Path) -> None:
    node = Node(tmp_path)
    lay_out(node, FILES)
    sampler = node.sampler()
    sampler.watch(PID)
    for length in range(len(FILES[path]), -1, -1):
        lay_out(node, {path: FILES[path][:length]})
        assert all(value >= 0.0 for value in node.tick(sampler, 31.0).values())
    lay_out(node, FILES)
    node.tick(sampler, 61.0)
    whole = node.tick(sampler, 1.0)
    assert (0, "cpu.run_queue.threads", None) in whole  # and it recovers
    assert (PID, "proc.rss.bytes", None) in whole


def test_folders_where_files_should_be(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for path in ("stat", "meminfo", "net/dev", "diskstats", "pressure/cpu", "10/stat", "10/io"):
        (node.procfs / path).mkdir(parents=True)
    sampler = node.sampler()
    sampler.watch(PID)
    assert states(sampler)["cpu"] == "absent"
    assert states(sampler)["memory"] == "absent"
    assert node.tick(sampler) == {}


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write("stat", STAT)
    node.write("net/dev", b"  et\xff0: 1 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n")
    sampler = node.sampler()
    node.tick(sampler)
    assert (0, "net.rx.bytes_per_s", "et\ufffd0") in node.tick(sampler)


def test_names_that_come_and_go_do_not_fill_the_memory(tmp_path: Path) -> None:
    node = Node(tmp_path)
    sampler = node.sampler(interval=60.0)  # thousands of rows may take their time
    node.write("net/dev", "  lo: 1 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n")
    node.tick(sampler, 60.0)
    for batch in range(6):
        names = [f"tap{batch * 1000 + i}" for i in range(1000)]
        node.write("net/dev", "".join(f" {n}: 5 0 0 0 0 0 0 0 5 0 0 0 0 0 0 0\n" for n in names))
        node.tick(sampler, 60.0)
        few = len(node.tick(sampler, 60.0))
    assert few < 100  # the first 4096 names have series, those after them none
    node.write("net/dev", "  lo: 1 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n")
    node.tick(sampler, 60.0)
    assert (0, "net.rx.bytes_per_s", "lo") in node.tick(sampler, 60.0)
