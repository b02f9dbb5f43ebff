"""Runs a module of ours on several hosts at once, and reads what each reports.

The other end is :mod:`haiprof.cli.hosts.fan_out_end`. A failure of one host does not
affect the others.

Tests: tests/cli/hosts/test_ask.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from haiprof.cli.hosts.launch import Lines, Node, carried_over
from haiprof.cli.process.console import say
from haiprof.common.ssh import IMPATIENT

#: How long a host may take to say something first, s; a Python begins in that time, too.
ANSWER_SECONDS: Final = 30.0
_TURN_SECONDS: Final = 0.1
_READ: Final = 1 << 16
#: Hosts that are named one by one.
_NAMED: Final = 4


def names(hosts: Sequence[Host]) -> str:
    """Return their names, of many the first."""
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    return ", ".join(host.name for host in hosts[:_NAMED]) + more


class Host:
    """One host, and what it has reported so far."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.name = node.host
        #: What it has reported, by name; without its lines for the user.
        self.said: dict[str, Any] = {}
        self.lines: list[str] = []
        self._rest = b""

    @property
    def running(self) -> bool:
        """Whether more may come from it."""
        return self.node.process.poll() is None

    def hear(self, source: IO[bytes]) -> bool:
        """Read what is there; return whether there may be more."""
        read = os.read(source.fileno(), _READ)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            try:
                what = json.loads(line)
                self.lines += [str(what.pop("told"))] if "told" in what else []
                self.said |= what
            except (ValueError, TypeError, AttributeError):  # a login that prints something
                say(f"{self.name}: {line.decode(errors='replace')}")
        return bool(read)

    def give_up(self, why: str) -> None:
        """Say why, and end what still runs there, as far as that reaches."""
        say(f"{self.name}: {why}")
        with contextlib.suppress(ProcessLookupError):
            if self.running:
                os.killpg(self.node.process.pid, signal.SIGKILL)


class Hosts:
    """All hosts of one call. Use it within ``with``."""

    def __init__(self, names: Sequence[str], module: str, task: Mapping[str, Any]) -> None:
        """Start on all of them, once on each.

        Args:
            names: which.
            module: what runs there; its ``main`` calls :func:`haiprof.cli.hosts.fan_out_end.serve`.
            task: what it is to do.

        Raises:
            OSError: the way to a host cannot be started.
        """
        where = {"folder": str(Path.cwd()), "environment": carried_over(os.environ)}
        self._interrupts = 0
        self.hosts: list[Host] = []
        self._before = signal.signal(signal.SIGINT, self._hear_signal)
        self._selector = selectors.DefaultSelector()
        try:
            for name in dict.fromkeys(names):
                node = Node(name, name, module, {**where, **task}, IMPATIENT)
                host = Host(node)
                self.hosts.append(host)
                assert node.process.stdout is not None
                assert node.process.stderr is not None
                lines = Lines(name, node.process.stderr, 2)
                self._selector.register(node.process.stderr, selectors.EVENT_READ, lines)
                self._selector.register(node.process.stdout, selectors.EVENT_READ, host)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.node.end()
        for host in self.hosts:
            with contextlib.suppress(subprocess.TimeoutExpired):
                host.node.process.wait(1)
            with contextlib.suppress(ProcessLookupError):
                if host.running:
                    os.killpg(host.node.process.pid, signal.SIGKILL)
        signal.signal(signal.SIGINT, self._before)

    @property
    def interrupted(self) -> bool:
        """Whether there was a Ctrl-C."""
        return self._interrupts > 0

    def of(self, which: Callable[[Host], bool]) -> list[Host]:
        """Return some of them, in their order."""
        return [host for host in self.hosts if which(host)]

    def listen(
        self,
        seconds: float,
        until: Callable[[Host], bool],
        bar: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Read from all until ``until`` is true of each, or it has ended, or time is up.

        Ctrl-C ends it, too.
        """
        begun, before = time.monotonic(), self._interrupts
        while (passed := time.monotonic() - begun) < seconds and self._interrupts == before:
            bar(passed)
            ready = self._selector.select(_TURN_SECONDS)
            for key, _ in ready:
                if isinstance(key.data, Lines):
                    more = key.data.pass_on()
                else:
                    more = key.data.hear(key.fileobj)
                if not more:
                    self._selector.unregister(key.fileobj)
            for host in self.of(lambda host: not host.running):
                host.node.end()  # nobody is left for the rest of it to work for
            if not ready and not any(host.running and not until(host) for host in self.hosts):
                return

    def _hear_signal(self, _: int, __: FrameType | None) -> None:
        self._interrupts += 1
