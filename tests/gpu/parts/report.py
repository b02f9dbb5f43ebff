"""``haiprof run`` on the example, and the report that it writes, as a user has them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu.part import Part, main, scratch

from gpu import recorded

#: What the example and its report may take together, s.
LONGEST = 90.0
EPOCHS = {"cuda": 6, "cpu": 1}
#: By steps and by kernels the same may take shares that differ so much.
CLOSE = 0.02
#: Tables of the report that a run with a GPU has.
TABLES = ("Steps on the GPU", "GPUs", "Device phases, a step", "Kernels and copies")


def measure(part: Part) -> None:
    example = Path(os.environ["GPU_SUITE_SOURCES"], "examples", "train_digits.py")
    missing = [
        name for name in ("isal", "polars", "plotly") if importlib.util.find_spec(name) is None
    ]
    with scratch() as folder:
        command = [
            sys.executable, "-m", "haiprof.cli.main", "run", "--log-dir", folder, "--run",
            recorded.RUN, "--kernels-period", "3", *([] if missing else ["--report"]), "--",
            sys.executable, str(example), "--epochs", str(EPOCHS[part.device]),
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=min(LONGEST, part.left())
        )
        said = " | ".join([*done.stdout.splitlines()[-1:], *done.stderr.splitlines()[-2:]])
        part.check("the example ends as it does without haiprof", done.returncode == 0, said[-500:])
        run = Path(folder, recorded.RUN)
        if part.device == "cuda":
            kept(part, run)
        if missing:
            lacking = " and no ".join(missing)
            part.skipped(f"no {lacking}: the run is recorded, its report is to be made elsewhere")
            return
        report(part, run / "report.html")
        if part.device == "cuda":
            summed_up(part, run)


def kept(part: Part, run: Path) -> None:
    """Keep the run among the suite's files, and say whether it has what the report shows."""
    shutil.copytree(run, Path(os.environ["GPU_SUITE_FILES"], "example"), dirs_exist_ok=True)
    for table in ("kernels", "device_spans"):
        found = len(recorded.rows(run.parent, table))
        part.row(f"rows of {table}", found, "rows", target="> 0", met=found > 0)


def report(part: Part, page: Path) -> None:
    """Whether the page is there, and each of its tables of GPUs has rows."""
    tables = rows_of(page.read_text("utf-8"))
    filled = sum(count > 0 for count in tables.values())
    part.row("tables of the report with rows", filled, "tables", target="> 0", met=filled > 0,
             note=f"{page.stat().st_size >> 10} KiB")  # fmt: skip
    for title in TABLES if part.device == "cuda" else ():
        # Of several processes each has its own, with its name behind the title.
        found = sum(count for name, count in tables.items() if name.startswith(title))
        part.row(f"rows of the report's table {title}", found, "rows", target="> 0", met=found > 0)
    part.fact("rows of the report's tables", tables)


def summed_up(part: Part, run: Path) -> None:
    """Whether what was summed up of each step says of the GPU what its kernels say."""
    by_steps, by_kernels = uses(run)
    part.check("how the GPU was used was summed up by step", by_steps is not None)
    if by_steps is None:
        return
    # The kernels of the last step of each window may have come too late for it.
    lacking = by_kernels.recorded - by_steps.recorded
    part.limited("recorded steps that were not summed up", lacking, "steps",
                 max(1, by_kernels.intervals))  # fmt: skip
    shares = [
        {"busy": use.busy_ns, "exposed communication": use.exposed_ns, **use.idle_ns}
        for use in (by_steps, by_kernels)
    ]
    apart = max(
        abs((by_steps.share(shares[0].get(name, 0)) or 0)
            - (by_kernels.share(shares[1].get(name, 0)) or 0))
        for name in {*shares[0], *shares[1]}
    )  # fmt: skip
    part.limited("shares by steps and by kernels differ at most by", apart, "of the time", CLOSE)


def uses(run: Path) -> tuple[Any, Any]:
    """How the first rank's GPU was used, by what was summed up of its steps and by its kernels."""
    from haiprof.analyzer import Analyzer
    from haiprof.answers import gpu
    from haiprof.answers.one_process import read_events
    from haiprof.views.run import gpu_use

    process = next(p for p in Analyzer(run).run.processes if p.rank is not None)
    found = gpu.read_gpu(process)
    by_kernels = gpu_use.use(found.kernels, found.spans, found.phases, found.typical)
    return gpu.summed_use(process, read_events(process, "kernels", "graphs")), by_kernels


def rows_of(page: str) -> dict[str, int]:
    """The tables of a page: title -> rows; of those with one title, all rows."""
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', page, re.S)
    rows: dict[str, int] = {}
    for tab in json.loads(found[1])["tabs"] if found else ():
        for section in tab["sections"]:
            if section["kind"] == "table":
                rows[section["title"]] = rows.get(section["title"], 0) + section["rows"]
    return rows


if __name__ == "__main__":
    main(measure)
