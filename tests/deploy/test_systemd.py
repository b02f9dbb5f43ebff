"""The unit of haiprof-perfd is one that systemd accepts, and leaves the helper little to harm."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from fixtures import ROOT
from recording import wait_for
from systemd import UNIT, unit

from perfd import Answer, dial

#: Of ten, by `systemd-analyze security`; it calls up to 2 safe.
EXPOSED_AT_MOST = 1.5


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run([program, *words], capture_output=True, text=True)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The unit with the helper that is installed here."""
    program = shutil.which("haiprof-perfd")
    assert program is not None
    text = UNIT.read_text("utf-8")
    assert "/opt/haiprof/bin/haiprof-perfd" in text
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/haiprof/bin/haiprof-perfd", program))
    return copy


def test_systemd_accepts_it(copied: Path) -> None:
    done = analyze("verify", copied)
    assert done.returncode == 0, done.stderr
    assert copied.name not in done.stderr
    copied.write_text(copied.read_text().replace("ProtectHome", "ProtectHouse"))
    assert "ProtectHouse" in analyze("verify", copied).stderr


def test_it_leaves_little_to_harm(copied: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", copied)
    (level,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(level) <= EXPOSED_AT_MOST, done.stdout
    for line in done.stdout.splitlines():
        if "CAP_" in line and "AmbientCapabilities" not in line:
            assert not line.startswith("✗"), line


def test_the_filter_of_system_calls_has_all_that_the_helper_makes(
    tmp_path: Path,
) -> None:
    tracer = shutil.which("strace")
    if tracer is None:
        pytest.skip("strace is not installed")
    allowed: set[str] = set()
    for value in unit()["Service"]["SystemCallFilter"]:
        names = set()
        for word in value.removeprefix("~").split():
            names |= expand(word) if word.startswith("@") else {word}
        allowed = allowed - names if value.startswith("~") else allowed | names
    assert "perf_event_open" in allowed
    assert not {"mount", "ptrace", "bpf", "init_module", "setuid", "reboot"} & allowed
    program = shutil.which("haiprof-perfd")
    assert program is not None
    log, path = tmp_path / "calls", tmp_path / "run/s"
    words = [tracer, "-f", "-qq", f"--output={log}", program, f"--socket={path}"]
    traced = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        wait_for(path.exists, what="the socket")
        with dial(path) as connection:
            assert Answer.of(connection.recv(1024)).error == 0
    finally:
        # The tracer passes no signal on, and ends with what it traces.
        for pid in Path(f"/proc/{traced.pid}/task/{traced.pid}/children").read_text().split():
            os.kill(int(pid), signal.SIGTERM)
        traced.wait(20)
    calls = set(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))
    assert {"listen", "capset", "accept4"} <= calls
    assert calls - {"execve"} <= allowed, calls - allowed


def expand(group: str) -> set[str]:
    """Return the system calls of one of systemd's groups."""
    found: set[str] = set()
    for line in analyze("syscall-filter", group).stdout.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            found |= expand(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return found


def test_its_user_is_made_by_sysusers() -> None:
    program = shutil.which("systemd-sysusers")
    if program is None:
        pytest.skip("systemd-sysusers is not installed")
    file = ROOT / "deploy/systemd/haiprof.sysusers"
    user = unit()["Service"]["User"]
    assert [line.split()[:2] for line in file.read_text().splitlines()[1:]] == [["u", *user]]
    done = subprocess.run([program, "--dry-run", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
