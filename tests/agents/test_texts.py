from __future__ import annotations

import json
import math
from typing import Any

import pytest

from haiprof.agents.catalog import VERDICT, one_line
from haiprof.agents.texts import LONGEST, Rows, document, first, lines, shown
from haiprof.agents.tools import Answer, verdict
from haiprof.errors import HaiprofError
from haiprof.findings.finding import Evidence, Finding
from haiprof.findings.kinds import KINDS


def data_of(data: dict[str, Any], **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document(["x"], data, **more))["data"]
    return found


def test_foreign_text_is_printable_and_short() -> None:
    evil = "a\x1b[31m\n\u202eb\udcff"
    assert shown(evil).isprintable()
    assert data_of({evil: [evil, {"x": evil}]}) == {shown(evil): [shown(evil), {"x": shown(evil)}]}
    long = data_of({"x": "y" * 10_000})["x"]
    assert len(long) == LONGEST
    assert long.endswith("…")
    assert lines("\n".join("abc"), 2) == ["a", "b", "… and 1 more lines"]


def test_what_json_lacks_is_null_or_text() -> None:
    found = data_of({"x": [math.inf, math.nan, 1 / 3, 10**30, True, None, b"\x00", 3 + 4j]})
    assert found["x"] == [None, None, 0.333333, 10**30, True, None, "b'\\x00'", "(3+4j)"]
    assert len(data_of({"x": list(range(1000))})["x"]) == 65


def test_rows_are_left_out_until_it_fits_and_counted() -> None:
    found = data_of({"a": first(range(10), 5), "b": Rows(["y" * 100] * 100)}, most=3000)
    assert found["a"] == {"rows": [0, 1, 2, 3, 4], "left_out": 5}
    assert found["b"]["left_out"] + len(found["b"]["rows"]) == 100
    assert 5 < len(found["b"]["rows"]) < 30
    with pytest.raises(HaiprofError, match="ask for less"):
        document([], {"x": ["y" * 300] * 60}, most=3000)


class Worst:
    """A run with more findings than there are kinds, in which all texts are as long as can be."""

    def __init__(self) -> None:
        self.ranks = list(range(10_000))
        self.run = self
        self.name = "n" * 10_000

    def findings(self, rank: int | None) -> list[Finding]:
        text = "\x1bw" * 10_000
        evidence = tuple(Evidence("source", text, text, "") for _ in range(100))
        return [
            Finding(kind, text, text, tuple(self.ranks), 10**18, share=0.5, phase=text, line=text,
                    evidence=evidence, ended=True)
            for kind in (*KINDS, *KINDS)
        ]  # fmt: skip

    def problems(self) -> list[str]:
        return ["p" * 10_000] * 10_000


def test_the_worst_verdict_has_2000_tokens() -> None:
    """At four characters each."""
    answer: Answer = verdict(Worst())  # type: ignore[arg-type]
    text = document(*answer, VERDICT)
    assert len(text) <= VERDICT == 4 * 2000
    found = json.loads(text)
    assert len(found["says"]) == 5
    findings = found["data"]["findings"]
    assert findings["rows"]
    assert len(findings["rows"]) + findings["left_out"] == 2 * len(KINDS)


def test_an_error_is_one_line() -> None:
    for error in (HaiprofError("a\nb"), ValueError("x\x1b"), OSError(2, "no such file", "/x\n")):
        assert one_line(error).isprintable()
    assert one_line(ValueError("x")) == "ValueError: x"
    assert len(one_line(HaiprofError("x" * 10_000))) == 500
