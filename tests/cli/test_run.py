"""``haiprof run``: the command must not notice, and the run must be there afterwards."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import HAIPROF, UNTIL_END, haiprof, only_line, start_haiprof, the_run
from recording import process_file, read_table, wait_for, wait_recorded

from haiprof import schema

pytestmark = pytest.mark.usefixtures("shm")

RECORDS = """
import haiprof, time
haiprof.start()
for _ in range(20):
    with haiprof.range("load"):
        time.sleep(0.002)
    haiprof.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that records twenty steps."""
    path = tmp_path / "train.py"
    path.write_text(RECORDS)
    return path


def test_the_run_says_how_many_steps_it_has(tmp_path: Path, script: Path) -> None:
    said = haiprof("run", "--log-dir", tmp_path / "logs", script).stderr
    (rank,) = (tmp_path / "logs").glob("*/*#0")
    steps = json.loads((rank / schema.PROCESS_FILE).read_text())["steps"]
    assert f" {steps} steps, median " in said


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_that_of_the_command(tmp_path: Path, code: int) -> None:
    assert haiprof("run", "--log-dir", tmp_path, "sh", "-c", f"exit {code}").returncode == code


def test_what_goes_in_and_out_is_the_commands(tmp_path: Path) -> None:
    program = "cat; echo heard >&2"
    done = haiprof("run", "--log-dir", tmp_path, "--", "sh", "-c", program, input="a\n\0b")
    assert done.stdout == "a\n\0b"
    assert done.stderr.startswith("heard\nhaiprof: run ")


def test_descriptors_that_were_handed_down_stay_open(tmp_path: Path) -> None:
    read, write = os.pipe()
    program = f"import os; os.write({write}, b'here\\n')"
    with os.fdopen(read) as pipe:
        haiprof("run", "--log-dir", tmp_path, sys.executable, "-c", program, pass_fds=[write])
        os.close(write)
        assert pipe.read() == "here\n"


def test_the_commands_environment_says_where_the_run_is(tmp_path: Path) -> None:
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    words = ["--log-dir", "logs", "--run", "mine", "--ring-mib=4", "--no-hooks"]
    done = haiprof("run", *words, sys.executable, "-c", program, cwd=tmp_path)
    variables = {k: v for k, v in json.loads(done.stdout).items() if k.startswith("HAIPROF_")}
    del variables["HAIPROF_SHM_DIR"]
    assert variables == {
        "HAIPROF_ENABLED": "1",
        "HAIPROF_LOG_DIR": str(tmp_path / "logs"),
        "HAIPROF_RUN": "mine",
        "HAIPROF_SAMPLE_HZ": "1.0",
        "HAIPROF_DRAIN_HZ": "4.0",
        "HAIPROF_STACK_HZ": "10.0",
        "HAIPROF_HANG_AFTER": "60.0",
        "HAIPROF_ON_FINDING": "",
        "HAIPROF_STORAGE_LIMIT": "0.0",
        "HAIPROF_METRICS": "",
        "HAIPROF_TRACKERS": "10.0",
        "HAIPROF_RING_MIB": "4",
        "HAIPROF_HOOKS": "0",
        "HAIPROF_KERNELS": "windows",
        "HAIPROF_KERNELS_PERIOD": "60.0",
        "HAIPROF_GRAPHS": "",
        "HAIPROF_BUDGET": "0.005",
        "HAIPROF_FLOPS": "0",
        "HAIPROF_PEAK_FLOPS": "0.0",
        "HAIPROF_WARMUP": "0.0",
        "HAIPROF_TIME": "0.0",
        "HAIPROF_RECORDERS": "all",
        "HAIPROF_BASIC_INTERVAL": "0.0",
        "HAIPROF_GPU_INTERVAL": "0.0",
        "HAIPROF_IO_INTERVAL": "0.0",
        "HAIPROF_IB_INTERVAL": "0.0",
        "HAIPROF_MEM_INTERVAL": "0.0",
        "HAIPROF_POWER_INTERVAL": "0.0",
        "HAIPROF_PROCFS_ROOT": "",
        "HAIPROF_SYSFS_ROOT": "",
        "HAIPROF_PERFD": "/run/haiprof/perfd.sock",
        "HAIPROF_RESCTRL": "0",
        "HAIPROF_TRACE": "0",
        "HAIPROF_TRACE_STEPS": "0",
        "HAIPROF_TRACE_SECONDS": "0.0",
        "HAIPROF_TRACE_WARMUP": "5.0",
        "HAIPROF_TRACE_MIB": "128",
        "HAIPROF_TRACE_WITH": "shapes,stacks,memory,modules",
        "HAIPROF_TRACE_RANKS": "",
    }


def test_an_environment_that_is_not_utf8_arrives_as_it_is(tmp_path: Path) -> None:
    environment = {**os.environb, b"ODD": b"\xff\xfe"}
    done = subprocess.run(
        [*HAIPROF, "run", "--log-dir", str(tmp_path), "printenv", "ODD"],
        env=environment,
        capture_output=True,
        timeout=300,
    )
    assert done.stdout == b"\xff\xfe\n"
    assert b"no recorder" not in done.stderr


def test_signals_that_python_ignores_have_their_usual_effect(tmp_path: Path) -> None:
    done = haiprof("run", "--log-dir", tmp_path, "grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1


def test_a_script_without_a_first_line_runs_as_in_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "plain"
    script.write_text("echo plain $1\n")
    script.chmod(0o755)
    assert haiprof("run", "--log-dir", tmp_path / "logs", script, "x").stdout == "plain x\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere.py"], 127, "nowhere.py: no such script"),
        (["no-such-command"], 127, "no-such-command: command not found"),
        (["/etc"], 126, "/etc: cannot be executed"),
        (["./data"], 126, "./data: cannot be executed"),
        (["./orphan"], 126, "./orphan: cannot be executed: the interpreter"),
        (["--frobnicate", "true"], 2, "no option --frobnicate"),
        (["--sample-hz", "often", "true"], 2, "--sample-hz 'often' is not a number"),
        ([], 2, "missing command"),
    ],
)
def test_a_command_that_cannot_run_is_one_line_and_leaves_nothing(
    tmp_path: Path, shm: Path, words: list[str], code: int, message: str
) -> None:
    (tmp_path / "data").write_text("no program")
    orphan = tmp_path / "orphan"
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    done = haiprof("run", *words, cwd=tmp_path)
    assert done.returncode == code
    assert message in only_line(done)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "orphan"]
    assert not list(shm.glob("*/*"))


def test_a_wrong_variable_is_reported_and_replaced_by_the_default(tmp_path: Path) -> None:
    environment = {**os.environ, "HAIPROF_SAMPLE_HZ": "often"}
    done = haiprof("run", "--log-dir", tmp_path, "printenv", "HAIPROF_SAMPLE_HZ", env=environment)
    assert done.stdout == "1.0\n"
    assert "HAIPROF_SAMPLE_HZ='often'" in done.stderr.splitlines()[0]


def test_typer_is_not_imported_before_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *HAIPROF[1:], "run", "nowhere.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "haiprof.cli.run" in imported
    assert not imported & {"typer", "rich", "pyarrow", "polars", "plotly", "torch"}


# -- the run -------------------------------------------------------------------------------------


def test_a_script_is_recorded_and_summed_up(tmp_path: Path, shm: Path, script: Path) -> None:
    logs = tmp_path / "logs"
    done = haiprof("run", "--log-dir", "logs", "train.py", cwd=tmp_path)
    run = the_run(logs)
    assert done.returncode == 0
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == f"haiprof: run {run}"
    assert [line.startswith("haiprof:   ") for line in lines[1:4]] == [True] * 3
    assert "steps, median" in lines[1]
    assert lines[4:] == [f"haiprof: view it with: haiprof report logs/{run.name}"]
    (rank,) = (p for p in run.glob("*#0"))
    assert process_file(rank)["state"] == "closed"
    assert read_table(rank, "spans")["name"].to_pylist().count("load") == 20
    assert not list(shm.glob("*/*"))


def test_the_run_says_what_was_run(tmp_path: Path, script: Path) -> None:
    haiprof("run", "--log-dir", "logs", "--drain-hz=8", "train.py", "--lr", "1", cwd=tmp_path)
    run = the_run(tmp_path / "logs")
    document = json.loads((run / "run.json").read_text())
    assert document["format"] == "haiprof-run"
    assert document["version"] == f"{schema.MAJOR}.{schema.MINOR}"
    assert document["run"] == run.name
    assert run.name.startswith("train-")
    assert document["command"] == ["train.py", "--lr", "1"]
    assert document["cwd"] == str(tmp_path)
    assert document["host"] == os.uname().nodename
    assert document["options"]["drain_hz"] == 8.0
    assert (run / "run.json").stat().st_mode & 0o777 == 0o600


def test_a_command_without_torch_still_gives_host_samples(tmp_path: Path) -> None:
    words = ("run", "--log-dir", "logs", "--sample-hz=10", *UNTIL_END)
    job = start_haiprof(*words, cwd=tmp_path)

    def nodes() -> list[Path]:
        return [path.parent for path in tmp_path.glob("logs/*/*/process.json")]

    def sampled() -> bool:
        rows = [row for node in nodes() for row in read_table(node, "samples").to_pylist()]
        found = Counter((row["metric"], row["instance"]) for row in rows)
        return min(found["cpu.util.percent", None], found["proc.rss.bytes", "command"]) > 2

    try:
        wait_for(sampled, 120, "samples of the node and of the command")
    finally:
        (tmp_path / "END").touch()
        job.communicate(timeout=120)
    assert job.returncode == 0
    (node,) = nodes()
    assert process_file(node)["state"] == "closed"
    assert sampled()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("pass", "no process of the job imported torch"),
        ("import torch", "a process of the job imported torch, but did not train"),
    ],
)
def test_a_script_without_torch_is_told_apart_from_one_that_does_not_train(
    tmp_path: Path, shm: Path, script: str, why: str
) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "train.py").write_text(script)
    done = haiprof("run", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert f"No step was recorded: {why}" in done.stderr
    assert not any(path.is_file() for path in shm.rglob("*"))


def test_a_command_whose_python_lacks_haiprof_is_told_so(tmp_path: Path) -> None:
    done = haiprof("run", sys.executable, "-S", "-c", "pass", cwd=tmp_path)
    assert done.returncode == 0
    assert "No step was recorded: no Python of the job has haiprof, or none ran" in done.stderr


def test_a_command_that_is_a_rank_itself_is_sampled_as_both(tmp_path: Path, script: Path) -> None:
    script.write_text(RECORDS + "import sys\nsys.stdin.read()\n")
    job = start_haiprof(
        "run", "--log-dir", "logs", "--sample-hz=10", "train.py", cwd=tmp_path, stdin=-1
    )

    def sampled(instance: str | None, *, of_rank: bool) -> bool:
        return any(
            row["metric"] == "proc.rss.bytes" and row["instance"] == instance
            for folder in tmp_path.glob("logs/*/*/")
            if ("#" in folder.name) == of_rank
            for row in read_table(folder, "samples").to_pylist()
        )

    wait_for(lambda: sampled(None, of_rank=True), what="samples of the rank")
    wait_for(lambda: sampled("command", of_rank=False), what="samples of the command")
    job.communicate()
    assert job.returncode == 0


def test_a_report_is_written_when_asked_for(tmp_path: Path, script: Path) -> None:
    done = haiprof("run", "--log-dir", "logs", "--report", "train.py", cwd=tmp_path)
    written = the_run(tmp_path / "logs") / "report.html"
    assert f"haiprof: report {written}" in done.stderr.splitlines()
    assert "<html" in written.read_text()[:2000].lower()


def test_a_command_that_fails_at_once_has_a_report_too(tmp_path: Path) -> None:
    failing = (sys.executable, "-c", "raise SystemExit(3)")
    done = haiprof("run", "--log-dir", "logs", "--report", "--", *failing, cwd=tmp_path)
    assert done.returncode == 3
    written = the_run(tmp_path / "logs") / "report.html"
    assert f"haiprof: report {written}" in done.stderr.splitlines()
    assert written.stat().st_size > 10_000


def test_ranks_of_one_launch_share_a_run_and_the_first_prints_the_summary(
    tmp_path: Path, shm: Path
) -> None:
    launch = {**os.environ, "HAIPROF_TASK_ID": "job7", "WORLD_SIZE": "2"}
    done = [
        haiprof("run", "--log-dir", tmp_path, "true", env={**launch, "RANK": str(rank)})
        for rank in (0, 1)
    ]
    wait_recorded(shm)
    assert the_run(tmp_path).name == "true-job7"
    assert "haiprof: run " in done[0].stderr
    assert done[1].stderr == ""


def test_a_run_within_a_run_leaves_the_summary_to_the_outer_one(tmp_path: Path) -> None:
    inner = f"{shlex.join(HAIPROF)} run sh -c 'exit 4'"
    script = f"sleep 1; {inner}; echo $?; {inner}; echo $?"
    begun = time.monotonic()
    done = haiprof("run", "--log-dir", tmp_path, "sh", "-c", script)
    assert time.monotonic() - begun < 30  # what one of the inner ones would wait for
    assert done.stdout == "4\n4\n"
    assert done.stderr.count("haiprof: run ") == 1
    assert done.stderr.splitlines()[0] == f"haiprof: run {the_run(tmp_path)}"


def test_a_run_of_many_processes_is_not_read_before_the_end_is_passed_on(tmp_path: Path) -> None:
    folders = "for i in $(seq 65); do mkdir $HAIPROF_LOG_DIR/$HAIPROF_RUN/n#$i; done"
    done = haiprof("run", "--log-dir", tmp_path, "sh", "-c", folders)
    run = the_run(tmp_path)
    assert done.stderr.splitlines() == [
        f"haiprof: run {run}",
        "haiprof:   65 processes took part, too many to sum them up here",
        f"haiprof: view it with: haiprof report {run}",
    ]


# -- nothing can be recorded ---------------------------------------------------------------------


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system that nobody can write to."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no permission to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_on_a_read_only_file_system_the_command_runs_all_the_same(read_only: Path) -> None:
    done = haiprof("run", "--log-dir", read_only, "sh", "-c", "echo $HAIPROF_ENABLED; exit 3")
    assert done.returncode == 3
    assert done.stdout == "0\n"
    assert str(read_only) in only_line(done)


def test_with_a_file_in_the_way_the_command_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = haiprof("run", "--log-dir", tmp_path / "file" / "logs", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert "HAIPROF_LOG_DIR" in only_line(done)


def test_without_shared_memory_the_command_runs_all_the_same(tmp_path: Path) -> None:
    environment = {**os.environ, "HAIPROF_SHM_DIR": str(tmp_path / "nowhere")}
    done = haiprof("run", "--log-dir", tmp_path, "sh", "-c", "exit 3", env=environment)
    assert done.returncode == 3
    assert str(tmp_path / "nowhere") in only_line(done)
