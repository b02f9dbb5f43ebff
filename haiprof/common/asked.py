"""Checks arguments of the analysis; the error for an unknown name lists the known ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from haiprof.common.choices import listed, quoted, unknown
from haiprof.errors import HaiprofError

#: Things that haiprof itself samples, by the first word of their metrics: of one that was not
#: sampled there is nothing, which is no mistake of who asks.
THINGS: Final = frozenset(
    ("c2c", "cgroup", "cpu", "disk", "dram", "gpu", "haiprof", "ib", "io", "mem", "model", "net",
     "node", "numa", "pcie", "proc", "psi", "python", "tcp", "torch")
)  # fmt: skip
#: Values that haiprof itself puts into columns of tables; a run need not contain them.
WORDS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("spans", "category"): frozenset(
        ("step", "phase", "op", "runtime", "python", "module", "user", "dataloader", "gc",
         "overhead", "counters")
    ),
    ("events", "kind"): frozenset(
        ("affinity", "affinity_changed", "attach", "autograd", "budget", "clock", "compile", "ddp",
         "disk", "ecc", "exit", "finding", "flops", "fork", "gpu", "graphs", "hang", "hook",
         "import", "kernel_log", "kernels", "link", "loader", "loader_workers",
         "loader_workers_ended", "lost", "mark", "memory", "model", "pcie_link", "recorder",
         "skipped_update", "start", "threads", "throttle")
    ),
    ("kernels", "kind"): frozenset(("kernel", "memcpy", "memset", "sync", "overhead")),
    ("device_spans", "category"): frozenset(("phase", "user", "pipeline", "graph")),
}  # fmt: skip


def path(argument: str, given: Any) -> Path:
    """Return the argument as a path.

    Raises:
        HaiprofError: it is not.
    """
    try:
        result = Path(given)
        valid = bool(str(given)) and "\0" not in str(given)
    except TypeError:
        valid = False
    if not valid:
        raise HaiprofError(f"{argument}={quoted(given)}: give the path of a file or a folder")
    return result


def one_of(argument: str, given: object, known: Collection[str]) -> None:
    """Check that one of a few words was given.

    Raises:
        HaiprofError: none of them was.
    """
    if not isinstance(given, str) or given not in known:
        raise HaiprofError(f"{argument}={quoted(given)}: {unknown(given, known, 'valid:')}")


def texts(argument: str, given: object) -> frozenset[str] | None:
    """Return the texts that were given, one or several; None where any will do.

    Raises:
        HaiprofError: it is no text.
    """
    if given is None:
        return None
    several = [given] if isinstance(given, str) else given
    if isinstance(several, Iterable) and not isinstance(several, (bytes, Mapping)):
        names = list(several)
        if all(isinstance(each, str) for each in names):
            return frozenset(names)
    raise HaiprofError(f"{argument}={quoted(given)}: give a text, or a list of texts")


def whole(argument: str, given: Any, least: int = 0) -> None:
    """Check that a whole number was given, or None.

    Raises:
        HaiprofError: it is not, or smaller than ``least``.
    """
    try:
        valid = given is None or (not isinstance(given, bool) and given.__index__() >= least)
    except (AttributeError, TypeError):
        valid = False
    if not valid:
        raise HaiprofError(f"{argument}={quoted(given)}: give a whole number from {least} on")


def share(argument: str, given: object) -> None:
    """Check that a number from 0 to 1 was given, or None.

    Raises:
        HaiprofError: it is not.
    """
    valid = isinstance(given, (int, float)) and not isinstance(given, bool) and 0 <= given <= 1
    if given is not None and not valid:
        raise HaiprofError(f"{argument}={quoted(given)}: give a number from 0 to 1")


def number(argument: str, given: object, *, positive: bool = False) -> None:
    """Check that a number was given, with ``positive`` one that is finite and more than 0.

    Raises:
        HaiprofError: it is not.
    """
    valid = isinstance(given, (int, float)) and not isinstance(given, bool)
    if valid and not positive:
        valid = not math.isnan(given)  # type: ignore[arg-type]
    if not valid or (positive and not 0 < given < math.inf):  # type: ignore[operator]
        raise HaiprofError(
            f"{argument}={quoted(given)}: give a {'positive ' if positive else ''}number"
        )


def present(
    where: str,
    what: str,
    wanted: Collection[str],
    found: Collection[str | None],
    known: Callable[[], Collection[str]],
    ours: Collection[str] = (),
) -> None:
    """Check that what was asked for is somewhere in the run.

    Args:
        where: the run.
        what: one of them: ``metric``, ``category``, ….
        wanted: was asked for.
        found: was found of it.
        known: returns all that the run has; it is called only where something was not found.
        ours: what haiprof itself calls things, whether the run has them or not.

    Raises:
        HaiprofError: neither the run nor haiprof knows one of them.
    """
    missing = sorted(set(wanted) - set(found) - set(ours))
    if not missing:
        return
    there = known()
    for each in missing:
        if each not in there:
            raise HaiprofError(
                f"{where}: no {what} {quoted(each)}: {unknown(each, there, 'available:')}"
            )


def metric(where: str, given: str, found: bool, known: Callable[[], Collection[str]]) -> None:
    """Check that a metric, or what begins as it says (``gpu.*``), is one of the run.

    Args:
        where: the run.
        given: the metric, or its beginning with a ``*``.
        found: whether there are samples of it.
        known: returns the metrics of the run.

    Raises:
        HaiprofError: the run has no such metric, though it has others of the same thing; or haiprof
            samples no such thing.
    """
    if found or given == "*":
        return
    there = known()
    start = given.removesuffix("*")
    if given in there or (start != given and any(each.startswith(start) for each in there)):
        return  # of another rank
    thing = given.partition(".")[0].removesuffix("*")
    of_it = [each for each in there if each.startswith(f"{thing}.")]
    if of_it or thing not in THINGS:
        raise HaiprofError(
            f"{where}: no metric {quoted(given)}: {unknown(given, there, 'available:')}"
        )


def columns(table: str, given: Iterable[object], known: Collection[str]) -> None:
    """Check that a table has these columns.

    Raises:
        HaiprofError: it has not.
    """
    for each in given:
        if each not in known:
            raise HaiprofError(
                f"{table}: no column {quoted(each)}: {unknown(each, known, 'available:')}"
            )


def steps(where: str, given: int, known: Iterable[int]) -> HaiprofError:
    """Return the error that says that there is no such step, and which ones there are."""
    numbers = sorted(set(known))
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        there = f"it has steps {numbers[0]} to {numbers[-1]}"
    else:
        there = f"its steps are {listed(map(str, numbers))}" if numbers else "it has none"
    return HaiprofError(f"{where}: has no step {given}: {there}")
