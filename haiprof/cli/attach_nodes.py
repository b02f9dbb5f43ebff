"""``haiprof attach --nodes``: records a job that is running on several hosts, on all at once.

Each host first looks for the job's processes. When all have answered they are told to begin, so the
time is the same everywhere. What is wrong with one host costs the others nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from haiprof.cli.attach import ENDS_HERE, INTERRUPTED, NOBODY, NOT_ALL, tell, words
from haiprof.cli.attach_node import written
from haiprof.cli.console import say, spinner
from haiprof.cli.hosts import how_to_collect
from haiprof.cli.nodes import Lines, Node, carried_over
from haiprof.cli.progress import seconds_passing
from haiprof.control.attach import Wanted
from haiprof.printable import printable
from haiprof.ssh import IMPATIENT

#: How long a host may take to say which processes it has, s; a Python begins in that time, too.
_ANSWER_SECONDS: Final = 30.0
#: How long beginning and ending may take together, s: a little more than each takes at most there.
_SPARE_SECONDS: Final = 60.0
_TURN_SECONDS: Final = 0.1
_READ: Final = 1 << 16
#: Hosts that are named one by one.
_NAMED: Final = 4


def attach_on(
    hosts: Sequence[str], target: str, asked: Wanted, *, dry_run: bool, report: bool
) -> int:
    """Record the processes that ``target`` means on every host, and say where the result is.

    Args:
        hosts: where.
        target: as :func:`haiprof.cli.attach.attach_to` has it, on each host for itself.
        asked: what to record.
        dry_run: only say which processes are meant and how each would be reached.
        report: write the report, too, if the run can be seen from here.

    Returns:
        The exit code: 0; 2: nobody is meant on any host; 3: some host has none or was not
        reached, or some process; 130: it was interrupted, and ended early.
    """
    task = {
        "target": target,
        "dry_run": dry_run,
        "folder": str(Path.cwd()),
        "environment": carried_over(os.environ),
        "asked": {**vars(asked), "log_dir": str(asked.log_dir)},
    }
    with _Hosts(list(dict.fromkeys(hosts)), task) as everyone:
        return _attach(everyone, target, asked, dry_run=dry_run, report=report)


def _attach(everyone: _Hosts, target: str, asked: Wanted, *, dry_run: bool, report: bool) -> int:
    with spinner("looking for the job"):
        everyone.listen(_ANSWER_SECONDS, until=lambda host: "found" in host.said)
    if everyone.interrupted:
        say(ENDS_HERE)
        return INTERRUPTED
    for host in everyone.of(lambda host: "found" not in host.said):
        host.give_up("does not answer" if host.running else "cannot be attached to: see above")
    if without := everyone.of(lambda host: host.said.get("found") == 0):
        say(f"{_names(without)}: no Python process there runs {target}")
    with_job = everyone.of(lambda host: host.said.get("found", 0) > 0)
    complete = len(with_job) == len(everyone.hosts)
    if not with_job:
        answered = all("found" in host.said for host in everyone.hosts)
        return NOBODY if answered else NOT_ALL
    if dry_run:
        for host in with_job:
            for line in host.said["ways"]:
                print(printable(f"{host.name}: {line}"))
        return NOT_ALL if not complete or any(host.said["code"] for host in with_job) else 0
    _record(everyone, with_job, asked)
    for line in dict.fromkeys(line for host in with_job for line in host.told):
        those = [host for host in with_job if line in host.told]
        say(line if len(those) == len(with_job) else f"{_names(those)}: {line}")
    for host in with_job:
        if "runs" not in host.said:
            host.give_up("was lost: what was recorded there ends by itself")
    _tell_runs(with_job, report=report)
    if everyone.interrupted:
        return INTERRUPTED
    done = complete and all(host.said.get("code") == 0 for host in with_job)
    return 0 if done else NOT_ALL


def _record(everyone: _Hosts, with_job: Sequence[_Host], asked: Wanted) -> None:
    """Have them begin, and wait until all have ended."""
    number = sum(host.said["found"] for host in with_job)
    text = f"{words(asked, number, '1 process')} on {len(with_job)} hosts"
    for host in with_job:
        host.node.tell(b"b")
    whole = asked.warmup + asked.seconds
    with seconds_passing(text, whole) as bar:
        everyone.listen(whole + _SPARE_SECONDS, lambda host: "runs" in host.said, bar)
    if everyone.interrupted:
        say(ENDS_HERE)
        for host in with_job:
            host.node.tell(b"e")
        with spinner("closing the files"):
            everyone.listen(_SPARE_SECONDS, lambda host: "runs" in host.said)
        for host in with_job:  # which they say, too
            host.told = [line for line in host.told if line != ENDS_HERE]


def _tell_runs(hosts: Sequence[_Host], *, report: bool) -> None:
    """Say where each run is: one here, or a part on each host."""
    runs: dict[str, list[_Host]] = {}
    for host in hosts:
        for run_dir in host.said.get("runs", ()):
            runs.setdefault(run_dir, []).append(host)
    for name, those in runs.items():
        run_dir = Path(name)
        here = written(run_dir)
        away = [host for host in those if not host.said["runs"][name].items() <= here.items()]
        if len(away) < len(those):
            tell(run_dir, report=report)
        if away:
            how = how_to_collect([host.name for host in away], run_dir)
            say(f"{_names(away)}: the run lies there; bring it here: {how}")


def _names(hosts: Sequence[_Host]) -> str:
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    return ", ".join(host.name for host in hosts[:_NAMED]) + more


class _Host:
    """One host: what it has said so far."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.name = node.host
        #: All but its lines, by name.
        self.said: dict[str, Any] = {}
        self.told: list[str] = []
        self._rest = b""

    @property
    def running(self) -> bool:
        return self.node.process.poll() is None

    def hear(self, source: IO[bytes]) -> bool:
        """Read what is there; return whether there may be more."""
        read = os.read(source.fileno(), _READ)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            try:
                what = json.loads(line)
                self.told += [str(what.pop("told"))] if "told" in what else []
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


class _Hosts:
    """All hosts of one call. Use it within ``with``."""

    def __init__(self, names: Sequence[str], task: dict[str, Any]) -> None:
        """Start on all of them.

        Raises:
            OSError: the way to a host cannot be started.
        """
        self._interrupts = 0
        self.hosts: list[_Host] = []
        self._before = signal.signal(signal.SIGINT, self._hear_signal)
        self._selector = selectors.DefaultSelector()
        try:
            for name in names:
                node = Node(name, name, "haiprof.cli.attach_node", task, IMPATIENT)
                host = _Host(node)
                self.hosts.append(host)
                assert node.process.stdout is not None
                assert node.process.stderr is not None
                lines = Lines(name, node.process.stderr, 2)
                self._selector.register(node.process.stderr, selectors.EVENT_READ, lines)
                self._selector.register(node.process.stdout, selectors.EVENT_READ, host)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> _Hosts:
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

    def of(self, which: Callable[[_Host], bool]) -> list[_Host]:
        """Return some of them, in their order."""
        return [host for host in self.hosts if which(host)]

    def listen(
        self,
        seconds: float,
        until: Callable[[_Host], bool],
        bar: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Hear all of them until of each ``until`` is true, or it has ended, or time is up.

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
                host.node.end()  # whatever of it is still there has nobody to work for
            if not ready and not any(host.running and not until(host) for host in self.hosts):
                return

    def _hear_signal(self, _: int, __: FrameType | None) -> None:
        self._interrupts += 1
