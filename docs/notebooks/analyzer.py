# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The Analyzer in a notebook
#
# `haiprof.Analyzer` opens a run, or traces of other tools. Most of its methods return
# [polars](https://docs.pola.rs) frames. This notebook opens a run of two ranks, of which
# [one is late](../guides/slow-rank.html):
#
# ```sh
# haiprof run --run late -- torchrun --nproc-per-node 2 examples/train_faults.py --fault late
# ```

# %%
import polars as pl

import haiprof

run = haiprof.Analyzer("haiprof-logs/late")
print("\n".join(run.headline()))

# %% [markdown]
# What costs time, the most expensive first:

# %%
for finding in run.findings():
    print(f"{finding.kind}: {finding.problem}: {finding.share:.0%}")

# %% [markdown]
# Each nanosecond of each rank is charged to one cause:

# %%
seconds = pl.col("duration").sum() / 1e9
run.ledger().group_by("cause").agg(seconds).sort("duration", descending=True)

# %% [markdown]
# For which rank the others waited, and at which line it was meanwhile:

# %%
run.waits().select("late_rank", "op", "operations", "share", "phase", "line")

# %% [markdown]
# How long each phase took on each rank, ms:

# %%
run.phases().group_by("rank", "name").agg(pl.col("duration").median() / 1e6).sort("rank", "name")

# %% [markdown]
# Samples of the host, here the CPU time of each rank's process tree:

# %%
run.samples("proc.cpu.percent").group_by("rank").agg(pl.col("value").mean())
