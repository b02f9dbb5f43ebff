"""Programs that begin with their imports done, which take longer than most of what they do.

A server imports torch or the analysis once; each program is a fork of it with its own arguments,
environment, folder and standard streams, and ends as every Python program does. What a process
reads only when it starts (``LD_LIBRARY_PATH``, ``OMP_NUM_THREADS``, ``PYTHON…``) has a server of
its own.

Not for programs whose start is what is tested, or that others find by their command lines.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

#: What the servers of each kind import.
_IMPORTS: Final = {
    # torch._dynamo as the first optimizer does.
    "torch": ("torch", "torch._dynamo", "torch.profiler", "torch.utils.data"),
    "analysis": ("haiprof.analyzer", "haiprof.cli.app", "pyarrow", "polars"),
}
#: A program that is to run is too long for one datagram of the default size.
_LONGEST = 1 << 20
_AT_START = ("LD_", "LC_", "LANG", "OMP_", "MKL_", "KMP_", "PYTHON", "MALLOC_", "GLIBC_")
#: They end with this process, whose sockets they wait at.
_servers: list[subprocess.Popen[bytes]] = []
#: Two threads must not start one server each: that of the first would end.
_starting: Final = threading.Lock()


class Program:
    """A running program; what of ``subprocess.Popen`` tests use, with text streams."""

    def __init__(self, pid: int, ended: socket.socket, out: IO[str], err: IO[str]) -> None:
        """Watch the fork ``pid``; ``ended`` gets its wait status from the server."""
        self.pid = pid
        self.returncode: int | None = None
        self.stdout, self.stderr = out, err
        self._ended = ended

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, if it has ended."""
        return self._end(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        code = self._end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"program {self.pid}", timeout or 0.0)
        return code

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._ended.settimeout(timeout)
            try:
                status = self._ended.recv(4)
            except (BlockingIOError, TimeoutError):
                return None
            assert status, "the server of warm programs has died"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "little"))
            self._ended.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return everything that it writes, and wait for its end."""
        found: dict[str, str] = {}
        readers = [
            threading.Thread(target=lambda name=name, file=file: found.update({name: file.read()}))
            for name, file in (("out", self.stdout), ("err", self.stderr))
        ]
        for reader in readers:
            reader.daemon = True
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():  # someone else has the stream, too
                raise subprocess.TimeoutExpired(f"program {self.pid}", timeout or 0.0)
        self.stdout.close()
        self.stderr.close()
        return found["out"], found["err"]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server(kind: str, environment: tuple[tuple[str, str], ...]) -> socket.socket:
    """Start a server with these variables, and return the socket on which it is asked."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, its):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("HAIPROF_", *_AT_START))}
    # One thread, or a fork has locks that nobody will release.
    variables |= {"OPENBLAS_NUM_THREADS": "1"} | dict(environment)
    with its:
        _servers.append(
            subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), kind, str(its.fileno())],
                env=variables, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL,
            )
        )  # fmt: skip
    return ours


def start(
    program: str, *arguments: str, env: Mapping[str, str] | None = None, cwd: Any = None,
    kind: str = "torch",
) -> Program:  # fmt: skip
    """Start a program given as text; its output is text, too, and it has nothing to read.

    Args:
        program: what ``python -c`` would run.
        arguments: those of the program.
        env: its environment; None: this one.
        cwd: its folder; None: this one.
        kind: what is imported already: "torch" or "analysis".
    """
    environment = dict(os.environ if env is None else env)
    first = tuple(sorted((k, v) for k, v in environment.items() if k.startswith(_AT_START)))
    with _starting:
        server = _server(kind, first)
    ended, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (out, its_out), (err, its_err) = os.pipe(), os.pipe()
    with its_end:
        what = pickle.dumps((program, arguments, environment, os.fspath(cwd or Path.cwd())))
        socket.send_fds(server, [what], [its_end.fileno(), its_out, its_err])
    os.close(its_out)
    os.close(its_err)
    pid = int.from_bytes(ended.recv(4), "little")
    assert pid, "the server of warm programs has died"
    return Program(pid, ended, os.fdopen(out), os.fdopen(err))


def _serve(asked: socket.socket) -> tuple[str, list[str]]:
    """Fork a program for each request; return in each of them, with what it is to run."""
    # Waking up for each end of a program; Python's own handler does nothing.
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([asked, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for pid in list(running):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    with running.pop(pid) as ended:
                        ended.send(status.to_bytes(4, "little"))
        if asked not in ready:
            continue
        what, files, _, _ = socket.recv_fds(asked, _LONGEST, 3)
        if not what:
            os._exit(0)  # the tests have ended
        program, arguments, environment, folder = pickle.loads(what)
        ended = socket.socket(fileno=files[0])
        pid = os.fork()
        if pid:
            running[pid] = ended
            ended.send(pid.to_bytes(4, "little"))
            os.close(files[1])
            os.close(files[2])
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in (asked, ended, *running.values()):
            other.close()
        os.dup2(files[1], 1)
        os.dup2(files[2], 2)
        for descriptor in (woken, wakes, *files[1:]):
            os.close(descriptor)
        # The server's may be files, which these are not.
        sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors=sys.stderr.errors)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        return program, list(arguments)


def _main() -> None:
    """Serve; in a fork, run the program as ``python -c`` runs it."""
    del sys.path[0]  # the folder of this file
    kind, asked = sys.argv[1:]
    for name in _IMPORTS[kind]:
        importlib.import_module(name)
    # The analysis has threads of allocators, which a fork does without.
    alone = len(list(Path("/proc/self/task").iterdir())) == 1
    assert alone or kind == "analysis", "a fork would lose threads"
    gc.freeze()  # else the end of each fork looks at all of their objects, and so copies them
    program, arguments = _serve(socket.socket(fileno=int(asked)))
    # What haiprof.pth does when an interpreter starts; only then comes the program's folder.
    import _haiprof_boot

    _haiprof_boot.arm()
    sys.path.insert(0, "")
    sys.argv = ["-c", *arguments]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    exec(compile(program, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    _main()
