"""Root looks around on a machine where another user has prepared all that haiprof may look at."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import HAIPROF
from recording import recorders, run_python, wait_for
from runs import span, write_closed, write_live, write_process, write_run

from haiprof import schema

USER = 12345
SECRET = "the-secret-of-root"
#: How long a command may take: nothing there is to hold it up.
SECONDS = 180
#: Commands as root gives them, about all that lies there.
COMMANDS = (
    ("ps",),
    ("ps", "--json"),
    ("attach", "{pid}", "--time", "1", "--log-dir", "{own}/logs"),
    ("attach", "victim.py", "--dry-run"),
    ("stop", "evil"),
    ("stop", "{pid}"),
    ("flush", "{logs}/run"),
    ("recover",),
    ("recover", "{logs}"),
    ("report", "{logs}/run", "-o", "{own}/report.html"),
    ("report", "{logs}/pipes", "-o", "{own}/pipes.html"),
    ("report", "{logs}/links", "-o", "{own}/links.html"),
    ("top", "--once", "{logs}/run"),
    ("top", "--once", "{logs}/pipes"),
    ("collect", "{logs}", "--into", "{own}/all"),
    ("doctor",),
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach; that of a test is root's."""
    folder = Path(tempfile.mkdtemp(prefix="haiprof-hostile-", dir="/dev/shm"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def hand_over(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)


def seen(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return what a folder holds: kind, mode, owner, size, time and content of all."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        about = path.lstat()
        content = ""
        if stat.S_ISLNK(about.st_mode):
            content = os.readlink(path)  # noqa: PTH115
        elif stat.S_ISREG(about.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path)] = (
            *(about.st_mode, about.st_uid, about.st_gid, about.st_size, about.st_mtime_ns),
            content,
        )
    return found


def forged_ring(ring: Path, run_dir: Path) -> None:
    run_python(
        """
        import os, sys
        from haiprof import _core
        _core.open_ring(sys.argv[1], bytes=_core.MIN_RING_BYTES, rank=0, run="evil",
                        run_dir=sys.argv[2], host=os.uname().nodename, node="n")
        _core.event("mark", "forged")
        os._exit(0)
        """,
        str(ring),
        str(run_dir),
    )


def prepare(machine: Path, secret: Path) -> None:
    """Lay out what a hostile user can: rings, runs, links, pipes and a socket."""
    shm, logs = machine / "shm", machine / "logs"
    shm.mkdir(parents=True)
    rings = shm / "haiprof-0"  # root's name is taken
    (rings / "evil~00000000").mkdir(parents=True)
    forged_ring(rings / "evil~00000000" / "1.ring", secret.parent)
    for name in ("recorder.log", "recorder.lock", "pace.json"):
        (rings / "evil~00000000" / name).symlink_to(secret)
    os.mkfifo(rings / "evil~00000000" / "doorbell")
    os.mkfifo(rings / "evil~00000000" / "2.ring")
    os.mkfifo(rings / "evil~00000000" / "3.outside")
    (rings / "evil~00000000" / "4.outside").symlink_to(secret)
    (rings / ".control").mkdir()
    (shm / "haiprof-0.1").symlink_to(secret.parent)
    os.mkfifo(shm / "haiprof-0.2")
    own = shm / f"haiprof-{USER}" / "mine~00000000"
    own.mkdir(parents=True)
    forged_ring(own / "1.ring", secret.parent)
    (own.parent / ".control").mkdir()

    run = write_run(logs / "run")
    folder = write_process(run)
    write_closed(folder, schema.SPANS, [span(0, 1, "phase", "forward", 0)])
    write_live(folder, schema.EVENTS, [[]])
    (run / "report.html").symlink_to(secret)
    (run / "recorder.log").symlink_to(secret)
    (run / "overview.json").symlink_to(secret)
    (run / "n1#1").symlink_to(secret.parent)

    pipes = write_run(logs / "pipes")
    folder = write_process(pipes)
    os.mkfifo(folder / "spans-0.arrow")
    os.mkfifo(folder / "steps-0.arrows")
    os.mkfifo(folder / "trace.pt.trace.json")
    (pipes / "n1#1").mkdir()
    os.mkfifo(pipes / "n1#1" / "process.json")

    links = write_run(logs / "links")
    folder = write_process(links)
    (folder / "spans-0.arrow").symlink_to(secret)
    (folder / "steps-0.arrows").symlink_to("/dev/zero")
    (links / "n1#1").mkdir()
    (links / "n1#1" / "process.json").symlink_to(secret)
    (logs / "secret").mkdir()
    (logs / "secret" / "run.json").symlink_to(secret)
    (logs / "piped").mkdir()
    os.mkfifo(logs / "piped" / "run.json")


@contextlib.contextmanager
def hostile_socket(path: Path) -> Iterator[None]:
    """Serve a socket that names a run of root's, says nothing more, and never lets go."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        os.chown(path, USER, USER)
        listener.listen(64)
        connections = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connections.append(listener.accept()[0])

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def victim(machine: Path) -> Iterator[int]:
    """Run a Python program of that user."""
    script = machine / "victim.py"
    script.write_text("import time\nwhile True: time.sleep(0.01)\n")
    command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    python = os.path.realpath(sys.executable)
    with subprocess.Popen([*command, python, str(script)], cwd="/") as process:
        try:
            wait_for(lambda: Path(f"/proc/{process.pid}").stat().st_uid == USER, 60)
            yield process.pid
        finally:
            process.kill()


@pytest.mark.jobs
def test_root_walks_unharmed(
    shm: Path, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    vault = place / "vault"
    vault.mkdir(mode=0o700)
    secret = vault / "secret"
    secret.write_text(json.dumps({"format": SECRET, "version": SECRET, "run": SECRET}))
    secret.chmod(0o600)
    machine, own = place / "machine", tmp_path / "own"
    own.mkdir()
    prepare(machine, secret)
    hand_over(machine)
    (machine / "shm").chmod(0o1777)
    os.chown(machine / "shm", 0, 0)
    monkeypatch.setenv("HAIPROF_SHM_DIR", str(machine / "shm"))
    said = []
    with (
        hostile_socket(machine / "shm" / f"haiprof-{USER}" / ".control" / "1"),
        hostile_socket(machine / "shm" / "haiprof-0" / ".control" / "1"),
        victim(machine) as pid,
    ):
        before = seen(vault), seen(machine)
        for words in COMMANDS:
            filled = [w.format(pid=pid, own=own, logs=machine / "logs") for w in words]
            try:
                done = subprocess.run(
                    [*HAIPROF, *filled],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=SECONDS,
                    cwd=own,
                )
            except subprocess.TimeoutExpired:
                pytest.fail(f"haiprof {' '.join(filled)} hangs")
            assert "Traceback" not in done.stderr, (filled, done.stderr)
            assert "--help" not in done.stderr, (filled, done.stderr)  # it was not understood
            said += [done.stdout, done.stderr]
        wait_for(lambda: not recorders(machine / "shm"), 60)
        after = seen(vault), seen(machine)
    written = [p.read_text(errors="replace") for p in own.rglob("*") if p.is_file()]
    assert not [text for text in said + written if SECRET in text]
    assert after[0] == before[0]
    ours = str(machine / "shm" / "haiprof-0.")
    changed = {
        path
        for path in before[1].keys() | after[1].keys()
        if before[1].get(path) != after[1].get(path)
    }
    # A folder of rings of our own appears beside the squatter's.
    assert {p for p in changed if not p.startswith(f"{ours}3")} <= {str(machine / "shm")}
