"""``haiprof run --nodes``: one start of the command on each host, and one end of all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import HAIPROF, haiprof, only_line, start_haiprof, the_run
from recording import wait_for

from haiprof.cli.hosts.names import choose_hosts

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("shm")]

HERE = ("--nodes=2", "--hosts=localhost,localhost")


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A way to hosts that do not exist: a shell elsewhere with an environment of its own."""
    script = tmp_path / "ssh wrapper"
    script.write_text(
        '#!/bin/sh\necho "$@" >> "$(dirname "$0")/asked"\n'
        "cd /; unset HAIPROF_LOG_DIR\n"
        'case $2 in away) echo "no route" >&2; exit 255;; esac\n'
        '/bin/sh -c "$3"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("HAIPROF_SSH_COMMAND", f"'{script}' -q")
    return tmp_path / "asked"


def test_each_host_gets_its_place_and_the_run(tmp_path: Path, ssh: Path) -> None:
    program = (
        "import json, os; variables = {n: v for n, v in os.environ.items()}; "
        "print(json.dumps([variables, os.getcwd()]))"
    )
    words = ["--name", "v2", "--log-dir", "logs", "--sample-hz", "5", sys.executable, "-c", program]
    done = haiprof("run", "-n", "2", "--hosts", "me@nodeA,nodeB,nodeC", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.partition(": ")[0] for line in lines] == ["me@nodeA#0", "nodeB#1"]
    answers = [json.loads(line.partition(": ")[2]) for line in lines]
    for rank, (environment, folder) in enumerate(answers):
        expected = {
            "RANK": str(rank),
            "NODE_RANK": str(rank),
            "MARSV2_RANK": str(rank),
            "MARSV2_NODE_NAME": ("nodeA", "nodeB")[rank],
            "WORLD_SIZE": "2",
            "NNODES": "2",
            "MASTER_ADDR": "nodeA",
            "HAIPROF_RUN": "v2",
            "HAIPROF_LOG_DIR": str(tmp_path / "logs"),
            "HAIPROF_SAMPLE_HZ": "5.0",
            "HAIPROF_ENABLED": "1",
        }
        assert {name: environment.get(name) for name in expected} == expected
        assert folder == str(tmp_path)
    ports = {environment["MASTER_PORT"] for environment, _ in answers}
    assert len(ports) == 1
    assert 1024 < int(ports.pop()) < 32768
    run = the_run(tmp_path / "logs")
    assert run.name == "v2"
    assert json.loads((run / "run.json").read_text())["command"][0] == sys.executable
    assert [line.split()[:2] for line in sorted(ssh.read_text().splitlines())] == [
        ["-q", "me@nodeA"],
        ["-q", "nodeB"],
    ]
    assert done.stderr.count("haiprof: run ") == 1


def test_the_originals_line_starts_a_script_on_eight_nodes(
    tmp_path: Path, ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "names = 'RANK', 'HAIPROF_TIME', 'HAIPROF_TRACE'\n"
        "print(sys.argv[1:], *(os.environ[name] for name in names))\n"
    )
    monkeypatch.setenv("HAIPROF_HOSTS", ",".join(f"node{n}" for n in range(10)))
    line = "train.py --nodes 8 --options profile.time=120 --options profile.trace=1"
    done = haiprof("run", *line.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"node{n}#{n}: [] {n} 120.0 1" for n in range(8)]
    assert the_run(tmp_path / "haiprof-logs").name.startswith("train-")


def test_words_and_environment_arrive_as_they_are(tmp_path: Path, ssh: Path) -> None:
    odd = ["a b", "'\"$HOME", "*", "new\nline", os.fsdecode(b"\xff")]
    program = "import os, sys; print([os.fsencode(w) for w in sys.argv[1:]])"
    done = haiprof(
        "run", "--hosts", "nodeA", "--log-dir", tmp_path, sys.executable, "-c", program, *odd
    )
    assert done.stdout == f"nodeA#0: {[os.fsencode(word) for word in odd]}\n"


def test_output_is_passed_on_in_whole_lines(tmp_path: Path) -> None:
    script = (
        r"printf 'part'; sleep 0.3; printf ' two\r\nbar 1\rbar 2\rdone\nlast'; printf 'e\n' >&2"
    )
    done = haiprof("run", *HERE[1:], "--nodes=1", "--log-dir", tmp_path, "sh", "-c", script)
    name = "localhost#0: "
    assert done.stdout.splitlines() == [
        name + text for text in ("part two", "bar 1", "bar 2", "done", "last")
    ]
    assert done.stderr.splitlines()[0] == name + "e"


def test_what_a_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    begun = time.monotonic()
    words = ["sh", "-c", "sleep 60 & printf 'no end'"]
    done = haiprof("run", *HERE[1:], "--nodes=1", "--log-dir", tmp_path, *words)
    assert time.monotonic() - begun < 40
    assert (done.returncode, done.stdout) == (0, "localhost#0: no end\n")


def test_output_that_cannot_be_written_ends_the_hosts(tmp_path: Path) -> None:
    script = "while echo x; do :; done"
    words = [*HAIPROF, "run", *HERE, "--log-dir", str(tmp_path), "sh", "-c", script]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 1
    assert "cannot forward the output of the hosts: No space left" in done.stderr
    reader = subprocess.run(
        ["bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "bash", *words],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert reader.returncode == 141


def test_a_line_without_end_is_passed_on_whole(tmp_path: Path) -> None:
    words = ["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"]
    done = haiprof("run", *HERE[1:], "--nodes=1", "--log-dir", tmp_path, *words)
    pieces = [line.removeprefix("localhost#0: ") for line in done.stdout.splitlines()]
    assert "".join(pieces) == "x" * 3_000_000


def test_a_host_that_fails_ends_the_others_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    script = "echo $$; [ $RANK = 1 ] && sleep 1 && exit 7; sleep 300 & wait"
    begun = time.monotonic()
    done = haiprof("run", *HERE, "--log-dir", tmp_path, "sh", "-c", script)
    assert done.returncode == 7
    assert time.monotonic() - begun < 30
    assert "localhost#1 ended with exit code 7; the others are ended" in done.stderr
    for line in done.stdout.splitlines():
        pid = int(line.partition(": ")[2])
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 5)


def test_a_host_that_cannot_be_reached_is_named(tmp_path: Path, ssh: Path) -> None:
    done = haiprof("run", "--hosts", "nodeA,away", "--log-dir", tmp_path, "sleep", "60")
    assert done.returncode == 255
    assert "away#1: no route" in done.stderr
    assert "haiprof: away#1 ended with exit code 255, as ssh does for a host that" in done.stderr


@pytest.mark.parametrize(
    ("program", "way"),
    [
        ("srun", "srun --jobid=7 --overlap -N1 -n1 -w {host} sh -c"),
        ("kubectl", "kubectl exec -i {host} -c pytorch -- sh -c"),
        ("docker", "docker exec -i {host} sh -c"),
    ],
)
def test_a_way_that_wants_the_host_elsewhere_than_behind_it(
    tmp_path: Path, program: str, way: str
) -> None:
    stub = tmp_path / program
    stub.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" > "$0.words"\n'
        'until [ "$1" = sh ]; do shift; done\nexec "$@"\n'
    )
    stub.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment["HAIPROF_SSH_COMMAND"] = way
    words = ("--hosts", "node-7", "--log-dir", "logs", "echo", "a  b")
    done = haiprof("run", *words, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "node-7#0: a  b\n"), done.stderr
    *before, line = (tmp_path / f"{program}.words").read_text().splitlines()
    assert [program, *before] == way.replace("{host}", "node-7").split()
    assert line.startswith("exec ")


def test_a_host_without_haiprof_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "haiprof").mkdir()
    (tmp_path / "haiprof/__init__.py").write_text("")
    way = f"cd /; PYTHONPATH={tmp_path} /bin/sh -c 'eval \"$2\"' --"
    environment = {**os.environ, "HAIPROF_SSH_COMMAND": way}
    done = haiprof("run", "--hosts", "nodeA", "--log-dir", tmp_path, "true", env=environment)
    assert done.returncode == 1
    line = f"nodeA#0: haiprof: missing here, or another version: {sys.executable}\n"
    assert done.stderr.startswith(line)
    assert "Traceback" not in done.stderr


def test_a_missing_command_is_reported_by_its_host(tmp_path: Path) -> None:
    done = haiprof("run", *HERE, "--log-dir", tmp_path, "no-such-command")
    assert done.returncode == 127
    # The first to fail ends the others.
    said = "haiprof: no-such-command: command not found"
    assert {f"localhost#0: {said}", f"localhost#1: {said}"} & {*done.stderr.splitlines()}


def test_a_folder_that_a_host_lacks_is_reported(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    # The way there takes the folder away before the other side looks for it.
    environment = {
        **os.environ,
        "HAIPROF_SSH_COMMAND": f"rmdir {gone}; cd /; /bin/sh -c 'eval \"$2\"' --",
    }
    words = ["--hosts", "nodeA", "--log-dir", tmp_path / "logs", "true"]
    done = haiprof("run", *words, cwd=gone, env=environment)
    assert done.returncode == 1
    assert f"haiprof: {gone}: No such file or directory; the folder must be there" in done.stderr


def test_death_by_a_signal_is_an_exit_code(tmp_path: Path) -> None:
    done = haiprof("run", *HERE, "--log-dir", tmp_path, "sh", "-c", "kill -SEGV $$")
    assert done.returncode == 128 + signal.SIGSEGV


def start_both(tmp_path: Path, script: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a script that prints its pid on two hosts."""
    process = start_haiprof("run", *HERE, "--log-dir", tmp_path, "sh", "-c", script)
    assert process.stdout is not None
    pids = [int(process.stdout.readline().partition(": ")[2]) for _ in range(2)]
    return process, pids


def test_ctrl_c_reaches_the_command_on_every_host(tmp_path: Path) -> None:
    script = "trap 'echo bye; exit 4' INT; trap '' TERM; echo $$; while :; do sleep 0.1; done"
    process, _ = start_both(tmp_path, script)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    assert sorted(out.splitlines()) == ["localhost#0: bye", "localhost#1: bye"]


def test_ctrl_c_again_kills_what_does_not_end(tmp_path: Path) -> None:
    script = "trap 'echo no' INT TERM; echo $$; while :; do sleep 0.1; done"
    process, pids = start_both(tmp_path, script)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    for _ in range(2):
        assert process.stdout.readline().endswith(": no\n")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    for pid in pids:
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 5)


def test_when_haiprof_is_killed_the_hosts_end_their_commands(tmp_path: Path) -> None:
    process, pids = start_both(tmp_path, "echo $$; sleep 300 & wait")
    process.kill()
    process.communicate(timeout=60)
    for pid in pids:
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists())


# -- which hosts ---------------------------------------------------------------------------------


def test_more_nodes_than_hosts_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = ["train.py", "--nodes", "8", "--options", "profile.time=120"]
    for hosts in ([], ["--hosts", "a,b"]):
        done = haiprof("run", *hosts, *words, cwd=tmp_path)
        assert done.returncode == 2
        line = only_line(done)
        assert f"8 hosts were requested and {len(hosts)} are known" in line
        assert "--hosts a,b,... or --hostfile FILE before the command" in line
        assert "HAIPROF_HOSTS" in line
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


def test_one_node_runs_here(tmp_path: Path) -> None:
    environment = {**os.environ, "HAIPROF_HOSTS": "nowhere", "HAIPROF_SSH_COMMAND": "false"}
    words = ["echo", "here", "--nodes", "1", "--options", "profile.recorder=basic"]
    done = haiprof("run", "--log-dir", tmp_path, *words, env=environment)
    assert (done.returncode, done.stdout) == (0, "here\n")
    assert "not known" not in done.stderr


@pytest.mark.parametrize("way", ["HAIPROF_HOSTS", "--hostfile", "HAIPROF_HOSTFILE", "SLURM"])
def test_hosts_come_from(
    tmp_path: Path, ssh: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts").write_text("# ours\nnodeA slots=8\n\nnodeB:4 # MPICH's\nnodeC\n")
    words = []
    if way == "HAIPROF_HOSTS":
        monkeypatch.setenv(way, "nodeA, nodeB,nodeC")
    elif way == "HAIPROF_HOSTFILE":
        monkeypatch.setenv(way, str(tmp_path / "hosts"))
    elif way == "--hostfile":
        words = [way, str(tmp_path / "hosts")]
    else:
        scontrol = tmp_path / "scontrol"
        scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames node[A-C]" ] || exit 1\n')
        with scontrol.open("a") as file:
            file.write("printf 'nodeA\\nnodeB\\nnodeC\\n'\n")
        scontrol.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "node[A-C]")
    done = haiprof("run", *words, "--nodes", "2", "--log-dir", tmp_path / "logs", "echo", "hello")
    assert sorted(done.stdout.splitlines()) == ["nodeA#0: hello", "nodeB#1: hello"], done.stderr


def test_a_hostfile_may_hold_addresses(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("10.0.0.1:8\nfe80::1:22\nme@nodeA slots=2\n")
    assert choose_hosts(None, "", str(file)) == ["10.0.0.1", "fe80::1:22", "me@nodeA"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hostfile", "nowhere"], "nowhere: No such file or directory"),
        (["--hosts", "a,-oProxyCommand=x"], "'-oProxyCommand=x' is not a valid host name"),
        (["--hosts", ","], "no hosts were requested and 0 are known"),
    ],
)
def test_hosts_that_cannot_be_are_refused_in_one_line(words: list[str], message: str) -> None:
    done = haiprof("run", *words, "true")
    assert done.returncode == 2
    assert message in only_line(done)
