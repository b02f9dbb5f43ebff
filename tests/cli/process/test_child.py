"""Signals of ``haiprof run``: each reaches the command once, and its death by one is ours."""

from __future__ import annotations

import fcntl
import os
import pty
import shlex
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from commands import HAIPROF, start_haiprof
from recording import wait_for

pytestmark = pytest.mark.usefixtures("shm")

#: Counts each signal; ends half a second after as many as its arguments name, when one more
#: would have come.
COUNTS = """
import pathlib, signal, sys, time
heard = []
for name in sys.argv[2:]:
    signal.signal(getattr(signal, name), lambda number, frame: heard.append(number))
log = pathlib.Path(sys.argv[1])
log.write_text("ready")
while len(heard) < len(sys.argv[2:]):
    time.sleep(0.005)
time.sleep(0.5)
log.write_text(f"heard {heard}")
"""
SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGWINCH", "SIGCONT"]


def counting(log: Path, name: str) -> list[str]:
    return [sys.executable, "-c", COUNTS, str(log), name]


def wait_ready(log: Path, process: subprocess.Popen[Any]) -> None:
    def ready() -> bool:
        return log.exists() and log.read_text() == "ready"

    wait_for(lambda: ready() or process.poll() is not None, what="the command's start")
    assert process.returncode is None, process.communicate()


def on_terminal(words: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program as a login shell starts: the leader of a session with a terminal."""
    master, slave = pty.openpty()

    def lead() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, preexec_fn=lead)
    os.close(slave)
    return process, master


def read_until(master: int, text: bytes) -> bytes:
    said = b""
    while text not in said:
        said += os.read(master, 4096)
    return said


@pytest.mark.parametrize("name", [*SIGNALS, "SIGALRM"])
def test_a_signal_for_haiprof_reaches_the_command_once(tmp_path: Path, name: str) -> None:
    log = tmp_path / "log"
    process = start_haiprof("run", "--log-dir", tmp_path / "logs", "--", *counting(log, name))
    wait_ready(log, process)
    number = getattr(signal, name)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert log.read_text() == f"heard {[int(number)]}"
    assert process.returncode == 0


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_for_the_group_reaches_the_command_once(tmp_path: Path, name: str) -> None:
    log = tmp_path / "log"
    process = start_haiprof("run", "--log-dir", tmp_path / "logs", "--", *counting(log, name))
    wait_ready(log, process)
    number = getattr(signal, name)
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert log.read_text() == f"heard {[int(number)]}"
    assert process.returncode == 0


def test_signals_for_one_after_one_for_the_group_are_still_passed_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = [*counting(log, "SIGUSR1"), "SIGUSR2"]
    process = start_haiprof("run", "--log-dir", tmp_path / "logs", "--", *words)
    wait_ready(log, process)
    os.killpg(process.pid, signal.SIGUSR1)
    process.send_signal(signal.SIGUSR2)
    process.communicate(timeout=60)
    assert log.read_text() == f"heard {[int(signal.SIGUSR1), int(signal.SIGUSR2)]}"


@pytest.mark.parametrize(("key", "name"), [(b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT")])
def test_a_key_of_the_terminal_reaches_the_command_once(
    tmp_path: Path, key: bytes, name: str
) -> None:
    log = tmp_path / "log"
    process, master = on_terminal([*HAIPROF, "run", "--log-dir", str(tmp_path / "logs"), "--",
                                   *counting(log, name)])  # fmt: skip
    wait_ready(log, process)
    os.write(master, key)
    read_until(master, b"view it with")
    assert process.wait(60) == 0
    os.close(master)
    assert log.read_text() == f"heard {[int(getattr(signal, name))]}"


def test_a_lost_terminal_hangs_the_command_up_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process, master = on_terminal([*HAIPROF, "run", "--log-dir", str(tmp_path / "logs"), "--",
                                   *counting(log, "SIGHUP")])  # fmt: skip
    wait_ready(log, process)
    os.close(master)
    assert process.wait(60) == 0
    assert log.read_text() == f"heard {[int(signal.SIGHUP)]}"


def test_ctrl_z_stops_both_and_fg_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # No shell: one that is just starting a program cannot be stopped until that runs, by nobody.
    job = [
        "import pathlib, sys, time",
        f"pathlib.Path({str(log)!r}).write_text('ready')",
        f"while not pathlib.Path({str(log) + '.go'!r}).exists(): time.sleep(0.05)",
        "sys.exit(5)",
    ]
    command = ["--", sys.executable, "-c", "\n".join(job)]
    run = shlex.join([*HAIPROF, "run", "--log-dir", str(tmp_path / "logs"), *command])
    shell = f"set -m; {run}; echo status $?; fg; echo status $?"
    process, master = on_terminal(["bash", "-c", shell])
    wait_for(log.exists, what="the command's start")
    os.write(master, b"\x1a")
    stopped = read_until(master, b"status 148")
    assert b"view it with" not in stopped
    Path(f"{log}.go").touch()
    said = read_until(master, b"status 5")
    assert b"view it with" in said
    assert process.wait(60) == 0
    os.close(master)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGINT", "SIGPIPE"])
def test_death_by_a_signal_is_passed_on(tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    process = start_haiprof("run", "--log-dir", tmp_path, "sh", "-c", f"kill -{int(number)} $$")
    _, said = process.communicate(timeout=60)
    assert process.returncode == -number
    assert "haiprof: run " in said


def test_sigterm_ends_a_command_that_does_not_handle_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["sh", "-c", f"echo >{log}; exec sleep 60"]
    process = start_haiprof("run", "--log-dir", tmp_path / "logs", *words)
    wait_for(log.exists, what="the command's start")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_orphans_of_the_command_are_not_taken_for_it(tmp_path: Path) -> None:
    words = ["sh", "-c", "(sleep 0.2; exit 9) & sleep 0.4; exit 4"]
    process = start_haiprof("run", "--log-dir", tmp_path, *words)
    process.communicate(timeout=60)
    assert process.returncode == 4


def test_an_inherited_sigchld_that_is_ignored_costs_no_exit_code(tmp_path: Path) -> None:
    ignored = "trap '' CHLD; exec " + shlex.join(HAIPROF)
    done = subprocess.run(["sh", "-c", f"{ignored} run --log-dir {tmp_path} sh -c 'exit 6'"])
    assert done.returncode == 6


def test_the_command_goes_on_when_haiprof_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["sh", "-c", f"echo >{log}.begun; sleep 0.5; echo >{log}"]
    process = start_haiprof("run", "--log-dir", tmp_path / "logs", *words)
    wait_for(Path(f"{log}.begun").exists, what="the command's start")
    process.kill()
    process.communicate(timeout=60)
    wait_for(log.exists, what="the command's end")
