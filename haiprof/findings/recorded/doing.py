"""What a sampled thread was doing: computing with tensors, running Python, sleeping, reading, ….

torch gives the GIL back while an operator runs, so a thread that runs with it, outside of torch, is
in Python, or in a library that keeps it.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof.common.frame_texts import IMPORTLIB, PYTHON

#: Their own code is what a training job is there for.
_TORCH: Final = (
    "torch", "torchvision", "torchaudio", "triton", "functorch", "torchgen", "transformers",
    "accelerate", "lightning", "pytorch_lightning", "deepspeed", "megatron", "flash_attn",
    "haiprof", "tqdm",
)  # fmt: skip
#: Packages and functions that write what is for people to read.
_LOGGERS: Final = (
    "tensorboard", "tensorboardX", "wandb", "mlflow", "loguru", "rich", "comet_ml", "neptune",
    "clearml", "swanlab",
)  # fmt: skip
_SLEEPS: Final = "nanosleep"
_DISK: Final = (
    "io_schedule|folio_wait|wait_on_page|bit_wait_io|jbd2|fsync|sync_file|writeback|nfs_|rpc_wait|"
    r"fuse_|iomap_|dio_|cl_sync_io|\bll_|balance_dirty|blkdev|ext4|xfs_|btrfs|filemap|overlayfs|9p_|"
    "ceph_|request_wait_answer|rq_qos_wait"
)
_PIPES: Final = "pipe_read|pipe_write|sk_wait|tcp_|unix_stream|sock_|inet_csk|n_tty|tty_write"
#: torch waits in these, too, for its own reasons.
_SOCKETS: Final = r"wait_woken|recvfrom|recvmsg|\baccept|poll|select"
_CHILDREN: Final = r"\b(do_wait|wait4|waitid|kernel_clone|vfork|wait_for_vfork_done)\b"
_WRITES: Final = "pipe_write|n_tty_write|tty_write|fsync|jbd2|sync_file|writeback|balance_dirty"
_LOCKS: Final = "futex"
#: A line of the job that waits for a disk in this share of its samples reads or writes in the rest.
_ON_DISK: Final = 0.2

SLEEPING, READING, PIPED, LOCKED, OTHERS_GIL = "sleeping", "reading", "piped", "locked", "gil"
PROGRAM, THREAD = "program", "thread"
PYTHON_CODE, LIBRARY, TENSORS, WAITING, STOPPED = (
    "python", "library", "tensors", "waiting", "stopped",
)  # fmt: skip
#: What keeps a training thread from the work that it is there for.
AWAY: Final = (SLEEPING, READING, PIPED, PROGRAM, THREAD, PYTHON_CODE, LIBRARY)


def doing(lines: pl.DataFrame) -> pl.DataFrame:
    """Add ``doing``, ``logs`` and ``imports`` to lines.

    ``doing`` is one of ``tensors`` (in an operator or in torch's own code), ``python``, ``library``
    (another package's code), ``sleeping``, ``reading`` (or writing a file), ``piped`` (a pipe or a
    socket), ``program`` (that it started), ``thread`` (another one, in Python's own queues and
    locks), ``gil`` (another thread has the GIL), ``locked`` (of all other code), ``waiting`` (for
    anything else) and ``stopped``. ``logs`` says whether it is in a logger, or in a write;
    ``imports`` whether it is in an import.

    Args:
        lines: as :func:`haiprof.views.run.hot_lines.hot_lines` gives them.
    """
    waits_in = pl.col("waits_in").fill_null("")
    package, state = pl.col("package"), pl.col("state")
    outer = pl.col("outer").fill_null("")
    in_torch = package.is_in(_TORCH).fill_null(value=False)
    # torch's loaders, checkpoints and compilers wait for threads and processes of their own.
    for_job = ~in_torch & ~outer.str.contains(r"(^| )torch( |$)")
    in_python = (package == PYTHON).fill_null(value=False)
    runs = (
        pl.when(in_torch)
        .then(pl.lit(TENSORS))
        .when(package.is_null() & ~pl.col("gil"))
        .then(pl.lit(TENSORS))
        .when(package.is_null() | (package == PYTHON))
        .then(pl.lit(PYTHON_CODE))
        .otherwise(pl.lit(LIBRARY))
    )
    waits = (
        pl.when(pl.col("blocked_by").is_not_null() & waits_in.str.contains(_LOCKS))
        .then(pl.lit(OTHERS_GIL))
        .when(waits_in.str.contains(_SLEEPS))
        .then(pl.lit(SLEEPING))
        .when(waits_in.str.contains(_CHILDREN))
        .then(pl.lit(PROGRAM))
        .when((state == "uninterruptible") | waits_in.str.contains(_DISK))
        .then(pl.lit(READING))
        .when(waits_in.str.contains(_PIPES))
        .then(pl.lit(PIPED))
        .when(for_job & package.is_not_null() & waits_in.str.contains(_SOCKETS))
        .then(pl.lit(PIPED))
        .when(for_job & in_python & waits_in.str.contains(_LOCKS))
        .then(pl.lit(THREAD))
        .when(waits_in.str.contains(_LOCKS))
        .then(pl.lit(LOCKED))
        .otherwise(pl.lit(WAITING))
    )
    file = pl.col("file")
    logs = (
        package.is_in(_LOGGERS).fill_null(value=False)
        | outer.str.contains(rf"(^| )({'|'.join(_LOGGERS)})( |$)")
        | file.str.contains(r"/logging/(__init__|handlers)\.py$|/torch/utils/tensorboard/")
        | waits_in.str.contains(_WRITES)
    )
    found = lines.with_columns(
        pl.when(state.is_in(("running", "ready")))
        .then(runs)
        .when(state == "stopped")
        .then(pl.lit(STOPPED))
        .otherwise(waits)
        .alias("doing"),
        logs.alias("logs"),
        outer.str.contains(rf"(^| ){IMPORTLIB}( |$)").alias("imports"),
    )
    # A call without the GIL from the job's own code may be an operator, or one of the system's.
    in_job, of = package.is_null(), ("line", package.is_null())
    on_disk = pl.when(pl.col("doing") == READING).then("samples").otherwise(0).sum().over(of)
    reads = in_job & (pl.col("doing") == TENSORS)
    reads &= on_disk >= _ON_DISK * pl.col("samples").sum().over(of)
    return found.with_columns(
        pl.when(reads).then(pl.lit(READING)).otherwise("doing").alias("doing")
    )
