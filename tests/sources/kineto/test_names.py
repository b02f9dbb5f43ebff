"""Names of trace files as people and tools give them."""

from __future__ import annotations

import pytest

from haiprof.sources.kineto.names import Name, is_handlers, may_be_trace, take_apart


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("worker0.1623143089861.pt.trace.json.gz", Name("worker0", 1623143089861, None, None)),
        ("worker0.pt.trace.json", Name("worker0", None, None, None)),
        ("gpu-7.example.org_4711.1700000000000.pt.trace.json",
         Name("gpu-7.example.org_4711", 1700000000000, "gpu-7.example.org", None)),
        ("worker0_step_12.1694128201545.pt.trace.json",
         Name("worker0_step_12", 1694128201545, None, None)),
        ("sampled_rank_1.pt.trace.json.gz", Name("sampled_rank_1", None, None, 1)),
        ("rank3.json", Name("rank3", None, None, 3)),
        ("trace_rank-3.json.zst", Name("trace_rank-3", None, None, 3)),
        ("kineto_17.json.bz2", Name("kineto_17", None, None, 17)),
        ("trace_step_100.json", Name("trace_step_100", None, None, None)),
        ("rank_12345678901234567890.json", Name("rank_12345678901234567890", None, None, None)),
        ("frank_3x.json", Name("frank_3x", None, None, None)),
        (".pt.trace.json", Name("trace", None, None, None)),
        ("Trace.JSON.GZ", Name("Trace", None, None, None)),
    ],
)  # fmt: skip
def test_a_name_tells_worker_time_host_and_rank(file: str, name: Name) -> None:
    assert take_apart(file) == name


def test_only_json_can_be_a_trace() -> None:
    assert may_be_trace("a.json")
    assert may_be_trace("a.pt.trace.json.xz")
    assert not may_be_trace("a.txt")
    assert not may_be_trace("a.json.txt")
    assert not may_be_trace(".a.json")
    assert is_handlers("a.pt.trace.json.gz")
    assert not is_handlers("a.json")
