"""SQL answers about the run's tables, and reaches nothing else."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from runs import make_gpu_run

from haiprof import schema
from haiprof.agents import sql
from haiprof.agents.sql import ROWS, answered, ask
from haiprof.agents.texts import document
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Analyzer:
    return Analyzer(make_gpu_run(tmp_path_factory.mktemp("sql") / "r", ranks=2))


def rows(run: Analyzer, question: str) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(document(*answered(run, question)))["data"]["rows"]["rows"]
    return found


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("SELECT count(*) FROM spans WHERE category = 'step' AND rank = 1", [[118]]),
        ("with s as (select * from spans) select max(step) from s", [[117]]),
        (
            "select a.step, count(*) from spans a join spans b on a.start = b.start "
            "where a.category = 'step' and b.name = 'dataloader' and a.rank = 0 and b.rank = 1 "
            "group by all order by 1 limit 1",
            [[0, 1]],
        ),
        (
            "select count(*) from (select rank, start, category from spans) natural join spans",
            [[1180]],
        ),
        ("select s.category from spans s order by s.start, s.rank limit 1", [["phase"]]),
        ("select (s).name from (select spans as s from spans) limit 1", [["dataloader"]]),
        ("select count(*) from kernels where 1 = 0", [[0]]),
        ("select count(*) from allocations", [[0]]),
        ("select 1 where exists (select 1 from samples where rank is null)", [[1]]),
        ("select 'a' || chr(27), [1, 2], {'x': 1.5}", [["a\N{REPLACEMENT CHARACTER}", [1, 2],
                                                        {"x": 1.5}]]),
    ],
)  # fmt: skip
def test_a_question_is_answered(run: Analyzer, question: str, answer: list[list[Any]]) -> None:
    assert rows(run, question) == answer


def test_it_finds_what_our_own_sql_finds(run: Analyzer) -> None:
    for table in schema.TABLES:
        own = run.sql(f"SELECT * FROM {table}")
        (found,) = rows(run, f"SELECT count(*) FROM (SELECT * FROM {table})")
        assert found == [own.height]


def test_only_the_columns_that_are_needed_are_read(run: Analyzer) -> None:
    question = "select name from spans where rank = 3 union select kind from kernels"
    assert sql._needed(question) == {"spans": ["rank", "name"], "kernels": ["kind"]}
    assert sql._needed("select count(*) from spans") == {"spans": ["start"]}
    assert len(sql._needed("select * from spans")["spans"]) == len(sql._names(schema.SPANS))


@pytest.mark.parametrize(
    "question",
    [
        "select * from read_csv('{file}')",
        "select * from read_text('{file}')",
        "select * from read_blob('{file}')",
        "select * from read_json('{file}')",
        "select * from parquet_scan('{file}')",
        "select * from '{file}'",
        "select * from glob('{folder}/*')",
        "select * from sniff_csv('{file}')",
        "select * from read_csv('http://127.0.0.1:9/x')",
        "select * from query('copy (select 1) to ''{folder}/out''')",
        "copy (select 1) to '{folder}/out'",
        "copy spans to '{folder}/out'",
        "export database '{folder}/out'",
        "attach '{folder}/out'",
        "install httpfs",
        "load httpfs",
        "pragma database_list",
        "set memory_limit = '90GB'",
        "reset lock_configuration",
        "create table t (a int)",
        "insert into spans select * from spans",
        "update spans set rank = 7",
        "delete from spans",
        "drop view spans",
        "call pragma_version()",
        "explain select 1",
        "select 1; select 2",
        "select run, Analyzer from sql",
        "select",
        "",
        "select nothing from spans",
        "select getenv('HOME')",
    ],
)
def test_nothing_else_can_be_asked(run: Analyzer, question: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("secret\n1\n")
    with pytest.raises(HaiprofError) as error:
        answered(run, question.format(file=secret, folder=tmp_path))
    assert str(error.value).isprintable()
    assert list(tmp_path.iterdir()) == [secret]


def test_the_columns_of_a_table_are_described(run: Analyzer) -> None:
    found = [row[0] for row in rows(run, "DESCRIBE spans")]
    assert found == ["node", "rank", "pid", *(column.name for column in schema.SPANS.columns)]


def test_many_rows_are_cut_off_and_it_says_so(run: Analyzer) -> None:
    answer = answered(run, "select range from range(100000)")
    assert len(answer.data["rows"].rows) == ROWS
    assert "of more" in answer.says[0]


def test_what_a_plan_does_not_show_is_read_all_the_same(
    run: Analyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "_needed", lambda question: {"spans": ["start"]})
    assert rows(run, "select count(*) from spans where category = 'step'") == [[236]]


@pytest.mark.parametrize(
    "question",
    [
        "select sum(a.range * b.range) from range(100000000) a, range(100000000) b",
        "with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t",
        # DuckDB does not look at interrupts in it.
        "select length(repeat('x', 2000000000))",
    ],
)
def test_what_takes_too_long_is_ended(run: Analyzer, question: str) -> None:
    begin = time.monotonic()
    with pytest.raises(HaiprofError, match=r"took over 3 s and was ended|Out of Memory"):
        ask(run.run.folder, question, 3.0)
    assert time.monotonic() - begin < 60


def test_a_process_of_its_own_answers_and_says_what_is_wrong(run: Analyzer) -> None:
    answer = json.loads(ask(run.run.folder, "select count(*) as n from spans where rank = 0"))
    assert answer["data"]["columns"] == ["n"]
    with pytest.raises(HaiprofError, match=r"DuckDB: .*stepp"):
        ask(run.run.folder, "select stepp from spans")
    with pytest.raises(HaiprofError, match="the question has 30000 characters"):
        ask(run.run.folder, "x" * 30_000)
