"""The closed list of kinds: each has a rule, or a line that says what is missing."""

from __future__ import annotations

import re
from pathlib import Path

from haiprof.findings.deep import as_findings
from haiprof.findings.kinds import KINDS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "haiprof" / "findings" / "recorded"


def test_each_kind_has_what_tells_it_or_what_is_missing() -> None:
    for name, kind in KINDS.items():
        assert kind.title, name
        assert bool(kind.recorded or kind.trace) != bool(kind.missing), name


def test_rules_find_kinds_of_the_list_and_nothing_else() -> None:
    files = [*RULES.glob("*_rules.py"), RULES / "device_errors.py"]
    code = "".join(path.read_text() for path in sorted(files))
    named = set(re.findall(r'kind="(\w+)"', code))
    assert named <= set(KINDS)
    without = [n for n, kind in KINDS.items() if kind.recorded and f'"{n}"' not in code]
    assert not without


def test_recommendations_have_a_kind_each() -> None:
    assert set(as_findings.KINDS.values()) <= {name for name, kind in KINDS.items() if kind.trace}


def test_the_page_on_diagnosis_has_them_all() -> None:
    page = (ROOT / "docs" / "diagnosis.md").read_text()
    missing = [name for name in KINDS if f"| `{name}` |" not in page]
    assert not missing
