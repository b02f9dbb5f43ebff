"""The recorder's process: ``python -m haiprof.recorder``; started by sessions, not by people.

Tests: tests/recorder/test_main.py.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.abc
import logging
import os
import resource
import sys
from pathlib import Path

from haiprof.common.places import PROCFS, SYSFS, Access
from haiprof.recorder.election import Election


def main(arguments: list[str] | None = None) -> int:
    """Become the recorder of a run, or exit quietly if it has one."""
    # Lower priority than the job, and on any core that the control group allows: the rank that
    # started it may be bound to a few, and needs them. This comes first: the imports below take a
    # core for a tenth of a second.
    with contextlib.suppress(OSError):
        os.nice(5)
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
    _allow_descriptors()
    parser = argparse.ArgumentParser(prog="haiprof.recorder")
    parser.add_argument("--ring-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument(
        "--interval", action="append", default=[], type=_interval, metavar="RECORDER=SECONDS"
    )
    parser.add_argument("--drain-hz", type=float, required=True)
    parser.add_argument("--stack-hz", type=float, required=True)
    parser.add_argument("--hang-after", type=float, required=True)
    parser.add_argument("--on-finding", default="", help="command to run for findings")
    parser.add_argument("--storage-limit", type=float, default=0.0, metavar="GIB")
    parser.add_argument("--metrics", default="", help="where to export figures to")
    parser.add_argument("--peak-flops", type=float, default=0.0, metavar="FLOP/S")
    parser.add_argument("--procfs", default=PROCFS, help="the node's")
    parser.add_argument("--sysfs", default=SYSFS, help="the node's")
    parser.add_argument("--perfd", default="", help="socket of haiprof-perfd")
    parser.add_argument("--resctrl", action="store_true", help="make monitoring groups")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s recorder[%(process)d] %(message)s",
        stream=sys.stderr,
    )

    election = Election(options.ring_dir)
    try:
        if not election.win():
            return 0
    except OSError as error:
        logging.error("%s: %s", error.filename, error.strerror)
        return 1

    sys.meta_path.insert(0, _Hidden())
    from haiprof.recorder.loop import Recorder

    recorder = Recorder(
        options.run_dir,
        intervals=dict(options.interval),
        access=Access(options.procfs, options.sysfs, options.perfd, options.resctrl),
        drain_hz=options.drain_hz,
        stack_hz=options.stack_hz,
        hang_after=options.hang_after,
        on_finding=options.on_finding,
        storage_limit=options.storage_limit,
        metrics=options.metrics,
        peak_flops=options.peak_flops,
    )
    # What was imported stays: looking through it for garbage costs more than all else that is.
    gc.freeze()
    try:
        recorder.run(election)
    except Exception:
        logging.exception("the recorder failed; what it wrote so far is complete")
        return 1
    return 0


def _allow_descriptors() -> None:
    """Raise the limit of open files: each process of the run needs some."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Hidden(importlib.abc.MetaPathFinder):
    """Hides what pyarrow imports where it is installed, to recognise arrays that nothing here has.

    numpy would be a sixth of the recorder's memory, pandas a third; with cloudpickle they take as
    long to import as pyarrow itself.
    """

    def find_spec(self, name: str, *others: object) -> None:
        """Refuse these; leave other modules to other finders."""
        if name in ("cloudpickle", "numpy", "pandas"):
            raise ModuleNotFoundError(f"the recorder does without {name}", name=name)


def _interval(text: str) -> tuple[str, float]:
    recorder, _, seconds = text.partition("=")
    return recorder, float(seconds)


if __name__ == "__main__":
    sys.exit(main())
