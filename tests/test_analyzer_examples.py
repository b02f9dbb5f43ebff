"""The example of each public method of the Analyzer does what it says."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest
import runs
import traces

from haiprof import schema
from haiprof.analyzer import Analyzer

PUBLIC = [name for name in dir(Analyzer) if not name.startswith("_")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for rank in range(2):
        traces.write(folder / "traces" / f"rank{rank}.pt.trace.json", traces.small(rank))
    runs.make_gpu_run(folder / "logs" / "r", ranks=2)
    return folder


@pytest.mark.parametrize("name", PUBLIC)
def test_an_example_runs(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(getattr(Analyzer, name)) or ""
    names = {
        "run": Analyzer(folder / "logs"),
        "trace": Analyzer(folder / "traces"),
        "schema": schema,
        "Analyzer": Analyzer,
    }
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert example.examples, f"{name} has no example"
    output: list[str] = []
    doctest.DocTestRunner().run(example, out=output.append)
    assert not output, "".join(output)


def test_every_code_block_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[1] / "docs" / "analysis.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 1
    runs.make_gpu_run(tmp_path / "haiprof-logs" / "r", ranks=2)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert (tmp_path / "report.html").stat().st_size > 100_000
