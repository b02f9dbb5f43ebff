"""Whether the rank that comes late to a collective is named: the share of planted delays.

    PYTHONPATH=tests python -m faults.late_plants --delays 75 --ranks 2,3,4,5,6,7,8

In each job of gloo a rank drawn by chance comes 5 to 50 ms later than the others to one operation
in three. Ranks note their clocks just before they ask, and a delay counts where these notes show
it: on a busy machine another rank may have waited for a core for as long.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
from faults.late_names import LATE_NS, train

from haiprof.analyzer import Analyzer

#: Operations before the first delay, and between two of them.
FIRST, EACH = 10, 3
#: Of the delays, named at least.
TARGET = 0.99

PLANTED = """
import json, os, random, sys, time
import torch
import torch.distributed as dist

first, each, delays, seed = map(int, sys.argv[1:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
chance = random.Random(seed)
came = []
for n in range(first + each * delays):
    if n >= first and (n - first) % each == 0:
        late, by = chance.randrange(size), chance.uniform(0.005, 0.05)
        time.sleep(by if rank == late else 0.0)
    ones = torch.ones(1000)
    came.append(time.time_ns())
    dist.all_reduce(ones)
    time.sleep(0.002)
with open(f"came-{rank}.json", "w") as file:
    json.dump(came, file)
dist.destroy_process_group()
"""


class Score(NamedTuple):
    """How many delays the notes of the ranks show, and how many of these are named."""

    shown: int
    named: int


def score(run: Path, came: npt.NDArray[np.int64], first: int, each: int) -> Score:
    """Compare who is named late with who was.

    Args:
        run: of the job.
        came: when each rank (rows) came to each operation (columns), ns.
        first: number of the first delayed operation, from 0.
        each: one in so many is delayed.
    """
    operations = Analyzer(run).collectives().filter(pl.col("op") == "all_reduce")
    named = dict(operations.select("sequence", "late_rank").rows())
    order = np.sort(came, axis=0)
    shown = (order[-1] - order[-2] >= LATE_NS).nonzero()[0]
    delayed = [n for n in shown.tolist() if n >= first and (n - first) % each == 0]
    right = sum(named.get(n + 1) == came[:, n].argmax() for n in delayed)
    return Score(len(delayed), int(right))


def main(words: Sequence[str] | None = None) -> int:
    """Run a job of each number of ranks, and print how many of its delays were named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--delays", type=int, default=75, help="how many in each job")
    parser.add_argument("--ranks", default="2,3,4,5,6,7,8", help="numbers of ranks, with commas")
    parser.add_argument("--seed", type=int, default=1, help="by which ranks and delays are drawn")
    parser.add_argument(
        "--keep", type=Path, default=Path("build/late_plants"), help="where runs are"
    )
    given = parser.parse_args(words)
    keep = given.keep.resolve()
    shutil.rmtree(keep, ignore_errors=True)
    os.environ["HAIPROF_SHM_DIR"] = tempfile.mkdtemp(prefix="haiprof-test-", dir="/dev/shm")
    scores = []
    try:
        for count in map(int, given.ranks.split(",")):
            plan = [str(each) for each in (FIRST, EACH, given.delays, given.seed)]
            folder = keep / str(count)
            came = train(folder, PLANTED, plan, count, busy=False, patience=300)
            one = score(folder / "logs" / "run", came, FIRST, EACH)
            scores.append(one)
            print(f"{count} ranks: {one.named} of {one.shown} delays named", flush=True)
    finally:
        shutil.rmtree(os.environ["HAIPROF_SHM_DIR"], ignore_errors=True)
    shown, named = (sum(each) for each in zip(*scores, strict=True))
    print(f"{named} of {shown} delays named")
    return 0 if named >= TARGET * shown > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
