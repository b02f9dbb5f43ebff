"""SLURM's scripts and the module file: by themselves, and in a SLURM of two nodes."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import the_run
from fixtures import ROOT
from launched import TRAIN, free_port, nodes, ranks
from recording import process_file, read_table, wait_for
from slurm import ask, slurm

SCRIPTS = ROOT / "deploy/slurm"
MODULE = ROOT / "deploy/modules/haiprof"
ALL = [*sorted(SCRIPTS.iterdir()), ROOT / "deploy/tree/install.sh", ROOT / "deploy/tree/haiprof"]
USER = pwd.getpwuid(os.getuid())
JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_UID": str(USER.pw_uid),
    "SLURM_JOB_USER": USER.pw_name,
}
#: What a job of several nodes needs to know.
COMPANY = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
#: What a script of SLURM does before it meets the others.
PLACE = """
import os
os.environ |= {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": os.environ["SLURM_NTASKS"]}
"""
#: Leaves a ring with all that it recorded, as a job does that is killed with its control group.
KILLED = """
import haiprof, os, signal, time
from pathlib import Path
from haiprof.recorder.election import recorder_pid
haiprof.start(hooks=False, drain_hz=0.1)
for _ in range(100):
    with haiprof.range("work"):
        pass
(rings,) = (path.parent for path in Path("/dev/shm").glob("haiprof-*/*/*.ring"))
while not recorder_pid(rings):
    time.sleep(0.01)
os.kill(recorder_pid(rings), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.name)
def test_shellcheck_and_bash_find_nothing_to_say(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)
    program = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("shellcheck is not installed")
    words = [program, "-x", "--source-path", ROOT, path]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (path.name == "settings") != bool(path.stat().st_mode & 0o111)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the scripts, and settings that name a tree and a log directory in it."""
    folder = tmp_path / "etc"
    shutil.copytree(SCRIPTS, folder)
    tree, logs = tmp_path / "tree", tmp_path / "logs"
    (tree / "start").mkdir(parents=True)
    logs.mkdir()
    settings(folder, tree=tree, logs=logs, python=sys.executable)
    return folder


def settings(folder: Path, **values: object) -> None:
    """Change settings, each of which has to be there."""
    lines = (folder / "settings").read_text().splitlines()
    for name, value in values.items():
        (at,) = (i for i, line in enumerate(lines) if line.startswith(f"{name}="))
        lines[at] = f"{name}={shlex.quote(str(value))}"
    (folder / "settings").write_text("\n".join(lines) + "\n")


def run(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one as SLURM does; none of them may fail."""
    environment = {"PATH": os.environ["PATH"], **JOB, **variables}
    done = subprocess.run([script], env=environment, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def exported(site: Path, **variables: str) -> dict[str, str]:
    lines = run(site / "task_prolog.sh", **variables).stdout.splitlines()
    assert all(line.startswith("export ") for line in lines)
    return dict(line.removeprefix("export ").split("=", 1) for line in lines)


def test_the_prolog_gives_the_user_a_folder_once(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / USER.pw_name
    for _ in range(2):
        assert run(site / "prolog.sh").stderr == ""
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.stat().st_uid == USER.pw_uid
        (folder / "kept").touch()


def test_the_prolog_of_a_job_whose_folder_cannot_be_made_says_so_and_does_not_fail(
    site: Path, tmp_path: Path
) -> None:
    (tmp_path / "logs").rmdir()
    said = run(site / "prolog.sh").stderr
    assert f"haiprof: no {tmp_path / 'logs' / USER.pw_name}" in said


def test_the_task_prolog_has_jobs_recorded_that_do_not_say(site: Path, tmp_path: Path) -> None:
    run(site / "prolog.sh")
    start, logs = str(tmp_path / "tree/start"), str(tmp_path / "logs" / USER.pw_name)
    recorded = {"HAIPROF_ENABLED": "1", "PYTHONPATH": start, "HAIPROF_LOG_DIR": logs}
    assert exported(site) == recorded
    own = exported(site, PYTHONPATH="/own", HAIPROF_LOG_DIR="/runs")
    assert own == {"HAIPROF_ENABLED": "1", "PYTHONPATH": f"{start}:/own"}
    # A task of a batch script has what the script was given.
    again = exported(site, **recorded)
    assert again == {"HAIPROF_ENABLED": "1"}
    settings(site, textfiles="/textfiles")
    assert exported(site)["HAIPROF_METRICS"] == "/textfiles/haiprof-17.prom"
    assert "HAIPROF_METRICS" not in exported(site, HAIPROF_METRICS=":9464")


def test_the_task_prolog_leaves_jobs_alone_that_say_no(site: Path, tmp_path: Path) -> None:
    for value in ("0", "no", "off", "false"):
        assert exported(site, HAIPROF_ENABLED=value) == {}
    settings(site, by_default=0)
    assert exported(site) == {}
    assert exported(site, HAIPROF_ENABLED="1")["HAIPROF_ENABLED"] == "1"
    settings(site, tree=tmp_path / "nowhere")
    assert exported(site, HAIPROF_ENABLED="1") == {}


def test_the_epilog_removes_the_jobs_metrics_and_no_others(site: Path, tmp_path: Path) -> None:
    (tmp_path / "haiprof-17.prom").touch()
    (tmp_path / "haiprof-18.prom").touch()
    settings(site, textfiles=tmp_path)
    run(site / "epilog.sh")
    assert [path.name for path in tmp_path.glob("*.prom")] == ["haiprof-18.prom"]


@pytest.fixture
def cluster(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The log directory of the user in a SLURM whose nodes have these scripts."""
    for name in list(os.environ):
        if name.startswith("HAIPROF_"):
            monkeypatch.delenv(name)
    for name, value in COMPANY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.chdir(tmp_path)
    # Each node has shared memory of its own.
    keys = {"Prolog": "prolog.sh", "Epilog": "epilog.sh", "TaskProlog": "task_prolog.sh"}
    with slurm("".join(f"{key}={site / name}\n" for key, name in keys.items())):
        yield tmp_path / "logs" / USER.pw_name


def submit(program: str, *words: str) -> str:
    """Have each node run a program, and wait for its end; return what it printed."""
    Path("train.py").write_text(program)
    Path("job.sh").write_text("#!/bin/sh\nsrun python train.py\n")
    ask("sbatch", "--wait", "--parsable", "-N2", "-n2", "--output=job.out", *words, "job.sh")
    return Path("job.out").read_text()


@pytest.mark.jobs
def test_jobs_of_a_cluster_are_recorded_without_a_word_of_their_own(cluster: Path) -> None:
    assert submit(PLACE + TRAIN) == "trained\n" * 2
    run = the_run(cluster)
    assert [(p["rank"], p["world_size"]) for p in ranks(run)] == [(0, 2), (1, 2)]
    assert nodes(run) == ["n1", "n2"]


@pytest.mark.jobs
def test_a_job_of_a_cluster_that_says_no_is_not_recorded(cluster: Path) -> None:
    assert submit(PLACE + TRAIN, "--export=ALL,HAIPROF_ENABLED=0") == "trained\n" * 2
    assert list(cluster.iterdir()) == []


@pytest.mark.jobs
def test_what_a_job_left_that_was_killed_with_its_recorder_is_written_out(cluster: Path) -> None:
    with pytest.raises(AssertionError):  # sbatch ends as the job does
        submit(KILLED)
    wait_for(lambda: len(list(cluster.glob("*/*#*/process.json"))) == 2, what="both folders")
    folders = list(cluster.glob("*/*#*"))

    def written_out() -> bool:
        return all(process_file(folder).get("state") == "died" for folder in folders)

    wait_for(written_out, what="the epilog's end")
    for folder in folders:
        assert read_table(folder, "spans")["name"].to_pylist() == ["work"] * 100


@pytest.fixture
def modules() -> str:
    """The program that reads module files: of Environment Modules, or Lmod's."""
    found = shutil.which("modulecmd") or os.environ.get("LMOD_CMD")
    if not found:
        pytest.skip("neither Environment Modules nor Lmod is installed")
    return found


def test_the_module_has_jobs_recorded_until_it_is_unloaded(modules: str, tmp_path: Path) -> None:
    (tmp_path / "haiprof").mkdir()
    shutil.copy(MODULE, tmp_path / "haiprof/0.1.0")
    script = f"""
    export MODULEPATH={tmp_path} PYTHONPATH=/own
    show() {{ echo "$HAIPROF_ENABLED|$PYTHONPATH|${{PATH%%:*}}"; }}
    eval "$({modules} bash load haiprof)"; show
    eval "$({modules} bash unload haiprof)"; show
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    before = os.environ["PATH"].partition(":")[0]
    assert done.stdout.splitlines() == [
        "1|/opt/haiprof/start:/own|/opt/haiprof/bin",
        f"|/own|{before}",
    ], done.stderr
    whatis = subprocess.run(
        [modules, "bash", "help", "haiprof"],
        env={**os.environ, "MODULEPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "HAIPROF_ENABLED=0" in whatis.stdout + whatis.stderr
