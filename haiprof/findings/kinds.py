"""The closed list of what a finding can be, and of each what it needs to be known."""

from __future__ import annotations

from typing import Final, NamedTuple


class Kind(NamedTuple):
    """A kind of finding.

    Attributes:
        title: what it is, in a few words.
        recorded: what tells it in a recorded run; empty: nothing does yet.
        trace: what tells it in a deep trace; empty: nothing does.
        missing: what would be needed where neither does.
    """

    title: str
    recorded: str = ""
    trace: str = ""
    missing: str = ""


_XID: Final = "events: the driver's Xid {}"
_HANG: Final = "the recorder: what it saw while the job hung"

KINDS: Final[dict[str, Kind]] = {
    # Input.
    "slow_loader": Kind(
        "the DataLoader is too slow", "ledger: input; stacks of the workers", "idle: data_loading"
    ),
    "slow_storage": Kind(
        "data lies on slow storage",
        "ledger: input; workers in reads; use of the disk; the kernel's reports around slow steps",
    ),
    "loader_worker_died": Kind("a worker of the DataLoader died", "the worker's end, its rank's"),
    "uneven_lengths": Kind(
        "inputs of different lengths", "ledger: waiting in turns; forward and backward together"
    ),
    "uneven_input": Kind(
        "slow steps have larger inputs", "ledger: steps beyond the median; samples: their inputs"
    ),
    "slow_batch": Kind("single steps are slow", "ledger: steps beyond the median, by cause"),
    # The host.
    "garbage_collection": Kind("Python's garbage collector", "ledger: collector"),
    "host_code": Kind(
        "the training thread does something else",
        "stacks: Python or libraries with the GIL, sleeping, reading",
        "idle: python, cpu_operator",
    ),
    "tensor_work": Kind(
        "tensor operations besides training",
        "ledger: other; stacks: tensor operations between the phases, not on GPUs",
    ),
    "framework": Kind(
        "the framework's own work",
        "ledger: other; stacks: a package that calls the phases, between these, not on GPUs",
    ),
    "host_sync": Kind("the host waits for the GPU", "", "idle: synchronisation"),
    "host_bound": Kind("the GPU waits for the host", "kernels: GPU idle by the host's phase"),
    "launch_bound": Kind("kernels are launched too slowly", "", "idle: launch, graph_launch"),
    "gil": Kind("another thread has the GIL", "stacks: a thread has it while another waits"),
    "logging": Kind(
        "logging, writing or evaluating in the loop",
        "stacks: loggers, writes; ledger: evaluation, calls of trackers",
    ),
    "slow_start": Kind(
        "a slow start",
        "ledger: startup; stacks, three seconds after torch was imported",
        "idle: startup",
    ),
    "debugging": Kind(
        "tools for finding faults are on", "events: autograd's anomaly detection, torch.profiler"
    ),
    "recompilation": Kind("functions are compiled again", "ledger: compilation"),
    "blocking_checkpoint": Kind("training waits for checkpoints", "ledger: save"),
    # The machine.
    "cpu_neighbour": Kind(
        "other programs take the CPU", "ledger: cpu_queue; CPU of the node, and of its programs"
    ),
    "cpu_quota": Kind("a CPU limit", "ledger: cpu_queue; cgroup throttling"),
    "too_many_threads": Kind("too many threads", "ledger: cpu_queue; the job's own CPU time"),
    "cpu_affinity": Kind("too few CPUs allowed", "ledger: cpu_queue; affinity"),
    "numa": Kind("memory on another NUMA node", "samples: memory and threads by NUMA node"),
    "memory_bandwidth": Kind("memory bandwidth is used up", "samples: traffic beside its peak"),
    "memory_pressure": Kind(
        "too little memory", "samples: PSI of memory, reclaim, swap; the kernel's reports"
    ),
    "machine_errors": Kind(
        "errors of the hardware", "events: the kernel's reports, around slow steps"
    ),
    "page_faults": Kind(
        "memory is requested from the kernel in each step",
        "samples: page faults and time in the kernel, of the training thread",
    ),
    "memory_leak": Kind("memory grows", "samples: the process tree's, and torch's on GPUs"),
    "cpu_clock": Kind("a low CPU clock", "beside a good run: the clock, and all work"),
    # Ranks.
    "straggler": Kind(
        "one rank is slower",
        "ledger: own work, and the others' waiting for it; samples: the size of its inputs",
        "straggler",
    ),
    "pipeline_stage": Kind("a stage of the pipeline takes longest", "ledger: waiting for messages"),
    "pipeline_bubble": Kind("bubbles of the pipeline", "ledger: waiting for messages in turns"),
    "exposed_communication": Kind(
        "communication that nothing hides",
        "ledger: transfer; kernels: communication alone",
        "exposed_communication",
    ),
    "small_collectives": Kind("many small collectives", "collectives: operations and bytes"),
    "uneven_exchange": Kind(
        "ranks exchange different amounts", "collectives: bytes by rank; ledger: waiting"
    ),
    "slow_link": Kind("a slow link", "beside a good run: as many bytes take longer"),
    "packet_loss": Kind(
        "lost packets", "ledger: transfer; segments that TCP sends again; packets that no CPU took"
    ),
    "congestion": Kind(
        "a congested network", "", "", "counters of ports are shown, no rule has seen a real one"
    ),
    "link_down": Kind("a link is down", "events and counters of InfiniBand and RoCE ports"),
    "starved_communication": Kind(
        "the thread that communicates gets no CPU",
        "ledger: transfer; its thread's time in the queue of a CPU; CPU of the node",
    ),
    # The device.
    "no_tensor_cores": Kind("tensor cores are not used", "", "tensor_cores"),
    "allocator": Kind(
        "memory is requested from the driver",
        "samples: torch's retries, and how often it gives memory back",
        "idle: allocator",
    ),
    "copies": Kind("copies that nothing hides", "", "copies"),
    "false_dependency": Kind("kernels wait without need", "", "idle: event, latency, other device"),
    "slow_unit": Kind("operators run on a slow unit", "", "slow_unit"),
    "gpu_memory": Kind("memory of the GPU", "", "memory"),
    "data_parallel": Kind("DataParallel instead of DistributedDataParallel", "", "data_parallel"),
    "gpu_thermal": Kind("a hot GPU", "samples: share of the time at lower clocks, and the clock"),
    "gpu_power": Kind("a power limit", "samples: power brake; clock and limit beside other GPUs"),
    "gpu_clock": Kind("a low clock of the GPU", "samples: clock beside other GPUs of its model"),
    "gpu_ecc": Kind("memory errors of the GPU", _XID.format("48, 92, 94, 95; ECC errors")),
    "gpu_row_remap": Kind("rows of memory remapped", _XID.format("63, 64")),
    "gpu_lost": Kind("a GPU is off the bus", _XID.format("79; NVML's answers")),
    "nvlink": Kind("NVLink errors", _XID.format("74")),
    "pcie": Kind(
        "a slow PCIe link",
        "events: lanes of a link, the kernel's reports; kernels: copies alone on the GPU",
    ),
    "gsp_timeout": Kind("the GPU's own processor does not answer", _XID.format("119, 120")),
    "illegal_access": Kind(
        "illegal memory access of a kernel", _XID.format("13, 31; CUDA's exception")
    ),
    "foreign_process": Kind(
        "another process on the GPU",
        "",
        "",
        "needs the processes on the GPU, for which NVML keeps the driver's lock",
    ),
    "gpu_out_of_memory": Kind("the GPU's memory is full", "the exception that ended the job"),
    "endless_kernel": Kind(
        "a kernel that never ends", "", "", "needs the kernel that was launched and has not ended"
    ),
    # Progress.
    "regression": Kind(
        "slower from some step on, or than a good run",
        "ledger: own work before and after a step; a step beside that of a good run",
    ),
    "skipped_steps": Kind("steps without effect", "the GradScaler's decisions"),
    # Hangs.
    "collective_mismatch": Kind("different collectives", _HANG),
    "rank_never_arrived": Kind("a rank never arrives", _HANG),
    "crossed_collectives": Kind("groups in opposite order", _HANG),
    "unmatched_send": Kind("a send without a receive", _HANG),
    "stalled_transfer": Kind("a transfer that does not end", _HANG),
    "uneven_inputs": Kind("ranks have different numbers of steps", _HANG),
    "rendezvous": Kind("a rank is missing at the start", _HANG),
    "teardown_hang": Kind("a hang at the end", _HANG),
    "stands_still": Kind("a process of its own gets no further", _HANG),
    "uninterruptible": Kind("a process waits for a device", _HANG),
    # Ends.
    "exception": Kind("an exception", "the end of the first process that failed"),
    "crash": Kind("a crash", "the end of the first process that failed"),
    "out_of_memory": Kind("the host's memory is full", "the kernel's OOM kill"),
    "disk_full": Kind("a full disk", "the exception that ended the job"),
    "left_early": Kind("a rank ended before the others", "its end in order, and their errors"),
    "restarted": Kind("the job was started again", "attempts; goodput: what each cost"),
    "preempted": Kind("asked to end", "SIGTERM"),
    "stopped": Kind("stopped by a signal", "stacks: state of the thread"),
    "node_lost": Kind(
        "a node is lost",
        "",
        "",
        "a lost recorder looks the same",
    ),
    # What is not explained.
    "waiting": Kind("waiting for other ranks", "", "waiting"),
    "unexplained": Kind("time without a known cause", "", "unexplained"),
    "incomplete": Kind("a trace that lacks what explains it", "", "incomplete"),
}
