"""TensorBoard, wandb, MLflow and Comet themselves: calls have a name, and show what haiprof has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
from commands import haiprof

from haiprof.analyzer import Analyzer

STEPS = 40
JOB = f"""
import sys
import torch

torch.set_num_threads(1)
kind = sys.argv[1]
if kind == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter("here")
    log = lambda step, loss: writer.add_scalars("loss", {{"a": loss, "b": loss}}, step)
elif kind == "wandb":
    import wandb
    run = wandb.init(mode="offline", dir=".")
    log = lambda step, loss: run.log({{"loss": loss}}, step=step)
else:
    import mlflow
    mlflow.set_tracking_uri("file:./runs")
    mlflow.start_run()
    log = lambda step, loss: mlflow.log_metric("loss", loss, step=step)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range({STEPS}):
    optimizer.zero_grad()
    loss = model(torch.rand(64, 256)).square().mean()
    loss.backward()
    optimizer.step()
    log(step, loss.item())
if kind == "wandb":
    run.finish()
"""


def logged(kind: str, trackers: Path, folder: Path) -> tuple[int, pl.DataFrame]:
    """Train with a tracker; return how many ranges it has, and what was in no phase."""
    (folder / "train.py").write_text(JOB)
    environment = os.environ | {"PYTHONPATH": str(trackers), "WANDB_SILENT": "true"}
    words = ("run", "--log-dir", "logs", "--run", "r", "--", "train.py", kind)
    done = haiprof(*words, cwd=folder, env=environment | {"MLFLOW_ALLOW_FILE_STORE": "true"})
    assert done.returncode == 0, done.stderr
    run = Analyzer(folder / "logs" / "r")
    ranges = run.spans(category="user")
    count = ranges.filter(pl.col("name") == f"logging.{kind}").height
    return count, run.ledger(rank=0).filter(pl.col("cause") == "other")


def test_tensorboard(trackers: Path, tmp_path: Path) -> None:
    count, other = logged("tensorboard", trackers, tmp_path)
    assert count >= STEPS
    assert "logging.tensorboard" in other["part"].to_list()


def test_wandb(trackers: Path, tmp_path: Path) -> None:
    count, other = logged("wandb", trackers, tmp_path)
    assert count == STEPS
    assert "logging.wandb" in other["part"].to_list()


def test_mlflow(trackers: Path, tmp_path: Path) -> None:
    count, other = logged("mlflow", trackers, tmp_path)
    assert count == STEPS
    assert "logging.mlflow" in other["part"].to_list()


#: Trains until values of haiprof are in the tracker's own files, at most a minute.
SHOWN = """
import glob, sys, time
from pathlib import Path
import torch

torch.set_num_threads(1)
kind = sys.argv[1]

def written(files):
    return any(b"haiprof/step_seconds" in Path(file).read_bytes() for file in glob.glob(files))

if kind == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter("here")
    log = lambda step, loss: writer.add_scalar("loss", loss, step)
    shown = lambda: written("here/haiprof/*")
elif kind == "wandb":
    import wandb
    run = wandb.init(mode="offline", dir=".")
    log = lambda step, loss: run.log({"loss": loss}, step=3 * step)
    shown = lambda: written("wandb/offline*/*.wandb")
elif kind == "comet":
    import comet_ml
    run = comet_ml.OfflineExperiment(project_name="p", offline_directory="here", log_code=False)
    log = lambda step, loss: run.log_metric("loss", loss, step=3 * step)
    shown = lambda: "haiprof/step_seconds" in run.metrics
else:
    import mlflow
    mlflow.set_tracking_uri("file:./runs")
    run = mlflow.start_run()
    log = lambda step, loss: mlflow.log_metric("loss", loss, step=step)
    shown = lambda: glob.glob("runs/*/*/metrics/haiprof/step_seconds")
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
until = time.monotonic() + 60
step = 0
while step % 50 or not shown() and time.monotonic() < until:
    time.sleep(0.02)
    optimizer.zero_grad()
    loss = model(torch.rand(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    log(step, loss.item())
    step += 1
Path("steps").write_text(str(step))
if kind == "wandb":
    run.finish()
elif kind == "comet":
    run.end()
elif kind == "mlflow":
    mlflow.end_run()
else:
    writer.close()
"""


def shown_in(kind: str, trackers: Path, folder: Path, **variables: str) -> tuple[int, str]:
    """Train until a tracker shows values of haiprof; return how many steps, and stderr."""
    (folder / "train.py").write_text(SHOWN)
    environment = os.environ | {"PYTHONPATH": str(trackers), "MLFLOW_ALLOW_FILE_STORE": "true"}
    words = ("run", "--log-dir", "logs", "--run", "r", "--trackers", "1", "--", "train.py", kind)
    done = haiprof(*words, cwd=folder, env=environment | variables, timeout=900)
    assert done.returncode == 0, done.stderr
    run = Analyzer(folder / "logs" / "r")
    assert run.events().filter(pl.col("kind") == "hook").is_empty()
    steps = int((folder / "steps").read_text())
    ranges = run.spans(category="user").filter(pl.col("name") == f"logging.{kind}")
    assert ranges.height == steps, "only the job's own calls are ranges of it"
    return steps, done.stderr


def read_with(trackers: Path, folder: Path, program: str) -> Any:
    """Return what a program prints as JSON that reads a tracker's files with its own reader."""
    environment = os.environ | {"PYTHONPATH": str(trackers), "MLFLOW_ALLOW_FILE_STORE": "true"}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_tensorboard_shows_it_in_a_folder_of_its_own(trackers: Path, tmp_path: Path) -> None:
    steps, _ = shown_in("tensorboard", trackers, tmp_path)
    program = """
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
def read(folder):
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    scalars = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    return {tag: [(each.step, each.value) for each in values] for tag, values in scalars.items()}
print(json.dumps([read("here"), read("here/haiprof")]))
"""
    own, ours = read_with(trackers, tmp_path, program)
    assert list(own) == ["loss"]
    assert [step for step, _ in own["loss"]] == list(range(steps))
    assert {"haiprof/phase/forward_seconds", "haiprof/findings"} <= set(ours)
    means = ours["haiprof/step_seconds"]
    assert all(0 < step <= steps and 0.02 < value < 5 for step, value in means)


def test_wandb_shows_it_beside_the_jobs_own_steps(trackers: Path, tmp_path: Path) -> None:
    steps, said = shown_in("wandb", trackers, tmp_path)
    assert "haiprof/step_seconds" in said, "it is in the summary"
    assert "monoton" not in said
    assert "WARNING" not in said
    program = """
import glob, json, struct
from pathlib import Path
from wandb.proto import wandb_internal_pb2 as pb

def records(data):
    # A log as LevelDB writes it, behind 7 bytes of wandb's: blocks of 32 KiB, a record in parts.
    at, whole = 7, b""
    while at + 7 <= len(data):
        if at % 32768 > 32768 - 7:
            at += -at % 32768
            continue
        _, length, part = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # the whole record, or its last part
            yield whole
            whole = b""

(file,) = glob.glob("wandb/offline*/*.wandb")
rows = []
for record in map(pb.Record.FromString, records(Path(file).read_bytes())):
    if record.WhichOneof("record_type") == "history":
        items = record.history.item
        rows.append({each.key or "/".join(each.nested_key): each.value_json for each in items})
names = sorted({name for row in rows for name in row})
print(json.dumps([names, len(rows), [int(row["_step"]) for row in rows if "loss" in row]]))
"""
    names, rows, own = read_with(trackers, tmp_path, program)
    assert own == [3 * step for step in range(steps)]
    assert rows == steps, "no row is added to those of the job"
    assert {"loss", "haiprof/step_seconds", "haiprof/steps"} <= set(names)


def test_mlflow_shows_it_in_the_jobs_run(trackers: Path, tmp_path: Path) -> None:
    steps, _ = shown_in("mlflow", trackers, tmp_path)
    program = """
import json
from mlflow import MlflowClient
client = MlflowClient("file:./runs")
(run,) = client.search_runs(["0"])
def of(name):
    return [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
names = sorted(run.data.metrics)
print(json.dumps([run.info.status, names, of("loss"), of("haiprof/step_seconds")]))
"""
    status, names, own, ours = read_with(trackers, tmp_path, program)
    assert status == "FINISHED"
    assert [step for step, _ in own] == list(range(steps))
    assert {"loss", "haiprof/step_seconds", "haiprof/phase/forward_seconds"} <= set(names)
    assert all(0 < step <= steps and 0.02 < value < 5 for step, value in ours)


def test_comet_shows_it_at_the_jobs_own_steps(comet: Path, tmp_path: Path) -> None:
    steps, _ = shown_in("comet", comet, tmp_path, COMET_DISABLE_AUTO_LOGGING="1")
    (file,) = (tmp_path / "here").glob("*.zip")
    with zipfile.ZipFile(file) as archive:
        messages = map(json.loads, archive.read("messages.json").splitlines())
    metrics = [each["payload"]["metric"] for each in messages if each["type"] == "metric_msg"]
    own = [each["step"] for each in metrics if each["metricName"] == "loss"]
    ours = [each for each in metrics if each["metricName"].startswith("haiprof/")]
    assert own == [3 * step for step in range(steps)]
    assert {each["step"] for each in ours} <= set(own)
    names = {each["metricName"] for each in ours}
    assert names >= {"haiprof/step_seconds", "haiprof/phase/forward_seconds", "haiprof/steps"}
