"""SQL over the tables of a run, by DuckDB in a process of its own that ends when its time is up.

DuckDB can be asked to stop, but a single function that builds gigabytes does not look: only a
process can be ended for certain. It reads of each table the columns that the question needs, and
neither files nor extensions nor settings can be reached from SQL.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import polars as pl

from haiprof import schema
from haiprof.agents.texts import Rows, document, shown
from haiprof.agents.tools import Answer, counted
from haiprof.analyzer import Analyzer
from haiprof.answers.sql import WHO
from haiprof.errors import HaiprofError
from haiprof.sources.tables import polars_type

#: How long a question may take, s, with the start of its process.
SECONDS: Final = 20.0
#: Rows of an answer.
ROWS: Final = 200
#: Memory of DuckDB, and all addresses of its process: threads and libraries take much of these.
_MEMORY: Final = "2GB"
_ADDRESSES: Final = 16 << 30
_THREADS: Final = 2
#: More of a question is none.
_LONGEST: Final = 20_000
#: What DuckDB changes a plan by so that columns do not show in it.
_HIDING: Final = "filter_pushdown,join_filter_pushdown,statistics_propagation"
_CONFIG: Final[dict[str, Any]] = {
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
    "max_temp_directory_size": "0KB",
    "memory_limit": _MEMORY,
    # Names in SQL are no variables of this program.
    "python_enable_replacements": "false",
    "threads": str(_THREADS),
}


def ask(folder: Path, question: str, seconds: float = SECONDS) -> str:
    """Return the answer to one SELECT, as :func:`haiprof.agents.texts.document` has it.

    Args:
        folder: of the run.
        question: in DuckDB's SQL, over the tables of :mod:`haiprof.schema`.
        seconds: how long it may take.

    Raises:
        HaiprofError: it is no question, it cannot be answered, or it takes too long.
    """
    if len(question) > _LONGEST:
        raise HaiprofError(f"the question has {len(question)} characters, more than {_LONGEST}")
    command = [sys.executable, "-P", "-m", __name__, str(folder), str(seconds)]
    if sys.version_info < (3, 11):
        command.remove("-P")
    done = subprocess.run(
        command,
        input=question.encode("utf-8", "replace"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "POLARS_MAX_THREADS": str(_THREADS)},
        check=False,
    )
    if done.returncode == -signal.SIGALRM:
        raise HaiprofError(f"the question took over {seconds:g} s and was ended: ask for less")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise HaiprofError(
            "the question took too much memory and was ended: ask for less"
        ) from None
    if "error" in answer:
        raise HaiprofError(answer["error"])
    return str(answer["answer"])


def answered(run: Analyzer, question: str) -> Answer:
    """Answer a question in this process.

    Raises:
        HaiprofError: it is no question, or cannot be answered.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config=_CONFIG)
    try:
        statements = connection.extract_statements(question)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise HaiprofError("only one question can be asked, which begins with SELECT or WITH")
        needed = _needed(question)
        try:
            return _rows(connection, run, needed, question)
        except duckdb.BinderException:
            # A plan may show less than what is needed.
            every = {name: _names(schema.TABLES[name]) for name in needed}
            return _rows(connection, run, every, question)
    except duckdb.Error as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "?")
        raise HaiprofError(f"DuckDB: {shown(said)}") from None


def _rows(connection: Any, run: Analyzer, needed: dict[str, list[str]], question: str) -> Answer:
    for name, table in schema.TABLES.items():
        frame = _read(run, name, needed[name]) if name in needed else _empty(table)
        connection.register(name, frame.to_arrow())
    result = connection.execute(question)
    columns = [column[0] for column in result.description]
    rows = result.fetchmany(ROWS + 1)
    more = len(rows) > ROWS
    of_more = f"The first {ROWS} rows of more: sum them up, or choose with WHERE"
    says = [of_more if more else counted(len(rows), "row")]
    return Answer(says, {"columns": columns, "rows": Rows(rows[:ROWS], int(more))})


def _read(run: Analyzer, table: str, columns: list[str]) -> pl.DataFrame:
    wanted = ", ".join(f'"{name}"' for name in columns)
    return run.sql(f'SELECT {wanted} FROM "{table}"')


def _names(table: schema.Table) -> list[str]:
    own = [column.name for column in table.columns]
    return [*(name for name in WHO if name not in own), *own]


def _empty(table: schema.Table) -> pl.DataFrame:
    kinds: dict[str, Any] = {
        column.name: pl.String() if column.kind == "text" else polars_type(column)
        for column in table.columns
    }
    return pl.DataFrame(schema={**WHO, **kinds}).select(_names(table))


def _needed(question: str) -> dict[str, list[str]]:
    """Return the columns that a question needs of each table, by how DuckDB would answer it."""
    import duckdb

    with duckdb.connect(":memory:", config={"threads": "1"}) as planner:
        for name, table in schema.TABLES.items():
            planner.register("empty", _empty(table).to_arrow())
            planner.execute(f'CREATE TABLE "{name}" AS SELECT * FROM empty')
            planner.unregister("empty")
        planner.execute(f"SET disabled_optimizers = '{_HIDING}'")
        planner.execute("SET enable_external_access = false")
        planner.execute("SET lock_configuration = true")
        try:
            named = set(planner.get_table_names(question)) & set(schema.TABLES)
        except duckdb.BinderException:  # of a NATURAL JOIN
            named = {name for name in schema.TABLES if name in question.lower()}
        plan = planner.execute(f"EXPLAIN (FORMAT json) {question}").fetchall()[-1][1]
    found: dict[str, set[str]] = {}
    waiting = list(json.loads(plan))
    while waiting:
        node = waiting.pop()
        waiting += node.get("children", ())
        about = node.get("extra_info", {})
        scanned = str(about.get("Table", "")).rpartition(".")[2]
        if scanned in schema.TABLES:
            columns = about.get("Projections", "")
            found.setdefault(scanned, set()).update(
                [columns] if isinstance(columns, str) else columns
            )
    return {name: _columns(schema.TABLES[name], found.get(name)) for name in named | set(found)}


def _columns(table: schema.Table, found: set[str] | None) -> list[str]:
    """Return these columns in their order; all of a table that the plan does not show."""
    every = _names(table)
    # Without any, how many rows there are.
    always = [column.name for column in table.columns if not column.nullable][:1]
    return every if found is None else [name for name in every if name in found] or always


def main() -> None:
    """Answer the question on stdin about the run that is named, and print JSON."""
    folder, seconds = sys.argv[1:]
    # Whatever it does, the kernel ends it then.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    question = sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        answer = {"answer": document(*answered(Analyzer(folder), question))}
    except HaiprofError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
