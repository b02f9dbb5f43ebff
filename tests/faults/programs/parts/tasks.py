"""What programs do beside training: some computing, reading, writing, waiting."""

from __future__ import annotations

import copy
import ctypes
import gc
import gzip
import json
import mmap
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from parts.notes import Notes
from parts.settings import Job, Task

Call = Callable[["Helper", Task], None]


class Helper:
    """Does the tasks of one rank, and notes what they take."""

    def __init__(self, job: Job, notes: Notes | None = None) -> None:
        self.job = job
        self.notes = notes
        self.kept: list[object] = []

    def due(self, place: str, step: int) -> list[Task]:
        """Return the tasks of a place in a step; ``after`` names a file that they wait for."""
        due = (task for task in self.job.at(place) if task.due(step, self.job.rank))
        return [
            task for task in due if "after" not in task.more or Path(task.more["after"]).exists()
        ]

    def run(self, place: str, step: int) -> None:
        """Do what is to be done at a place in a step."""
        for task in self.due(place, step):
            call = KINDS[task.do]
            if self.notes is None or threading.current_thread() is not threading.main_thread():
                call(self, task)
                continue
            with self.notes.spending():
                call(self, task)


def used(ms: float) -> Callable[[], bool]:
    """Return what says whether this thread has been on a core for so long from now on."""
    until = time.thread_time() + ms / 1000
    return lambda: time.thread_time() >= until


def count(helper: Helper, task: Task) -> None:
    over = used(task.ms)
    while not over():
        total = 0
        for number in range(2_000):
            total += number * number % 7


def numbers(helper: Helper, task: Task) -> None:
    over = used(task.ms)
    values = np.random.default_rng(helper.job.seed).normal(size=8_192)
    while not over():
        values = np.sort(np.abs(np.fft.rfft(values, 16_382)))


def text(helper: Helper, task: Task) -> None:
    over = used(task.ms)
    document = {f"key {number}": list(range(20)) for number in range(40)}
    while not over():
        json.loads(json.dumps(document))


def pack(helper: Helper, task: Task) -> None:
    over = used(task.ms)
    content = np.arange(20_000, dtype=np.int32).tobytes()
    while not over():
        gzip.decompress(gzip.compress(content, 4))


def tensors(helper: Helper, task: Task) -> None:
    over = used(task.ms)
    values = torch.rand(192, 192)
    with torch.no_grad():
        while not over():
            values = torch.tanh(values @ values)


def mirror(helper: Helper, task: Task) -> None:
    """Copy a state as often as there is time for."""
    over = used(task.ms)
    state = {f"layer {number}": torch.rand(128, 256) for number in range(16)}
    while not over():
        copy.deepcopy(state)


def blend(helper: Helper, task: Task) -> None:
    """Move averages towards values, one after the other."""
    over = used(task.ms)
    means = [torch.rand(256, 256) for _ in range(8)]
    values = torch.rand(256, 256)
    while not over():
        means = [0.99 * mean + 0.01 * values for mean in means]


def tally(helper: Helper, task: Task) -> None:
    """Count which classes are taken for which."""
    over = used(task.ms)
    taken, true = torch.randint(0, 50, (2, 100_000))
    while not over():
        torch.bincount(50 * true + taken, minlength=2_500).view(50, 50)


def anew(helper: Helper, task: Task) -> None:
    """Allocate and fill a large tensor, again and again."""
    over = used(task.ms)
    while not over():
        torch.zeros(int(task.more["mb"] * 250_000)).add_(1)


def pause(helper: Helper, task: Task) -> None:
    time.sleep(task.ms / 1000)


def read(helper: Helper, task: Task) -> None:
    """Read pieces of a large file, past the page cache: so many KiB, or until the time is over."""
    until = time.perf_counter() + task.ms / 1000
    left = int(task.more.get("all_kib", 0)) * 1024
    size = int(task.more.get("kib", 64)) * 1024
    path = Path(task.more["file"])
    length = path.stat().st_size
    # Only memory that begins with a page can be read into past the cache.
    piece = mmap.mmap(-1, size)
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        while left > 0 or time.perf_counter() < until:
            at = random.randrange(length - size) // 4096 * 4096
            os.preadv(file, [piece], at)
            left -= size
    finally:
        os.close(file)


def collect(helper: Helper, task: Task) -> None:
    """Hold many objects, and have the interpreter look through them."""
    if not helper.kept:
        helper.kept = [{"row": [number]} for number in range(int(task.more["objects"]))]
    gc.collect()


def parse(helper: Helper, task: Task) -> None:
    """Make many objects that stay for a while."""
    helper.kept.append([{"row": [number]} for number in range(int(task.more["objects"]))])
    if len(helper.kept) > 8:
        del helper.kept[0]


def say(helper: Helper, task: Task) -> None:
    over = used(task.ms)
    while not over():
        print(f"step {time.time():.3f} loss {random.random():.4f} {helper.job}", flush=True)


def write(helper: Helper, task: Task) -> None:
    """Append lines to a file and see each of them onto the disk."""
    until = time.perf_counter() + task.ms / 1000
    with helper.job.scratch("lines").open("a") as file:
        while time.perf_counter() < until:
            file.write(json.dumps({"loss": random.random(), "at": time.time()}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def save(helper: Helper, task: Task) -> None:
    """Save a state of so many MB, and see it onto the disk."""
    state = {"model": torch.zeros(int(task.more["mb"] * 250_000))}
    path = Path(task.more["file"]) if "file" in task.more else helper.job.scratch("state")
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def keep(helper: Helper, task: Task) -> None:
    helper.kept.append(torch.ones(int(task.more["mb"] * 250_000)))


def demand(helper: Helper, task: Task) -> None:
    """Ask for more and more memory, of which there is not that much."""
    limit = int(task.more["mb"]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        if task.more["of"] == "torch":
            helper.kept.append(torch.ones(20_000_000))
        else:
            helper.kept.append(np.ones(10_000_000))


def aside(helper: Helper, task: Task) -> None:
    """Start a thread that keeps itself busy."""

    def refresh() -> None:
        while True:
            KINDS[task.more["what"]](helper, task)
            time.sleep(task.more.get("rest_ms", 0) / 1000)

    threading.Thread(target=refresh, daemon=True).start()


def threads(helper: Helper, task: Task) -> None:
    torch.set_num_threads(int(task.more["threads"]))


def raised(helper: Helper, task: Task) -> None:
    rows = {"a": [1, 2, 3]}
    if task.more["how"] == "key":
        rows["b"]
    elif task.more["how"] == "shape":
        torch.ones(3, 4) @ torch.ones(3, 4)
    else:
        raise ValueError(f"no row of this batch can be used: {rows}")


def listen(helper: Helper, task: Task) -> None:
    """Read from a pipe that nobody writes into."""
    reads, _ = os.pipe()
    os.read(reads, 1)


def borrow(helper: Helper, task: Task) -> None:
    """Take a lock that somebody else has."""
    lock = threading.Lock()
    lock.acquire()
    with lock:
        pass


def meet(helper: Helper, task: Task) -> None:
    if task.more["how"] == "barrier":
        dist.barrier()
    else:
        dist.broadcast(torch.ones(4), 0)


def share(helper: Helper, task: Task) -> None:
    """Sum up in two groups, which some ranks take from the last to the first."""
    ranks = list(range(helper.job.world))
    groups = [dist.new_group(ranks) for _ in range(2)]
    if helper.job.rank in task.more["backwards"]:
        groups.reverse()
    for group in groups:
        dist.all_reduce(torch.ones(16), group=group)


def take(helper: Helper, task: Task) -> None:
    """Receive from the next rank, and send to the one before after that."""
    there = helper.job.rank + int(task.more["from"])
    dist.recv(torch.ones(16), src=there % helper.job.world)
    dist.send(torch.ones(16), dst=(helper.job.rank - 1) % helper.job.world)


def end(helper: Helper, task: Task) -> None:
    how = task.more["how"]
    sys.stdout.flush()
    if how == "abort":
        os.abort()
    if how == "address":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(int(task.more.get("code", 1)))
    os.kill(os.getpid(), signal.Signals[how])
    time.sleep(5)


KINDS: dict[str, Call] = {
    "count": count, "numbers": numbers, "text": text, "pack": pack, "tensors": tensors,
    "mirror": mirror, "blend": blend, "tally": tally, "anew": anew,
    "pause": pause, "read": read, "collect": collect, "parse": parse, "say": say, "write": write,
    "save": save, "keep": keep, "demand": demand, "aside": aside, "threads": threads,
    "raised": raised, "listen": listen, "borrow": borrow, "meet": meet, "share": share,
    "take": take, "end": end,
}  # fmt: skip
