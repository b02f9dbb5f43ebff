"""What is exported of a node: what does not work is said once, and ends nothing."""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from exported import Process, rows, step_spans
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from recording import python, read_table, run_python, wait_for, wait_recorded

from haiprof import schema
from haiprof.common.metrics_targets import targets_of
from haiprof.recorder import metrics
from haiprof.recorder.metrics import exports
from haiprof.recorder.metrics.exports import Exports

NODE = {"run": "r", "node": "n"}
#: Trains until a file is there.
TRAINS = """
    import pathlib, sys, time, haiprof, torch
    haiprof.start(sys.argv[1], run="run", metrics=sys.argv[2])
    model = torch.nn.Linear(8, 8)
    haiprof.model(samples_per_step=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.randn(100_000, 8), batch_size=4)
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.005)
        if pathlib.Path(sys.argv[3]).exists():
            break
    haiprof.stop()
"""


@dataclass
class Sampled:
    """A node that is sampled."""

    sources: list[Mapping[str, Any]] = field(default_factory=list)
    gpus: list[Mapping[str, Any]] = field(default_factory=list)


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


def scraped(port: int) -> dict[str, dict[str, float]]:
    """Return the samples of one scrape: name -> labels that differ -> value."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
    except OSError:  # it is not there yet
        return {}
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("run", "node")}
            found.setdefault(sample.name, {})[";".join(labels.values())] = sample.value
    return found


def test_a_training_job_is_scraped(shm: Path, tmp_path: Path, port: int) -> None:
    file = tmp_path / "haiprof.prom"
    where, enough = f":{port},{file},host", tmp_path / "enough"
    job = python(TRAINS, str(tmp_path), where, str(enough), warm=True)
    try:
        phases = ("dataloader", "forward", "backward", "optimizer", "other")

        def known() -> Mapping[str, Any] | None:
            found = scraped(port)
            by_phase = found.get("haiprof_phase_seconds_total", {})
            sampled = found.get("haiprof_cpu_util_ratio", {})
            return found if sampled and len(by_phase) >= len(phases) else None

        found = wait_for(known, what="phases and samples")
        assert 0 <= found["haiprof_cpu_util_ratio"][""] <= 1
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert found["haiprof_mem_total_bytes"][""] == pytest.approx(total, rel=0.1)
        steps = sum(found["haiprof_steps_total"].values())
        assert steps == sum(found["haiprof_step_duration_seconds_count"].values()) > 2
        spent = sum(found["haiprof_phase_seconds_total"].values())
        # Phases follow the steps, and lack the newest.
        assert 0 < spent <= sum(found["haiprof_step_duration_seconds_sum"].values()) * 1.01
        assert sum(found["haiprof_state"].values()) == 1
        samples = sum(found["haiprof_samples_total"].values())
        assert 0 < samples <= 4 * steps
        assert samples % 4 == 0
        assert found["haiprof_build_info"] == {"0.1.0": 1}
        assert wait_for(file.exists)
        more = wait_for(lambda: sum(scraped(port)["haiprof_steps_total"].values()) > steps)
        assert more
    finally:
        enough.touch()
        job.communicate(timeout=120)
    wait_recorded(shm)
    assert not file.exists()


def test_samples_are_exported_only_where_they_are_asked_for() -> None:
    assert Exports(targets_of(""), NODE, print).rows_of_node() is None
    assert Exports(targets_of("/nowhere/a.prom"), NODE, print).rows_of_node() is None
    assert Exports(targets_of("/nowhere/a.prom,host"), NODE, print).rows_of_node() is not None


def test_off_nothing_of_it_is_imported(shm: Path, tmp_path: Path) -> None:
    """Modules that cannot be imported twice unseen: each import leaves a mark."""
    for module in ("prometheus_client", "opentelemetry"):
        (tmp_path / f"{module}.py").write_text(
            f"open({str(tmp_path / 'imported')!r}, 'a').write({module!r})\n"
        )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    program = """
        import sys, haiprof
        haiprof.start(sys.argv[1], run="run", metrics=sys.argv[2])
        with haiprof.range("work"): pass
        haiprof.stop()
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run_python(program, str(tmp_path), "", env=environment)
    wait_recorded(shm)
    assert read_table(next(tmp_path.glob("run/*#0")), "spans").num_rows == 1
    assert not (tmp_path / "imported").exists()
    # The same shows that it would have been seen.
    run_python(program, str(tmp_path), "otlp,/nowhere/a.prom", env=environment)
    wait_recorded(shm)
    assert "prometheus_client" in (tmp_path / "imported").read_text()
    assert "opentelemetry" in (tmp_path / "imported").read_text()


def test_the_recorder_knows_nothing_of_it_before_it_is_asked() -> None:
    program = """
        import sys
        import haiprof.recorder.loop
        loaded = [m for m in sys.modules if "metrics" in m or m.split(".")[0] in
                  ("prometheus_client", "opentelemetry", "http", "gzip")]
        print(loaded)
    """
    assert run_python(program).strip() == "[]"


def test_what_does_not_work_is_said_with_what_to_do(shm: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = """
            import sys, haiprof
            haiprof.start(sys.argv[1], run="run", metrics=sys.argv[2])
            with haiprof.range("work"): pass
            haiprof.stop()
        """
        run_python(program, str(tmp_path), f":{port},{tmp_path}/none/a.prom")
        wait_recorded(shm)
    node = next(
        folder for folder in tmp_path.glob("run/*") if folder.is_dir() and "#" not in folder.name
    )
    texts = [text for text in read_table(node, "events")["text"].to_pylist() if "metrics" in text]
    assert len(texts) == 2
    assert f"127.0.0.1:{port}: Address already in use; choose another address" in texts[0]
    assert "a.prom: No such file or directory; choose another folder" in texts[1]
    assert read_table(next(tmp_path.glob("run/*#0")), "spans").num_rows == 1


@pytest.mark.parametrize(
    ("target", "module", "extra"),
    [
        (":9464", "prometheus_client", "metrics"),
        ("otlp", "opentelemetry.exporter.otlp.proto.http.metric_exporter", "otel"),
    ],
)
def test_a_missing_library_is_named(
    monkeypatch: pytest.MonkeyPatch, target: str, module: str, extra: str
) -> None:
    for name in ("exposition", "otlp"):  # imported anew
        monkeypatch.delitem(sys.modules, f"{metrics.__name__}.{name}", raising=False)
        monkeypatch.delattr(metrics, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    said: list[str] = []
    Exports(targets_of(target), NODE, said.append)
    assert len(said) == 1
    assert f"pip install 'haiprof[{extra}]'" in said[0]


class Fails:
    def __init__(self) -> None:
        self.error: Exception | None = OSError(28, "No space left on device")
        self.closed = False

    def publish(self, snapshot: object) -> None:
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Fails:
    made = Fails()
    monkeypatch.setattr(exports, "_file", lambda path: made)
    monkeypatch.setattr(exports, "_EVERY_S", 0.0)
    return made


def test_a_full_disk_is_said_once(fails: Fails) -> None:
    said: list[str] = []
    exported = Exports(targets_of("/a.prom"), NODE, said.append)
    for _ in range(3):
        exported.turn(Sampled())
    assert said == [
        "metrics are not exported to /a.prom: No space left on device; it is tried again"
    ]
    fails.error = None
    exported.turn(Sampled())
    fails.error = OSError(28, "No space left on device")
    exported.turn(Sampled())
    assert len(said) == 2
    exported.close(Sampled())
    assert fails.closed


def test_a_fault_of_our_own_ends_the_export_and_no_more(fails: Fails) -> None:
    said: list[str] = []
    fails.error = None
    exported = Exports(targets_of("/a.prom"), NODE, said.append)
    take = exported.rows_of(Process())
    assert take is not None
    take(step_spans(0.1))
    batch = rows(schema.SPANS, {"start": 1, "duration": 1, "category": "step"})
    broken = type(batch)(batch.table, 1, batch.columns[:1])
    take(broken)
    exported.turn(Sampled())
    assert said == ["metrics are exported no more: the recorder's log says why"]
    assert fails.closed, "what was exported last is no longer so"
    take(broken)
    exported.note("hang", {})
    exported.turn(Sampled())
    exported.close(Sampled())
    assert len(said) == 1
