"""docs/metrics-export.md has what the endpoint exposes, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from exported import busy_node, each_sample, gpu_uuid
from prometheus_client.parser import text_string_to_metric_families

from haiprof.recorder.metrics import families as f
from haiprof.recorder.metrics.exposition import render
from haiprof.recorder.metrics.sample_families import EXPORTED

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "metrics-export.md"
ALL = (*f.FAMILIES, *(exported.family for exported in EXPORTED.values()))


def documented() -> dict[str, tuple[str, list[str], str]]:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `haip")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {r[0].strip("`"): (r[1], re.findall(r"`(\w+)`", r[2]), r[3]) for r in rows}


def test_each_series_has_its_row() -> None:
    known = {x.name: (x.kind, list(x.labels), x.meaning.rstrip(".")) for x in ALL}
    assert documented() == known


def test_the_endpoint_exposes_these() -> None:
    node = busy_node()
    node.note("finding", {"kind": "gil", "ranks": [0], "over": False})
    sources = [{"name": "cpu", "state": "ok"}]
    gpus = [{"instance": "gpu0", "uuid": gpu_uuid(0)}]
    node.samples.read(each_sample())
    text = render(node.snapshot(sources, gpus)).decode()
    pages = documented()
    for name in ("overhead_ratio",):
        pages.pop(f"haiprof_{name}")  # of GPUs alone: test_rank.py
    exposed = {
        m.name + ("_total" if m.type == "counter" else ""): m
        for m in text_string_to_metric_families(text)
    }
    assert set(exposed) == set(pages)
    for name, (kind, labels, meaning) in pages.items():
        assert (exposed[name].type, exposed[name].documentation) == (kind, f"{meaning}.")
        for sample in exposed[name].samples:
            assert set(sample.labels) - {"le"} == {"run", "node", *labels}


def test_without_being_asked_for_no_sample_is_exposed() -> None:
    text = render(busy_node().snapshot([])).decode()
    assert not [line for line in text.splitlines() if line.startswith("haiprof_cpu")]


def test_each_sample_is_a_metric_that_is_documented() -> None:
    page = (DOCS / "metrics.md").read_text("utf-8")
    known = set(re.findall(r"`([a-z_0-9]+\.[a-z_0-9]+\.[a-z_]+)`", page))
    assert set(EXPORTED) <= known


def test_limits_are_as_the_page_has_them() -> None:
    page = PAGE.read_text("utf-8")
    assert ", ".join(f"{limit:g}" for limit in f.BUCKETS) in page
