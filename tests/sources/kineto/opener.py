"""Opens traces one after another, as a process that a test can wait for and end.

Each line of its input is a path, or a path after ``all `` to make every view; each line of its
output, as JSON, is what became of it: ``error`` (what haiprof says of it), ``problems`` and
``rows`` if it was opened, or ``raised`` (a traceback), with ``seconds`` and ``grown``, by how many
bytes memory grew while it was open.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.export import csv

#: Whatever goes wrong, the machine is left alone.
MOST_ADDRESSES = 16 << 30
TABLES = ("processes", "steps", "spans", "kernels", "device_spans", "samples")


def open_trace(path: str, all_views: bool) -> dict[str, Any]:
    """Open one trace, read its tables, and make its views."""
    try:
        analyzer = Analyzer(path)
        rows = {name: len(getattr(analyzer, name)()) for name in TABLES}
        if all_views:
            for view in csv.VIEWS.values():
                view(analyzer)
        return {"problems": analyzer.problems(), "rows": rows}
    except HaiprofError as error:
        return {"error": str(error)}
    except BaseException:  # also what native code makes of its own panics
        return {"raised": traceback.format_exc()}


def memory(field: str) -> int:
    """Bytes resident: now (``VmRSS:``), or at most since the peak was forgotten (``VmHWM:``)."""
    return int(Path("/proc/self/status").read_text().partition(field)[2].split()[0]) * 1024


def forget_peak() -> None:
    """Reset the peak of memory, if the kernel allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        forget_peak()
        before, begun = memory("VmRSS:"), time.monotonic()
        path = line.rstrip("\n")
        answer = open_trace(path.removeprefix("all "), path.startswith("all "))
        answer.update(seconds=time.monotonic() - begun, grown=memory("VmHWM:") - before)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
