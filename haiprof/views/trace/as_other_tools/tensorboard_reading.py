"""The TensorBoard plugin's own reading of a trace, for comparing with its numbers.

:func:`as_plugin` links a trace as the plugin's last source does, errors included; the views then
return its numbers:

- launches belong to operators by External id, not by call site; what is launched through the
  driver's API (``cuLaunchKernel``) belongs to none;
- a kernel communicates when its External id is that of one of five collectives of NCCL or Gloo;
- ranges that CUPTI reports on the device are ranges of the host, and steps of their own;
- a trace without steps is as long as its operators;
- tensor cores are recognised by names of kernels and operators up to Ampere.

Three of its errors are left out, because they depend on the order of rows or give no number: the
operators that it loses when it rebuilds the backward pass of modules, parts of a step that add up
to more than the step, and the time of a trace without a host.

Tests: tests/views/trace/test_plugin.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.trace.linking.linked import (
    BUSY,
    Linked,
    Rules,
    enclosing,
    link,
    looked_up,
    nullable,
)
from haiprof.views.trace.linking.roles import Rule, by_name
from haiprof.views.trace.linking.steps import Launches, extents

#: Collectives that the plugin knows.
COLLECTIVES = ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
OPERATIONS = (Rule(rf"^(nccl|gloo):({'|'.join(COLLECTIVES)})$"),)
#: A kernel whose name contains one of these uses tensor cores.
KERNELS = (
    "h884", "s884", "h1688", "s1688", "hmma", "i8816", "16816", "dgrad_1x1_stride_2x2",
    "first_layer_wgrad_kernel", "conv1x1", "conv2d_c1_k1", "direct_group", "xmma_implicit_gemm",
    "xmma_sparse_conv", "xmma_warp_specialized_implicit_gemm", "xmma_gemm", "xmma_sparse_gemm",
    "c1688",
)  # fmt: skip
#: An operator of one of these names can use tensor cores.
OPERATORS = frozenset(
    (
        *(f"aten::conv{kind}" for kind in ("1d", "2d", "3d", "_tbc", "olution")),
        *(f"aten::conv_transpose{size}d" for size in (1, 2, 3)),
        *(
            f"aten::{name}"
            for name in (
                "_convolution", "cudnn_convolution", "cudnn_convolution_transpose", "prelu",
                "addmm", "addmv", "addr", "matmul", "mm", "mv", "linear", "addbmm", "baddbmm",
                "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell",
                "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
                "addmm_", "cudnn_convolution_transpose_backward",
                "cudnn_convolution_backward_weight", "cudnn_convolution_transpose_backward_weight",
                "cudnn_convolution_transpose_backward_input", "cudnn_convolution_backward_input",
                "cudnn_convolution_backward",
            )
        ),
        "BmmBackward0",
        *(
            f"{name}Backward"
            for name in (
                "CudnnConvolution", "CudnnConvolutionTranspose", "Mm", "Addmv", "Mv", "Addmm",
                "Addbmm",
            )
        ),
    )
)  # fmt: skip

_DURATION = (pl.col("end") - pl.col("start")).alias("duration")
_DRIVER = r"^cu[A-Z]"
_STEP = r"^ProfilerStep#(\d+)"
#: No thread of the host has this number.
_STREAMS = 0xF0000000
_APART = 0xFFFFFFFF
_NODES = ("enumerate(DataLoader)#", "enumerate(DataPipe)#", "Optimizer.step")


def as_plugin(linked: Linked) -> Linked:
    """Link a trace again, the plugin's way."""
    again, node = _nested(_spans(linked), linked)
    host = again.host
    works = host.works & ~_module(again)
    op = _by_external(again, node)
    return dataclasses.replace(
        again,
        ops=again.ops.with_columns(_own(again, node)),
        activities=again.activities.with_columns(
            nullable("op", op),
            *_kernels(again),
        ),
        steps=_steps(again),
        host=host._replace(node=node & ~again.of("step"), works=works),
    )


def _nested(spans: pl.DataFrame, linked: Linked) -> tuple[Linked, npt.NDArray[np.bool_]]:
    """Link spans except those that cross another one; say which are nodes of the plugin's tree."""
    while True:
        again = link(
            spans,
            linked.activities,
            linked.collectives,
            linked.flows,
            linked.device_spans,
            Rules(linked.rules.kernels, OPERATIONS, OPERATIONS, OPERATORS),
        )
        host = again.host
        node = host.operator | host.communicates | host.loads | _named(again, _NODES)
        node |= _module(again) | again.of("step")
        node &= (again.ops["thread"] != _APART).to_numpy()
        around = enclosing(again, node)
        crossing = node & (around >= 0) & (again.end > np.append(again.end, 0)[around])
        if not crossing.any():
            return again, node
        # It is not in the tree, but the host is working in it.
        out = pl.Series(crossing)
        spans = again.ops.with_columns(
            _DURATION,
            pl.when(out).then(pl.lit(_APART, pl.UInt32)).otherwise("thread").alias("thread"),
            pl.when(out).then(pl.lit("user")).otherwise(pl.col("category").cast(pl.String))
            .cast(pl.Categorical()).alias("category"),
        )  # fmt: skip


def _module(linked: Linked) -> npt.NDArray[np.bool_]:
    is_module: npt.NDArray[np.bool_] = linked.ops["module"].is_not_null().to_numpy()
    return is_module


def _spans(linked: Linked) -> pl.DataFrame:
    """The spans as the plugin takes them: with those of the device, without the driver's."""
    name = pl.col("name").cast(pl.String)
    driver = (pl.col("category") == "runtime") & name.str.contains(_DRIVER)
    python = (pl.col("category") == "python") & pl.col("module").is_null()
    ops = linked.ops.filter(~driver & ~python).with_columns(
        _DURATION,
        pl.when(pl.col("category") == "python")
        .then(pl.lit("module"))
        .otherwise(pl.col("category").cast(pl.String))
        .cast(pl.Categorical())
        .alias("category"),
    )
    device = linked.device_spans
    if not device.height:
        return ops
    number = name.str.extract(_STEP).cast(pl.UInt32)
    ranges = device.select(
        "start",
        "duration",
        pl.when(number.is_not_null()).then(pl.lit("step")).otherwise(pl.lit("user"))
        .cast(pl.Categorical()).alias("category"),
        "name",
        (pl.col("stream").fill_null(0) | _STREAMS).cast(pl.UInt32).alias("thread"),
        number.alias("step"),
    )  # fmt: skip
    return pl.concat([ops, ranges], how="diagonal")


def _named(linked: Linked, prefixes: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    names = linked.ops["name"].unique().drop_nulls().cast(pl.String).to_list()
    return by_name(linked.ops["name"], [name for name in names if name.startswith(prefixes)])


def _external(frame: pl.DataFrame) -> npt.NDArray[np.uint64]:
    """External ids, counted from 1: the plugin treats 0, and none, as an id."""
    ids: npt.NDArray[np.uint64] = (frame["external"].cast(pl.UInt64) + 2).fill_null(1).to_numpy()
    return ids


def _by_external(linked: Linked, node: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """For each activity the node with the External id of the call that launched it, or -1."""
    owner = _owners(linked, node)
    runtime = linked.activities["runtime"].cast(pl.Int64).fill_null(-1).to_numpy()
    owners: npt.NDArray[np.int32] = np.append(owner, -1)[runtime].astype(np.int32)
    return owners


def _owners(linked: Linked, node: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """For each call of the runtime the first node with its External id, or -1."""
    # A call of a module has no id, and so it owns calls without one.
    external = np.where(_module(linked), 1, _external(linked.ops)).astype(np.uint64)
    nodes = np.flatnonzero(node)
    # The first by start on the thread that appeared first.
    thread = linked.ops["thread"].to_numpy()[nodes]
    threads, of = np.unique(thread, return_inverse=True)
    first = np.full(len(threads), np.iinfo(np.int64).max)
    np.minimum.at(first, of, linked.start[nodes])
    order = nodes[np.lexsort((linked.start[nodes], first[of]))][::-1]
    owner = looked_up(external[order], order, external)
    return np.where(linked.of("runtime"), owner, -1).astype(np.int32)


def _own(linked: Linked, node: npt.NDArray[np.bool_]) -> pl.Series:
    """Each node's time without the nodes within it and the calls of the runtime it owns."""
    from haiprof import _core

    rows = np.flatnonzero(~linked.of("runtime"))
    thread = linked.ops["thread"].to_numpy()[rows]
    _, own, _, _ = _core.nest(
        thread, np.zeros(len(rows), np.uint8), linked.start[rows], linked.end[rows]
    )
    own_time = np.zeros(len(node), np.int64)
    own_time[rows] = own
    owner = _owners(linked, node)
    kept = owner >= 0
    np.subtract.at(own_time, owner[kept], (linked.end - linked.start)[kept])
    return pl.Series("self", own_time)


def _kernels(linked: Linked) -> tuple[pl.Series, pl.Series]:
    activities = linked.activities
    kernel = (activities["kind"] == "kernel").fill_null(False).to_numpy()
    collective = linked.host.communicates & linked.of("op", "user")
    ids = _external(linked.ops)[collective]
    communicates = np.isin(_external(activities), ids[ids > 1]) & kernel
    names = activities["name"].unique().drop_nulls().cast(pl.String).to_list()
    tensor = by_name(activities["name"], [n for n in names if any(k in n for k in KERNELS)])
    role: pl.Series = pl.select(
        pl.when(pl.Series(communicates))
        .then(pl.lit("communication"))
        .otherwise(activities["kind"].cast(pl.String))
        .cast(pl.Categorical())
        .alias("role")
    ).to_series()
    return role, pl.Series("tensor_core", tensor & kernel)


def _steps(linked: Linked) -> pl.DataFrame:
    activities = linked.activities
    busy = activities["kind"].cast(pl.String).is_in(BUSY).to_numpy()
    runtime = activities["runtime"].cast(pl.Int64).fill_null(-1).to_numpy()
    launches = Launches(
        activities["start"].to_numpy()[busy],
        activities["end"].to_numpy()[busy],
        np.append(linked.start, 0)[runtime][busy],
        np.append(linked.end, 0)[runtime][busy],
        runtime[busy] >= 0,
    )
    steps = linked.ops.filter(pl.Series(linked.of("step"))).select("step", "start", "end")
    if not steps.height:
        ops = linked.of("op")
        if not ops.any():
            return linked.steps
        steps = linked.steps.select(
            "step",
            pl.Series("start", [linked.start[ops].min()]),
            pl.Series("end", [linked.end[ops].max()]),
        )
    return extents(steps.sort("start", maintain_order=True), launches)
