"""Runs torch-tb-profiler on a folder of traces: loads it and makes every view it has.

The loader is the plugin's own. It starts a process for each file, each of which imports the plugin
again and hands its result on through a pipe; unless told ``--processes``, the files are read here,
one after another, so that none of that counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
from pathlib import Path
from typing import Any

# The package of the readers comes first: it and ``run`` import each other.
import torch_tb_profiler.profiler
from measured import Measured
from torch_tb_profiler import io
from torch_tb_profiler.profiler import loader
from torch_tb_profiler.run import DistributedRunProfile


class Here:
    """Does at once what the plugin would start a process for."""

    def __init__(self, target: Any, args: Any) -> None:
        self._target, self._args = target, args

    def start(self) -> None:
        self._target(*self._args)


class Local:
    """The plugin's cache of remote files, for files that are here."""

    cache_dir = None

    def get_remote_cache(self, file: str) -> str:
        return file

    def add_file(self, source: str, local: str) -> None:
        """Nothing to remember: only files that had to be mended are reported, and read once."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", action="store_true", help="as the plugin does")
    parser.add_argument("--tables", action="store_true", help="show the operator tables")
    asked = parser.parse_args()
    files = [f for f in asked.folder.iterdir() if loader.consts.WORKER_PATTERN.match(f.name)]
    if asked.processes:
        cache = io.Cache()
        cache.__enter__()
    else:
        cache = Local()
        loader.Process, loader.Queue = Here, queue.SimpleQueue

    measured = Measured()
    run = torch_tb_profiler.profiler.RunLoader("run", str(asked.folder), cache).load()
    for child in multiprocessing.active_children():
        if "Manager" not in child.name:
            child.join()
    measured.opened()
    profiles = [p for p in run.profiles.values() if not isinstance(p, DistributedRunProfile)]
    for profile in profiles:
        _make_views(profile, measured)
    for profile in run.profiles.values():
        if isinstance(profile, DistributedRunProfile):
            measured.view("distributed", len(profile.steps_to_overlap["data"]))
    measured.done()
    if len(profiles) != len(files):
        raise SystemExit(f"{asked.folder}: the plugin read {len(profiles)} of {len(files)} files")
    if asked.tables:
        for profile in profiles:
            table = profile.operation_table_by_name["data"]
            measured.show(f"{profile.worker}/{profile.span or ''}", table)
    measured.report(asked.report)


def _make_views(profile: Any, measured: Measured) -> None:
    """Make what the plugin keeps for its web page, and what it makes when the page asks."""
    measured.view("overview", len(profile.overview["steps"]["rows"]))
    measured.view("operators", len(profile.operation_table_by_name["data"]))
    measured.view("operators by shape", len(profile.operation_table_by_name_input["data"]))
    if profile.has_kernel:
        measured.view("kernels", len(profile.kernel_table["data"]["rows"]))
        measured.view("kernels by operator", len(profile.kernel_op_table["data"]["rows"]))
    if profile.memory_snapshot:
        for name, table in (
            ("memory", profile.get_memory_stats()),
            ("memory curve", profile.get_memory_curve()),
            ("memory events", profile.get_memory_events()),
        ):
            measured.view(name, sum(map(len, table["rows"].values())))
    modules = profile.get_module_view()
    measured.view("modules", len(modules["data"]) if modules else 0)


if __name__ == "__main__":
    main()
