"""Whoever asks the analysis for what is not there learns what there is; by every public method."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import runs
import traces

import haiprof
from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.answers.deep import TraceAnswers
from haiprof.answers.recorded import RecordedAnswers
from haiprof.common import asked, choices
from haiprof.errors import HaiprofError

#: Of each parameter, what nobody can mean by it, and what the answer must say besides that.
WRONG: dict[str, list[tuple[Any, str]]] = {
    "rank": [(7, "ranks 0 to 1"), (-1, "ranks 0 to 1"), ("0", "ranks 0 to 1")],
    "step": [(99, "step"), (-1, "whole number"), ("first", "whole number"), (1.5, "whole number")],
    "metric": [
        ("proc.rss.byte", "did you mean 'proc.rss.bytes'?"),
        ("rss.*", "available:"),
        (3, "text"),
    ],
    "category": [
        ("ops", "did you mean 'op'?"),
        (["op", "zzz"], "available:"),
        (3, "a list of texts"),
    ],
    "kind": [("kernl", "did you mean 'kernel'?"), (3, "a list of texts"), (["a", None], "texts")],
    "name": [("gem", "did you mean 'gemm'?"), (3, "a list of texts"), (b"gemm", "a list of texts")],
    "by": [("nam", "did you mean 'name'?"), (3, "valid:"), (["name"], "valid:")],
    "of": [("operator", "did you mean 'operators'?"), (3, "valid:")],
    "view": [("operator", "did you mean 'operators'?"), (3, "valid:")],
    "points": [(0, "from 1 on"), (1.5, "whole number"), ("many", "whole number")],
    "operator": [("aten::mn", "did you mean 'aten::mm'?"), (3, "text")],
    "shortest": [(0, "from 1 on"), ("x", "whole number")],
    "inside": [("ProfilerStep1", "did you mean 'ProfilerStep#1'?"), (3, "text")],
    "peak_flops": [(-1, "positive number"), (math.nan, "positive number"), ("1e15", "number")],
    "start": [("soon", "give a number"), (math.nan, "give a number"), (1e9, "no data from")],
    "end": [("late", "give a number"), (math.nan, "give a number"), (-1, "no data from")],
    "path": [(3, "path"), (None, "path"), ("", "path"), ("a\0b", "path"), ("no/such", "no/such")],
    "folder": [(3, "path"), (None, "path"), ("", "path"), ("no/such", "no such folder")],
    "after": [(None, "Analyzer of the later run"), ("run", "Analyzer of the later run")],
    "before": [("run", "Analyzer of the earlier run")],
    "baseline": [("run", "Analyzer of the good run")],
    "columns": [(["durations"], "did you mean 'duration'?"), ([3], "available:")],
    "length": [(0, "from 1 on"), (1.5, "whole number"), ("x", "whole number")],
    "question": [
        ("drop table kernels", "SELECT or WITH"),
        ("", "SELECT or WITH"),
        (3, "a text"),
    ],
    "kernel": [(3, "a text")],
    "factor": [(-1, "from 0 to 1"), (2, "from 0 to 1"), ("x", "0 to 1"), (math.nan, "0 to 1")],
    "phase": [("forwrd", "did you mean 'forward'?"), (3, "a list of texts")],
    "threads": [("trainin", "did you mean 'training'?"), (3, "valid:")],
    "keep": [({"names": ["x"]}, "did you mean 'name'?")],
}
#: What is on or off, an object of this library that was handed out before, or a function.
ANYTHING = {
    "compat", "drop_last_step", "executor", "told", "on_bytes", "process", "processes", "table",
    "frame", "work", "whose", "problems", "by_phase",
}  # fmt: skip
#: These words are of another method than the first that has such a parameter.
SPECIAL: dict[tuple[str, str], list[tuple[Any, str]]] = {
    ("events", "kind"): [("marck", "did you mean 'mark'?"), (3, "a list of texts")],
    ("device_spans", "category"): [("phse", "did you mean 'phase'?"), (3, "a list of texts")],
    ("device_spans", "name"): [("forwrd", "did you mean 'forward'?"), (3, "a list of texts")],
    ("spans", "name"): [("aten::mmm", "did you mean 'aten::mm'?"), (3, "a list of texts")],
    ("flame", "by"): [("lin", "did you mean 'line'?"), (3, "valid:")],
    ("stack_changes", "by"): [("lin", "did you mean 'line'?"), (3, "valid:")],
    ("idle", "by"): [("caus", "did you mean 'cause'?"), (3, "valid:")],
    ("what_if", "kind"): [("comput", "did you mean 'computation'?"), (3, "valid:")],
    ("flames", "of"): [("pythn", "did you mean 'python'?"), (3, "valid:")],
}


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Analyzer:
    folder = tmp_path_factory.mktemp("traces")
    for rank in range(2):
        traces.write(folder / f"rank{rank}.pt.trace.json", traces.small(rank))
    return Analyzer(folder)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Analyzer:
    run = runs.make_run(tmp_path_factory.mktemp("logs") / "r", ranks=2)
    spans = [runs.device_span(0, 5, "forward", 0)]
    runs.write_closed(next(run.glob("*#0")), schema.DEVICE_SPANS, spans)
    return Analyzer(run)


def asked_of() -> Iterator[tuple[str, str]]:
    for name in sorted(set(dir(Analyzer))):
        method = inspect.getattr_static(Analyzer, name)
        if name == "__init__" or (callable(method) and not name.startswith("_")):
            for parameter in inspect.signature(method).parameters:
                if parameter != "self" and parameter not in ANYTHING:
                    yield name, parameter


@pytest.mark.parametrize(("method", "parameter"), list(asked_of()))
def test_a_wrong_argument_is_one_line_that_says_what_there_is(
    method: str, parameter: str, traced: Analyzer, recorded: Analyzer
) -> None:
    assert (method, parameter) in SPECIAL or parameter in WRONG, (
        f"{method}({parameter}=): say in WRONG what it cannot be, or that it can be anything"
    )
    of_recorded = {
        "samples",
        "events",
        "device_spans",
        "read",
        "stacks",
        "flame",
        "stack_changes",
        "changes",
    }
    run = recorded if method in of_recorded else traced
    needed: dict[str, Any] = {}
    if method in ("compare", "differences", "stack_changes", "changes"):
        needed["after"] = run
    if method == "report":
        needed["path"] = "report.html"
    if method == "read":
        needed |= {"process": run.run.processes[0], "table": schema.SPANS, "columns": ["name"]}
    for given, says in SPECIAL.get((method, parameter)) or WRONG[parameter]:
        call: Callable[..., Any] = Analyzer if method == "__init__" else getattr(run, method)
        if method == "report" and given == "no/such":
            given = str(Path("no/such/folder/report.html"))
        with pytest.raises(HaiprofError) as error:
            call(**{**needed, parameter: given})
        line = str(error.value)
        assert says in line or (given == 99 and "has no step 99" in line), line
        assert "\n" not in line
        assert len(line) < 1000
        if not isinstance(given, (list, dict)):
            assert repr(given) in line or str(given) in line or says == "no data from", line


def test_what_is_there_or_could_be_is_no_error(traced: Analyzer, recorded: Analyzer) -> None:
    assert recorded.samples("gpu.power.watts").height == 0  # there is no GPU
    assert recorded.samples("gpu.*").height == 0
    assert recorded.samples("proc.*", rank=1).height > 0
    assert recorded.events(kind="lost").height == 0
    assert traced.spans(category="gc").height == 0
    assert traced.spans(category=["op", "user"]).height == 2 * 2
    assert traced.kernels(0, kind="memcpy").height == 0
    assert traced.between(0, 1).kernels(name="gemm").height == 4
    assert traced.sequences(operator="mm", shortest=99).height == 0


def test_words_of_ours_are_those_that_documents_name() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
    named = {line[3:].partition(".")[0] for line in docs.splitlines() if line.startswith("| `")}
    found = {word for word in named if word.isidentifier()} & {
        line[3:].partition("`")[0].partition(".")[0]
        for line in docs.splitlines()
        if line.startswith("| `") and "." in line[3:].partition("`")[0]
    }
    assert found - asked.THINGS == set()


def test_what_there_is_is_listed_up_to_a_bound_and_cannot_drive_a_terminal() -> None:
    many = [f"kernel_{n}" + "x" * 500 for n in range(100_000)]
    line = choices.unknown("kernl_7", many)
    assert len(line) < 1200
    assert "and 99990 more" in line
    assert "\x1b" not in choices.unknown("\x1b[31m", ["\x1b[31mred", "\u202egreen"])
    assert choices.unknown("x", []) == "available: none"


def test_every_public_name_is_there_and_another_is_named() -> None:
    for name in haiprof.__all__:
        assert getattr(haiprof, name) is not None
    code = "import haiprof\ntry: haiprof.Analizer\nexcept AttributeError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "did you mean 'Analyzer'?" in done.stdout


@pytest.mark.parametrize("answers", [TraceAnswers, RecordedAnswers])
def test_what_answers_has_no_public_method_that_the_analyzer_lacks(answers: type) -> None:
    inner = {"kernels_by", "end"}  # kernels(by=...), failure() in parts
    assert {n for n in vars(answers) if not n.startswith("_")} - inner <= set(dir(Analyzer))
    for name in vars(answers).keys() & vars(Analyzer).keys():
        if not name.startswith("_"):
            assert getattr(Analyzer, name).__doc__
