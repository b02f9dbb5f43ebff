"""Records programs with planted faults and healthy ones, and scores what is found in them.

    PYTHONPATH=tests python -m faults.bench --keep FOLDER --seeds 0,1 --healthy
    PYTHONPATH=tests python -m faults.bench --only-score FOLDER
    PYTHONPATH=tests python -m faults.bench --traces DATA --seeds 0,1,2,3

The second command diagnoses the runs of an earlier one again. Runs that a folder has already are
not recorded again. The third plants faults into recorded traces of GPUs instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from faults import drawn, healthy, score, traces, truth
from faults.cases import Case
from faults.record import reason_against, record

#: What a page has before and behind a score.
MARKS = "<!-- score: begin -->", "<!-- score: end -->"
MARKS_OF_TRACES = "<!-- score of traces: begin -->", "<!-- score of traces: end -->"
FINDINGS_FORMAT = "haiprof-findings"


def planned(kinds: Iterable[str], seeds: Iterable[int], with_healthy: bool) -> list[Case]:
    """Return the cases in the order in which they are recorded: each seed of all kinds, in turn."""
    kinds = list(kinds)
    cases = [drawn.case(kind, seed) for seed in seeds for kind in kinds if kind in drawn.DRAWS]
    return cases + (healthy.cases() if with_healthy else [])


def record_all(cases: Sequence[Case], keep: Path, until: float) -> dict[str, str]:
    """Record what a folder does not have yet; return why kinds could not be, by kind."""
    keep.mkdir(parents=True, exist_ok=True)
    left_out: dict[str, str] = {}
    for number, case in enumerate(cases, 1):
        if (keep / case.name / "truth.json").exists():
            continue
        reason = "no time was left" if time.monotonic() > until else reason_against(case)
        where = f"{number} of {len(cases)}: {case.label}, seed {case.seed}"
        if reason is None:
            true = record(case, keep)
            print(f"{where}: {true['wall_s']:.0f} s, exit code {true['exit_code']}", flush=True)
        else:
            print(f"{where}: left out: {reason}", flush=True)
            left_out[case.kind or case.label] = reason
    return left_out


def diagnose(run: Path, command: Sequence[str]) -> list[dict[str, Any]]:
    """Return the findings of a run."""
    words = [*command, "diagnose", str(run.resolve()), "--json"]
    # Not in the checkout, of which Python would import the sources.
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=600, cwd=run.parent
    )
    try:
        document = json.loads(done.stdout)
        assert document["format"] == FINDINGS_FORMAT
    except (ValueError, KeyError, AssertionError):
        raise SystemExit(f"{run}: no findings: {done.stderr.strip()[-500:]}") from None
    found: list[dict[str, Any]] = document["findings"]
    return found


def score_all(keep: Path, command: Sequence[str], wanted: set[str] | None) -> list[score.Row]:
    """Diagnose the runs of a folder and judge each; ``wanted`` are kinds, "healthy" among them."""
    folders = sorted(path.parent for path in keep.glob("*/truth.json"))

    def one(folder: Path) -> score.Row | None:
        true = truth.read(folder)
        if wanted is not None and (true["kind"] or "healthy") not in wanted:
            return None
        findings = diagnose(folder / "logs" / "run", command)
        (folder / "findings.json").write_text(json.dumps(findings, indent=1), "utf-8")
        return score.judge(true, findings)

    with ThreadPoolExecutor(2) as pool:
        rows = [row for row in pool.map(one, folders) if row is not None]
    return sorted(rows, key=lambda row: (row.kind or "~", row.label, row.seed))


def score_traces(
    data: Path, keep: Path, command: Sequence[str], kinds: Iterable[str], seeds: Sequence[int]
) -> list[score.Row]:
    """Plant into recorded traces, diagnose and judge each."""
    rows = []
    every = traces.planted(data, keep / "traces", kinds, seeds, lambda run: diagnose(run, command))
    for true, findings in every:
        rows.append(score.judge(true, findings))
        print(f"{true['label']}, seed {true['seed']}: {', '.join(rows[-1].said)}", flush=True)
    return rows


def write_page(page: Path, text: str, marks: tuple[str, str]) -> None:
    """Put a score between two comments of a page."""
    before, begin, rest = page.read_text("utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        raise SystemExit(f"{page}: there is no place for the score")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", "utf-8")


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """Return what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--kinds", help="kinds, with commas between (default: all)")
    parser.add_argument("--seeds", default="0,1", help="seeds, with commas between")
    parser.add_argument("--healthy", action="store_true", help="healthy runs, too")
    parser.add_argument("--keep", type=Path, default=Path("build/faults"), help="where runs are")
    parser.add_argument("--only-score", type=Path, help="score the runs in this folder")
    parser.add_argument("--traces", type=Path, help="score plants into the traces of this folder")
    parser.add_argument("--haiprof", help="the haiprof that diagnoses (default: of this Python)")
    parser.add_argument("--minutes", type=float, default=50.0, help="after which none is recorded")
    parser.add_argument("--page", type=Path, help="a page that the table is written into")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Record, score and print."""
    given = parsed(words)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    command = [given.haiprof] if given.haiprof else [sys.executable, "-m", "haiprof.cli.main"]
    marks = MARKS
    keep = given.only_score or given.keep
    if given.traces:
        kinds = given.kinds.split(",") if given.kinds else traces.KINDS
        rows = score_traces(given.traces, keep, command, kinds, seeds)
        text, marks = score.by_kind(rows, traces.NOT_PLANTED, traces.KINDS), MARKS_OF_TRACES
    else:
        kinds = given.kinds.split(",") if given.kinds else list(drawn.DRAWS)
        reasons = dict(drawn.NOT_PLANTED)
        if given.only_score is None:
            until = time.monotonic() + given.minutes * 60
            reasons |= record_all(planned(kinds, seeds, given.healthy), keep, until)
        wanted = {*kinds, *(["healthy"] if given.healthy else [])} if given.kinds else None
        rows = score_all(keep, command, wanted)
        text = score.table(rows, reasons)
        (keep / "score.md").write_text(text, "utf-8")
    print("\n".join([*score.alarms(rows), "", text, score.trust(rows)]))
    if given.page:
        write_page(given.page, text, marks)


if __name__ == "__main__":
    main()
