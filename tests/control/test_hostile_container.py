"""Root attaches to a job in a container, and the job replaces the files that root puts there."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from containers import USER, container
from recording import wait_for

from haiprof.control import inject
from haiprof.control.attach import AttachError, RecordingPlan, attach
from haiprof.control.client import ControlError, ask
from haiprof.control.container_folder import ContainerFolder
from haiprof.control.find import find

#: Puts something of its own in the place of each file that is put into its /tmp.
SWAPS = """
    import os, threading, time
    def swap():
        while True:
            for name in os.listdir("/tmp"):
                path = "/tmp/" + name
                if name.startswith("haiprof-") and os.path.isfile(path):
                    if not os.path.islink(path):
                        {answer}
                        os.unlink(path)
                        {put}
            time.sleep(0.0005)
    threading.Thread(target=swap, daemon=True).start()
    print("ready", flush=True)
    while not os.path.exists("/END"):
        time.sleep(0.005)
"""
SECRET = "secret of the machine\nand more"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("haiprof.control.attach._RECORD_SECONDS", 10.0)


def attacked(tmp_path: Path, put: str, answer: str = "") -> str:
    """Attach to a job that swaps files; return all lines that root gets, within a while."""
    lines = []

    def reach(pid: int) -> None:
        try:
            attached = attach(find(str(pid))[0], RecordingPlan("r", tmp_path / "logs", 5))
            lines.append(attached.why)
            attached.end()
        except AttachError as error:
            lines.append(str(error))

    with container(tmp_path, SWAPS.format(put=put, answer=answer or "pass")) as job:
        reaching = threading.Thread(target=reach, args=(job.pid,), daemon=True)
        reaching.start()
        reaching.join(40)
        assert lines, "the command hangs"
        job.finish()
    return lines[0]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    return file


def test_a_file_of_the_machine_is_not_read(shm: Path, tmp_path: Path, secret: Path) -> None:
    lines = attacked(tmp_path, f"os.symlink({str(secret)!r}, path)")
    assert "secret of" not in lines


def test_a_file_of_the_machine_is_not_written(shm: Path, tmp_path: Path, secret: Path) -> None:
    attacked(
        tmp_path,
        f"os.symlink({str(secret)!r}, path)",
        # As if it had no haiprof: it is to be given one, and the answer's file to be emptied.
        answer="open(path, 'r+').write('lacks haiprof pyarrow')\n"
        "                        while not os.path.exists('/tmp/haiprof-attach-0/package'):\n"
        "                            time.sleep(0.001)",
    )
    assert secret.read_text() == SECRET


def test_only_what_a_recorder_needs_is_copied_into_the_container(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []
    monkeypatch.setattr(
        ContainerFolder, "give", lambda _, source, wanted: copied.append(source.name)
    )
    attacked(
        tmp_path,
        "pass",
        # What is written before root has filled the file with zeros is lost.
        answer="while not os.path.getsize(path): pass\n"
        "                        open(path, 'r+').write('lacks haiprof email pyarrow')",
    )
    assert copied == ["haiprof"]


def test_a_pipe_does_not_hold_the_command_up(shm: Path, tmp_path: Path) -> None:
    attacked(tmp_path, "os.mkfifo(path)")


@pytest.fixture
def process_of_another() -> Iterator[int]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    command = ["setpriv", f"--reuid={USER}", "--clear-groups", "sleep", "100"]
    with subprocess.Popen(command) as process:
        wait_for(lambda: Path(f"/proc/{process.pid}").stat().st_uid == USER)
        yield process.pid
        process.kill()


def test_a_script_is_not_written_through_a_link(
    process_of_another: int, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a Python that reads a script: in the folder that is given to it, a link waits for that."""

    def given(change: Any) -> Any:
        def changed(target: Any, *owner: int, **more: Any) -> None:
            fd = Path(f"/proc/self/fd/{target}")
            path = fd.readlink() if type(target) is int else Path(target)
            change(target, *owner, **more)
            if path.is_dir():
                (path / "run.py").unlink(missing_ok=True)
                (path / "run.py").symlink_to(secret)

        return changed

    def refuse(pid: int, script: str) -> None:
        raise PermissionError("not today")

    python = types.SimpleNamespace(version_info=(3, 14, 0), abiflags="", remote_exec=refuse)
    monkeypatch.setattr(inject, "sys", python)
    monkeypatch.setattr(inject, "_python_when_there", lambda *_: inject.this_python())
    for name in ("chown", "fchown"):
        monkeypatch.setattr(os, name, given(getattr(os, name)))
    with contextlib.suppress(inject.NotReachedError):
        inject.run_in(process_of_another, "pass", 1)
    assert secret.read_text() == SECRET
    assert secret.stat().st_uid == 0


def test_a_link_to_the_socket_of_another_process_is_not_asked(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other"))
        other.listen()
        other.setblocking(False)
        (tmp_path / "1").symlink_to("other")
        with pytest.raises(ControlError, match="not a socket"):
            ask(tmp_path / "1", "stop", timeout=1)
        with pytest.raises(BlockingIOError):
            other.accept()
