"""The tools: their names, what they take, what they are for, and how a call is answered.

Tests: tests/cli/test_mcp.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from haiprof import schema
from haiprof.agents import sql, tools
from haiprof.agents.below import Below
from haiprof.agents.texts import MOST, document, shown
from haiprof.common import asked
from haiprof.common.choices import quoted, unknown
from haiprof.errors import HaiprofError

#: Characters of a verdict: 2 000 tokens, at four characters each.
VERDICT: Final = 8_000
_LONGEST: Final = 500


class Tool(NamedTuple):
    """One tool.

    Attributes:
        description: what it is for, as the agent that chooses reads it.
        answer: called with the runs and the arguments; returns the text.
        required: arguments that must be given.
        optional: arguments that may be.
    """

    description: str
    answer: Callable[..., str]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


#: Of each argument its type, and what it says.
ARGUMENTS: Final[dict[str, tuple[str, str]]] = {
    "run": ("string", "The run's name, as the tool runs has it."),
    "before": ("string", "The earlier run's name, as the tool runs has it."),
    "after": ("string", "The later run's name, as the tool runs has it."),
    "contains": ("string", "Only runs whose names contain this."),
    "question": ("string", "One SELECT in DuckDB's SQL."),
    "rank": ("integer", "This rank only."),
    "step": ("integer", "This step only."),
    "number": ("integer", "The finding's number in the verdict, from 1."),
}


def _of_run(answer: Callable[..., tools.Answer], most: int = MOST) -> Callable[..., str]:
    def asked_of(below: Below, run: str, **arguments: Any) -> str:
        return document(*answer(below.run(run), **arguments), most)

    return asked_of


def _runs(below: Below, **arguments: Any) -> str:
    return document(*tools.runs(below, **arguments))


def _compare(below: Below, before: str, after: str, **arguments: Any) -> str:
    return document(*tools.compare(below.run(before), below.run(after), **arguments))


def _sql(below: Below, run: str, question: str) -> str:
    return sql.ask(below.place(run).folder, question)


TOOLS: Final[dict[str, Tool]] = {
    "runs": Tool(
        "List the runs, the newest first: ranks, steps, how long, how each ended.",
        _runs,
        optional=("contains",),
    ),
    "verdict": Tool(
        "Say what costs a run its time or ended it: which ranks, where, evidence, fix, confidence. "
        "Ask this first.",
        _of_run(tools.verdict, VERDICT),
        ("run",),
        ("rank",),
    ),
    "finding": Tool(
        "Give all evidence of one finding of the verdict, and what would refute it.",
        _of_run(tools.finding),
        ("run", "number"),
        ("rank",),
    ),
    "ranks": Tool(
        "Compare the ranks of a run: state, step time, which are late, since when and in what.",
        _of_run(tools.ranks),
        ("run",),
    ),
    "steps": Tool(
        "Say how long steps take, whether that changes, which are slowest, and what their time "
        "goes to.",
        _of_run(tools.steps),
        ("run",),
        ("rank", "step"),
    ),
    "compare": Tool(
        "Say what changed from one run to a later one by more than chance; ns where not said.",
        _compare,
        ("before", "after"),
        ("rank",),
    ),
    "hang": Tool(
        "Give the hangs that were recorded: which rank kept the others waiting, and why.",
        _of_run(tools.hang),
        ("run",),
    ),
    "sql": Tool(
        "Answer one SELECT in DuckDB's SQL over the tables of a run. Tables: "
        f"{', '.join(schema.TABLES)}; each has node, rank and pid; times and durations are ns. "
        "DESCRIBE spans lists the columns of one.",
        _sql,
        ("run", "question"),
    ),
}


def schema_of(tool: Tool) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    names = (*tool.required, *tool.optional)
    return {
        "type": "object",
        "properties": {
            name: {"type": ARGUMENTS[name][0], "description": ARGUMENTS[name][1]} for name in names
        },
        "required": list(tool.required),
        "additionalProperties": False,
    }


def call(below: Below, name: str, arguments: Mapping[str, Any]) -> str:
    """Return the answer of a tool, as JSON.

    Raises:
        HaiprofError: there is no such tool or run, an argument is wrong, or something cannot be
            read.
    """
    tool = TOOLS.get(name)
    if tool is None:
        raise HaiprofError(f"no tool {quoted(name)}: {unknown(name, TOOLS)}")
    known = (*tool.required, *tool.optional)
    for given, value in arguments.items():
        if given not in known:
            raise HaiprofError(f"{name} takes no {quoted(given)}: {unknown(given, known)}")
        if ARGUMENTS[given][0] == "integer":
            asked.whole(given, value)
        elif not isinstance(value, str):
            raise HaiprofError(f"{given}={quoted(value)}: give a text")
    # An optional argument may be given as null.
    chosen = {given: value for given, value in arguments.items() if value is not None}
    for needed in tool.required:
        if needed not in chosen:
            raise HaiprofError(f"{name} needs {needed}: {ARGUMENTS[needed][1]}")
    return tool.answer(below, **chosen)


def one_line(error: BaseException) -> str:
    """Return what went wrong, for the caller of a tool."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return shown(f"{where}{error.strerror or error}", _LONGEST)
    text = str(error) if isinstance(error, HaiprofError) else f"{type(error).__name__}: {error}"
    return shown(text, _LONGEST)
