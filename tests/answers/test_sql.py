"""SQL over a run's tables: what it answers is what the tables say, and it reads nothing else."""

from __future__ import annotations

import polars as pl
import pytest
import runs
import traces

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.sources import tables


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Analyzer:
    folder = tmp_path_factory.mktemp("traces")
    for rank in range(2):
        traces.write(folder / f"rank{rank}.pt.trace.json", traces.small(rank))
    return Analyzer(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Analyzer:
    return Analyzer(runs.make_gpu_run(tmp_path_factory.mktemp("logs") / "r", ranks=2))


def test_every_table_has_its_columns_and_its_processes(run: Analyzer, trace: Analyzer) -> None:
    for opened in (run, trace):
        for name, table in schema.TABLES.items():
            found = opened.sql(f"select * from {name}")
            assert found.columns == ["node", "rank", "pid", *(c.name for c in table.columns)]
            heights = [tables.read(process, table).frame.height for process in opened.run.processes]
            assert found.height == sum(heights)
            assert opened.sql(f"select count(*) as n from {name}")["n"].to_list() == [sum(heights)]
    assert run.sql("select distinct node from samples where rank is null").height > 0


def test_filters_groups_and_joins_are_those_of_polars(trace: Analyzer) -> None:
    kernels = trace.kernels(kind="kernel")
    wanted = (
        kernels.group_by("rank").agg(pl.col("duration").sum().alias("total")).sort("rank").rows()
    )
    found = trace.sql(
        "select rank, sum(duration) as total from kernels where kind = 'kernel' "
        "group by rank order by rank"
    )
    assert found.rows() == wanted
    joined = trace.sql(
        "with launches as (select * from spans where category = 'runtime') "
        "select k.rank, l.name as call, k.start - l.start as delay from kernels k "
        "join launches l on k.rank = l.rank and k.correlation = l.correlation "
        "where k.name like '%gemm%' or k.name like '%' order by k.rank, delay"
    )
    launched = trace.launches().with_columns(pl.col("call").cast(pl.String))
    assert joined.height == launched.height
    assert sorted(joined["call"]) == sorted(launched["call"])
    assert trace.sql("select rank from spans limit 3").height == 3


def test_only_needed_columns_are_read(trace: Analyzer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    read = tables.read

    def noted(process: object, table: object, columns: object) -> tables.Read:
        asked.append(columns)
        return read(process, table, columns)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "read", noted)
    trace.sql("select rank, sum(duration) as t from kernels group by rank")
    assert asked == [["duration"]] * 2
    asked.clear()
    # The first process has enough rows.
    assert trace.sql("select start from kernels limit 1").height == 1
    assert asked == [["start"]]


def test_a_part_of_a_run_has_its_rows_only(run: Analyzer) -> None:
    part = run.between(0, 0.15)
    whole, inside = (each.sql("select max(start) as t from spans")["t"][0] for each in (run, part))
    assert inside < whole


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("select nme from kernels", r"no column 'nme': did you mean 'name'\?"),
        ("select k.nme from kernels k", "no column 'nme'"),
        ("select * from kernel", r"no table 'kernel': did you mean 'kernels'\?"),
        ("selct 1", "only questions can be asked"),
        ("", "only questions can be asked"),
        ("drop table kernels", "only questions can be asked"),
        ("insert into kernels values (1)", "only questions can be asked"),
        ("-- a comment\ndelete from kernels", "only questions can be asked"),
        ("select 1; drop table kernels", "polars does not understand the question"),
        ("select foo(1) from kernels", "polars does not understand the question"),
        ("select * from read_csv('/etc/passwd')", "read_csv.. is not available"),
        ("select * from \"read_parquet\" /* */ ('/x')", "read_parquet.. is not available"),
        ("select \"a'b\" from read_csv('/x') where 'c'", "read_csv.. is not available"),
        (7, "give a question in SQL"),
    ],
)
def test_what_is_no_question_fails_in_one_line(trace: Analyzer, question: str, said: str) -> None:
    with pytest.raises(HaiprofError, match=said) as error:
        trace.sql(question)
    assert "\n" not in str(error.value)


def test_texts_may_contain_anything(trace: Analyzer) -> None:
    text = "'; drop table kernels; -- read_csv('"
    quoted = text.replace("'", "''")
    assert trace.sql(f"select '{quoted}' as x")["x"].to_list() == [text]
    assert trace.sql("select name from spans /* read_csv(x) */ limit 1").height == 1
