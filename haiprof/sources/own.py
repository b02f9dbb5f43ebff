"""A run that haiprof itself recorded: finds it, and reads which processes took part.

Only ``run.json`` and ``process.json`` are read here; the tables beside them are read by
:mod:`haiprof.sources.tables` when they are asked for.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeGuard

from haiprof import schema
from haiprof.common.choices import near_path
from haiprof.common.owned_files import Folder, open_regular
from haiprof.common.printable import readable
from haiprof.errors import HaiprofError
from haiprof.runs import (
    ROLE_NODE,
    ROLE_PROCESS,
    ROLE_RANK,
    Ending,
    Gpu,
    Machine,
    Process,
    Run,
    Source,
    StackSampling,
    Thinned,
    TraceInfo,
)

#: Anything longer or later is not a measured time.
LATEST_NS = 2**62
#: A document of a run is smaller than this.
LARGEST_DOCUMENT: Final = 16 << 20


def read_run(folder: Path) -> Run:
    """Read the ``run.json`` of a run folder; ``processes`` is empty.

    Raises:
        HaiprofError: there is none, or one that this version cannot read.
    """
    file = folder / schema.RUN_FILE
    document = _read_json(file, schema.RUN_FORMAT)
    command = document.get("command") or []
    if not isinstance(command, list):
        raise _wrong(file, "command", command, "a list of words")
    return Run(
        folder=folder,
        name=_text(document, "run", file) or folder.name,
        created_ns=_need_time(document, "created_ns", file),
        command=tuple(readable(str(word)) for word in command),
        host=_text(document, "host", file),
        processes=(),
        problems=tuple(_lines(document, "problems", file)),
        kernels=_option(document, "kernels"),
        warmup=_amount(document, "warmup"),
        peak_flops=_amount(document, "peak_flops"),
        user=_text(document, "user", file),
    )


def open_run(path: str | Path) -> Run:
    """Open a run folder, or a log directory that contains exactly one run.

    Raises:
        HaiprofError: there is no run at ``path``, several, or one that this version cannot read.
    """
    folder = _run_folder(Path(path))
    run = read_run(folder)
    processes, problems = read_processes(folder)
    if not processes and problems:
        raise HaiprofError(problems[0])
    if not processes:
        raise HaiprofError(
            f"{folder}: no process has recorded anything in this run: "
            "see whether its job started and stayed alive long enough to record"
        )
    return replace(run, processes=tuple(processes), problems=(*run.problems, *problems))


def _option(document: dict[str, Any], name: str) -> str:
    options = document.get("options")
    value = options.get(name) if isinstance(options, dict) else None
    return readable(value) if isinstance(value, str) else ""


def _amount(document: dict[str, Any], name: str) -> float:
    options = document.get("options")
    value = options.get(name) if isinstance(options, dict) else None
    if isinstance(value, (int, float)) and 0 <= value < math.inf:
        with contextlib.suppress(OverflowError):
            return float(value)
    return 0.0


def _lines(document: dict[str, Any], field: str, file: Path) -> list[str]:
    lines = document.get(field) or []
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise _wrong(file, field, lines, "a list of texts")
    return [readable(line) for line in lines]


def runs_in(folder: Path) -> list[Path]:
    """List the runs in a log directory, without kept imports of traces.

    Raises:
        OSError: it cannot be read.
    """
    # Not with pathlib, which raises for a folder that another user has closed.
    return [
        child
        for child in folder.iterdir()
        if not is_import(child.name) and os.path.isfile(child / schema.RUN_FILE)  # noqa: PTH113
    ]


def newest_first(runs: Iterable[Path]) -> list[Path]:
    """Sort runs by when they were created; those that do not say it come last."""
    return sorted(runs, key=lambda run: (-created_ns(run), run.name))


def is_import(name: str) -> bool:
    """Say whether a folder of this name is an import of traces, kept beside them."""
    return name == schema.IMPORT_FOLDER or name.endswith(schema.IMPORT_SUFFIX)


def _run_folder(path: Path) -> Path:
    try:
        if (path / schema.RUN_FILE).is_file():
            return path
        if not path.exists():
            hint = near_path(path) or "give a run folder or the log directory of one"
            raise HaiprofError(f"{path}: no such folder: {hint}")
        if not path.is_dir():
            raise HaiprofError(
                f"{path}: is a file: give the run folder that contains {schema.RUN_FILE}"
            )
        runs = runs_in(path)
    except OSError as error:
        raise HaiprofError(
            f"{path}: cannot be read ({error.strerror}): ask its owner for access"
        ) from None
    if not runs:
        raise HaiprofError(
            f"{path}: not a haiprof run, and none lies in it (no {schema.RUN_FILE}, no trace "
            "*.json): give the folder that a run wrote into"
        )
    if len(runs) > 1:
        newest = newest_first(runs)
        names = ", ".join(run.name for run in newest[:10])
        more = f" and {len(newest) - 10} older ones" if len(newest) > 10 else ""
        raise HaiprofError(
            f"{path}: contains {len(runs)} runs, newest first: {names}{more}: give one of them"
        )
    return runs[0]


def created_ns(run: Path) -> int:
    """Return when a run folder was created, ns UTC; 0 if its ``run.json`` does not say."""
    try:
        with open_regular(run / schema.RUN_FILE) as file:
            created = json.loads(_content(file))["created_ns"]
        return created if _is_whole(created) and created >= 0 else 0
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0


def read_processes(run: Path) -> tuple[list[Process], list[str]]:
    """Read the ``process.json`` of all processes of a run.

    Returns:
        Them, and one line for each folder that cannot be read.

    Raises:
        HaiprofError: the run's folder cannot be read.
    """
    processes: list[Process] = []
    problems: list[str] = []
    try:
        here = Folder.at(run)
        # A target of someone else's symbolic link is not part of this run.
        folders = sorted(
            child
            for child in run.iterdir()
            if child.is_dir() and (not child.is_symlink() or here.is_trusted(child.name))
        )
    except OSError as error:
        raise HaiprofError(
            f"{run}: cannot be read ({error.strerror}): ask its owner for access"
        ) from None
    for folder in folders:
        try:
            if is_process_folder(folder):
                processes.append(read_process(folder))
        except HaiprofError as error:
            problems.append(str(error))
    return arranged(processes), problems


def arranged(processes: list[Process]) -> list[Process]:
    """Sort the processes of a run, and give each a unique label."""
    processes = sorted(processes, key=_order)
    labels = _labels(processes)
    return [replace(p, label=label) for p, label in zip(processes, labels, strict=True)]


def _labels(processes: list[Process]) -> list[str]:
    labels = [_label(p) for p in processes]
    # A restarted rank, nodes that each have a rank 0, one pid that recorded twice. A worker that
    # was profiled several times comes first: all of its spans have one pid.
    for more in (_span, "pid {p.pid}".format, "on {p.node}".format, "in {p.folder.name}".format):
        details = [readable(more(p=p)) for p in processes]
        # Details that they share do not distinguish them.
        each = Counter(label for label, _ in set(zip(labels, details, strict=True)))
        labels = [
            f"{label}, {words}" if each[label] > 1 and words and words not in label else label
            for label, words in zip(labels, details, strict=True)
        ]
    return labels


def _span(p: Process) -> str:
    return "" if p.trace is None else f"span {p.trace.span}"


def _label(p: Process) -> str:
    if p.role == ROLE_NODE:
        return f"node {p.node}"
    if p.rank is None:
        return f"pid {p.pid} on {p.node}" if p.trace is None else p.trace.worker
    if p.role != ROLE_RANK:
        return f"rank {p.rank} (pid {p.pid})"
    return f"rank {p.rank}" + (f", attempt {p.attempt}" if p.attempt else "")


def _order(p: Process) -> tuple[bool, int, str, bool, int, int, int]:
    helper = p.role != ROLE_RANK
    begun = p.started_ns or 0
    return p.rank is None, p.rank or 0, p.node, helper, p.attempt or 0, begun, p.pid or 0


def is_process_folder(folder: Path) -> bool:
    """Say whether a folder of a run belongs to a process or a node.

    Raises:
        HaiprofError: it cannot be examined.
    """
    if folder.name.startswith("."):
        return False
    try:
        if "#" in folder.name or (folder / schema.PROCESS_FILE).exists():
            return True
        suffixes = {schema.LIVE_SUFFIX, schema.CLOSED_SUFFIX}
        return any(file.suffix in suffixes for file in folder.iterdir())
    except OSError as error:
        raise HaiprofError(
            f"{folder}: cannot be read ({error.strerror}) and is left out: ask its owner for access"
        ) from None


def read_process(folder: Path) -> Process:
    """Read the ``process.json`` of a process folder; the caller sets the label.

    Raises:
        HaiprofError: there is none, or one that this version cannot read.
    """
    file = folder / schema.PROCESS_FILE
    document = _read_json(file, schema.PROCESS_FORMAT)
    rank = _rank(document, file)
    role = _text(document, "role", file) or (ROLE_PROCESS if rank is None else ROLE_RANK)
    node = _text(document, "node", file)
    if not node:
        raise _wrong(file, "node", document.get("node"), "a name")
    lost = document.get("lost") or {}
    if not isinstance(lost, dict):
        raise _wrong(file, "lost", lost, "an object of counts")
    return Process(
        folder=folder,
        role=role,
        node=node,
        host=_text(document, "host", file) or node,
        rank=rank,
        local_rank=_whole(document, "local_rank", file),
        world_size=_whole(document, "world_size", file),
        attempt=_whole(document, "attempt", file),
        pid=_whole(document, "pid", file),
        started_ns=_time(document, "started_ns", file),
        ended_ns=_time(document, "ended_ns", file),
        state=_text(document, "state", file) or "unknown",
        lost={readable(what): count for what, count in lost.items() if _is_whole(count)},
        sources=_sources(document, file),
        gpus=_gpus(document, file),
        machine=_machine(document, file),
        trace=_trace(document, file),
        process_started_ns=_time(document, "process_started_ns", file),
        outside=_text(document, "outside", file) or "",
        ending=_ending(document, file),
        stacks=_stacks(document, file),
        steps=_whole(document, "steps", file),
        loaded=_loaded(document, file),
        thinned=_thinned(folder / schema.THINNED_FILE),
    )


def _thinned(file: Path) -> tuple[Thinned, ...]:
    if not os.path.lexists(file):
        return ()
    document = _read_json(file, schema.THINNED_FORMAT)
    limit = _need_whole(document, "limit_bytes", file)
    tables = document.get("tables")
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise _wrong(file, "tables", tables, "an object of objects")
    return tuple(
        Thinned(
            readable(name),
            _need_time(table, "until_ns", file),
            _need_whole(table, "rows", file),
            limit,
            _is_summed_up(file.parent, name),
        )
        for name, table in sorted(tables.items())
    )


def _is_summed_up(folder: Path, table: str) -> bool:
    """Say whether what a table had from its beginning on was summed up."""
    into = {schema.SPANS.name: schema.STEP_PARTS, schema.SAMPLES.name: schema.MINUTES}.get(table)
    suffixes = (schema.CLOSED_SUFFIX, schema.LIVE_SUFFIX)
    return into is not None and any((folder / f"{into.name}-0{s}").exists() for s in suffixes)


def _loaded(document: dict[str, Any], file: Path) -> frozenset[str] | None:
    loaded = document.get("loaded")
    if loaded is None:
        return None
    if not isinstance(loaded, dict):
        raise _wrong(file, "loaded", loaded, "an object")
    return frozenset(name for name in ("haiprof", "torch") if loaded.get(name) is True)


def _stacks(document: dict[str, Any], file: Path) -> StackSampling | None:
    stacks = document.get("stacks")
    if stacks is None:
        return None
    if not isinstance(stacks, dict):
        raise _wrong(file, "stacks", stacks, "an object")
    hz: Any = stacks.get("hz")
    if type(hz) not in (int, float) or not 0 <= hz <= 1e6:
        raise _wrong(file, "hz", hz, "a number, of samples per second")
    counts = {name: _whole(stacks, name, file) or 0 for name in ("torn", "dropped", "cut")}
    return StackSampling(float(hz), **counts, problem=_text(stacks, "problem", file) or "")


def _ending(document: dict[str, Any], file: Path) -> Ending | None:
    ended = document.get("ended")
    if ended is None:
        return None
    if not isinstance(ended, dict):
        raise _wrong(file, "ended", ended, "an object")
    time_ns = _need_whole(ended, "time_ns", file)
    failed_ns = _whole(ended, "failed_ns", file)
    return Ending(
        kind=_text(ended, "kind", file) or "unknown",
        exit_code=_whole(ended, "exit_code", file),
        signal=_text(ended, "signal", file),
        reason=_text(ended, "reason", file),
        text=_text(ended, "text", file),
        time_ns=time_ns,
        failed_ns=time_ns if failed_ns is None else failed_ns,
        parent_pid=_whole(ended, "parent_pid", file),
    )


def _trace(document: dict[str, Any], file: Path) -> TraceInfo | None:
    trace = document.get("trace")
    if trace is None:
        return None
    if not isinstance(trace, dict):
        raise _wrong(file, "trace", trace, "an object")
    distributed = trace.get("distributed")
    return TraceInfo(
        file=_text(trace, "file", file),
        worker=_text(trace, "worker", file),
        span=_need_whole(trace, "span", file),
        begin=_time(trace, "begin", file),
        end=_time(trace, "end", file),
        distributed=distributed if isinstance(distributed, dict) else {},
        version=_whole(trace, "version", file),
        tool=_text(trace, "tool", file),
        lacks=_texts(trace, "lacks", file),
    )


def _machine(document: dict[str, Any], file: Path) -> Machine | None:
    machine = document.get("machine")
    if machine is None:
        return None
    if not isinstance(machine, dict):
        raise _wrong(file, "machine", machine, "an object")
    return Machine(
        cpu=_text(machine, "cpu", file),
        sockets=_whole(machine, "sockets", file),
        numa_nodes=_whole(machine, "numa_nodes", file),
        dram_peak_bytes_per_s=_positive(machine, "dram_peak_bytes_per_s", file, "machine."),
        dram_peak_how=_text(machine, "dram_peak_how", file),
        clock_error_ns=_whole(machine, "clock_error_ns", file),
    )


def _sources(document: dict[str, Any], file: Path) -> tuple[Source, ...]:
    rows = document.get("sources") or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _wrong(file, "sources", rows, "a list of objects")
    return tuple(
        Source(*(readable(str(row.get(f) or "")) for f in ("name", "state", "reason", "mend")))
        for row in rows
    )


def _gpus(document: dict[str, Any], file: Path) -> tuple[Gpu, ...]:
    rows = document.get("gpus") or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _wrong(file, "gpus", rows, "a list of objects")
    return tuple(
        Gpu(
            uuid=_text(row, "uuid", file),
            name=_text(row, "name", file),
            device=_whole(row, "device", file),
            instance=_text(row, "instance", file),
            memory_bytes=_whole(row, "memory_bytes", file),
            multiprocessors=_whole(row, "multiprocessors", file),
            capability=_capability(row, file),
            power_limit_w=_positive(row, "power_limit_w", file),
            pci=_text(row, "pci", file),
        )
        for row in rows
    )


def _capability(row: dict[str, Any], file: Path) -> tuple[int, int] | None:
    capability = row.get("capability")
    if capability is None:
        return None
    if (
        not isinstance(capability, list)
        or len(capability) != 2
        or not all(_is_whole(n) for n in capability)
    ):
        raise _wrong(file, "capability", capability, "two whole numbers or null")
    return capability[0], capability[1]


def _read_json(file: Path, expected: str) -> dict[str, Any]:
    try:
        with open_regular(file) as opened:
            document = json.loads(_content(opened))
    except FileNotFoundError:
        raise HaiprofError(
            f"{file}: missing, so its folder is left out: "
            "copy the whole run again, or remove the folder"
        ) from None
    except OSError as error:
        raise HaiprofError(
            f"{file}: cannot be read ({error.strerror}): ask its owner for access"
        ) from None
    except (ValueError, RecursionError):
        raise HaiprofError(
            f"{file}: cut off or not JSON: copy it again from the node that wrote it, "
            "or remove its folder"
        ) from None
    if not isinstance(document, dict) or document.get("format") != expected:
        found = document.get("format") if isinstance(document, dict) else None
        raise HaiprofError(
            f"{file}: field 'format' is {_shown(found)}, not '{expected}': "
            "haiprof did not write it; give the folder of a haiprof run"
        )
    check_version(document.get("version"), file)
    return document


def _content(opened: BinaryIO) -> bytes:
    """Return the bytes of a document.

    Raises:
        OSError: there are too many for one: whoever wrote it may want them to be read.
    """
    content = opened.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return content


def check_version(version: object, file: Path) -> None:
    """Accept every minor version of our own major one.

    Raises:
        HaiprofError: another major version, or none.
    """
    version = version[:60] if isinstance(version, str) else version
    major = version.split(".")[0] if isinstance(version, str) else ""
    if not major.isdecimal() or len(major) > 9:
        raise _wrong(file, "version", version, "of the form '1.0'")
    if int(major) > schema.MAJOR:
        raise HaiprofError(
            f"{file}: field 'version' is {version}, and this haiprof reads {schema.MAJOR}.x: "
            "update haiprof"
        )
    if int(major) < schema.MAJOR:
        raise HaiprofError(
            f"{file}: field 'version' is {version}, and this haiprof reads {schema.MAJOR}.x: "
            "open it with the haiprof that wrote it"
        )


def _whole(document: dict[str, Any], field: str, file: Path) -> int | None:
    value = document.get(field)
    if value is not None and not _is_whole(value):
        raise _wrong(file, field, value, "a whole number of 64 bits or null")
    return value


def _rank(document: dict[str, Any], file: Path) -> int | None:
    value = _whole(document, "rank", file)
    # Tables have it as a number of 32 bits.
    if value is not None and not 0 <= value < 2**31:
        raise _wrong(file, "rank", value, "a number from 0 to 2147483647 or null")
    return value


def _positive(document: dict[str, Any], field: str, file: Path, within: str = "") -> float | None:
    value = document.get(field)
    known = _is_whole(value) or (isinstance(value, float) and math.isfinite(value))
    if value is not None and not (known and value > 0):
        raise _wrong(file, within + field, value, "a number above 0 or null")
    return None if value is None else float(value)


def _time(document: dict[str, Any], field: str, file: Path) -> int | None:
    value = _whole(document, field, file)
    if value is not None and not is_time(value):
        raise _wrong(file, field, value, "a time, ns since 1970, or null")
    return value


def is_time(ns: int) -> bool:
    """Say whether ns since 1970 are before 2116, so that differences fit into 64 bits."""
    return -LATEST_NS < ns < LATEST_NS


def _is_whole(value: object) -> TypeGuard[int]:
    return type(value) is int and -(2**63) <= value < 2**63


def _need_time(document: dict[str, Any], field: str, file: Path) -> int:
    value = _time(document, field, file)
    if value is None:
        raise _wrong(file, field, value, "a whole number: a time, ns since 1970")
    return value


def _need_whole(document: dict[str, Any], field: str, file: Path) -> int:
    value = _whole(document, field, file)
    if value is None:
        raise _wrong(file, field, value, "a whole number")
    return value


def _text(document: dict[str, Any], field: str, file: Path) -> str:
    value = document.get(field)
    if value is not None and not isinstance(value, str):
        raise _wrong(file, field, value, "text")
    return readable(value or "")


def _texts(document: dict[str, Any], field: str, file: Path) -> dict[str, str]:
    texts = document.get(field, {})
    if not isinstance(texts, dict):
        raise _wrong(file, field, texts, "an object")
    return {name: _text(texts, name, file) for name in texts}


def _wrong(file: Path, field: str, value: object, expected: str) -> HaiprofError:
    return HaiprofError(
        f"{file}: field '{field}' is {_shown(value)}, not {expected}: "
        "restore the file, or remove its folder"
    )


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
