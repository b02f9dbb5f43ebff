"""Fuzzes the analysis of other tools' traces: each mutated in some way, opened, viewed, reported.

``python foreign_traces.py --seed S --seconds N`` (or ``--first N --runs M``) tells how many runs
there were, and of each that went wrong its number, so that it can be repeated. Wrong is: a signal,
an exception that is no HaiprofError, also where it costs one rank only, more than five seconds of
work, a line that is none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import foreign_mutation
import foreign_seeds

#: Of work, s; a hang is longer, and on a busy machine the clock on the wall tells nothing.
MOST_CPU = 5.0
#: A process that says nothing for so long hangs, s.
MOST_WAIT = 120.0
#: What a rank is left out for that is no error of ours: its class is named.
_GUARDED = "or of a version that haiprof does not know"
_ESCAPED = re.compile(r"is left out: (?!Haiprof)\w*(Error|Exception|Interrupt)\b: ")


def run_one(seeds: list[Path], number: int, folder: Path) -> dict[str, Any]:
    """Mutate one of the seeds as ``number`` says, and look at it as a user would."""
    from haiprof.analyzer import Analyzer
    from haiprof.errors import HaiprofError
    from haiprof.export import csv

    chance = random.Random(number)
    seed = seeds[number % len(seeds)]
    copy = folder / seed.name
    if seed.is_dir():
        shutil.copytree(seed, copy, copy_function=shutil.copy)
    else:
        shutil.copy(seed, copy)
    outcome: dict[str, Any] = {"number": number, "seed": f"{seed.parent.name}/{seed.name}"}
    if number >= len(seeds):  # the first ones are whole
        files = sorted(f for f in (copy.rglob("*") if seed.is_dir() else [copy]) if f.is_file())
        outcome["how"] = [foreign_mutation.mutate(f, chance) for f in chance.choices(files, k=1)]
    begun = time.process_time()
    lines: list[str] = []
    try:
        run = Analyzer(copy)
        run.overview()
        run.recommendations()
        # These take long: each is made of some of the runs.
        if number % 7 == 0:
            run.report(folder / "report.html")
        elif number % 7 == 1:
            for view in csv.VIEWS.values():
                view(run)
        lines = run.problems()
        outcome["opened"] = True
    except HaiprofError as error:
        lines = [str(error)]
        outcome["refused"] = True
    except BaseException:  # also what native code makes of its own panics
        outcome["wrong"] = traceback.format_exc()
    outcome["cpu"] = time.process_time() - begun
    for line in lines:
        if _GUARDED in line:
            outcome["guarded"] = line
        if _ESCAPED.search(line) or "\n" in line or len(line) > 1500:
            outcome["wrong"] = line
    if number < len(seeds) and "opened" not in outcome:
        outcome["wrong"] = f"the seed itself cannot be read: {lines}"
    return outcome


def work(seeds: list[Path]) -> None:
    """Do each run whose number comes in, one a line, and say what became of it."""
    for line in sys.stdin:
        with tempfile.TemporaryDirectory(prefix="haiprof-fuzz-") as folder:
            print(json.dumps(run_one(seeds, int(line), Path(folder))), flush=True)


class Worker:
    """The process in which runs take place; one that dies or hangs is followed by the next."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._process: subprocess.Popen[str] | None = None

    def run(self, number: int) -> dict[str, Any]:
        if self._process is None:
            pipe = subprocess.PIPE
            command = [sys.executable, __file__, "--worker", *self._words]
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        answered, _, _ = select.select([process.stdout], [], [], MOST_WAIT)
        line = process.stdout.readline() if answered else ""
        if line:
            outcome: dict[str, Any] = json.loads(line)
            return outcome
        self.end()
        code = process.returncode
        wrong = f"the process ended with {code}" if answered else f"no answer in {MOST_WAIT:g} s"
        return {"number": number, "wrong": wrong, "cpu": 0.0}

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> int:
    words = argparse.ArgumentParser()
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--seconds", type=float, default=0.0)
    words.add_argument("--first", type=int)
    words.add_argument("--runs", type=int, default=50, help="at least so many")
    words.add_argument("--data", type=Path)
    words.add_argument("--progress", action="store_true")
    words.add_argument("--worker", type=Path)
    given = words.parse_args()
    if given.worker is not None:
        work([Path(seed) for seed in json.loads(given.worker.read_text())])
        return 0
    with tempfile.TemporaryDirectory(prefix="haiprof-fuzz-") as folder:
        seeds = foreign_seeds.write(Path(folder) / "seeds", given.data)
        seeds_file = Path(folder) / "seeds.json"
        seeds_file.write_text(json.dumps([str(seed) for seed in seeds]))
        worker = Worker([str(seeds_file)])
        numbers = itertools.count(given.first or 0)
        if given.first is None:  # all seeds as they are, then what nobody has seen
            first = given.seed * 1_000_000
            numbers = itertools.chain(range(len(seeds)), itertools.count(first))
        end = time.monotonic() + given.seconds
        count: Counter[str] = Counter()
        runs = failed = 0
        while runs < given.runs or time.monotonic() < end:
            outcome = worker.run(next(numbers))
            runs += 1
            if outcome["cpu"] > MOST_CPU and runs > 1:  # the first one imports
                outcome.setdefault("wrong", f"took {outcome['cpu']:.1f} s")
            if "guarded" in outcome and given.progress:
                print(outcome["guarded"][-400:], outcome["number"], file=sys.stderr, flush=True)
            for what in ("opened", "refused", "guarded", "wrong"):
                count[what] += what in outcome
            if given.progress and runs % 100 == 0:
                print(f"{runs} runs, {failed} wrong", file=sys.stderr, flush=True)
            if "wrong" in outcome:
                failed += 1
                print(json.dumps(outcome), file=sys.stderr, flush=True)
        worker.end()
    print(
        f"{runs} runs: {count['opened']} opened, {count['refused']} refused, "
        f"{count['guarded']} of them for reasons that nobody thought of, {failed} wrong"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
