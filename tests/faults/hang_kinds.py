"""Jobs that hang, each in its own way: which rank, step and operation are drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: What every rank runs first. THAT is the rank that is drawn.
PREAMBLE = """
import ctypes, os, queue, signal, subprocess, sys, threading, time
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
THAT = RANK == {rank}

def begins():
    with open("begun", "a") as file:
        file.write(repr(time.time()) + "\\n")

def exchange(group=None, op="{op}", size=4, root=0):
    data = torch.ones(size)
    if op == "all_reduce":
        dist.all_reduce(data, group=group)
    elif op == "all_gather":
        parts = [torch.empty_like(data) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, data, group=group)
    elif op == "broadcast":
        dist.broadcast(data, root, group=group)
    else:
        dist.barrier(group)

def trains(steps, model=None):
    model = model or nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.01)

def exchanges(steps={step}):
    for _ in range(steps):
        exchange()
        time.sleep(0.01)
"""

#: What a rank does in place of its next step, by what it is.
DOES = {
    "sleep": "time.sleep(600)",
    "loop": "while True: sum(range(1000))",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "queue": "queue.Queue().get()",
    "event": "threading.Event().wait()",
    "pipe": "os.read(os.pipe()[0], 1)",
    "child": 'subprocess.run(["sleep", "600"])',
    "gil": "ctypes.PyDLL(None).sleep(600)",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    # The parent of a child that shares nothing waits for it uninterruptibly (CLONE_VFORK).
    "device": "ctypes.CDLL(None).syscall(56, 0x4011, 0, 0, 0, 0) or (time.sleep(600), os._exit(0))",
    "loader": "next(iter(torch.utils.data.DataLoader(Data(), num_workers=1)))",
}
DATA = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(600)
"""


@dataclass(frozen=True)
class Kind:
    """One way to hang.

    Attributes:
        program: what each rank runs after the preamble.
        kinds: any of which is right.
        who: who is to blame: ``that`` rank, ``all`` of them, or those of a ``circle``.
        patient: whether it lasts ten times as long before it is a hang.
        alone: whether the job is one process, with no process group.
        most: ranks at most.
        missing: whether the rank that is drawn is never started.
    """

    program: str
    kinds: tuple[str, ...] = ("rank_never_arrived",)
    who: str = "that"
    patient: bool = False
    alone: bool = False
    most: int = 4
    missing: bool = False


def _instead(what: str) -> str:
    return f"""
{DATA if what == "loader" else ""}
def instead():
    begins()
    {DOES[what]}
dist.init_process_group("gloo")
exchanges()
if THAT:
    instead()
while True:
    exchange()
"""


def _alone(what: str) -> str:
    return f"""
{DATA if what == "loader" else ""}
def instead():
    begins()
    {DOES[what]}
while True:
    trains({{step}} + 5)
    instead()
"""


def _together(what: str) -> str:
    return f"""
dist.init_process_group("gloo")
exchanges()
begins()
{what}
time.sleep(600)
"""


_MISMATCH = ("collective_mismatch",)
#: In all of them the culprit and its kind are to be named first.
KINDS: dict[str, Kind] = {
    "sleeps": Kind(_instead("sleep"), most=8),
    "endless_loop": Kind(_instead("loop"), patient=True, most=2),
    "lock": Kind(_instead("lock")),
    "empty_queue": Kind(_instead("queue")),
    "event": Kind(_instead("event")),
    "reads_a_pipe": Kind(_instead("pipe")),
    "waits_for_a_child": Kind(_instead("child"), patient=True),
    "holds_the_gil": Kind(_instead("gil")),
    "stopped": Kind(_instead("stopped"), ("stopped",)),
    "stopped_in_a_transfer": Kind(
        """
come = threading.Event()
def stops():
    come.wait()
    time.sleep(0.05)
    begins()
    os.kill(os.getpid(), signal.SIGSTOP)
dist.init_process_group("gloo")
exchanges()
if THAT:
    threading.Thread(target=stops).start()
data = torch.ones(16_000_000)
while True:
    dist.barrier()
    come.set()
    dist.all_reduce(data)
""",
        ("stopped",),
        most=3,
    ),
    "uninterruptible": Kind(_instead("device"), ("uninterruptible",)),
    "loader_worker": Kind(_instead("loader")),
    "other_operation": Kind(
        _together('exchange(op="broadcast", root={rank}) if THAT else exchange()'), _MISMATCH
    ),
    "other_size": Kind(_together('exchange(op="all_reduce", size=5 if THAT else 4)'), _MISMATCH),
    "one_barrier_more": Kind(
        _together("dist.barrier() if THAT else None\nexchange(op='all_reduce')"), _MISMATCH
    ),
    "crossed_groups": Kind(
        _together(
            "groups = [dist.new_group() for _ in range(2)]\n"
            "for group in groups[::-1] if THAT else groups:\n    exchange(group)"
        ),
        ("crossed_collectives",),
        who="circle",
    ),
    "receives_in_a_circle": Kind(
        _together("dist.recv(torch.ones(4), src=(RANK + 1) % SIZE)"), ("unmatched_send",), "all"
    ),
    "never_sends": Kind(
        """
def instead():
    begins()
    time.sleep(600)
dist.init_process_group("gloo")
exchanges()
instead() if THAT else dist.recv(torch.ones(4), src={rank})
"""
    ),
    "behind_another_group": Kind(
        # The others wait for a rank that itself waits for the one that is drawn.
        """
def instead():
    begins()
    time.sleep(600)
dist.init_process_group("gloo")
pair = dist.new_group([{rank}, ({rank} + 1) % SIZE])
exchanges()
if THAT:
    instead()
elif RANK == ({rank} + 1) % SIZE:
    exchange(pair)
exchange()
time.sleep(600)
"""
    ),
    "without_backward": Kind(
        """
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
trains({step}, model)
def instead():
    begins()
    time.sleep(600)
instead() if THAT else trains(1, model)
time.sleep(600)
"""
    ),
    "fewer_batches": Kind(
        """
dist.init_process_group("gloo")
exchanges()
begins()
def ends():
    threading.Thread(target=time.sleep, args=(600,)).start()
    sys.exit()
ends() if THAT else exchange()
""",
        ("uneven_inputs",),
    ),
    "never_starts": Kind(
        'begins()\ndist.init_process_group("gloo")', ("rendezvous",), patient=True, missing=True
    ),
    "starts_and_waits": Kind(
        """
def instead():
    begins()
    time.sleep(600)
if THAT:
    instead()
dist.init_process_group("gloo")
""",
        ("rendezvous",),
        patient=True,
    ),
    "thread_never_ends": Kind(
        """
def waits():
    while True:
        time.sleep(600)
dist.init_process_group("gloo")
exchanges()
begins()
if THAT:
    threading.Thread(target=waits).start()
dist.destroy_process_group()
""",
        ("teardown_hang",),
    ),
    "alone_sleeps": Kind(_alone("sleep"), ("stands_still",), alone=True),
    "alone_lock": Kind(_alone("lock"), ("stands_still",), alone=True),
    "alone_pipe": Kind(_alone("pipe"), ("stands_still",), alone=True),
    "alone_loader": Kind(_alone("loader"), ("stands_still",), alone=True),
    "alone_loop": Kind(_alone("loop"), ("stands_still",), alone=True, patient=True),
    "alone_stopped": Kind(_alone("stopped"), ("stopped",), alone=True),
    "alone_thread_never_ends": Kind(
        """
def waits():
    while True:
        time.sleep(600)
trains({step} + 5)
begins()
threading.Thread(target=waits).start()
""",
        ("teardown_hang",),
        alone=True,
    ),
}


@dataclass(frozen=True)
class Case:
    """One job that hangs.

    Attributes:
        name: of its kind.
        seed: that the rest was drawn from.
        program: that each rank runs.
        ranks: how many there are.
        rank: the one that was drawn.
        culprits: who is to be named; None: two of a circle or more.
    """

    name: str
    seed: int
    program: str
    ranks: int
    rank: int
    culprits: tuple[int, ...] | None

    @property
    def kind(self) -> Kind:
        """Its kind."""
        return KINDS[self.name]


def drawn(name: str, seed: int) -> Case:
    """Return the job of a kind that a seed gives."""
    kind = KINDS[name]
    chance = random.Random(f"{name} {seed}")
    # Of two ranks that disagree nobody knows which one is right.
    least = 3 if kind.kinds == _MISMATCH else 2
    ranks = 1 if kind.alone else chance.randint(max(least, min(3, kind.most)), kind.most)
    rank = chance.randrange(ranks)
    given = {"rank": rank, "step": chance.randint(3, 30),
             "op": chance.choice(("all_reduce", "all_gather", "barrier"))}  # fmt: skip
    text = PREAMBLE + kind.program
    for key, value in given.items():
        text = text.replace(f"{{{key}}}", str(value))
    who = {"that": (rank,), "all": tuple(range(ranks)), "circle": None}[kind.who]
    return Case(name, seed, text, ranks, rank, who)
