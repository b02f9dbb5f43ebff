"""The socket of a job: who may ask, and that nothing that comes through it harms the job."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, only_line
from control_jobs import STEPS, Job, job
from recording import python, run_python, wait_for, wait_recorded

from haiprof.common import protocol
from haiprof.common.control_folder import remove_dead
from haiprof.control.client import ControlError, ask
from haiprof.control.sockets import socket_of, sockets


def _connect(running: Job) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(running.socket))  # waits where too many do
    connection.settimeout(20)
    return connection


def _reason(what: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(ControlError) as refusal:
        what()
    assert "\n" not in str(refusal.value)
    return refusal.value.reason, str(refusal.value)


def test_the_socket_is_its_owners_and_goes_with_the_job(shm: Path, tmp_path: Path) -> None:
    with job(STEPS, tmp_path, "logs") as running:
        path = running.socket
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert sockets() == [path]
        status = running.ask("status")
        assert status["pid"] == running.pid
        assert status["state"] == "recording"
    assert not path.parent.exists()
    assert running.stderr == ""
    wait_recorded(shm)
    assert list(shm.glob("*/*")) == []


def test_importing_haiprof_opens_none(shm: Path) -> None:
    out = run_python("""
        import sys, threading
        import haiprof
        haiprof.Session
        print("haiprof.control" in sys.modules, threading.active_count())
    """)
    assert out.split() == ["False", "1"]
    assert list(shm.glob("*/*")) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can ask as another user")
def test_another_user_is_refused(shm: Path, tmp_path: Path) -> None:
    def as_nobody(path: Path) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                ask(path, "stop")
                said = "done"
            except ControlError as error:
                said = error.reason
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading) as file:
            return file.read()

    with job(STEPS, tmp_path, "logs") as running:
        path = running.socket
        assert as_nobody(path) == "denied"
        # Even where the file system lets them in.
        for place in (shm, *path.parents[:2], path):
            place.chmod(0o777)
        assert as_nobody(path) == "denied"
        assert running.ask("status")["state"] == "recording"
    assert running.stderr == ""


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\0",
        os.urandom(100_000),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<3sBI", b"hpc", protocol.VERSION, 0xFFFFFFFF),
        struct.pack("<3sBI", b"hpc", protocol.VERSION, 100) + b'{"request":',
        protocol.encode({"request": 7}),
        protocol.encode({"request": "stop", "arguments": []}),
        protocol.encode({"request": "__class__"}),
        protocol.encode({"request": "status", "arguments": {"x" * 1000: 1}}),
    ],
)
@pytest.mark.parametrize("then", ["close", "wait"])
def test_garbage_changes_nothing(sent: bytes, then: str, shm: Path, tmp_path: Path) -> None:
    with job(STEPS, tmp_path, "logs") as running:
        with _connect(running) as connection:
            try:
                connection.sendall(sent)
                while then == "wait" and connection.recv(4096):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has heard enough
        first = running.ask("status")
        assert first["state"] == "recording"
        wait_for(lambda: running.ask("status")["step"] > first["step"] + 3)  # its steps go on
    assert running.stderr == ""


def test_those_who_say_nothing_or_little_are_not_waited_for(shm: Path, tmp_path: Path) -> None:
    with job(STEPS, tmp_path, "logs") as running:
        silent = [_connect(running) for _ in range(3)]
        slow = _connect(running)

        def drip() -> None:
            try:
                for byte in protocol.encode({"request": "stop"}):
                    slow.sendall(bytes([byte]))
                    time.sleep(0.2)
            except OSError:
                pass

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert running.ask("status", timeout=10)["state"] == "recording"
        dripping.join()
        for connection in (*silent, slow):
            connection.close()
        assert running.ask("status")["state"] == "recording"
    assert running.stderr == ""


def test_a_thousand_connections_do_the_job_no_harm(shm: Path, tmp_path: Path) -> None:
    with job(STEPS, tmp_path, "logs") as running:
        path = str(running.socket)
        before = running.ask("status")["step"]
        descriptors = len(list(Path(f"/proc/{running.pid}/fd").iterdir()))
        refused = 0
        held = []
        for _ in range(1000):
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            try:
                connection.connect(path)
                held.append(connection)
            except BlockingIOError:
                refused += 1
                connection.close()
        assert refused > 900  # those beyond what waits at a time
        assert len(list(Path(f"/proc/{running.pid}/fd").iterdir())) <= descriptors + 1
        for connection in held:
            connection.close()
        # The same again, each with a moment to be let in.
        for _ in range(1000):
            with _connect(running):
                pass
        assert running.ask("status")["step"] > before
        assert running.figure("Threads") <= 2
    assert running.stderr == ""


def test_two_who_ask_at_once_are_both_answered(shm: Path, tmp_path: Path) -> None:
    with job(STEPS, tmp_path, "logs") as running:
        answers = []
        asking = [
            threading.Thread(
                target=lambda: answers.extend(running.ask("status")["pid"] for _ in range(20))
            )
            for _ in range(4)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert answers == [running.pid] * 80
    assert running.stderr == ""


def test_another_version_is_refused_with_the_fix_on_both_sides(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(STEPS, tmp_path, "logs") as running:
        with monkeypatch.context() as other:
            other.setattr(protocol, "VERSION", 2)
            reason, line = _reason(lambda: running.ask("stop"))
        assert reason == "version"
        assert "version 1" in line
        assert "haiprof command of the job's own Python" in line
        with _connect(running) as connection:
            connection.sendall(struct.pack("<3sBI", b"hpc", 9, 2) + b"{}")
            answer = protocol.receive(connection, time.monotonic() + 10)
        assert answer["error"] == "version"
        assert running.ask("status")["state"] == "recording"
    assert running.stderr == ""


def test_a_socket_that_a_dead_process_left_is_known_and_replaced(shm: Path, tmp_path: Path) -> None:
    with job(STEPS, tmp_path, "logs") as running:
        path = running.socket
        folder = path.parent
        left = folder / "1"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(left))
        assert _reason(lambda: ask(left, "status"))[0] == "gone"
        remove_dead(folder)
        assert sockets() == [path]
        running.process.kill()
        running.process.wait()
        wait_recorded(shm)
    assert not folder.exists()  # the recorder saw to it
    assert _reason(lambda: ask(path, "status"))[0] == "gone"
    assert _reason(lambda: socket_of(running.pid))[0] == "gone"


def test_a_socket_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for name in ("2.partial", "2@f0000152.partial", "3.partial", "3@f0000152.partial"):
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(tmp_path / name))
            if name.startswith("3"):
                os.utime(tmp_path / name, (0, 0))
        remove_dead(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"2.partial", "2@f0000152.partial"}


def test_one_in_the_place_of_a_dead_one_is_a_new_one(shm: Path, tmp_path: Path) -> None:
    out = run_python(
        """
        import os, socket, sys
        from pathlib import Path
        from haiprof.control.client import ask
        from haiprof.common.places import control_socket
        path = control_socket()
        path.parent.mkdir(parents=True, mode=0o700)
        for left in (path, path.with_name(path.name + ".partial")):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(left))
        path.parent.parent.chmod(0o700)
        import haiprof, threading
        haiprof.start(log_dir=sys.argv[1], run="r")
        print(ask(path, "status")["state"], os.listdir(path.parent) == [path.name])
        """,
        str(tmp_path),
    )
    assert out.split() == ["recording", "True"]


def test_a_forked_child_has_a_socket_of_its_own_once_it_records(shm: Path, tmp_path: Path) -> None:
    fork = (
        "if steps == 1 and os.fork() == 0: ("
        "[time.sleep(0.01) for _ in iter(lambda: os.path.exists('GO'), True)],"
        " haiprof.mark('child'))"
    )
    with job(STEPS, tmp_path, "logs", each=fork) as running:
        mine = running.socket
        (child,) = map(int, _children(running.pid))
        # It has the parent's socket no more: a parent that is gone must not seem to be busy.
        assert _reason(lambda: socket_of(child))[0] == "unloaded"
        wait_for(lambda: not _sockets_of(running.pid) & _sockets_of(child))
        (tmp_path / "GO").touch()
        path = wait_for(lambda: [p for p in sockets() if p != mine], what="the child's socket")[0]
        assert path.name == str(child)
        assert ask(path, "status")["pid"] == child
        assert ask(mine, "status")["pid"] == running.pid
        ask(path, "stop")
        assert ask(mine, "status")["state"] == "recording"


def _sockets_of(pid: int) -> set[str]:
    links = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since the folder was listed
            links.add(str(file.readlink()))
    return {link for link in links if link.startswith("socket:")}


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_job_that_closes_our_descriptor_and_gets_its_number_keeps_its_own(
    shm: Path, tmp_path: Path
) -> None:
    out = run_python(
        """
        import os, socket, sys, time
        import haiprof
        from haiprof.capture.socket import server
        from haiprof.control.client import ask
        from haiprof.common.places import control_socket
        haiprof.start(log_dir=sys.argv[1], run="r")
        number = server._server._listener.socket.fileno()
        (thread,) = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
        waits = f"{number:#x}"
        while open(f"/proc/self/task/{thread}/syscall").read().split()[1:2] != [waits]:
            time.sleep(0.001)  # it holds what it waits at: that refuses nobody when it is closed
        os.close(number)
        mine = socket.socket(socket.AF_UNIX)
        mine.bind(b"\\0haiprof-test-%d" % os.getpid())
        mine.listen(8)
        assert mine.fileno() == number
        for turn in range(3):  # the thread wakes, and must not take what is ours
            state = ask(control_socket(), "status")["state"]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(mine.getsockname())
            mine.settimeout(5)
            mine.accept()
        print("accepted", state)
        """,
        str(tmp_path),
    )
    assert out.split() == ["accepted", "recording"]


def test_a_job_that_closes_all_descriptors_can_be_asked_again_and_again(
    shm: Path, tmp_path: Path
) -> None:
    with job(STEPS, tmp_path, "logs", before="os.closerange(3, 4096)") as running:
        path = running.socket
        for _ in range(3):
            assert running.ask("status")["state"] == "recording"
        assert path.stat().st_mode & 0o777 == 0o600
    assert running.stderr == ""
    assert not path.exists()


def test_what_a_job_opens_while_it_is_asked_is_not_closed_for_a_connection(
    shm: Path, tmp_path: Path
) -> None:
    process = python(
        """
        import os, sys
        from haiprof.capture.socket import server
        mine = []
        def answer(request, arguments):
            if not mine:
                os.closerange(3, 256)
                mine.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(16))
            return {}
        server.open_socket(answer)
        print("ready", flush=True)
        sys.stdin.readline()
        print({os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in mine})
        """,
        stdin=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    path = socket_of(process.pid)
    with pytest.raises(ControlError):
        ask(path, "first")
    assert wait_for(lambda: _result(path)) == {"pid": process.pid}
    out, err = process.communicate("\n", timeout=60)
    assert (out, err) == ("{'/dev/null'}\n", "")


def _result(path: Path) -> dict[str, Any] | None:
    try:
        return ask(path, "again")
    except ControlError:
        return None  # its socket is just being made anew


def test_a_job_that_sets_a_timeout_for_all_sockets_can_still_be_asked(
    shm: Path, tmp_path: Path
) -> None:
    begin = "import socket; socket.setdefaulttimeout(0.2)"
    program = STEPS.replace("import haiprof\n", f"{begin}\n    import haiprof\n")
    with job(program, tmp_path, "logs") as running:
        time.sleep(1)
        assert running.ask("status")["state"] == "recording"
    assert running.stderr == ""


def test_a_long_path_is_no_hindrance(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = shm / ("d" * 120)
    deep.mkdir()
    monkeypatch.setenv("HAIPROF_SHM_DIR", str(deep))
    with job(STEPS, tmp_path, "logs") as running:
        assert len(str(running.socket)) > 108
        assert running.ask("status")["state"] == "recording"


def test_where_there_can_be_no_socket_it_records_all_the_same(shm: Path, tmp_path: Path) -> None:
    rings = shm / f"haiprof-{os.getuid()}"
    rings.mkdir(mode=0o700)
    (rings / ".control").write_text("not a folder")
    with job(STEPS, tmp_path, "logs") as running:
        assert _reason(lambda: running.socket)[0] == "unloaded"
        (_ring,) = rings.glob("r~*/*.ring")
        done = haiprof("flush", "r")
        assert done.returncode == 4
        assert f"process {running.pid} has no socket" in only_line(done)
    (line,) = running.stderr.splitlines()
    assert "haiprof ps" in line


def test_a_job_that_keeps_the_interpreter_is_waited_for_and_then_named(
    shm: Path, tmp_path: Path
) -> None:
    # Nobody else has the interpreter's lock between the two.
    before = "import ctypes; libc = ctypes.PyDLL(None)"
    hold = "if os.path.exists('HOLD'): (libc.rename(b'HOLD', b'HELD'), libc.open(b'HELD', 0))"
    held = tmp_path / "HELD"
    with job(STEPS, tmp_path, "logs", before=before, each=hold) as running:
        os.mkfifo(tmp_path / "HOLD")
        wait_for(held.exists)
        reason, line = _reason(lambda: running.ask("stop", timeout=1.0))
        assert reason == "busy"
        assert "GIL" in line
        assert "nothing was changed" in line
        held.open("w").close()  # until now it was kept
        # Then it works, and what was given up was not done.
        assert running.ask("status")["state"] == "recording"
    assert running.stderr == ""


def test_a_request_that_was_read_is_not_said_to_have_changed_nothing(tmp_path: Path) -> None:
    path = tmp_path / "123"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        line = _reason(lambda: ask(path, "stop", timeout=0.5))[1]
        assert "nothing was changed" in line

        def read() -> None:
            for _ in range(2):  # the first is the one that was given up
                connection = listener.accept()[0]
                connection.recv(1 << 16)
                kept.append(connection)

        kept: list[socket.socket] = []
        reader = threading.Thread(target=read)
        reader.start()
        line = _reason(lambda: ask(path, "stop", timeout=5.0))[1]
        assert "has begun with it" in line
        assert "haiprof ps" in line
        assert "nothing was changed" not in line
        reader.join()
        for connection in kept:
            connection.close()


def test_a_stopped_job_is_said_to_be_stopped(shm: Path, tmp_path: Path) -> None:
    with job(STEPS, tmp_path, "logs") as running:
        path = running.socket
        os.kill(running.pid, signal.SIGSTOP)
        try:
            status = Path(f"/proc/{running.pid}/status")
            wait_for(lambda: "T (stopped)" in status.read_text())
            reason, line = _reason(lambda: ask(path, "status", timeout=0.5))
        finally:
            os.kill(running.pid, signal.SIGCONT)
        assert reason == "busy"
        assert f"kill -CONT {running.pid}" in line
        assert running.ask("status")["state"] == "recording"


def test_processes_that_cannot_be_asked_are_distinguished(shm: Path, tmp_path: Path) -> None:
    assert _reason(lambda: socket_of(os.getpid()))[0] == "unloaded"
    assert _reason(lambda: socket_of(2**22 + 1))[0] == "gone"
    assert sockets() == []
