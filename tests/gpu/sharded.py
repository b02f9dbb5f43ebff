"""A transformer sharded by FSDP in bfloat16, whose gathers run on streams of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpu.jobs import Machine, Training, transformer


def join(rank: int, world: int, store: Path) -> Any:
    """Make NCCL's group on GPU 0, without a network; return torch.distributed."""
    import torch
    import torch.distributed as dist

    # NCCL looks for an interface, also where nothing is sent.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=world,
        device_id=torch.device("cuda", 0),
    )  # fmt: skip
    return dist


def sharded(machine: Machine) -> Training:
    """The job of a rank; RANK, WORLD_SIZE and GPU_SUITE_STORE say which."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    join(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]),
         Path(os.environ["GPU_SUITE_STORE"]))  # fmt: skip
    training = transformer(machine, "small")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in training.model[1].layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(training.model, mp_policy=policy)
    training.optimizer = torch.optim.AdamW(training.model.parameters(), foreach=True)
    return training
