"""What steps of a GPU were spent on, summed up while they are drained, beside what the views say.

When a step is settled, and what is forgotten: tests/native/drain_device_parts_test.cpp.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import polars as pl
import pytest
import runs
import torch
import traces
from cuda_jobs import run_job
from gpu.parts.report import uses
from real_data import DATA
from recording import read_table, wait_recorded

from haiprof import _core, schema
from haiprof.analyzer import Analyzer
from haiprof.answers import gpu as answers
from haiprof.answers.one_process import read_events
from haiprof.views.run import busy, device_steps, gpu_use, recorded
from haiprof.views.trace.linking import roles

JOB = """
    cupti = ctypes.CDLL("libcupti.so.13")
    import random
    cupti.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    haiprof.start(sys.argv[1], run="run", kernels="all")
    use_cuda()
    while not cupti.fake_enabled():
        time.sleep(0.001)

    rng = random.Random(3)

    def each():
        for name in (b"gemm", b"ncclDevKernel_AllReduce_Sum_f32_RING_LL", b"softmax"):
            cupti.fake_launch(name, rng.randrange(1, 40))
            time.sleep(rng.choice((0, 0.001, 0.004)))

    train(12, each)
    settled()
    haiprof.stop()
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA")
def test_device_steps_phases_and_busy_times_are_those_of_the_views(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    run_job(JOB, tmp_path, native_build)
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    parts = pl.DataFrame(pl.from_arrow(read_table(folder, "step_parts"))).drop_nulls("device")
    run = Analyzer(tmp_path / "run")
    (process,) = (p for p in run.run.processes if p.rank is not None)
    gpu = run.read_gpu(process)

    def of(kind: str) -> pl.DataFrame:
        return parts.filter(pl.col("kind") == kind)

    steps = device_steps.device_steps(gpu.phases)
    assert steps.height == 12
    expected = steps.select("step", "start", (pl.col("end") - pl.col("start")).alias("duration"))
    assert of("device_step").select(expected.columns).equals(expected)
    phases = gpu.phases.group_by("step", pl.col("name").cast(pl.String)).agg(
        (pl.col("end") - pl.col("start")).sum().alias("duration")
    )
    key = ["step", "name", "duration"]
    assert of("device_phase").select(key).sort(key).equals(phases.select(key).sort(key))

    on_host = recorded.host_steps(gpu.spans)
    windows = recorded.windows(gpu.intervals, device_steps.device_steps(gpu.phases), on_host)
    by_step = busy.busy_by_step(gpu.kernels, windows)
    assert by_step["busy"].sum() > 0
    # What ran last may not have been handed over, which the views judge by the host's steps, too.
    found = (
        of("busy")
        .select("step", busy_ns="duration")
        .join(of("exposed").select("step", exposed_ns="duration"), on="step", how="left")
    )
    both = by_step.join(found, on="step", how="full", coalesce=True).sort("step")
    assert both.filter(pl.col("busy") != pl.col("busy_ns")).height == 0
    assert both.filter(pl.col("exposed") != pl.col("exposed_ns").fill_null(0)).height == 0
    assert both.drop_nulls(["busy", "busy_ns"]).height >= by_step.height - 1

    # All else that is said of the steps that were summed up.
    last = of("busy")["step"].max()
    end = (
        of("device_step")
        .filter(pl.col("step") == last)
        .select(pl.col("start") + pl.col("duration"))
    )
    until = gpu.intervals.with_columns(
        pl.lit(end.item()).alias("end"), pl.lit(last, pl.UInt32).alias("last_step"),
        (pl.lit(last, pl.UInt32) - pl.col("first_step") + 1).alias("steps"),
    )  # fmt: skip
    by_kernels = gpu_use.use(gpu.kernels, gpu.spans, gpu.phases, until)
    by_parts = answers.summed_use(process, read_events(process, "kernels", "graphs"))
    assert by_parts == by_kernels
    assert set(by_kernels.idle_ns) > {"forward", "backward"}
    assert set(by_kernels.busy_phase_ns) == {"forward", "backward", "optimizer"}

    # As the suite of a machine with a GPU asks for them, over the whole run.
    summed, whole = uses(tmp_path / "run")
    assert summed == by_parts
    assert 0 <= whole.recorded - summed.recorded <= 1

    # Once the kernels were removed to stay below the limit, the same is known.
    end_ns = int(gpu.kernels["start"].max()) + 1
    (folder / "kernels-0.arrow").unlink()
    removed = {"segments": 1, "rows": gpu.kernels.height, "bytes": 5, "until_ns": end_ns}
    note = {"format": schema.THINNED_FORMAT, "version": "1.8", "limit_bytes": 1 << 30}
    runs.write_json(
        folder / schema.THINNED_FILE, {**note, "tables": {"kernels": removed}, "removing": []}
    )
    (summary,) = Analyzer(tmp_path / "run").summaries()[0]
    assert [one.table for one in summary.process.thinned] == ["kernels"]
    assert summary.gpu == by_parts


NAMES = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "gemm",
    "_ZN2at6native18elementwise_kernelILi128ELi4EEEv", "void mscclpp::allgather6<__half>",
    "deep_ep::internode::dispatch", "deepep::intranode::combine", "deep_ep::layout::get",
    "pplx_something_all_to_all_x", "pplxalltoall", "mori::ep::dispatch<float>", "mori::other",
    "multimem_all_reduce_kernel", "multimem_one_shot_all_reduce", "multimem_allgather",
    "oneShotAllReduceKernel", "two_shot_all_to_all", "twoshot_reduce", "cross_device_reduce_1stage",
    "quick_reduce::allreduce_prototype_twoshot", "quickreduce::x", "allreduce_fusion_kernel",
    "lamport_style_rmsnorm", "lamport_all_reduce", "moe_finalize_allreduce",
    "moereductionallreduce",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop", "my_all_reduce(float*)", "all_gatherv",
    "reduce_scatter_kernel<int>", "all_to_all", "overall_reduced", "wall_reduce(",
    "all_reduced",
    "nvshmemi_transfer", "rocshmem_put", "hcom_allReduce_", "HCCL_x", "dpsk::ep::combine", "",
    "reducescatterkernel", "xall_gather_", "7all_gather<", "all__reduce(", "small_reducekernel",
)  # fmt: skip


def test_kernels_communicate_by_the_same_rules_as_in_views() -> None:
    rng = random.Random(5)
    names = set(NAMES)
    if DATA.is_dir():
        for file in traces.files("dlrm_8rank"):
            found = re.findall(rb'"name": "([^"\\]{1,200})"', traces.text(file))
            names.update(name.decode() for name in found)
    for name in NAMES:
        for _ in range(200):
            letters = list(name)
            for _ in range(rng.randrange(1, 3)):
                at = rng.randrange(len(letters) + 1)
                letters[at : at + rng.randrange(2)] = rng.choice(["_", "a", "V", "(", ":", "", "k"])
            names.add("".join(letters))
    every = sorted(names)
    expected = pl.DataFrame({"name": every}).select(roles.communicates()).to_series().to_list()
    given = [_core.communicates(name) for name in every]
    assert [n for n, a, b in zip(every, given, expected, strict=True) if a != b] == []
    assert 0.2 < sum(given) / len(given) < 0.95
