"""Starts a command once on each of several hosts, through ssh, and ends as the first that failed.

What is to be run goes through ssh's stdin as a line of JSON, never through a shell of the other
side. Behind it a byte is a signal for the command there (:mod:`haiprof.cli.hosts.launch_end`), and
the end of the stream ends it: when a host fails, and when this process or the connection dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from haiprof.cli.process.console import reader_gone, say
from haiprof.common.ssh import SSH_VARIABLE, way_to

#: How long a command may take to end after SIGTERM, s; torchrun gives its own ranks 30.
GRACE_SECONDS: Final = 40.0
#: Where something lies on this machine says nothing about others.
_OF_THIS_MACHINE: Final = frozenset(
    {"HAIPROF_SHM_DIR", "HAIPROF_HOSTS", "HAIPROF_HOSTFILE", SSH_VARIABLE}
)
#: The job's ports lie below those that the kernel assigns automatically.
_FIRST_PORT: Final = 10240
_PORTS: Final = 20000
#: Not ``-m``: the folder that a login begins in is not to be imported from. In one line: csh takes
#: no word that has several.
_PROGRAM: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); from importlib.util import find_spec; "
    'all(map(find_spec, ("haiprof", "haiprof.cli", "{0}"))) or '
    'sys.exit("haiprof: missing here, or another version: " + sys.executable); '
    "import {0} as n; n.main()"
)
_TURN_SECONDS: Final = 0.1
#: How long a SIGKILL may take from here to there.
_KILL_SECONDS: Final = 2.0
_CHUNK: Final = 1 << 16
_PASSED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SSH_FAILED: Final = 255


def run_on(hosts: Sequence[str], command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command on every host to its end, its output here with the host before each line.

    Args:
        hosts: one for each node; the first is ``MASTER_ADDR``.
        command: its words.
        environment: of it, of which the ``HAIPROF_*`` are carried over.

    Returns:
        The exit code of the host that failed first, 0 if none did.
    """
    return _Launch(hosts, command, environment).run()


def carried_over(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ours that are true on other hosts, too."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("HAIPROF_") and name not in _OF_THIS_MACHINE
    }


class Node:
    """A module of ours that runs on one host."""

    def __init__(
        self, host: str, name: str, module: str, task: Mapping[str, Any], ssh: str = ""
    ) -> None:
        """Start it.

        Args:
            host: where.
            name: what stands before its lines.
            module: whose ``main`` is called there, by the same Python that runs us.
            task: what it reads from its stdin first, a line of JSON.
            ssh: options of ssh.

        Raises:
            OSError: the way to the host cannot be started.
        """
        self.host = host
        self.name = name
        self.process = subprocess.Popen(
            way_to(host, shlex.join([sys.executable, "-c", _PROGRAM.format(module)]), ssh),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is for us: a connection that it cuts would end the command without a word.
            start_new_session=True,
            bufsize=0,
        )
        self.send(json.dumps(task).encode() + b"\n")

    def send(self, text: bytes) -> None:
        """Send bytes; a host that has ended needs none."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            while text:
                text = text[self.process.stdin.write(text) or 0 :]

    def end(self) -> None:
        """Have the command end."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()


class Lines:
    """Passes a stream on, line by line, with the host before each."""

    def __init__(self, name: str, source: IO[bytes], out: int) -> None:
        """Nothing is read yet. A bar that is drawn again and again is a line each time."""
        self.source = source
        self._prefix = f"{name}: ".encode()
        self._out = out
        self._rest = b""

    def pass_on(self) -> bool:
        """Read what is there; return whether there may be more."""
        read = os.read(self.source.fileno(), _CHUNK)
        lines = (self._rest + read).splitlines(keepends=True)
        self._rest = b""
        # One that is not over waits, unless it is too long; behind an \r an \n may be to come.
        if read and lines and not lines[-1].endswith(b"\n") and len(lines[-1]) < _CHUNK:
            self._rest = lines.pop()
        self._write(lines)
        return bool(read)

    def close(self) -> None:
        """Pass on what is left; nobody reads any more."""
        self._write(self._rest.splitlines())
        self.source.close()

    def _write(self, lines: list[bytes]) -> None:
        text = b"".join(
            self._prefix + line.rstrip(b"\r\n") + b"\n" for line in lines if line != b"\r"
        )
        while text:
            text = text[os.write(self._out, text) :]


class _Launch:
    """All nodes of one command."""

    def __init__(
        self, hosts: Sequence[str], command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Nothing is started yet."""
        self._hosts = hosts
        carried = carried_over(environment)
        run = environment.get("HAIPROF_RUN", "")
        port = _FIRST_PORT + zlib.crc32(f"{run} {os.getpid()}".encode()) % _PORTS
        carried |= {
            "MASTER_ADDR": hosts[0].rpartition("@")[2],
            "MASTER_PORT": os.environ.get("MASTER_PORT") or str(port),
            "WORLD_SIZE": str(len(hosts)),
            "NNODES": str(len(hosts)),
        }
        self._carried = carried
        self._task = {"command": list(command), "folder": str(Path.cwd())}
        self._selector = selectors.DefaultSelector()
        self._nodes: list[Node] = []
        self._code = 0
        self._signals: list[int] = []
        self._given_up: float | None = None

    def run(self) -> int:
        """Start all; forward their output and our signals until all have ended."""
        # Signals that were ignored, as under nohup, stay ignored.
        heard = [n for n in _PASSED if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._hear) for number in heard}
        try:
            self._start()
            while self._nodes:
                self._pass_output(_TURN_SECONDS)
                self._pass_signals()
                self._look_after()
            # Processes that a command left behind may keep its output open; nobody waits.
            while self._pass_output(0):
                pass
            for key in list(self._selector.get_map().values()):
                key.data.close()
        except BrokenPipeError:
            self._code = reader_gone()
        except OSError as error:
            say(f"cannot forward the output of the hosts: {error.strerror}; stopping them")
            self._code = 1
        finally:
            for node in self._nodes:
                node.end()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._code

    def _hear(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _start(self) -> None:
        for rank, host in enumerate(self._hosts):
            place = {
                "RANK": str(rank),
                "NODE_RANK": str(rank),
                "MARSV2_RANK": str(rank),
                "MARSV2_NODE_NAME": host.rpartition("@")[2],
            }
            try:
                task = {**self._task, "environment": self._carried | place}
                node = Node(host, f"{host}#{rank}", "haiprof.cli.hosts.launch_end", task)
            except OSError as error:
                self._fail(f"{host}#{rank} cannot be started: {error.strerror}", 1)
                return
            self._nodes.append(node)
            for source, out in (
                (node.process.stdout, 1),
                (node.process.stderr, 2),
            ):
                assert source is not None
                self._selector.register(source, selectors.EVENT_READ, Lines(node.name, source, out))

    def _pass_output(self, seconds: float) -> bool:
        """Pass on what comes within a time; return whether anything did."""
        if not self._selector.get_map():
            time.sleep(seconds)
        ready = self._selector.select(seconds)
        for key, _ in ready:
            if not key.data.pass_on():
                self._selector.unregister(key.fileobj)
                key.data.close()
        return bool(ready)

    def _pass_signals(self) -> None:
        while self._signals:
            number, seconds = self._signals.pop(0), GRACE_SECONDS
            if self._given_up is not None:  # whoever asks again has waited enough
                number, seconds = signal.SIGKILL, _KILL_SECONDS
            for node in self._nodes:
                node.send(bytes([number]))
            self._given_up = time.monotonic() + seconds

    def _look_after(self) -> None:
        for node in list(self._nodes):
            code = node.process.poll()
            if code is None:
                continue
            self._nodes.remove(node)
            node.end()
            if code != 0 and self._code == 0:
                code = 128 - code if code < 0 else code
                why = ", as ssh does for a host that it cannot reach" if code == _SSH_FAILED else ""
                others = "; the others are ended" if self._nodes else ""
                self._fail(f"{node.name} ended with exit code {code}{why}{others}", code)
        if self._given_up is not None and time.monotonic() > self._given_up:
            # What is still there then is ended from here, as far as that reaches.
            for node in self._nodes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(node.process.pid, signal.SIGKILL)

    def _fail(self, line: str, code: int) -> None:
        say(line)
        self._code = code
        # After those there the last word is ours: they take as long to give up their commands.
        self._given_up = time.monotonic() + 2 * GRACE_SECONDS
        for node in self._nodes:
            node.end()
