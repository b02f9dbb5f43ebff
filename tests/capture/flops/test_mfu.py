"""MFU of a job that really ran: an MLP, its operations by hand and its time as it noted it."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording import run_python, wait_recorded

from haiprof import Analyzer

PEAK = 1e9
BATCH, WIDTH, HIDDEN, OUT = 64, 128, 256, 32
#: Two layers forward, two gradients of weights, and that of the second layer's input.
FLOPS = 2 * BATCH * (2 * WIDTH * HIDDEN + 3 * HIDDEN * OUT)

PROGRAM = f"""
import sys, time
import torch
import haiprof
haiprof.start(sys.argv[1], run="mine", flops=True, peak_flops={PEAK:g})
model = torch.nn.Sequential(
    torch.nn.Linear({WIDTH}, {HIDDEN}), torch.nn.ReLU(), torch.nn.Linear({HIDDEN}, {OUT})
)
haiprof.model(samples_per_step={BATCH})
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
before_first = time.monotonic()
haiprof.step()
after_first = time.monotonic()
for number in range(40):
    loss = model(torch.ones({BATCH}, {WIDTH})).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    before_last = time.monotonic()
    haiprof.step()
print(before_last - after_first, time.monotonic() - before_first)
haiprof.stop()
"""


def test_mfu_of_a_job_is_what_it_is_by_hand(tmp_path: Path, shm: Path) -> None:
    # A busy machine can take its time between a step and the look at the clock.
    least, most = map(float, run_python(PROGRAM, str(tmp_path), warm=True).split())
    wait_recorded(shm)
    found = Analyzer(tmp_path / "mine").efficiency()
    rank = found.ranks.row(0, named=True)
    assert rank["steps"] == 40
    assert rank["flops_per_step"] == rank["hardware_flops_per_step"] == FLOPS
    assert (rank["flops_how"], rank["dtype"], rank["peak_flops"]) == ("counted", "fp32", PEAK)
    seconds = 40 * BATCH / rank["samples_per_s"]
    assert least * 0.999 <= seconds <= most * 1.001
    by_hand = 40 * FLOPS / seconds / PEAK
    assert rank["mfu"] == pytest.approx(by_hand)
    assert rank["hfu"] == pytest.approx(by_hand)
    assert found.run["mfu"].item() == pytest.approx(rank["mfu"])
