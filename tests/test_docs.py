"""Every code block of README and docs does what it says: commands parse, Python runs, data is data.

docs/analysis.md runs in tests/test_analyzer_examples.py, docs/integrations.md in
tests/peers/test_integrations.py and tests/peers/test_ray.py.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import runs
import traces
import typer
import yaml

from haiprof.analyzer import Analyzer
from haiprof.cli import arguments
from haiprof.cli.app import app, commands
from haiprof.export import parquet

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: A complete block, with what it is indented by.
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
#: What stands for something of the reader's.
PLACEHOLDER = re.compile(r"<\w+>")


class Block(NamedTuple):
    """A code block of a page."""

    page: str
    line: int
    language: str
    text: str


def blocks_of(page: str, text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, match[2].strip(), textwrap.dedent(match[3]))


BLOCKS = [
    block
    for path in PAGES
    for block in blocks_of(str(path.relative_to(ROOT)), path.read_text("utf-8"))
]


def of(*languages: str) -> Any:
    """Return the blocks in one of the languages, as parameters of a test."""
    found = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize(
        "block", found, ids=[f"{block.page}:{block.line}" for block in found]
    )


def command_lines(block: Block) -> Iterator[str]:
    """Yield the haiprof commands of a block: those at a prompt, where there is one."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    for line in text.splitlines():
        if block.language == "":
            prompt = re.match(r"\s*\$ (?:\w+=\S+ )*(haiprof .*)", line)
            # Without a prompt, an example of a command stands alone, and output has a colon.
            alone = re.match(r"haiprof (?!.*[\[|{]|.*   ).*", line) if "$ " not in text else None
            found = prompt[1] if prompt else alone[0] if alone else None
        else:
            start = re.match(r"\s*(?:\w+=\S+ )*(haiprof .*)", line)
            found = start[1] if start else None
        if found:
            yield PLACEHOLDER.sub("x", found)


def parse(words: list[str]) -> None:
    """Parse the words after ``haiprof`` as it does, without running anything."""
    if words[0] in ("run", "trace"):
        arguments.parse(words[1:], words[0])
        return
    group = typer.main.get_command(app)
    if words[0].startswith("-"):  # to parse it would carry it out
        assert words[0] in {name for option in group.params for name in option.opts}
        return
    if words[0] not in commands():
        words = ["attach", *words]
    command = group.commands[words[0]]  # type: ignore[attr-defined]
    with group.make_context("haiprof", list(words)) as context:
        command.make_context(words[0], words[1:], parent=context).close()


def words_of(line: str) -> list[str]:
    """Return the words of a command up to a comment, a pipe or a redirection."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        words.append(word)
    return words[1:]


COMMANDS = [
    pytest.param(line, id=f"{block.page}:{block.line}:{n}")
    for block in BLOCKS
    if block.language in ("", "sh", "console")
    for n, line in enumerate(command_lines(block))
]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_can_be_given_so(line: str) -> None:
    parse([word for word in words_of(line) if word not in ("...", "…")])


@pytest.mark.parametrize("line", ["haiprof sql x --jsn", "haiprof run --no", "haiprof top a b"])
def test_a_command_that_cannot_be_given_so_is_found(line: str) -> None:
    with pytest.raises((arguments.UsageError, typer.BadParameter.__mro__[2])):
        parse(words_of(line))


@of("sh")
def test_a_shell_block_is_a_program_of_the_shell(block: Block) -> None:
    text = PLACEHOLDER.sub("x", block.text)
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def ini(text: str) -> Any:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string(text)
    return parser.sections()


def dockerfile(text: str) -> Any:
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    assert all(re.match(r"(COPY|ENV|FROM|RUN|CMD|ENTRYPOINT) \S|#", line) for line in lines)
    return lines


READ: dict[str, Callable[[str], Any]] = {
    "yaml": yaml.safe_load,
    "json": json.loads,
    "ini": ini,
    "dockerfile": dockerfile,
}


@of(*READ)
def test_data_can_be_read(block: Block) -> None:
    assert READ[block.language](block.text)


def test_every_language_is_checked() -> None:
    assert {block.language for block in BLOCKS} <= {"", "sh", "python", *READ}
    assert sum(block.language == "python" for block in BLOCKS) > 20


def test_no_block_is_overlooked() -> None:
    for path in PAGES:
        text = path.read_text("utf-8")
        fences = len(re.findall(r"^ *```", text, re.MULTILINE))
        assert fences == 2 * len(list(blocks_of("", text))), path


# -- Python --------------------------------------------------------------------------------------

#: Run elsewhere.
ELSEWHERE = {"docs/analysis.md", "docs/integrations.md"}
#: Need a package that tests do not install, or a cluster: they only compile.
COMPILED = ("import ray", "defaultParallelism", 'Client("scheduler:8786")')
#: What stands before the blocks of a page: the reader's own program around them.
RECORDING = """
import os, time
import haiprof, torch

haiprof.start(log_dir="logs")
loss = torch.ones(())
"""
TRAINING = """
def train():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(20):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
IN_THE_JOB = {
    "docs/annotate.md": RECORDING,
    "docs/deep-trace.md": RECORDING + TRAINING,
    "docs/control.md": RECORDING,
    "docs/dashboards.md": RECORDING,
}
PYTHON = [block for block in BLOCKS if block.language == "python" and block.page not in ELSEWHERE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a working folder with a run and traces as the pages name them."""
    folder = tmp_path_factory.mktemp("docs")
    runs.make_gpu_run(folder / "haiprof-logs" / "late", ranks=4)
    for name in ("traces", "logs/resnet50"):
        for rank in range(4):
            traces.write(folder / name / f"rank{rank}.pt.trace.json", traces.small(rank))
    parquet.write(Analyzer(folder / "haiprof-logs" / "late"), folder / "out")
    return folder


def as_here(text: str, folder: Path) -> str:
    """Return a program with the names of the working folder, which ends within seconds."""
    text = text.replace("for epoch in range(1000)", "for epoch in range(1)")
    text = text.replace("torch.rand(1600, ", "torch.rand(64, ")
    text = text.replace("haiprof-logs/<run>", "haiprof-logs/late")
    text = text.replace("haiprof-logs/run", "haiprof-logs/late")
    text = text.replace("/shared/haiprof-logs", str(folder / "haiprof-logs"))
    return text.replace("between(600, 660)", "between(10, 20)")


@pytest.mark.parametrize("page", sorted({block.page for block in PYTHON}))
def test_the_python_of_a_page_runs(
    page: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = IN_THE_JOB.get(page, "import haiprof, polars, duckdb\n")
    if page not in IN_THE_JOB:
        program += 'run = later = haiprof.Analyzer("haiprof-logs/late")\n'
        program += "if __name__ == '__main__':\n"
    indent = "" if page in IN_THE_JOB else "    "
    for block in BLOCKS:
        if block.page == page and block.language == "python":
            text = as_here(block.text, folder)
            compile(text, page, "exec")
            if not any(name in text for name in COMPILED):
                program += textwrap.indent(text, indent)
    program = program.replace("4711", "os.getpid()")
    if "def train" in program:
        program = program.replace("    ...\n", "    train()\n")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "program.py"
    path.write_text(program)
    environment = {**os.environ, "HAIPROF_SHM_DIR": str(tmp_path / "shm")}
    (tmp_path / "shm").mkdir()
    done = subprocess.run(
        [sys.executable, "-P", str(path)], capture_output=True, text=True, timeout=120,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# -- guides --------------------------------------------------------------------------------------


def test_guides_name_the_lines_of_the_example_that_they_show() -> None:
    example = (ROOT / "examples/train_faults.py").read_text("utf-8").splitlines()
    pages = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs/guides").glob("*.md"))
    named = {int(number) for number in re.findall(r"train_faults\.py:(\d+)\)", pages)}
    shown = {example[number - 1].strip() for number in named}
    assert shown == {
        "time.sleep(self.seconds)",
        "time.sleep(3600)",
        'raise ValueError("line 50 of the data is no JSON")',
        "loss.backward()",
        "main()",
        "train(model, loader, optimizer, fault, arguments.steps)",
    }
