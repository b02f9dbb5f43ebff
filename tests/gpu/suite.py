"""What needs a GPU, in one run: ``suite.py RESULTS`` writes gpu.json and gpu.md there.

Each part stands alone: one that fails is told as failed, and the others go on. The exit code is the
number of parts that failed.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STEPS = 20


def machine() -> dict[str, Any]:
    """What it runs on."""
    import torch

    from haiprof import _core
    from haiprof.hooks.cuda import libcupti_folders

    torch.zeros(1, device="cuda")  # maps the libcupti that torch uses
    cupti, mend, version = _core.gpu_probe(":".join(libcupti_folders()))
    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cupti": cupti,
        "cupti_mend": mend,
        "cupti_version": version,
        "failed": version == 0,
    }


def job(*words: str, seconds: float = 120) -> dict[str, Any]:
    """Run one job to its end and return what it printed."""
    done = subprocess.run(
        [sys.executable, str(HERE / "jobs.py"), *words],
        capture_output=True, text=True, timeout=seconds,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def recorded(
    log_dir: Path, begin: int = 0, end: int = 2**63 - 1, table: str = "kernels"
) -> list[dict[str, Any]]:
    """Rows of a table of the GPU that began in an interval (UTC ns)."""
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    for file in sorted(log_dir.glob(f"run/*#0/{table}-*.arrow")):
        rows += pa.ipc.open_file(str(file)).read_all().to_pylist()
    return [row for row in rows if begin <= row["start"] < end]


def events(log_dir: Path) -> list[str]:
    """Texts of the events of the job."""
    import pyarrow as pa

    found: list[str] = []
    for file in sorted(log_dir.glob("run/*#0/events-*.arrow")):
        table = pa.ipc.open_file(str(file)).read_all()
        found += [f"{row['kind']}: {row['text']}" for row in table.to_pylist()]
    return found


def beside_torch_profiler(model: str) -> dict[str, Any]:
    """The kernels of the same steps, by haiprof and by torch.profiler in another process."""
    with tempfile.TemporaryDirectory() as folder:
        told = job(model, str(STEPS), folder)
        rows = recorded(Path(folder), told["begin"], told["end"])
        said = events(Path(folder))
    ours = [row for row in rows if row["kind"] == "kernel"]
    program = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import jobs
from torch.profiler import ProfilerActivity, profile
train = jobs.trainer({model!r})
train(10)
with profile(activities=[ProfilerActivity.CUDA]) as found:
    train({STEPS})
kernels = [e for e in found.events() if "Memcpy" not in e.name and "Memset" not in e.name]
kernels = [e for e in kernels if str(e.device_type).endswith("CUDA")]
print(json.dumps([[e.name, e.time_range.elapsed_us()] for e in kernels]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    demangled = subprocess.run(
        ["c++filt"], input="\n".join(row["name"] for row in ours), capture_output=True, text=True,
        check=True,
    ).stdout.splitlines()  # fmt: skip
    here, there = Counter(demangled), Counter(name for name, _ in theirs)
    ours_us = sum(row["duration"] for row in ours) / 1e3
    theirs_us = sum(us for _, us in theirs)
    return {
        "kernels": len(ours),
        "torch_profiler_kernels": len(theirs),
        "kernel_us": ours_us,
        "torch_profiler_us": theirs_us,
        "others": Counter(row["kind"] for row in rows),
        "names_only_here": list((here - there).items())[:5],
        "names_only_there": list((there - here).items())[:5],
        "events": said,
        "failed": len(ours) != len(theirs) or abs(ours_us / theirs_us - 1) > 0.05,
    }


def overhead(model: str) -> dict[str, Any]:
    """Step times off, recording all kernels, and under torch.profiler, in alternating blocks."""
    sys.path.insert(0, str(HERE))
    import jobs
    from torch.profiler import ProfilerActivity, profile

    import haiprof
    from haiprof import _core

    with tempfile.TemporaryDirectory() as folder:
        haiprof.start(folder, run="run", hooks=False, ring_mib=64)
        train = jobs.trainer(model)
        train(50)
        ratios: dict[str, list[float]] = {"all": [], "torch_profiler": []}
        before = statistics.median(train(10))
        for _ in range(40):
            if _core.gpu_start(kernels="all") is not None:
                raise RuntimeError("kernels cannot be recorded")
            train(2)
            during = statistics.median(train(10))
            _core.gpu_stop(1.0)
            train(2)
            after = statistics.median(train(10))
            ratios["all"].append(2 * during / (before + after) - 1)
            before = after
        for _ in range(10):
            with profile(activities=[ProfilerActivity.CUDA]):
                train(2)
                during = statistics.median(train(10))
            train(2)
            after = statistics.median(train(10))
            ratios["torch_profiler"].append(2 * during / (before + after) - 1)
            before = after
        counts = _core.gpu_counts()
        haiprof.stop()

    def told(values: list[float]) -> dict[str, float]:
        half = 1.96 * statistics.stdev(values) / len(values) ** 0.5
        return {"percent": 100 * statistics.mean(values), "half_width_percent": 100 * half}

    return {
        "step_ms": before * 1e3,
        "kernels_a_step": counts["kernels"] / (40 * 12),
        "counts": counts,
        **{kind: told(values) for kind, values in ratios.items()},
    }


def device_phases(model: str) -> dict[str, Any]:
    """Phases on the GPU beside events of torch's own, and beside the kernels within them."""
    program = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import time
import haiprof, jobs, torch
haiprof.start(sys.argv[1], run="run", kernels="all")
model, loss = jobs.MODELS[{model!r}]()
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
found = []
for _ in range({3 * STEPS}):
    at = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    at[0].record()
    value = loss()
    at[1].record()
    value.backward()
    at[2].record()
    optimizer.step()
    at[3].record()
    found.append(at)
    time.sleep(0.02)  # of shorter steps some are left out
torch.cuda.synchronize()
times = [[1e6 * a.elapsed_time(b) for a, b in zip(at, at[1:])] for at in found[{STEPS}:]]
haiprof.stop()
print(json.dumps(times))
"""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=120
        )
        if done.returncode != 0:
            return {"failed": True, "stderr": done.stderr[-2000:]}
        spans = recorded(Path(folder), table="device_spans")
        kernels = recorded(Path(folder))
        said = events(Path(folder))
    theirs = json.loads(done.stdout.splitlines()[-1])
    result: dict[str, Any] = {"spans": len(spans), "events": said, "failed": False}
    for place, name in enumerate(("forward", "backward", "optimizer")):
        ours = [span["duration"] for span in spans if span["name"] == name][-2 * STEPS :]
        result[f"{name}_us"] = statistics.median(ours) / 1e3 if ours else 0.0
        result[f"{name}_torch_us"] = statistics.median(step[place] for step in theirs) / 1e3
        apart = abs(result[f"{name}_us"] - result[f"{name}_torch_us"])
        result["failed"] |= apart > max(50, 0.05 * result[f"{name}_torch_us"])
    if not spans:
        return result
    result["uncertainty_us"] = statistics.median(span["uncertainty"] for span in spans) / 1e3
    # What the main stream ran between its first phase and its last lies in one of them.
    stream = {span["stream"] for span in spans}
    ends = sorted((s["start"], s["start"] + s["duration"], s["uncertainty"]) for s in spans)
    mine = [k for k in kernels if k["stream"] in stream and k["start"] >= ends[0][0]]
    within = [
        any(begin - off <= k["start"] and k["start"] + k["duration"] <= end + off
            for begin, end, off in ends)
        for k in mine
    ]  # fmt: skip
    result["kernels"] = len(mine)
    result["kernels_within_a_phase"] = sum(within)
    result["failed"] |= not mine or sum(within) < 0.95 * len(mine)
    return result


def after_torch_profiler() -> dict[str, Any]:
    """Whether torch.profiler gets its events while haiprof records, and haiprof its own after."""
    program = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import haiprof, jobs
from haiprof import _core
from torch.profiler import ProfilerActivity, profile
haiprof.start(sys.argv[1], run="run", hooks=False, kernels="all")
train = jobs.trainer("transformer")
train(10)
_core.gpu_flush(5)
before = _core.gpu_counts()["kernels"]
with profile(activities=[ProfilerActivity.CUDA]) as found:
    train(10)
theirs = sum(str(e.device_type).endswith("CUDA") for e in found.events())
_core.gpu_flush(5)
during = _core.gpu_counts()["kernels"] - before
train(10)
_core.gpu_flush(5)
told = _core.gpu_counts()
haiprof.stop()
print(json.dumps(dict(before=before, theirs=theirs, ours_meanwhile=during,
                      ours_after=told["kernels"] - before - during, counts=told)))
"""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=120
        )
    if done.returncode != 0:
        return {"failed": True, "stderr": done.stderr[-2000:]}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**told, "failed": told["theirs"] == 0}


def sampling(model: str, seconds: float = 15.0) -> dict[str, Any]:
    """What NVML tells of the GPU while it works, once a second, and how long each reading takes."""
    sys.path.insert(0, str(HERE))
    import jobs

    from haiprof import _core

    uuids, state, reason, mend = _core.gpu_list()
    sampler = _core.HostSampler(basic=0.0, io=0.0, gpu=1.0)
    for uuid in uuids:
        sampler.use_gpu(uuid)
    train = jobs.trainer(model)
    train(10)
    took_ms: list[float] = []
    values: dict[str, float] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        train(5)
        if time.monotonic_ns() < sampler.next_due_ns:
            continue
        begin = time.perf_counter()
        rows = sampler.read(time.monotonic_ns())
        took_ms.append((time.perf_counter() - begin) * 1e3)
        values = {f"{metric} {instance}": value for _, metric, instance, value, _ in rows}
    sources = {
        source["name"]: (source["state"], source["reason"], source["interval_s"])
        for source in sampler.sources()
    }
    instances = [gpu["instance"] for gpu in sampler.gpus()]
    return {
        "nvml": (state, reason, mend),
        "gpus": sampler.gpus(),
        "sources": sources,
        "first_ms": took_ms[0],
        "median_ms": statistics.median(took_ms[1:]),
        "longest_ms": max(took_ms[1:]),
        "values": values,
        "changes": sampler.changes(),
        "failed": not instances
        or not any(values.get(f"gpu.util.percent {instance}") for instance in instances),
    }


ENDS = {
    "return": ("", 0),
    "sys.exit": ("import sys; sys.exit(3)", 3),
    "exception": ("raise SystemError", 1),
    "os._exit": ("import os; os._exit(4)", 4),
    "SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
}


def ends() -> dict[str, Any]:
    """How a job that records kernels ends: as it would without, and soon."""
    found: dict[str, Any] = {"failed": False}
    for name, (how, code) in ENDS.items():
        program = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import haiprof, jobs
haiprof.start(sys.argv[1], run="run", kernels="all")
jobs.trainer("transformer")(5)
{how}
"""
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", program, folder], capture_output=True, timeout=60
            )
            seconds = time.monotonic() - begin
        found[name] = {"code": done.returncode, "seconds": seconds}
        found["failed"] = found["failed"] or done.returncode != code
    return found


def main() -> int:
    """Run every part and write the results."""
    os.environ["HAIPROF_SHM_DIR"] = tempfile.mkdtemp(prefix="haiprof-gpu-", dir="/dev/shm")
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "machine": machine,
        "transformer beside torch.profiler": lambda: beside_torch_profiler("transformer"),
        "convolutions beside torch.profiler": lambda: beside_torch_profiler("convolutions"),
        "transformer's phases": lambda: device_phases("transformer"),
        "torch.profiler meanwhile": after_torch_profiler,
        "ends": ends,
        "sampling": lambda: sampling("transformer"),
        "transformer overhead": lambda: overhead("transformer"),
        "convolutions overhead": lambda: overhead("convolutions"),
    }
    results: dict[str, Any] = {}
    for name, part in parts.items():
        begin = time.monotonic()
        try:
            results[name] = part()
        except Exception:
            results[name] = {"failed": True, "error": traceback.format_exc()[-3000:]}
        results[name]["seconds"] = round(time.monotonic() - begin, 1)
        print(f"{name}: {'failed' if results[name].get('failed') else 'done'}", flush=True)
        write(Path(sys.argv[1]), results)
    return sum(bool(result.get("failed")) for result in results.values())


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write what there is so far, so that a run that is cut off leaves it."""
    (folder / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = ["# GPU suite", ""]
    for name, result in results.items():
        lines += [f"## {name}{' - FAILED' if result.get('failed') else ''}", ""]
        lines += [f"- {key}: {value}" for key, value in result.items() if key != "failed"] + [""]
    (folder / "gpu.md").write_text("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
