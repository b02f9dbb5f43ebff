"""Every query of every dashboard, asked of a real Prometheus that scrapes a real job, or a node
with GPUs of which the series are made up.

Grafana itself cannot be had from Debian, PyPI or npm: tests/grafana.py asks what it would.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator, Set
from pathlib import Path

import pytest
from commands import HAIPROF
from exported import (
    Process,
    busy_node,
    each_sample,
    gpu,
    gpu_uuid,
    parts,
    rows,
    samples,
    statement,
    step_spans,
)
from grafana import SCRAPE_S, Answer, Prometheus, ask, prometheus
from launched import free_port
from recording import wait_for

import haiprof
from haiprof import schema
from haiprof.recorder.metrics.exposition import TEXT, render
from haiprof.recorder.metrics.http_server import HttpServer
from haiprof.recorder.metrics.sample_families import EXPORTED
from haiprof.recorder.metrics.sample_families import GPU as OF_GPU

pytestmark = pytest.mark.jobs

FOLDER = Path(haiprof.__file__).parent / "dashboards"
BOARDS = ("job", "node", "ranks", "runs")
#: What makes each series of a job on CPUs: it says all of itself, waits, saves, and collects.
TRAIN = """
import gc, os
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
import haiprof

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
haiprof.model(tokens_per_step=512, samples_per_step=8, flops_per_step=1e6)
over = torch.zeros(1)
number = 0
while not over:
    for batch in DataLoader(torch.rand(64, 64), batch_size=8):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        number += 1
        over = torch.tensor([float(os.path.exists("END"))])
        dist.all_reduce(over)
        if over:
            break
    gc.collect()
    torch.save(model.state_dict(), f"checkpoint-{dist.get_rank()}")
dist.destroy_process_group()
"""
PHASES = ("dataloader", "forward", "backward", "gradient_sync", "optimizer")
OF_GPUS = [metric for metric, (family, _) in EXPORTED.items() if family.labels == OF_GPU]
GPU = "no GPU computes"
NVML = "no GPU is sampled"
#: What has no data for a job on CPUs, and why.
EMPTY = {
    ("job", "GPUs", "busy"): GPU,
    ("job", "GPUs", "exposed communication"): GPU,
    ("job", "Phases on GPUs", "{{phase}}"): GPU,
    ("ranks", "GPU busy", "rank {{rank}}"): GPU,
    ("ranks", "Clock of its GPUs", "rank {{rank}}"): GPU,
    ("ranks", "Power of its GPUs", "rank {{rank}}"): GPU,
    ("node", "Cost of recording kernels", "{{run}} rank {{rank}}"): GPU,
    ("runs", "GPUs idle", "{{run}}"): GPU,
}
#: What depends on the machine, or on what else runs there.
DEPENDS = {
    ("job", "What costs time now", ""): "nothing has to",
    ("runs", "What costs time", ""): "nothing has to",
    ("node", "Findings", "{{run}} {{kind}}"): "nothing has to",
    ("node", "Sources that cannot be read", ""): "all may be readable",
    ("node", "CPUs", "a task waits for a CPU"): "kernels without pressure stall information",
    ("node", "Network", "received"): "a machine without a network",
    ("node", "Network", "sent"): "a machine without a network",
    ("node", "Network", "InfiniBand, both ways"): "a machine without InfiniBand",
    ("node", "Disks", "{{disk}}"): "a machine without a disk of its own",
    ("node", "GPUs", "GPU {{gpu}}"): NVML,
    ("node", "Power of GPUs", "GPU {{gpu}}"): NVML,
}


def answers(of: Prometheus) -> dict[tuple[str, str, str], Answer]:
    return {
        (name, one.panel, one.legend): one
        for name in BOARDS
        for one in ask(json.loads((FOLDER / f"{name}.json").read_text()), of, 60)
    }


def without_data(of: Prometheus) -> set[tuple[str, str, str]]:
    return {key for key, answer in answers(of).items() if not answer.has_data}


def wait_for_data(of: Prometheus, without: Set[tuple[str, str, str]]) -> None:
    """Wait until all but these queries have data; fail with those that have none."""
    with contextlib.suppress(AssertionError):
        wait_for(lambda: without_data(of) <= without, 90)
    assert without_data(of) <= without


def is_there(of: Prometheus, query: str) -> bool:
    return bool(of.get("query", query=query)["result"])


def last(answer: Answer) -> dict[tuple[str, ...], float]:
    """Return the newest value of each series, by the values of its labels."""
    return {tuple(labels.values()): points[-1][1] for labels, points in answer.series}


def rules_work(of: Prometheus) -> bool:
    rules = of.get("rules")["groups"][0]["rules"]
    assert len(rules) == 12
    assert not [rule["lastError"] for rule in rules if rule.get("lastError")]
    return all(rule["health"] == "ok" for rule in rules)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[str]:
    """Two ranks that train until the test ends; where its metrics are."""
    (tmp_path / "train.py").write_text(TRAIN)
    port = free_port()
    command = [
        *HAIPROF, "run", "--log-dir", "logs", "--run", "trained", "--peak-flops", "1e12",
        "--metrics", f":{port},host", "--", "torchrun", "--nproc-per-node=2",
        f"--master-port={free_port()}", "train.py",
    ]  # fmt: skip
    with (tmp_path / "job.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        try:
            yield f"127.0.0.1:{port}"
            (tmp_path / "END").touch()
            assert process.wait(240) == 0, (tmp_path / "job.log").read_text()
        finally:
            process.terminate()
            process.wait(60)


def test_each_query_has_data_of_a_real_job_or_a_reason_not_to(job: str, tmp_path: Path) -> None:
    with prometheus(tmp_path, job, rules=FOLDER / "alerts.yml") as of:
        stepped = "sum(haiprof_steps_total) > 20"
        wait_for(lambda: is_there(of, stepped), 240, "that steps are in Prometheus")
        assert answers(of).keys() >= EMPTY.keys() | DEPENDS.keys(), "no such panel"
        wait_for_data(of, EMPTY.keys() | DEPENDS.keys())
        assert without_data(of) >= EMPTY.keys(), "there is data without a GPU"
        wait_for(lambda: rules_work(of), what="that the alerts are evaluated")


class Planted:
    """A node of two ranks with a GPU each that steps, with all that a recorder can export."""

    def __init__(self) -> None:
        """Begin to step."""
        self._node = busy_node(0)
        processes = [Process(number, number, (gpu(number),)) for number in range(2)]
        self._ranks = list(filter(None, map(self._node.begin, processes)))
        self._node.note("finding", {"kind": "gil", "ranks": [0], "over": False})
        for rank in self._ranks:
            budget = {"overhead": 0.02, "share": 0.5}
            about = {"kind": "budget", "time": 0, "attributes": json.dumps(budget)}
            rank.read(rows(schema.EVENTS, about))
            work = {"tokens_per_step": 512, "samples_per_step": 2, "flops_per_step": 1e12}
            rank.read(statement(1, **work, dtype="bf16"))
        self._server = HttpServer(("127.0.0.1", 0), lambda snapshot, _: (TEXT, render(snapshot)))
        self.address = "{}:{}".format(*self._server.address)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self._thread.start()

    def _go_on(self) -> None:
        sources = [{"name": "cpu", "state": "ok"}, {"name": "nvml", "state": "missing"}]
        gpus = [{"instance": f"gpu{number}", "uuid": gpu_uuid(number)} for number in range(2)]
        number = 0
        while not self._over.wait(SCRAPE_S / 2):
            number += 1
            for rank in self._ranks:
                rank.read(step_spans(0.3))
                named = (("phase", name, 0.05) for name in PHASES)
                rank.read(parts(("step", "step", 0.3), *named, step=number))
                busy = (("busy", "busy", 0.2), ("exposed", "exposed", 0.05))
                named = (("device_phase", name, 0.1) for name in PHASES)
                rank.read(parts(("device_step", "step", 0.3), *named, *busy, device=0))
                rank.read(parts(("gc", "gc", 0.01)))
                rank.read(rows(schema.COLLECTIVES, {"side": "wait", "duration": 7, "group": "tp"}))
            self._node.samples.read(each_sample())
            self._node.samples.read(samples(*((m, "gpu1", 1.0) for m in OF_GPUS)))
            self._server.publish(self._node.snapshot(sources, gpus))

    def close(self) -> None:
        """Step no more."""
        self._over.set()
        self._thread.join()
        self._server.close()


def test_each_query_has_data_of_a_node_with_gpus(tmp_path: Path) -> None:
    node = Planted()
    try:
        with prometheus(tmp_path, node.address, rules=FOLDER / "alerts.yml") as of:
            wait_for(lambda: is_there(of, "haiprof_steps_total"), what="a scrape")
            wait_for_data(of, set())
            found = answers(of)
    finally:
        node.close()
    mfu = last(found["job", "MFU", "MFU"])
    assert mfu == {(): pytest.approx(1e12 / 0.3 / 989.4e12)}
    clocks = last(found["ranks", "Clock of its GPUs", "rank {{rank}}"])
    assert clocks == {("0",): 1, ("1",): 1}, "each rank has its own GPU's"


def test_a_query_that_is_wrong_is_not_taken_for_one_without_data(tmp_path: Path) -> None:
    """That every panel is answered says something only if errors are not."""
    board = json.loads((FOLDER / "runs.json").read_text())
    board["panels"][0]["targets"][0]["expr"] = "sum(haiprof_state"
    with prometheus(tmp_path, rules=FOLDER / "alerts.yml") as of:
        with pytest.raises(AssertionError, match="unclosed left parenthesis"):
            ask(board, of, 60)
        board["panels"][0]["targets"][0]["expr"] = "haiprof_state{run=~'$none'}"
        with pytest.raises(AssertionError, match="a variable that there is not"):
            ask(board, of, 60)
        with pytest.raises(AssertionError, match="nothing to choose from"):
            ask(json.loads((FOLDER / "job.json").read_text()), of, 60)
