"""Settings and buckets of real models in DistributedDataParallel."""

from __future__ import annotations

import json
from typing import Any

from recording import run_python

PROGRAM = """
    import json, sys, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from haiprof import _core
    from haiprof.capture import hooks

    path = sys.argv[1] + "/test.ring"
    _core.open_ring(path)
    hooks.install(lambda kind, text: print(text, file=sys.stderr))
    events = []
    _core.event = lambda kind, text, attributes=None: events.append((kind, attributes))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    made = vars(DDP)["__init__"]

    def model():
        return torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])

    def train(ddp, passes, every=1):
        for n in range(1, passes + 1):
            ddp.require_backward_grad_sync = n % every == 0
            ddp(torch.ones(2, 512)).sum().backward()

    {body}
    hooks.uninstall()
    print(json.dumps([json.loads(text) for kind, text in events if kind == "ddp"]))
    import os
    sys.stdout.flush()
    os._exit(0)
"""


def recorded(body: str, folder: Any) -> list[dict[str, Any]]:
    program = PROGRAM.replace("{body}", "\n    ".join(body.strip().splitlines()))
    found: list[dict[str, Any]] = json.loads(run_python(program, str(folder), warm=True))
    return found


def test_a_model_is_recorded_once_with_the_rebuilt_buckets(shm: Any) -> None:
    body = """
ddp = DDP(model(), bucket_cap_mb=1.5, gradient_as_bucket_view=True)
train(ddp, 4)
assert not [kind for kind, _ in events if kind == "ddp"]
train(ddp, 80)
"""
    (only,) = recorded(body, shm)
    sizes = only.pop("bucket_bytes")
    assert sum(sizes) == only["parameter_bytes"] == 4 * (512 * 512 + 512) * 4
    assert len(sizes) == only.pop("buckets") > 1
    assert only == {
        "module": "Sequential",
        "world_size": 1,
        "backend": "gloo",
        "parameter_tensors": 8,
        "parameter_bytes": 4 * (512 * 512 + 512) * 4,
        "dtypes": "float",
        "bucket_cap_bytes": 3 << 19,
        "rebuilt": True,
        "comm_hook": None,
        "find_unused_parameters": False,
        "gradient_as_bucket_view": True,
        "broadcast_buffers": True,
        "sync_batch_norm": False,
        "static_graph": False,
    }


def test_models_are_recorded_each_with_its_settings(shm: Any) -> None:
    body = """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
static, unused = DDP(model(), static_graph=True), DDP(model(), find_unused_parameters=True)
static.register_comm_hook(None, default_hooks.fp16_compress_hook)
for _ in range(10):
    train(static, 1)
    train(unused, 1)
"""
    second, first = recorded(body, shm)  # what is never rebuilt is not waited for
    assert (first["static_graph"], first["comm_hook"]) == (True, "fp16_compress_hook")
    assert (second["find_unused_parameters"], second["rebuilt"]) == (True, False)
    assert sum(second["bucket_bytes"]) == second["parameter_bytes"]


def test_accumulation_only_makes_it_later(shm: Any) -> None:
    (only,) = recorded("train(DDP(model()), 80, every=4)", shm)
    assert only["rebuilt"]


def test_a_model_that_is_hardly_ever_reduced_is_recorded_as_it_is(shm: Any) -> None:
    (only,) = recorded("train(DDP(model()), 80, every=60)", shm)
    assert not only["rebuilt"]
    assert sum(only["bucket_bytes"]) == only["parameter_bytes"]


def test_a_model_that_is_gone_by_then_is_left_out(shm: Any) -> None:
    assert recorded("train(DDP(model()), 2)\ntrain(DDP(model()), 4)", shm) == []


def test_the_class_is_afterwards_as_it_was(shm: Any) -> None:
    body = """
hooks.uninstall()
assert vars(DDP)["__init__"] is not made
assert not hasattr(vars(DDP)["__init__"], "__wrapped__")
"""
    assert recorded(body, shm) == []
