"""Draws the cases of each kind from a seed: where, what, how much, since when."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from faults.cases import KINDS, Case

Draw = Callable[[int, random.Random], Case]

MLP: dict[str, Any] = {"model": "mlp"}
TRANSFORMER: dict[str, Any] = {"model": "transformer", "width": 192, "layers": 2, "batch": 8}
#: Its stages have as much to do as each other.
PIPELINE: dict[str, Any] = {
    "model": "transformer", "width": 192, "layers": 1, "length": 32, "vocabulary": 128,
    "steps": 60,
}  # fmt: skip
#: Work of the host's, by its name in the programs.
HOST = ("count", "numbers", "text", "pack")


def task(at: str, do: str, ms: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return the settings of one task."""
    own = {name: more.pop(name) for name in ("since", "until", "every", "ranks") if name in more}
    return {"at": at, "do": do, "ms": round(ms, 1), **own, "more": more}


def job(model: dict[str, Any], *tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the settings of one job."""
    return {**model, **more, "tasks": list(tasks)}


def way(seed: int, count: int) -> int:
    """Return which of so many variants a seed has: the even ones have all, and so have the odd."""
    return (seed + seed // count) % count


def slow_loader(seed: int, draw: random.Random) -> Case:
    do = draw.choice(HOST)
    variant = way(seed, 5)
    style = ("train", "train", "accelerated", "parallel", "with_trainer")[variant]
    world = 2 if style == "parallel" else 1
    if variant in (0, 4):
        settings = job(MLP, task("item", do, draw.uniform(20, 60)))
    elif variant == 1:
        settings = job(MLP, task("item", do, draw.uniform(180, 260)), workers=2, steps=70)
    elif variant == 2:
        settings = job(TRANSFORMER, task("collate", "pause", draw.uniform(25, 60)))
    else:
        settings = job(MLP, task("item", do, draw.uniform(30, 60)), steps=70)
    measure = "fetch" if variant == 1 else "tasks"
    places = (do, "prepare", "__getitem__") if variant != 2 else ("pause", "__call__")
    return Case("", "", seed, style, settings, world, measure, places=places)


def slow_storage(seed: int, draw: random.Random) -> Case:
    variant = way(seed, 2)
    if variant == 0:
        ms = draw.uniform(25, 60)
        settings = job(MLP, task("item", "read", ms, kib=draw.choice([4, 16, 64]), file="data"))
        return Case("", "", seed, "train", settings, measure="tasks", places=("read", "prepare"))
    mb = draw.uniform(5, 12)
    kib = int(mb * draw.uniform(80, 160))
    settings = job(MLP, task("item", "read", kib=64, all_kib=kib, file="data"), steps=80)
    limit = {"what": "reading", "mb": round(mb, 1)}
    return Case(
        "", "", seed, "train", settings, measure="tasks", places=("read", "prepare"),
        conditions=(limit,),
    )  # fmt: skip


def loader_worker_died(seed: int, draw: random.Random) -> Case:
    how = ({"how": "SIGKILL"}, {"how": "exit", "code": 3}, {"how": "address"})[way(seed, 3)]
    at = draw.randrange(50, 70)
    style = draw.choice(["train", "accelerated"])
    settings = job(MLP, task("item", "end", since=at, until=at + 1, **how), workers=2)
    return Case("", "", seed, style, settings)


def uneven_lengths(seed: int, draw: random.Random) -> Case:
    low, high = draw.randrange(16, 40), draw.randrange(110, 150)
    settings = job(TRANSFORMER, steps=80, length=150, batch=draw.choice([6, 8]))
    settings["extras"] = {"lengths": {"of": [low, high]}}
    style = ("parallel", "sharded")[way(seed, 2)]
    return Case("", "", seed, style, settings, 2, "spread")


def slow_batch(seed: int, draw: random.Random) -> Case:
    at, do = (("item", "text"), ("forward", "numbers"), ("item", "pack"))[way(seed, 3)]
    period = {"since": draw.randrange(5, 9), "every": draw.randrange(9, 16)}
    settings = job(MLP, task(at, do, draw.uniform(300, 600), **period))
    style = draw.choice(["train", "accelerated"])
    also = ("host_code",) if at == "forward" else ()
    return Case("", "", seed, style, settings, measure="tasks", also=also, places=(do, "prepare"))


def garbage_collection(seed: int, draw: random.Random) -> Case:
    objects = draw.randrange(20_000, 60_000)
    variant = way(seed, 3)
    if variant == 2:
        settings = job(MLP, task("item", "parse", objects=objects // 2))
    else:
        at = ("between", "forward")[variant]
        settings = job(
            MLP, task(at, "collect", objects=objects, every=draw.randrange(4, 9), since=2)
        )
    style = draw.choice(["train", "accelerated"])
    return Case("", "", seed, style, settings, measure="pauses", places=("collect", "parse"))


def host_code(seed: int, draw: random.Random) -> Case:
    at = ("forward", "between", "before_backward")[way(seed, 3)]
    do = draw.choice(HOST)
    style = ("train", "accelerated", "parallel", "with_trainer", "with_lightning")[way(seed, 5)]
    if at == "before_backward" and style.startswith("with"):
        at = "forward"
    model = draw.choice([MLP, TRANSFORMER])
    settings = job(model, task(at, do, draw.uniform(14, 50), since=draw.choice([0, 0, 30])))
    world = 2 if style == "parallel" else 1
    return Case("", "", seed, style, settings, world, "tasks", places=(do,))


def tensor_work(seed: int, draw: random.Random) -> Case:
    style = ("train", "with_lightning", "parallel", "with_trainer")[way(seed, 4)]
    do = draw.choice(["mirror", "blend", "tensors", "tally"])
    settings = job(draw.choice([MLP, TRANSFORMER]), task("between", do, draw.uniform(35, 70)))
    world = 2 if style == "parallel" else 1
    return Case("", "", seed, style, settings, world, "tasks", places=(do,))


def page_faults(seed: int, draw: random.Random) -> Case:
    # malloc keeps no block that is as large as this.
    work = task("forward", "anew", draw.uniform(30, 60), mb=draw.uniform(40, 90))
    style = ("train", "accelerated")[way(seed, 2)]
    return Case("", "", seed, style, job(MLP, work), measure="kernel", places=("anew",))


def uneven_input(seed: int, draw: random.Random) -> Case:
    lengths = {"of": [draw.randrange(24, 40), draw.randrange(120, 150)], "alike": True}
    settings = job(TRANSFORMER, steps=120, length=150, batch=draw.choice([6, 8]))
    settings["extras"] = {"lengths": {**lengths, "seldom": draw.randrange(6, 13)}}
    style = ("train", "accelerated")[way(seed, 2)]
    return Case("", "", seed, style, settings, measure="longest")


def framework(seed: int, draw: random.Random) -> Case:
    model = {**MLP, "width": draw.choice([1024, 1280, 1536]), "batch": draw.choice([16, 24])}
    settings = job(model, layers=(3, 5)[way(seed, 2)])
    settings["extras"] = {"average": True}
    return Case("", "", seed, "with_lightning", settings, measure="between")


def gil(seed: int, draw: random.Random) -> Case:
    what = ("count", "text")[way(seed, 2)]
    begin = task("between", "aside", draw.uniform(200, 400), since=25, until=26, what=what)
    begin["more"]["rest_ms"] = draw.choice([0, 20, 60])
    settings = job({**TRANSFORMER, "batch": 4, "layers": 4}, begin)
    style = draw.choice(["train", "accelerated"])
    return Case("", "", seed, style, settings, measure="blocked", places=(what, "refresh"))


def cpu_neighbour(seed: int, draw: random.Random) -> Case:
    beside = {"what": "hogs", "count": draw.randrange(3, 6), "after": draw.uniform(0, 6)}
    style = ("train", "parallel")[way(seed, 2)]
    world = 2 if style == "parallel" else 1
    settings = job(draw.choice([MLP, TRANSFORMER]), steps=90 // world)
    return Case("", "", seed, style, settings, world, "queue", conditions=(beside,))


def cpu_quota(seed: int, draw: random.Random) -> Case:
    style = ("train", "parallel")[way(seed, 2)]
    world = 2 if style == "parallel" else 1
    limit = {"what": "quota", "cores": round(draw.uniform(0.2, 0.3) * world, 2)}
    settings = job(draw.choice([MLP, TRANSFORMER]), steps=70)
    return Case("", "", seed, style, settings, world, "off_core", conditions=(limit,))


def too_many_threads(seed: int, draw: random.Random) -> Case:
    threads = draw.choice([8, 12, 16])
    # Threads that look for work for a while are what makes too many of them dear.
    spinning = {"what": "environment", "given": {"OMP_WAIT_POLICY": "active"}}
    if way(seed, 2) == 0:
        change = task("between", "threads", threads=threads, since=25, until=26)
        settings = job(MLP, change, steps=70)
        return Case("", "", seed, "train", settings, measure="excess", conditions=(spinning,))
    settings = job(MLP, threads=threads // 2, steps=60)
    return Case("", "", seed, "parallel", settings, 2, conditions=(spinning,))


def cpu_affinity(seed: int, draw: random.Random) -> Case:
    bound = {"what": "cores", "which": "0"}
    if way(seed, 2) == 0:
        settings = job(draw.choice([MLP, TRANSFORMER]), steps=70)
        return Case("", "", seed, "parallel", settings, 2, "queue", conditions=(bound,))
    work = task("item", draw.choice(HOST), draw.uniform(30, 60))
    settings = job(MLP, work, workers=2, steps=80)
    return Case("", "", seed, "train", settings, measure="queue", conditions=(bound,))


def out_of_memory(seed: int, draw: random.Random) -> Case:
    style = ("train", "parallel")[way(seed, 2)]
    world = 2 if style == "parallel" else 1
    of, since = draw.choice(["torch", "numpy"]), draw.randrange(50, 65)
    limit = {"mb": draw.randrange(5_000, 6_000), "of": of, "since": since}
    settings = job(MLP, task("between", "demand", ranks=[world - 1], **limit), steps=70)
    return Case("", "", seed, style, settings, world, ranks=(world - 1,))


def disk_full(seed: int, draw: random.Random) -> Case:
    since = draw.randrange(50, 65)
    if way(seed, 2) == 0:
        where = {"file": "disk/state", "mb": draw.randrange(20, 30), "since": since}
        small = ({"what": "small_disk", "mb": draw.randrange(8, 16)},)
    else:
        where = {"file": "/dev/full", "mb": draw.randrange(1, 8), "since": since}
        small = ()
    settings = job(MLP, task("between", "save", **where))
    return Case("", "", seed, "train", settings, conditions=small)


def slow_start(seed: int, draw: random.Random) -> Case:
    do = draw.choice(["text", "pack", "pause", "count"])
    style = ("train", "parallel")[way(seed, 2)]
    world = 2 if style == "parallel" else 1
    settings = job(MLP, task("start", do, draw.uniform(7_000, 12_000)), steps=100 // world)
    return Case("", "", seed, style, settings, world, "start", places=(do, "begin"))


def pipeline_stage(seed: int, draw: random.Random) -> Case:
    late = draw.randrange(2)
    do = ("tensors", "count")[way(seed, 2)]
    work = task("forward", do, draw.uniform(2.5, 5), ranks=[late])
    # So many microbatches that the bubble of the schedule itself is small.
    settings = job(PIPELINE, work, batch=24, microbatches=24)
    settings["extras"] = {"schedule": draw.choice(["gpipe", "1f1b"])}
    also = () if do == "tensors" else ("host_code",)
    return Case("", "", seed, "staged", settings, 2, "tasks", also=also, ranks=(late,))


def pipeline_bubble(seed: int, draw: random.Random) -> Case:
    pieces = (1, 2)[way(seed, 2)]
    settings = job({**PIPELINE, "layers": 2}, batch=24, microbatches=pieces)
    schedule = draw.choice(["gpipe", "1f1b"])
    # The other one needs as many microbatches as there are stages.
    settings["extras"] = {"schedule": schedule if pieces > 1 else "gpipe"}
    return Case("", "", seed, "staged", settings, 2, "bubble")


def straggler(seed: int, draw: random.Random) -> Case:
    world = draw.choice([2, 2, 3])
    late = draw.randrange(world)
    do = ("tensors", "count", "tensors", "pause")[way(seed, 4)]
    since = draw.choice([0, 0, 20])
    settings = job(MLP, task("forward", do, draw.uniform(25, 60), ranks=[late], since=since))
    settings["steps"] = 80
    style = ("parallel", "sharded")[way(seed, 2)] if world == 2 else "parallel"
    also = () if do == "tensors" else ("host_code",)
    return Case(
        "", "", seed, style, settings, world, "tasks", also=also, ranks=(late,), places=(do,)
    )


def recompilation(seed: int, draw: random.Random) -> Case:
    backend = ("aot_eager", "eager")[way(seed, 2)]
    settings = job(TRANSFORMER, length=160, steps=100)
    lengths = {"growing": draw.randrange(10, 15), "of": [40, 160]}
    settings["extras"] = {"compiled": {"backend": backend, "dynamic": False}, "lengths": lengths}
    return Case("", "", seed, "train", settings, measure="compiled")


def exposed_communication(seed: int, draw: random.Random) -> Case:
    wide = {"model": "mlp", "width": draw.choice([1536, 1792]), "batch": 8}
    settings = job(wide, steps=80)
    variant = way(seed, 2)
    if variant == 0:
        settings["extras"] = {"exchange": "flat"}
    measure = ("exchanged", "synchronized")[variant]
    return Case("", "", seed, "parallel", settings, 2, measure, places=("exchange",))


def small_collectives(seed: int, draw: random.Random) -> Case:
    many = {"model": "mlp", "width": 48, "layers": draw.randrange(120, 200), "batch": 64}
    settings = job(many, steps=80)
    variant = way(seed, 2)
    settings["extras"] = {"exchange": "each"} if variant == 0 else {"bucket_mb": 0.001}
    measure = ("exchanged", "synchronized")[variant]
    return Case("", "", seed, "parallel", settings, 2, measure, places=("exchange",))


def uneven_exchange(seed: int, draw: random.Random) -> Case:
    settings = job(TRANSFORMER, steps=70, batch=8)
    settings["extras"] = {"share": round(draw.uniform(0.8, 0.95), 2)}
    return Case("", "", seed, "experts", settings, 2, "spread")


def blocking_checkpoint(seed: int, draw: random.Random) -> Case:
    style = ("train", "parallel", "accelerated")[way(seed, 3)]
    world = 2 if style == "parallel" else 1
    every = draw.randrange(5, 10)
    work = task("between", "save", mb=draw.randrange(120, 260), every=every, since=4)
    if world > 1:
        work["ranks"] = [0]
    return Case("", "", seed, style, job(MLP, work), world, "tasks", places=("save",))


def logging(seed: int, draw: random.Random) -> Case:
    do = ("say", "write", "evaluate")[way(seed, 3)]
    style = draw.choice(["train", "accelerated"])
    if do == "evaluate":
        settings = job(MLP)
        batches = draw.randrange(4, 8)
        settings["extras"] = {"evaluate": {"every": draw.randrange(3, 6), "batches": batches}}
        return Case("", "", seed, style, settings, measure="evaluated", places=("evaluate",))
    settings = job(MLP, task("between", do, draw.uniform(15, 50)))
    return Case("", "", seed, style, settings, measure="tasks", places=(do,))


def memory_leak(seed: int, draw: random.Random) -> Case:
    at = ("between", "item")[way(seed, 2)]
    # Only its length distinguishes a leak from caches that fill.
    settings = job(MLP, task(at, "keep", mb=draw.randrange(2, 4)), steps=1000)
    return Case("", "", seed, draw.choice(["train", "accelerated"]), settings)


def regression(seed: int, draw: random.Random) -> Case:
    since = draw.randrange(45, 60)
    settings = job(MLP, task("forward", "tensors", draw.uniform(20, 50), since=since), steps=120)
    style = ("train", "accelerated")[way(seed, 2)]
    return Case("", "", seed, style, settings, measure="tasks", places=("tensors",))


def skipped_steps(seed: int, draw: random.Random) -> Case:
    settings = job(MLP, task("loss", "pause", every=draw.randrange(2, 6), since=10))
    settings["extras"] = {"scaler": True}
    style = ("train", "accelerated")[way(seed, 2)]
    return Case("", "", seed, style, settings, measure="left_out")


def slow_link(seed: int, draw: random.Random) -> Case:
    rate = draw.randrange(1_200, 2_400)
    bad = {"what": "link", "way": f"tbf rate {rate}mbit burst 256k latency 200ms"}
    style = ("parallel", "sharded")[way(seed, 2)]
    settings = job(MLP, steps=60)
    also = ("exposed_communication",)
    return Case("", "", seed, style, settings, 2, "synchronized", also=also, conditions=(bad,))


def packet_loss(seed: int, draw: random.Random) -> Case:
    # A queue that is too short for what is sent at once loses packets at any rate.
    rate, limit = draw.randrange(2_000, 4_000), draw.randrange(100, 130)
    bad = {"what": "link", "way": f"tbf rate {rate}mbit burst 70k limit {limit}k"}
    style = ("parallel", "sharded")[way(seed, 2)]
    settings = job(TRANSFORMER, steps=60)
    return Case("", "", seed, style, settings, 2, "synchronized", conditions=(bad,))


def starved_communication(seed: int, draw: random.Random) -> Case:
    # They give way to the loop, and the threads that communicate to them.
    beside = {"what": "hogs", "count": draw.randrange(2, 4), "nice": 10}
    settings = job({"model": "mlp", "width": draw.choice([1024, 1280]), "batch": 64}, steps=70)
    settings["extras"] = {"aside_nice": 19}
    return Case("", "", seed, "parallel", settings, 2, "synchronized", conditions=(beside,))


def exception(seed: int, draw: random.Random) -> Case:
    variant = way(seed, 3)
    style = ("train", "parallel", "accelerated")[variant]
    world = 2 if style == "parallel" else 1
    how = draw.choice(["key", "shape", "value"])
    at = draw.choice(["between", "forward", "item"])
    late = draw.randrange(world)
    work = task(at, "raised", since=draw.randrange(50, 65), how=how, ranks=[late])
    return Case(
        "", "", seed, style, job(MLP, work, steps=70), world, ranks=(late,), places=("raised",)
    )


def crash(seed: int, draw: random.Random) -> Case:
    variant = way(seed, 3)
    style = ("train", "parallel", "accelerated")[way(seed, 3)]
    world = 2 if style == "parallel" else 1
    late = draw.randrange(world)
    how = ("SIGKILL", "address", "abort")[(variant + seed) % 3]
    work = task("between", "end", since=draw.randrange(50, 65), how=how, ranks=[late])
    return Case("", "", seed, style, job(MLP, work, steps=70), world, ranks=(late,))


def preempted(seed: int, draw: random.Random) -> Case:
    style = ("train", "parallel")[way(seed, 2)]
    world = 2 if style == "parallel" else 1
    sent = {"what": "signalled", "signal": "SIGTERM", "step": draw.randrange(50, 65)}
    return Case("", "", seed, style, job(MLP, steps=100), world, conditions=(sent,))


def stopped(seed: int, draw: random.Random) -> Case:
    style = ("train", "parallel")[way(seed, 2)]
    world = 2 if style == "parallel" else 1
    sent = {"what": "signalled", "signal": "SIGSTOP", "step": draw.randrange(30, 50)}
    sent |= {"seconds": draw.uniform(5, 9), "rank": draw.randrange(world)}
    return Case(
        "", "", seed, style, job(MLP, steps=80), world, "stopped", ranks=(sent["rank"],),
        conditions=(sent,),
    )  # fmt: skip


def _until_reported(draw: random.Random) -> dict[str, Any]:
    """Return that a job is watched closely, and ended once somebody has said that it hangs."""
    how = draw.choice(["SIGINT", "SIGTERM"])
    return {"what": "ended_when_reported", "after": 4, "signal": how, "patience": 90}


def rank_never_arrived(seed: int, draw: random.Random) -> Case:
    world = draw.choice([2, 3])
    late = draw.randrange(world)
    ways = ("between", "pause"), ("item", "pause"), ("forward", "borrow"), ("between", "listen")
    at, do = ways[way(seed, len(ways))]
    since = draw.randrange(50, 65)
    work = task(at, do, 600_000.0, ranks=[late], since=since, until=since + 1)
    settings = job(MLP, work, steps=90, workers=int(at == "item"))
    style = "parallel" if at == "item" else ("parallel", "sharded")[way(seed, 2)]
    return Case(
        "", "", seed, style, settings, world, "stopped", ranks=(late,), places=(do, "prepare"),
        conditions=(_until_reported(draw),),
    )  # fmt: skip


def _apart(
    seed: int, draw: random.Random, world: int, do: str, ranks: list[int], **more: Any
) -> Case:
    since = draw.randrange(50, 65)
    one = task("between", do, since=since, until=since + 1, **more)
    if do == "meet":
        one["ranks"] = ranks
    return Case(
        "", "", seed, "parallel", job(MLP, one, steps=90), world, "stopped", ranks=tuple(ranks),
        conditions=(_until_reported(draw),),
    )  # fmt: skip


def collective_mismatch(seed: int, draw: random.Random) -> Case:
    how = ("barrier", "broadcast")[way(seed, 2)]
    return _apart(seed, draw, 3, "meet", [draw.randrange(3)], how=how)


def crossed_collectives(seed: int, draw: random.Random) -> Case:
    return _apart(seed, draw, 2, "share", [0, 1], backwards=[draw.randrange(2)])


def unmatched_send(seed: int, draw: random.Random) -> Case:
    world = (2, 3)[way(seed, 2)]
    return _apart(seed, draw, world, "take", list(range(world)), **{"from": 1})


def stalled_transfer(seed: int, draw: random.Random) -> Case:
    cut = {"what": "cut", "step": draw.randrange(50, 65)}
    style = ("parallel", "sharded")[way(seed, 2)]
    return Case(
        "", "", seed, style, job(TRANSFORMER, steps=120), 2, "stopped",
        conditions=(cut, _until_reported(draw)),
    )  # fmt: skip


DRAWS: dict[str, Draw] = {
    draw.__name__: draw
    for draw in (
        slow_loader, slow_storage, loader_worker_died, uneven_lengths, slow_batch,
        garbage_collection, host_code, gil, cpu_neighbour, cpu_quota, too_many_threads,
        cpu_affinity, out_of_memory, disk_full, slow_start, pipeline_stage, pipeline_bubble,
        straggler, recompilation, exposed_communication, small_collectives, uneven_exchange,
        blocking_checkpoint, logging, memory_leak, regression, skipped_steps, slow_link,
        packet_loss, starved_communication, exception, crash, preempted, stopped,
        rank_never_arrived, collective_mismatch, crossed_collectives, unmatched_send,
        stalled_transfer, tensor_work, page_faults, uneven_input, framework,
    )
}  # fmt: skip
#: Kinds that are not planted, with the reason.
NOT_PLANTED = {
    "memory_pressure": "needs a memory limit around the job alone, which takes a memory cgroup "
    "that the machine lends to tests",
    "machine_errors": "needs hardware that has errors, and a kernel that reports them",
}


def case(kind: str, seed: int) -> Case:
    """Return the case of a kind and a seed."""
    assert kind in KINDS
    made = DRAWS[kind](seed, random.Random(f"{kind} {seed}"))
    settings = {**made.job, "seed": seed}
    return Case(**{**vars(made), "kind": kind, "job": settings, "label": f"{kind} {made.style}"})
