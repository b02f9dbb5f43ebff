"""hai-platform's contract: a task's profile options become variables, and its command a traced one.

The platform renders ``haiprof_envs.values`` from the task's options, its entrypoint sources that
into the shell that runs the task, and with ``trace`` the command is ``haiprof trace FILE ARGS``.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import HAIPROF, the_run
from launched import ranks
from recording import read_table, wait_recorded

pytestmark = pytest.mark.jobs

TASK = 4711
#: Trains for some seconds, and says what it was given and whether each word is out at once.
TRAIN = """
import _haiprof_boot
_haiprof_boot.arm()
import json, os, sys, time
print(json.dumps([sys.argv[1:], sys.stdout.write_through]))
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
until = time.monotonic() + float(os.environ.get("SECONDS_OF_TRAINING", "1"))
steps = 0
while time.monotonic() < until or steps < 8:
    steps += 1
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
sys.exit(5)
"""


def values(profile: dict[str, Any] | None) -> str:
    """Render ``haiprof_envs.values`` for a task's ``options.profile``, as the platform does."""
    if not profile:
        variables: dict[str, Any] = {"ENABLED": "0"}
    else:
        variables = {
            "ENABLED": "0" if profile.get("follow_task") else "1",
            "TIME": profile.get("time", 0),
            "WARMUP": profile.get("warmup", 0),
            "TRACE": profile.get("trace", 0),
            "RECORDERS": profile.get("recorder", "all"),
            "LOG_DIR": profile.get("log_dir", "${MARSV2_LOG_DIR}/haiprof"),
            "TASK_ID": profile.get("task_id", "${MARSV2_TASK_ID}"),
            "USER_ID": profile.get("user_id", "${MARSV2_UID}"),
        }
        for name, seconds in profile.get("interval", {}).items():
            variables[f"{name.upper()}_INTERVAL"] = seconds
    lines = [f"export HAIPROF_{name}={value}" for name, value in variables.items()]
    return "\n".join([*lines, "# " + "-" * 52, ""])


class Platform:
    """One node of a task: its files, and its run from the entrypoint on."""

    def __init__(self, folder: Path, profile: dict[str, Any] | None) -> None:
        self.logs = folder / "log" / str(TASK)
        self._folder = folder
        self._traced = bool(profile) and profile.get("trace", 0) == 1
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(TRAIN)
        (folder / "bin").mkdir()
        for name, words in (("haiprof", HAIPROF), ("python3", [sys.executable])):
            command = folder / "bin" / name
            command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            command.chmod(0o755)
        (folder / "haiprof_envs.values").write_text(values(profile))

    def start(
        self, *arguments: str, rank: int = 0, nodes: int = 1, seconds: float = 1
    ) -> subprocess.Popen[str]:
        """Start the entrypoint; what it writes goes through a pipe, as into the platform's log."""
        node = {
            "MARSV2_TASK_ID": TASK,
            "MARSV2_UID": 1000,
            "MARSV2_LOG_DIR": self.logs,
            "MARSV2_NODE_NAME": f"jd-a{rank:04}",
            "MARSV2_RANK": rank,
            "RANK": rank,
            "WORLD_SIZE": nodes,
            "SECONDS_OF_TRAINING": seconds,
        }
        run = "haiprof trace" if self._traced else "python3 -u"
        task = self._folder / "task_run.sh"
        task.write_text(
            f"set -e\ncd {self._folder}/code\nexport PYTHONPATH=${{PWD}}:${{PYTHONPATH}}\n"
            f"{run} train.py {shlex.join(arguments)}\n"
        )
        entry = self._folder / f"entrypoint-{rank}.sh"
        exports = "".join(f"export {name}={value}\n" for name, value in node.items())
        entry.write_text(
            f"set -e\n{exports}source {self._folder}/haiprof_envs.values\n"
            f"set -o pipefail\nbash -c 'ulimit -n 2048 && bash {task}' | cat\n"
        )
        environment = {**os.environ, "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}"}
        return subprocess.Popen(
            ["bash", entry], env=environment, cwd=self._folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def finish(job: subprocess.Popen[str]) -> tuple[list[Any], str]:
    """Wait for a job; return what the script was given and stderr."""
    out, err = job.communicate(timeout=120)
    assert job.returncode == 5, err
    answer: list[Any] = json.loads(out)
    return answer, err


#: What the platform's clients can put into a task, and the options that it means.
PROFILES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"recorder": "all"}, {"recorders": "all", "time": 0, "warmup": 0, "trace": False}),
    ({"time": 120}, {"time": 120}),
    ({"recorder": "basic,gpu"}, {"recorders": "basic,gpu"}),
    (
        {"interval": {"gpu": 1, "basic": 2, "ib": 3, "mem": 4, "power": 5, "io": 6}},
        {f"{n}_interval": s for s, n in enumerate(["gpu", "basic", "ib", "mem", "power", "io"], 1)},
    ),
    ({"time": 1, "log_dir": "${MARSV2_LOG_DIR}/haiprof/20260314_153012"}, {"time": 1}),
    ({"trace": 1}, {"trace": True, "time": 0}),
    ({"trace": 1, "recorder": "basic", "interval": {"basic": 1}}, {"basic_interval": 1}),
]


@pytest.mark.parametrize(("profile", "options"), PROFILES)
def test_a_task_with_profile_options_is_recorded_as_they_say(
    shm: Path, tmp_path: Path, profile: dict[str, Any], options: dict[str, Any]
) -> None:
    platform = Platform(tmp_path, profile)
    traced = profile.get("trace") == 1
    # A script's own words stay its own, whatever they look like.
    arguments = ["-c", "a b.yml", "--", "-n", "2", "--options", "profile.time=1"]
    answer, err = finish(platform.start(*arguments, seconds=4 if traced else 1))
    assert answer == [arguments, True]
    wait_recorded(shm)
    stamp = profile.get("log_dir", "").rpartition("haiprof")[2].strip("/")
    run = the_run(platform.logs / "haiprof" / stamp)
    assert run.name == f"train-{TASK}"
    about = json.loads((run / "run.json").read_text())
    assert (about["task"], about["user"]) == (str(TASK), "1000")
    assert {name: about["options"][name] for name in options} == options
    (rank,) = ranks(run)
    assert (rank["node"], rank["rank"], rank["world_size"]) == ("jd-a0000", 0, 1)
    spans = read_table(run / "jd-a0000#0", "spans").to_pylist()
    assert sum(s["category"] == "step" for s in spans) > 3
    assert (run / "jd-a0000").is_dir()
    files = list(run.glob("jd-a0000#0/*.pt.trace.json.gz"))
    assert len(files) == traced
    assert "HAIPROF_" not in err  # no option of the platform's is unknown here


def test_a_trace_of_a_time_after_a_warmup(shm: Path, tmp_path: Path) -> None:
    platform = Platform(tmp_path, {"trace": 1, "warmup": 5, "time": 4})
    _, err = finish(platform.start(seconds=15))
    wait_recorded(shm)
    folder = the_run(platform.logs / "haiprof") / "jd-a0000#0"
    rows = [e for e in read_table(folder, "events").to_pylist() if e["kind"] == "trace"]
    end = json.loads(rows[-1]["attributes"])
    steps = [s for s in read_table(folder, "spans").to_pylist() if s["category"] == "step"]
    longest = max(step["duration"] for step in steps)  # a trace ends with a step
    assert 1e9 < end["end_ns"] - end["begin_ns"] < 6e9 + longest, err
    assert len(list(folder.glob("*.pt.trace.json.gz"))) == 1


@pytest.mark.parametrize("profile", [None, {}, {"follow_task": 4710, "time": 60}])
def test_a_task_without_a_profile_of_its_own_is_left_alone(
    shm: Path, tmp_path: Path, profile: dict[str, Any] | None
) -> None:
    platform = Platform(tmp_path, profile)
    _, err = finish(platform.start())
    assert err == ""
    assert not platform.logs.exists()
    assert not list(shm.iterdir())


def test_the_nodes_of_a_task_share_a_run_and_the_first_sums_it_up(
    shm: Path, tmp_path: Path
) -> None:
    platform = Platform(tmp_path, {"trace": 1})
    jobs = [platform.start(rank=rank, nodes=2, seconds=4) for rank in range(2)]
    errors = [finish(job)[1] for job in jobs]
    wait_recorded(shm)
    run = the_run(platform.logs / "haiprof")
    assert [(p["node"], p["rank"], p["world_size"]) for p in ranks(run)] == [
        ("jd-a0000", 0, 2),
        ("jd-a0001", 1, 2),
    ]
    assert ["haiprof: run " in err for err in errors] == [True, False]
    assert len(list(run.glob("*#*/*.pt.trace.json.gz"))) == 2
