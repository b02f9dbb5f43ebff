"""Every option once: its name, type, default, environment variable and meaning.

``haiprof.start(name=…)``, ``HAIPROF_<NAME>`` and ``haiprof run --<name>`` all come from here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from haiprof.common.places import PROCFS, SYSFS, Access, find_procfs, find_sysfs

ENABLED_VARIABLE: Final = "HAIPROF_ENABLED"

#: What a user may name in ``recorders``: groups of sources, and the deep trace.
RECORDERS: Final = ("basic", "gpu", "ib", "mem", "power", "io", "trace")
HOST_RECORDERS: Final = ("basic", "gpu", "ib", "mem", "power", "io")
ALL: Final = "all"
#: Which GPU activity is recorded.
KERNELS: Final = ("off", "windows", "all")
#: What is recorded of CUDA graphs: how long each replay took, or the kernels in it, too.
GRAPHS: Final = ("replays", "kernels")
#: What a deep trace may hold beside operators and kernels.
TRACE_CONTENTS: Final = ("shapes", "stacks", "memory", "modules", "callstacks")


_LONGEST_RANKS: Final = 4096


class Options(NamedTuple):
    """The options of one run, checked."""

    log_dir: Path = Path("haiprof-logs")
    run: str = ""
    sample_hz: float = 1.0
    drain_hz: float = 4.0
    stack_hz: float = 10.0
    hang_after: float = 60.0
    on_finding: str = ""
    storage_limit: float = 0.0
    metrics: str = ""
    trackers: float = 10.0
    ring_mib: int = 16
    hooks: bool = True
    kernels: str = "windows"
    kernels_period: float = 60.0
    graphs: str = ""
    budget: float = 0.005
    warmup: float = 0.0
    time: float = 0.0
    recorders: str = ALL
    basic_interval: float = 0.0
    gpu_interval: float = 0.0
    ib_interval: float = 0.0
    mem_interval: float = 0.0
    power_interval: float = 0.0
    io_interval: float = 0.0
    procfs_root: str = ""
    sysfs_root: str = ""
    perfd: str = "/run/haiprof/perfd.sock"
    resctrl: bool = False
    trace: bool = False
    trace_steps: int = 0
    trace_seconds: float = 0.0
    trace_warmup: float = 5.0
    trace_mib: int = 128
    trace_with: str = "shapes,stacks,memory,modules"
    trace_ranks: str = ""
    flops: bool = False
    peak_flops: float = 0.0

    @property
    def traces(self) -> bool:
        """Whether to make a deep trace: set by ``trace``, or named among the recorders."""
        return self.trace or "trace" in self.recorders.split(",")

    @property
    def graph_kernels(self) -> bool:
        """Whether kernels are recorded once the job replays CUDA graphs, too.

        Recording them makes graphs slower, so only on request, or if all kernels are recorded.
        """
        return self.graphs == "kernels" or (not self.graphs and self.kernels == "all")

    def traces_rank(self, rank: int) -> bool:
        """Whether ``trace_ranks`` allows this rank a deep trace."""
        return not self.trace_ranks or any(rank in some for some in _ranks(self.trace_ranks))

    def intervals(self) -> dict[str, float]:
        """Return how often each recorder of the host is to read its sources, s."""
        chosen = RECORDERS if self.recorders == ALL else self.recorders.split(",")
        return {
            name: getattr(self, f"{name}_interval") or 1.0 / self.sample_hz
            for name in HOST_RECORDERS
            if name in chosen
        }

    def access(self) -> Access:
        """Return how the sources of the node are reached.

        Raises:
            ValueError: a root disappeared after it was checked.
        """
        return Access(
            str(find_procfs(self.procfs_root)) if self.procfs_root else PROCFS,
            str(find_sysfs(self.sysfs_root)) if self.sysfs_root else SYSFS,
            self.perfd,
            self.resctrl,
        )


class Option(NamedTuple):
    """How one field of :class:`Options` is set from outside."""

    name: str
    meaning: str
    parse: Callable[[str], Any]
    check: Callable[[Any], str | None]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"HAIPROF_{self.name.upper()}"


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("not 0 or 1")


def _between(
    low: float, high: float, unit: str, whole: bool = False
) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            return f"must be a {'whole ' if whole else ''}number ({unit})"
        return None if low <= value <= high else f"must be between {low:g} and {high:g} {unit}"

    return check


def _check_path(value: Any) -> str | None:
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        return "must be a path"
    if not os.fspath(value):
        return "must not be empty"
    try:
        Path(value).expanduser()
    except RuntimeError:
        return "names an unknown home folder"
    return None


def _check_run(value: Any) -> str | None:
    if not isinstance(value, str):
        return "must be a str"
    if "/" in value or value in (".", "..") or len(value) > 120 or "\0" in value:
        return "must be one path component of at most 120 characters"
    return None


def _names(text: str) -> str:
    return text.replace(" ", "").lower()


def _must(be: str, wrong: Sequence[object], known: Sequence[str]) -> str:
    """Say what a value must be, with a suggestion for the first wrong one."""
    from haiprof.common.choices import did_you_mean

    hint = did_you_mean(wrong[0], known) if wrong else ""
    return f"must be {be}{f': {hint}' if hint else ''}"


def _check_recorders(value: Any) -> str | None:
    if not isinstance(value, str):
        return "must be a str"
    unknown = [name for name in value.split(",") if name not in (ALL, *RECORDERS)]
    if unknown or (ALL in value.split(",") and value != ALL):
        return _must(f"{ALL} or some of {','.join(RECORDERS)}", unknown, (ALL, *RECORDERS))
    return None


def _check_contents(value: Any) -> str | None:
    if not isinstance(value, str):
        return "must be a str"
    wrong = [name for name in value.split(",") if name not in (*TRACE_CONTENTS, "")]
    return _must(f"some of {','.join(TRACE_CONTENTS)}", wrong, TRACE_CONTENTS) if wrong else None


def _ranks(text: str) -> list[range]:
    """Read ``0,3,8-15``.

    Raises:
        ValueError: it is something else.
    """
    ranges = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not all(word.isascii() and word.isdigit() for word in (first, last if dash else first)):
            raise ValueError(part)
        ranges.append(range(int(first), int(last if dash else first) + 1))
        if not ranges[-1]:
            raise ValueError(part)
    return ranges


def _check_ranks(value: Any) -> str | None:
    if value == "":
        return None
    try:
        if isinstance(value, str) and len(value) <= _LONGEST_RANKS:
            _ranks(value)
            return None
    except ValueError:
        pass
    return "must be comma-separated ranks and ranges, as in 0,3,8-15"


def _check_kernels(value: Any) -> str | None:
    return None if value in KERNELS else _must(" or ".join(KERNELS), [value], KERNELS)


def _check_graphs(value: Any) -> str | None:
    return None if value in ("", *GRAPHS) else _must(" or ".join(GRAPHS), [value], GRAPHS)


def _check_interval(value: Any) -> str | None:
    return None if value == 0 else _between(0.01, 86400, "seconds")(value)


def _check_patience(value: Any) -> str | None:
    return None if value == 0 else _between(1, 1e6, "seconds")(value)


def _check_storage(value: Any) -> str | None:
    return None if value == 0 else _between(0.01, 1e9, "GiB")(value)


def _check_command(value: Any) -> str | None:
    if not isinstance(value, str) or "\0" in value:
        return "must be a str"
    import shlex

    try:
        shlex.split(value)
    except ValueError as error:
        return f"must be a command as a shell has it: {error}"
    return None


def _check_metrics(value: Any) -> str | None:
    if not isinstance(value, str):
        return "must be a str"
    from haiprof.common.metrics_targets import targets_of

    try:
        targets_of(value)
    except ValueError as error:
        return f"must be {error}"
    return None


def _check_text(value: Any) -> str | None:
    return None if isinstance(value, str) and "\0" not in value else "must be a str"


def _check_root(find: Callable[[str], Path]) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if value == "":
            return None
        if not isinstance(value, str) or "\0" in value:
            return "must be a path"
        if not Path(value).is_absolute():
            return "must be an absolute path"
        try:
            find(value)
        except ValueError as error:
            return str(error)
        return None

    return check


def _check_boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be True or False"


OPTIONS: Final[dict[str, Option]] = {
    o.name: o
    for o in (
        Option("log_dir", "folder that runs are written to", Path, _check_path),
        Option("run", "name of the run's folder in it (empty: generated)", str, _check_run),
        Option(
            "sample_hz", "how often the host is sampled", float, _between(0.01, 100, "per second")
        ),
        Option("drain_hz", "how often rings are drained", float, _between(0.5, 100, "per second")),
        Option(
            "stack_hz",
            "how often Python stacks are sampled (0: not at all)",
            float,
            _between(0, 200, "per second"),
        ),
        Option(
            "hang_after",
            "seconds that ranks may wait for another before stderr says why (0: never)",
            float,
            _check_patience,
        ),
        Option(
            "on_finding",
            "command that is run for hangs and for what costs time (empty: none)",
            str,
            _check_command,
        ),
        Option(
            "storage_limit",
            "GiB of the records of a node in a run (0: a tenth of the disk, from 1 to 100)",
            float,
            _check_storage,
        ),
        Option(
            "metrics",
            "export figures to HOST:PORT, FILE.prom or otlp, several with commas (empty: nowhere); "
            "host beside them: samples of the host, too",
            str,
            _check_metrics,
        ),
        Option(
            "trackers",
            "seconds between sets of values in W&B, MLflow, TensorBoard or Comet (0: none)",
            float,
            _check_patience,
        ),
        Option(
            "ring_mib", "shared memory of one process", int, _between(2, 1024, "MiB", whole=True)
        ),
        Option("hooks", "find steps and phases in torch automatically", _boolean, _check_boolean),
        Option("kernels", f"GPU activity: {' or '.join(KERNELS)}", str, _check_kernels),
        Option(
            "kernels_period",
            "seconds from one window of kernels to the next",
            float,
            _between(1, 86400, "seconds"),
        ),
        Option(
            "graphs",
            f"CUDA graphs: {' or '.join(GRAPHS)} (empty: kernels if kernels is all, else replays)",
            str,
            _check_graphs,
        ),
        Option(
            "budget",
            "share of the job's time that it may take (0: any)",
            float,
            _between(0, 1, "of the time"),
        ),
        Option("warmup", "seconds before the recording begins", float, _between(0, 1e9, "seconds")),
        Option(
            "time",
            "seconds after which it ends (0: with the job)",
            float,
            _between(0, 1e9, "seconds"),
        ),
        Option("recorders", "what is sampled", _names, _check_recorders),
        *(
            Option(
                f"{name}_interval",
                f"seconds between samples of {name} (0: from sample_hz)",
                float,
                _check_interval,
            )
            for name in HOST_RECORDERS
        ),
        Option(
            "procfs_root",
            "where the node's /proc is mounted (empty: /proc)",
            str,
            _check_root(find_procfs),
        ),
        Option(
            "sysfs_root",
            "where the node's /sys is mounted (empty: /sys)",
            str,
            _check_root(find_sysfs),
        ),
        Option("perfd", "socket of haiprof-perfd (empty: do not use it)", str, _check_text),
        Option("resctrl", "make monitoring groups in resctrl", _boolean, _check_boolean),
        Option("trace", "make a deep trace with torch.profiler", _boolean, _check_boolean),
        Option(
            "trace_steps",
            "deep trace: length in steps (0: by trace_seconds or time, else 3)",
            int,
            _between(0, 100000, "steps", whole=True),
        ),
        Option(
            "trace_seconds",
            "deep trace: length in seconds (0: any)",
            float,
            _between(0, 1e6, "seconds"),
        ),
        Option(
            "trace_warmup",
            "deep trace: warm-up steps (seconds if only trace_seconds is given)",
            float,
            _between(0, 1e9, "steps"),
        ),
        Option(
            "trace_mib",
            "deep trace: memory its events may take; it ends early before that",
            int,
            _between(1, 65536, "MiB", whole=True),
        ),
        Option(
            "trace_with",
            f"deep trace: contents beside operators, some of {','.join(TRACE_CONTENTS)}",
            _names,
            _check_contents,
        ),
        Option(
            "trace_ranks",
            "deep trace: only these ranks (empty: all)",
            _names,
            _check_ranks,
        ),
        Option(
            "flops",
            "count the operations of one step of rank 0, which takes several times as long",
            _boolean,
            _check_boolean,
        ),
        Option(
            "peak_flops",
            "peak FLOP/s per GPU, for MFU (0: the vendor's figure)",
            float,
            _between(0, 1e21, "FLOP/s"),
        ),
    )
}
#: Options whose variable may be empty; for the others empty means not set.
_MAY_BE_EMPTY: Final = frozenset({"perfd", "trace_with", "trace_ranks"})
#: Variables that are not options: read in haiprof.common.places, haiprof.common.launcher,
#: haiprof.recorder.run_folder and haiprof.cli.hosts.launch.
_OTHER_VARIABLES: Final = frozenset(
    {
        ENABLED_VARIABLE,
        "HAIPROF_SHM_DIR",
        "HAIPROF_TASK_ID",
        "HAIPROF_USER_ID",
        "HAIPROF_HOSTS",
        "HAIPROF_HOSTFILE",
        "HAIPROF_SSH_COMMAND",
    }
)
assert set(OPTIONS) == set(Options._fields)


def resolve(
    given: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> tuple[Options, list[str]]:
    """Merge ``given`` over the environment over the defaults.

    ``None`` in ``given`` means not given. A value that cannot be used falls back to the next source
    and yields one line that names it and the fix, so a typo never stops a job.

    Returns:
        The options, and the lines to show the user.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name in given:
        if name not in OPTIONS:
            known = ", ".join(OPTIONS)
            problems.append(f"unknown option {name!r}; the options are {known}")
    for option in OPTIONS.values():
        text = environment.get(option.variable)
        if text or (text is not None and option.name in _MAY_BE_EMPTY):
            try:
                value = option.parse(text)
                wrong = option.check(value)
            except ValueError:
                wrong = "cannot be read as " + option.parse.__name__.strip("_")
            if wrong is None:
                values[option.name] = value
            else:
                problems.append(f"{option.variable}={text!r} {wrong}; using the default")
        value = given.get(option.name)
        if option.parse is str and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if value is not None:
            wrong = option.check(value)
            if wrong is None:
                values[option.name] = value
            else:
                problems.append(f"{option.name}={value!r} {wrong}; using the default")
    familiar = {option.variable for option in OPTIONS.values()} | _OTHER_VARIABLES
    problems += [
        f"{variable}={text!r} is unknown to this version; ignored"
        for variable, text in environment.items()
        if variable.startswith("HAIPROF_") and variable not in familiar and text not in ("", "0")
    ]
    if "log_dir" in values:
        values["log_dir"] = Path(values["log_dir"]).expanduser()
    return Options(**values), problems
