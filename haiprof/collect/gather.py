"""Collects runs: lists every source, then fetches what is missing here.

Tests: tests/cli/test_collect.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from haiprof.collect.destination import Destination, Place
from haiprof.collect.merge import Contents, Identity, Part, chosen, contents, earliest
from haiprof.collect.source import OnBytes, Source, SourceError

#: Sources that are read at the same time.
_AT_ONCE: Final = 8
#: A file that is closed while it is fetched gets another name: how often to list again.
_LOOKS: Final = 3

_T = TypeVar("_T")
Bar = Callable[[str, int], AbstractContextManager[OnBytes]]


@dataclass(slots=True)
class Collected:
    """What was collected of one run.

    Attributes:
        folder: where it is.
        nodes: its nodes in the sources.
        processes: its processes in the sources.
        new: those of both that were missing or incomplete before.
        live: sources in which some were being recorded, or had not been closed.
    """

    folder: Path
    nodes: set[Identity] = field(default_factory=set)
    processes: set[Identity] = field(default_factory=set)
    new: set[Identity] = field(default_factory=set)
    live: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Outcome:
    """The result of a collection.

    Attributes:
        runs: the collected runs, by name.
        bytes: how many were fetched.
        failed: a line for each source that was not read, or not to its end.
        remarks: a line for each thing in a source that is not a run and was left out.
        missing: a line for each source with folders that have not arrived completely.
    """

    runs: dict[str, Collected] = field(default_factory=dict)
    bytes: int = 0
    failed: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def collect(sources: Sequence[Source], into: Path, run: str, bar: Bar) -> Outcome:
    """Bring the runs of all sources together in one folder.

    What is there already is not fetched again, and nothing else in the folder is touched. If this
    ends early, by an exception of any kind, what is there is complete, and the next call continues.

    Args:
        sources: where runs are.
        into: the folder; it is made.
        run: collect only the run of this name; empty: all.
        bar: shows progress; called with a text and the number of bytes to come.

    Raises:
        HaiprofError: another process collects into the folder.
        OSError: the folder cannot be written, or its disk is full.
    """
    outcome = Outcome()
    with Destination(into) as destination:
        pending = list(sources)
        for _ in range(_LOOKS):
            outcome.missing = []
            found = _look(pending, run, outcome, bar)
            places = _places(found, destination, outcome)
            broken = _fetch(places, outcome, bar)
            pending = [source for source in _finish(places, outcome) if source not in broken]
            if not pending:
                break
    return outcome


def _look(
    sources: Sequence[Source], run: str, outcome: Outcome, bar: Bar
) -> list[tuple[Source, Contents]]:
    def look(source: Source) -> Contents | SourceError:
        try:
            return contents(source, source.look(run), run)
        except SourceError as error:
            return error

    with bar(
        f"asking {len(sources)} sources" if len(sources) > 1 else f"asking {sources[0].label}", 0
    ):
        answers = _at_once(look, sources)
    found = []
    for source, answer in zip(sources, answers, strict=True):
        if isinstance(answer, SourceError):
            outcome.failed.append(str(answer))
            continue
        outcome.remarks += answer.remarks
        found.append((source, answer))
        if not answer.runs:
            outcome.failed.append(
                f"{source.label}: has no run {run}"
                if run
                else f"{source.label}: has no run: give a log directory or a run's folder"
            )
    return found


def _places(
    found: Iterable[tuple[Source, Contents]], destination: Destination, outcome: Outcome
) -> list[Place]:
    documents: dict[str, list[bytes]] = {}
    parts: list[Part] = []
    for _, each in found:
        parts += each.parts
        for name, document in each.runs.items():
            documents.setdefault(name, []).append(document)
    runs = {
        name: destination.open_run(name, earliest(those))
        for name, those in sorted(documents.items())
    }
    for name, opened in runs.items():
        outcome.runs.setdefault(name, Collected(opened.folder))
    return [runs[part.run].place(part) for part in chosen(parts)]


def _fetch(places: Sequence[Place], outcome: Outcome, bar: Bar) -> set[Source]:
    """Fetch what is missing; return the sources that failed."""
    by_source: dict[Source, list[Place]] = {}
    total = 0
    for place in places:
        if place.missing:
            by_source.setdefault(place.part.source, []).append(place)
            total += sum(f.size for f in place.part.files.values() if f.path in place.missing)
    lock = threading.Lock()

    with bar("collecting", total) as on_bytes:

        def count(number: int) -> None:
            with lock:
                outcome.bytes += number
                on_bytes(number)

        def bring(source: Source) -> str:
            homes = {path: place for place in by_source[source] for path in place.missing}
            wanted = [f for p in by_source[source] for f in p.part.files.values()]
            coming = source.fetch([file for file in wanted if file.path in homes])
            try:
                with contextlib.closing(coming):
                    for file, size, content in coming:
                        place = homes[file.path]
                        place.take(file, size, content, count)
                        place.finish()
            except SourceError as error:
                return str(error)
            return ""

        ordered = list(by_source)
        lines = _at_once(bring, ordered)
    outcome.failed += [line for line in lines if line]
    return {source for source, line in zip(ordered, lines, strict=True) if line}


def _finish(places: Sequence[Place], outcome: Outcome) -> list[Source]:
    """Put what has arrived into the runs; return the sources of the rest."""
    left: dict[Source, int] = {}
    for place in places:
        part = place.part
        if not place.finish():
            left[part.source] = left.get(part.source, 0) + 1
            continue
        collected = outcome.runs[part.run]
        (collected.nodes if part.node else collected.processes).add(part.who)
        if place.changed:
            collected.new.add(part.who)
        if part.live:
            collected.live.add(part.source.label)
    outcome.missing = [_missing(source, number) for source, number in left.items()]
    return list(left)


def _missing(source: Source, number: int) -> str:
    folders = "1 folder has" if number == 1 else f"{number} folders have"
    why = f" ({source.remark})" if source.remark else ""
    return f"{source.label}: {folders} not arrived completely{why}"


def _at_once(what: Callable[[Source], _T], sources: Sequence[Source]) -> list[_T]:
    """Call ``what`` with each, some at a time; a failure of one ends all."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        futures = [pool.submit(what, source) for source in sources]
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()
        return [future.result() for future in futures]
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for source in sources:
            source.stop()
        raise
    finally:
        pool.shutdown(wait=True)
