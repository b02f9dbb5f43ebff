"""Ray Train itself, as docs/integrations.md has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
from fixtures import ROOT

from haiprof.analyzer import Analyzer

#: Without the network.
ALONE = {"RAY_USAGE_STATS_ENABLED": "0"}


def test_the_program_of_the_docs(ray: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "integrations.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (program,) = (each for each in blocks if "import ray.train" in each)
    (tmp_path / "train.py").write_text(program)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HAIPROF_")}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=900,
        env=kept | ALONE | {"PYTHONPATH": str(ray), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = Analyzer(tmp_path / "haiprof-logs" / "mine")
    assert sorted(run.steps()["rank"].to_list()) == [0] * 12 + [1] * 12, "64 / 8 / 2, three times"
    epochs = run.events().filter((pl.col("kind") == "mark") & (pl.col("text") == "epoch"))
    assert sorted(epochs["rank"].to_list()) == [0] * 3 + [1] * 3
    phases = set(run.phases()["name"].to_list())
    assert phases >= {"dataloader", "forward", "backward", "gradient_sync", "optimizer"}
