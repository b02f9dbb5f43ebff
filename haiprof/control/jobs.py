"""The processes of this node that haiprof is loaded in: who they are and what they do.

Tests: tests/cli/test_ps.py.
"""

from __future__ import annotations

import contextlib
import json
import pwd
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeVar

from haiprof import _core
from haiprof.common.owned_files import Folder
from haiprof.common.places import (
    FINDINGS_NAME,
    HANG_NAME,
    RING_SUFFIX,
    node_name,
    of_this_namespace,
)
from haiprof.common.process_life import process_is_alive
from haiprof.control.client import ControlError, ask
from haiprof.control.sockets import socket_of, sockets, users_folders
from haiprof.errors import HaiprofError
from haiprof.recorder.election import recorder_pid
from haiprof.recorder.outside import is_note, read_note

#: How long a process may take to say who it is, s.
_STATUS_SECONDS: Final = 2.0
_AT_ONCE: Final = 32
_LONGEST_PROBLEM: Final = 4000
_MOST_FINDINGS: Final = 8

RECORDING: Final = "recording"
WARMING_UP: Final = "warming up"
IDLE: Final = "idle"
#: It lives but does not answer; ``why`` gives the known reason.
SILENT: Final = "not answering"
#: The process has ended, and its ring waits for a recorder.
NOT_CLOSED: Final = "ended, not closed"
#: It records nothing itself.
OUTSIDE: Final = "watched from outside"

#: Fields of a status answer that describe a process, and their types.
_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    "pid": (int,),
    "state": (str,),
    "run": (str, NoneType),
    "run_dir": (str, NoneType),
    "node": (str, NoneType),
    "rank": (int, NoneType),
    "since_ns": (int, NoneType),
    "recorder": (int, NoneType),
    "script": (str, NoneType),
}

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(slots=True)
class Process:
    """One process. ``None`` is unknown.

    Attributes:
        pid: in our namespace.
        state: "recording", "warming up", "armed" (it records as soon as it trains), "idle",
            "not answering", "ended, not closed" or "watched from outside".
        user: its owner.
        run: its run, and ``run_dir`` its folder.
        node: its machine's name, as in folder names.
        rank: of its job.
        since_ns: since when it records (UTC, ns).
        recorder: pid of its run's recorder, in the namespace of the job.
        script: what it runs.
        socket: where to ask it; None: it cannot be asked.
        why: the reason of a state that is not as it should be.
        hang: why the ranks of its run on this node wait, where they do for long; else empty.
        hang_since_ns: since when they do (UTC, ns).
        findings: what costs its run time now on this node: ``problem`` and ``since_ns`` of each.
    """

    pid: int
    state: str
    user: str
    run: str | None = None
    run_dir: str | None = None
    node: str | None = None
    rank: int | None = None
    since_ns: int | None = None
    recorder: int | None = None
    script: str | None = None
    socket: Path | None = None
    why: str = ""
    hang: str = ""
    hang_since_ns: int | None = None
    findings: Sequence[Mapping[str, Any]] = ()

    @property
    def name(self) -> str:
        """Its node and rank, as in its folder's name."""
        rank = "-" if self.rank is None else self.rank
        return f"{self.node or '?'}#{rank}"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}


class NotFound(HaiprofError):
    """No process matches; ``str()`` of it is one line."""


class Ambiguous(HaiprofError):
    """Several runs match; ``str()`` of it is one line that names them."""

    def __init__(self, target: str, runs: Sequence[str]) -> None:
        super().__init__(f"{target} matches several runs: {', '.join(runs)}; name one of them")
        self.runs = runs


def processes(timeout: float = _STATUS_SECONDS) -> list[Process]:
    """Return this user's processes on this node, all users' for root, by run, node and rank.

    Args:
        timeout: how long each may take to say who it is, s; they are asked at once.
    """
    found = [p for p in at_once(lambda path: _asked(path, timeout), sockets()) if p is not None]
    # A process that does not answer, or cannot be asked, is known by its ring.
    for known in _rings():
        same = [p for p in found if p.pid == known.pid and p.user == known.user]
        for one in same:
            one.hang, one.hang_since_ns = known.hang, known.hang_since_ns
            one.findings = known.findings
        if not same:
            found.append(known)
        elif same[0].state == SILENT:
            known.state, known.why, known.socket = SILENT, same[0].why, same[0].socket
            found[found.index(same[0])] = known
    return sorted(found, key=lambda p: (p.run or "~", p.node or "", _or_last(p.rank), p.pid))


def matching(target: str, timeout: float = _STATUS_SECONDS) -> list[Process]:
    """Return the processes of a run (its name or folder), of a script, or the one with that pid.

    Raises:
        ControlError: there is no such process, or it has not loaded haiprof.
        NotFound: no process of such a run or script.
        Ambiguous: several runs are of that script.
    """
    if target.isdecimal():
        path = socket_of(int(target))
        one = _asked(path, timeout)
        if one is None:
            if Path(f"/proc/{target}").exists():
                text = f"process {target} does not answer at its socket: it no longer records"
                raise ControlError("failed", text)
            raise ControlError("gone", f"there is no process {target}")
        return [one]
    everyone = [p for p in processes(timeout) if p.state != NOT_CLOSED]
    folder = target
    with contextlib.suppress(FileNotFoundError):  # the working folder has been removed
        folder = str(Path(target).absolute())
    of_run = [p for p in everyone if p.run is not None and (p.run == target or p.run_dir == folder)]
    if of_run:
        return of_run
    of_script = [p for p in everyone if _is_called(p.script, target)]
    runs = sorted({p.run for p in of_script if p.run is not None})
    if len(runs) > 1:
        raise Ambiguous(target, runs)
    if not of_script:
        raise NotFound(f"{target}: no such run, process or script is recorded here; see haiprof ps")
    return of_script


def at_once(what: Callable[[_T], _R], those: Sequence[_T], most: int = _AT_ONCE) -> Iterable[_R]:
    """Do something with each, at most so many at a time; returns the results in order."""
    if not those:
        return []
    with ThreadPoolExecutor(min(len(those), most)) as pool:
        return list(pool.map(what, those))


def _asked(path: Path, timeout: float) -> Process | None:
    user = _user(path)
    pid = int(path.name.partition("@")[0])
    try:
        answer = ask(path, "status", timeout=timeout)
    except ControlError as error:
        if error.reason == "gone":
            return None
        return Process(pid, SILENT, user, socket=path, why=str(error))
    if not _is_answer(answer):
        why = f"process {pid}: invalid answer: it does not say who it is"
        return Process(pid, SILENT, user, socket=path, why=why)
    fields: dict[str, Any] = {name: answer.get(name) for name in _FIELDS}
    return Process(**fields, user=user, socket=path)


def _is_answer(answer: Mapping[str, Any]) -> bool:
    """Check the types: another user's program may send anything."""
    return all(
        type(value := answer.get(name)) in types
        and (type(value) is not int or 0 <= value < 1 << 63)
        for name, types in _FIELDS.items()
    )


def _rings() -> Iterator[Process]:
    """Yield the processes that have a ring, or are observed from outside."""
    for user_folder in users_folders(Path("/")):
        for folder in _entries(user_folder):
            if folder.name.startswith("."):
                continue
            newest: dict[int, Process] = {}
            for ring in _entries(folder):
                one = _of_ring(ring) if ring.suffix == RING_SUFFIX else _of_note(ring)
                if one is not None:
                    newest[one.pid] = one
            if newest:
                recorder, hang = recorder_pid(folder), _hang_in(folder)
                findings = _findings_in(folder)
                for one in newest.values():
                    one.recorder = recorder
                    one.hang, one.hang_since_ns = hang
                    one.findings = findings
                    yield one


def _hang_in(folder: Path) -> tuple[str, int | None]:
    """Return why the ranks wait whose rings are in a folder, and since when; else nothing."""
    try:
        return _problem(json.loads(_file_in(folder, HANG_NAME)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "", None


def _findings_in(folder: Path) -> list[dict[str, Any]]:
    """Return what costs the run time whose rings are in a folder."""
    try:
        several = json.loads(_file_in(folder, FINDINGS_NAME))["findings"]
        found = [_problem(each) for each in several[:_MOST_FINDINGS]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
    return [{"problem": problem, "since_ns": since_ns} for problem, since_ns in found]


def _file_in(folder: Path, name: str) -> bytes:
    return Folder.at(folder.parent).folder(folder.name).read(name)


def _problem(about: Any) -> tuple[str, int]:
    """Return what a file beside the rings says, and since when.

    Raises:
        TypeError: it says something else.
        KeyError: neither.
        ValueError: neither.
    """
    problem, since_ns = about["problem"], about["since_ns"]
    if type(problem) is not str or type(since_ns) is not int or not 0 <= since_ns < 1 << 63:
        raise ValueError(about)
    return problem[:_LONGEST_PROBLEM], since_ns


def _of_ring(ring: Path) -> Process | None:
    try:
        reader = _core.RingReader(ring)
    except (OSError, ValueError):  # it is being made, or is of another version
        return None
    header = reader.header
    if not of_this_namespace(ring.parent.name):
        return None  # a container's, with pids that mean nothing here
    alive = process_is_alive(header["pid"], header["start_time"])
    if alive and reader.closed:
        return None  # its recorder is about to take it away
    return Process(
        pid=header["pid"],
        state=RECORDING if alive else NOT_CLOSED,
        user=_user(ring),
        run=header["run"],
        run_dir=header["run_dir"],
        node=header["node"],
        rank=header["rank"],
        since_ns=header["created_ns"],
        why="" if alive else "its recorder will write it out; if there is none: haiprof recover",
    )


def _of_note(path: Path) -> Process | None:
    if not is_note(path):
        return None
    try:
        note = read_note(path)
    except (OSError, ValueError):
        return None
    run_dir = Path(note.run_dir)
    if not of_this_namespace(path.parent.name):
        return None
    if not process_is_alive(note.pid, note.start_time):
        return None  # its recorder is about to take it away
    return Process(
        pid=note.pid,
        state=OUTSIDE,
        user=_user(path),
        run=run_dir.name,
        run_dir=note.run_dir,
        node=node_name(),
        rank=note.rank,
        since_ns=note.created_ns,
        why=note.why,
    )


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _user(path: Path) -> str:
    try:
        uid = path.lstat().st_uid
    except OSError:
        return "?"
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def _is_called(script: str | None, target: str) -> bool:
    if not script:
        return False
    path = Path(script)
    return target in (script, path.name, path.stem)


def _or_last(rank: int | None) -> int:
    return 1 << 62 if rank is None else rank
