"""Broken traces: each is opened with what it has, or refused, in one clear line; nothing else."""

from __future__ import annotations

import json
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mutations
import pytest
from real_data import DATA, need

TRACES = DATA / "traces"
#: A trace of 1 MB takes a tenth of this.
MOST_SECONDS = 20
#: Three quarters of what a bomb grows to.
MOST_BYTES = mutations.BOMB_BYTES * 3 // 4
OPENER = Path(__file__).with_name("opener.py")

#: Trees that the views climb, and every fifth of the others, go through all views; by hand all did.
VIEWED = {
    *(name for name in mutations.NAMES if name.startswith(("same.", "time.", "step."))),
    *random.Random(6).sample(mutations.NAMES, len(mutations.NAMES) // 5),
    "number.dur_overflow",
}


class Opener:
    """A process that opens traces; one that does not answer is ended, and the next is asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def open(self, file: Path, views: bool = False) -> dict[str, Any]:
        """Open ``file``, compute all its ``views``, and return what the process reported."""
        if self._process is None:
            pipe = subprocess.PIPE
            command = [sys.executable, OPENER]
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"all {file}\n" if views else f"{file}\n")
        process.stdin.flush()
        answered, _, _ = select.select([process.stdout], [], [], MOST_SECONDS)
        line = process.stdout.readline() if answered else ""
        if not line:
            self.end()
            died = f"the process ended with {process.returncode}"
            pytest.fail(died if answered else f"not done within {MOST_SECONDS} s")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="module")
def opener() -> Iterator[Opener]:
    need(TRACES)
    opener = Opener()
    yield opener
    opener.end()


@pytest.mark.parametrize("name", mutations.NAMES)
def test_a_broken_trace_is_opened_or_refused(name: str, opener: Opener, tmp_path: Path) -> None:
    data = mutations.make(name, TRACES)
    suffix = ".json.gz" if data.startswith(b"\x1f\x8b") else ".json"
    file = tmp_path / f"worker0.1.pt.trace{suffix}"
    file.write_bytes(data)

    answer = opener.open(file, name in VIEWED)

    assert "raised" not in answer, answer["raised"]
    lines = [answer["error"]] if "error" in answer else answer["problems"]
    assert all(line.isprintable() and len(line) < 1000 for line in lines), lines
    assert all(file.name in line for line in lines), lines
    if name in mutations.REPORTED:
        assert lines, f"something is lost, and nothing is said of it: {answer['rows']}"
    assert answer["grown"] < MOST_BYTES
    assert list(tmp_path.iterdir()) == [file], "something was written beside the trace"


def test_the_traces_themselves_are_read_without_a_word(opener: Opener, tmp_path: Path) -> None:
    for source in mutations.SOURCES.values():
        file = TRACES / source
        answer = opener.open(file)
        assert answer["problems"] == [], answer
        assert answer["rows"]["spans"] > 0


def test_mutations_are_the_same_every_time() -> None:
    need(TRACES)
    assert len(mutations.NAMES) >= 200
    first = [hash(data) for _, data in mutations.mutations(TRACES)]
    assert first == [hash(data) for _, data in mutations.mutations(TRACES)]
    assert len(set(first)) == len(first)
