"""Two emulated hosts, each with a network, processes and shared memory of its own.

The log folder is one, or each has its own. A network, a pid and a mount namespace stand for a
machine; what stands for ssh enters them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import haiprof, the_run
from launched import nodes, ranks, recorded, torchrun, write_script

from haiprof.analyzer import Analyzer

pytestmark = pytest.mark.jobs


class Hosts(NamedTuple):
    """Addresses, which are the names, and the command that stands for ssh."""

    names: tuple[str, str]
    ssh: Path
    #: Where a host's folder ``logs`` lies on a disk of its own, if that is made.
    disks: tuple[Path, Path]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts(tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Two hosts with a cable between them."""
    if os.getuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("needs root, ip and unshare for network and pid namespaces")
    net = os.getpid() % 250
    names = (f"10.91.{net}.1", f"10.91.{net}.2")
    spaces = [f"haiprof-{os.getpid()}-{n}" for n in (1, 2)]
    cables = [f"hp{os.getpid()}-{n}" for n in (1, 2)]
    ssh = tmp_path / "enter"
    ssh.write_text(
        "#!/bin/sh\n"
        f"space=haiprof-{os.getpid()}-${{1##*.}}\n"
        f'mkdir -p "{shm}/$space"\n'
        f"export GLOO_SOCKET_IFNAME=hp{os.getpid()}-${{1##*.}}\n"
        f'export HAIPROF_SHM_DIR="{shm}/$space" NAME=$space DISKS="{tmp_path}"\n'
        'exec ip netns exec "$space" unshare --uts --pid --fork --kill-child --mount-proc '
        "sh -c 'hostname $NAME; "
        '[ ! -d "$DISKS/$NAME" ] || mount --bind "$DISKS/$NAME" "$DISKS/logs"; '
        'sh -c "$0"; exit $?\' "$2"\n'
    )
    ssh.chmod(0o755)
    namespaces = []
    try:
        for space in spaces:
            try:
                _ip("netns", "add", space)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr!r}")
            namespaces.append(space)
        ends = [["name", c, "netns", space] for c, space in zip(cables, spaces, strict=True)]
        _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for space, cable, name in zip(spaces, cables, names, strict=True):
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "addr", "add", f"{name}/24", "dev", cable)
            _ip("-n", space, "link", "set", cable, "up")
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setenv("HAIPROF_SSH_COMMAND", str(ssh))
        yield Hosts(names, ssh, (tmp_path / spaces[0], tmp_path / spaces[1]))
    finally:
        for space in namespaces:
            _ip("netns", "delete", space)


def test_a_job_of_two_hosts_is_one_run_with_a_recorder_each(tmp_path: Path, hosts: Hosts) -> None:
    write_script(tmp_path)
    first = ["--hosts", ",".join(hosts.names), "--log-dir", "logs"]
    job = ["train.py", "--lr", "1", "--nodes", "2", "--options", "profile.interval.basic=0.2"]
    done = haiprof("run", *first, *job, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"{name}#{rank}: trained --lr 1" for rank, name in enumerate(hosts.names)
    ]
    run = the_run(tmp_path / "logs")
    assert sorted(p.name for p in run.iterdir() if p.is_dir()) == sorted(
        [*hosts.names, *(f"{name}#{rank}" for rank, name in enumerate(hosts.names))]
    )
    found = ranks(run)
    assert [(p["rank"], p["world_size"], p["state"]) for p in found] == [
        (0, 2, "closed"),
        (1, 2, "closed"),
    ]
    assert len({p["host"] for p in found}) == 2
    assert "30 steps on each of 2 ranks" in done.stderr
    assert set(Analyzer(run).ranks) == {0, 1}


def test_hosts_with_log_folders_of_their_own_are_collected_into_one_run(
    tmp_path: Path, hosts: Hosts
) -> None:
    write_script(tmp_path)
    for folder in (tmp_path / "logs", *hosts.disks):
        folder.mkdir()
    first = ["--hosts", ",".join(hosts.names), "--log-dir", "logs"]
    job = ["train.py", "--nodes", "2", "--name", "v2", "--options", "profile.interval.basic=0.2"]
    done = haiprof("run", *first, *job, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "logs").glob("*/*/process.json"))
    for disk in hosts.disks:
        assert len(list(disk.glob("v2/*/process.json"))) == 2
    line = "haiprof: 0 of 2 hosts have written here; collect the rest with: haiprof "
    collect = done.stderr.splitlines()[-1].removeprefix(line).split()
    done = haiprof(*collect, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/logs/v2: 2 nodes, 2 processes, 4 of them new or updated\n"
    run = tmp_path / "logs" / "v2"
    assert [(p["rank"], p["node"], p["state"]) for p in ranks(run)] == [
        (0, hosts.names[0], "closed"),
        (1, hosts.names[1], "closed"),
    ]
    assert nodes(run) == sorted(hosts.names)
    opened = Analyzer(run)
    assert set(opened.ranks) == {0, 1}
    assert opened.steps().height == 60
    assert opened.run.problems == ()


#: Until both hosts have their traces, and some steps more; their number goes into a file.
UNTIL_TRACED = """
def until_traced():
    import glob
    left = 200
    for step in range(100_000):
        traced = torch.tensor(float(len(glob.glob("logs/v2/*/*.pt.trace.json.gz")) == 2))
        dist.all_reduce(traced)
        left -= bool(traced)
        if not left:
            open("steps", "w").write(str(step))
            return
        yield step
for step in until_traced():
"""


def test_each_host_makes_a_deep_trace_of_the_time_asked_for(tmp_path: Path, hosts: Hosts) -> None:
    script = write_script(tmp_path)
    before, loop, after = script.read_text().partition(
        'for step in range(int(os.environ.get("STEPS", "30"))):\n'
    )
    assert loop
    script.write_text(before + UNTIL_TRACED.lstrip("\n") + after)
    options = "--nodes 2 --name v2 --options profile.time=4 --options profile.trace=1"
    first = ["--hosts", ",".join(hosts.names), "--log-dir", "logs"]
    done = haiprof("run", *first, "train.py", *options.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": trained\n") == 2
    run = the_run(tmp_path / "logs")
    assert run.name == "v2"
    traces = sorted(run.glob("*/*.pt.trace.json.gz"))
    assert [t.parent.name for t in traces] == [f"{n}#{r}" for r, n in enumerate(hosts.names)], (
        done.stderr
    )
    assert all(t.stat().st_size > 0 for t in traces)
    assert [p["state"] for p in ranks(run)] == ["closed", "closed"]
    # Not all of the job's steps: it went on after the time.
    steps = Analyzer(run).steps()
    assert 0 < len(steps) <= 2 * (int((tmp_path / "steps").read_text()) - 20)


def test_torchrun_of_two_hosts_is_one_run_of_all_its_ranks(tmp_path: Path, hosts: Hosts) -> None:
    write_script(tmp_path)
    launch = (
        f"{' '.join(torchrun())} --nnodes $NNODES --node-rank $NODE_RANK --nproc-per-node 2 "
        "--master-addr $MASTER_ADDR --master-port $MASTER_PORT train.py"
    )
    first = ["--hosts", ",".join(hosts.names), "--log-dir", "logs"]
    done = haiprof("run", *first, "sh", "-c", launch, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = the_run(tmp_path / "logs")
    assert [(p["rank"], p["local_rank"], p["node"]) for p in ranks(run)] == [
        (rank, rank % 2, hosts.names[rank // 2]) for rank in range(4)
    ]
    assert nodes(run) == sorted(hosts.names)


def test_ranks_that_torchrun_starts_on_two_hosts_agree_without_talking(
    tmp_path: Path, hosts: Hosts
) -> None:
    write_script(tmp_path)
    launch = torchrun("--nnodes=2", "--nproc-per-node=2", "--rdzv-id=exp1")
    launch += [f"--master-addr={hosts.names[0]}", "--master-port=29400", "--node-rank"]
    # What stands for the host ends with its first process, and its recorder then: it must not be
    # before the files are closed.
    wait = "; sleep 5"
    both = [
        subprocess.Popen(
            [hosts.ssh, name, " ".join([*launch, str(n), "train.py"]) + wait],
            cwd=tmp_path, env=recorded(tmp_path / "logs"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for n, name in enumerate(hosts.names)
    ]  # fmt: skip
    for job in both:
        _, err = job.communicate(timeout=120)
        assert job.returncode == 0, err
    run = the_run(tmp_path / "logs")
    assert run.name == "train-exp1"
    found = ranks(run)
    assert [p["rank"] for p in found] == [0, 1, 2, 3]
    assert len({p["host"] for p in found}) == 2
    assert len(nodes(run)) == 2
