"""What to change about a job: causes planted in traces are named first, and nothing else is."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest
import traces
from planted import BEGIN, H100, IDLE, LOAD, SLOW, STEP, STEPS, US, Job, first, of_memory
from trace_rows import table

from haiprof.analyzer import Analyzer
from haiprof.findings.deep import communication_rules, rules
from haiprof.views.trace.linking.linked import link


def test_nothing_is_claimed_of_a_job_without_fault() -> None:
    assert Job().busy().findings() == []


@pytest.mark.parametrize("job", [Job(spans=[]), Job(devices=())])
def test_nothing_is_claimed_without_kernels(job: Job) -> None:
    assert job.findings() == []


def test_nothing_is_claimed_of_an_empty_trace() -> None:
    empty = link(table("spans", []), table("kernels", []))
    assert rules.recommendations(empty, table("allocations", [])) == []


def test_waiting_for_the_next_batch() -> None:
    job = Job().busy(IDLE)
    job.host("user", LOAD, BEGIN + 300, BEGIN + 700)
    found = first(job, "data_loading", LOAD, 400)
    assert "13 % of the time" in found.problem
    assert found.advice.startswith("load in workers: DataLoader(num_workers=")
    assert found.evidence == f"400 µs of 3 ms in the recorded steps; 400 µs of it in {LOAD}, once"


def test_an_item_that_makes_the_host_wait_with_its_line() -> None:
    job = Job().busy(IDLE)
    stack = "torch/_tensor.py(45): wrapped;/home/me/train.py(45): train;/home/me/train.py(80): main"
    job.host("op", "aten::item", BEGIN + 200, BEGIN + 320, stack=stack)
    job.host("op", "aten::_local_scalar_dense", BEGIN + 205, BEGIN + 315)
    job.host("runtime", "cudaStreamSynchronize", BEGIN + 210, BEGIN + 310)
    job.host("op", "aten::add", BEGIN + 650, BEGIN + 660)
    found = first(job, "synchronisation", "aten::item", 400)
    assert found.stack == "/home/me/train.py(45): train"
    assert ".item()" in found.advice


def test_the_line_comes_from_python_functions_too() -> None:
    job = Job().busy(IDLE)
    job.host("python", "/home/me/train.py(80): main", 0, STEPS * STEP)
    job.host("python", "/home/me/train.py(45): train", BEGIN + 100, BEGIN + 900)
    job.host(
        "python",
        "/v/site-packages/torch/_tensor.py(9): f",
        BEGIN + 190,
        BEGIN + 330,
    )
    job.host("python", "<built-in method item>", BEGIN + 195, BEGIN + 325)
    job.host("python", "/home/me/other.py(7): of another thread", BEGIN, BEGIN + 999, thread=2)
    job.host("op", "aten::item", BEGIN + 200, BEGIN + 320)
    job.host("runtime", "cudaStreamSynchronize", BEGIN + 210, BEGIN + 310)
    assert first(job, "synchronisation", "aten::item", 400).stack == "/home/me/train.py(45): train"


def test_frames_of_libraries_where_the_user_has_none() -> None:
    job = Job().busy(IDLE)
    job.host("op", "aten::sort", BEGIN + 300, BEGIN + 700, stack="torch/_tensor.py(45): sort")
    assert first(job, "cpu_operator", "aten::sort", 400).stack == "torch/_tensor.py(45): sort"


def test_an_operator_on_the_host() -> None:
    job = Job().busy(IDLE)
    job.host("op", "aten::unique", BEGIN + 290, BEGIN + 700)
    job.host("op", "aten::sort", BEGIN + 300, BEGIN + 650)
    found = first(job, "cpu_operator", "aten::unique", 400)
    assert found.evidence.endswith("400 µs of it in aten::unique, once")


def test_a_host_that_launches_too_slowly_with_small_kernels() -> None:
    job = Job().busy({SLOW: (100, 900)})
    for place in range(40):
        begin = BEGIN + 100 + 20 * place
        number = 100 + place
        job.host("user", "Optimizer.step#Adam.step", begin, begin + 20)
        job.host("op", "aten::add_", begin, begin + 20)
        job.host("runtime", "cudaLaunchKernel", begin + 5, begin + 15, correlation=number)
        job.ran(begin + 16, begin + 20, correlation=number)
        # A step with far fewer kernels than the one before it would not be whole.
        job.host(
            "runtime", "cudaLaunchKernel", begin + STEP, begin + STEP + 1, correlation=1000 + number
        )
        job.ran(begin + STEP, begin + STEP + 4, correlation=1000 + number, stream=9)
    found = first(job, "launch", "Optimizer.step#Adam.step", 600)
    assert "80 of 86 kernels last less than 5 µs" in found.evidence
    assert found.evidence.endswith("600 µs of it below Optimizer.step#Adam.step, 40 times")
    assert found.advice.startswith("use a fused optimizer (fused=True, else foreach=True) or torch")


def test_an_allocator_that_asks_the_driver_again() -> None:
    job = Job().busy(IDLE)
    job.host("op", "aten::empty", BEGIN + 300, BEGIN + 700)
    job.host("runtime", "cudaFree", BEGIN + 300, BEGIN + 500)
    job.host("runtime", "cudaMalloc", BEGIN + 500, BEGIN + 700)
    found = first(job, "allocator", "aten::empty", 400)
    assert found.evidence.endswith(
        "400 µs of it below aten::empty, once; the calls were mostly cudaFree and cudaMalloc"
    )


def test_communication_that_nothing_hides() -> None:
    job = Job().busy(IDLE)
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    job.ran(BEGIN + 200, BEGIN + 700, name, stream=20)
    found = first(job, "exposed_communication", name, 400)
    assert found.evidence == (
        "400 µs of the 500 µs of communication are not hidden; 400 µs of it is all_reduce"
    )


def test_communication_of_the_host_while_the_device_waits() -> None:
    job = Job().busy(IDLE)
    job.host("user", "gloo:all_reduce", BEGIN + 300, BEGIN + 700)
    first(job, "exposed_communication", "gloo:all_reduce", 400)


def test_a_job_on_cpus_waits_for_data_and_for_communication() -> None:
    job = Job()
    job.host("user", LOAD, BEGIN + 100, BEGIN + 500)
    job.host("user", "gloo:all_reduce", BEGIN + 500, BEGIN + 900)
    assert [(f.kind, f.saves_ns) for f in job.findings()] == [
        ("data_loading", 400 * US),
        ("exposed_communication", 400 * US),
    ]


def test_what_is_not_worth_a_word_is_not_reported() -> None:
    job = Job().busy({SLOW: (300, 350)})
    job.host("user", LOAD, BEGIN + 300, BEGIN + 350)
    assert job.findings() == []


@pytest.mark.parametrize(("used", "kinds"), [(0.95, ["memory"]), (0.85, [])])
def test_memory_that_is_nearly_full(used: float, kinds: list[str]) -> None:
    job = Job(allocations=[of_memory(int(used * 80 * 2**30))]).busy()
    assert [f.kind for f in job.findings()] == kinds


def test_memory_of_a_gpu_whose_place_in_the_list_is_not_its_number() -> None:
    gpu = dataclasses.replace(H100, ordinal=5)
    job = Job(allocations=[of_memory(76 * 2**30, 5), of_memory(1, 0)], devices=[gpu]).busy()
    assert [f.problem[:4] + f.evidence for f in job.findings()] == ["95 %76 GiB of 80 GiB"]


def test_tensor_cores_that_are_never_used() -> None:
    job = Job(name="sgemm_128x64").busy()
    assert [f.kind for f in job.findings()] == ["tensor_cores"]
    old = dataclasses.replace(H100, capability=(6, 0))
    assert Job(name="sgemm_128x64", devices=[old]).busy().findings() == []


def test_a_gpu_that_is_little_used_for_no_traced_reason() -> None:
    job = Job().busy({number: (100, 900) for number in range(1, STEPS + 1)})
    (found,) = job.findings()
    assert found.kind == "utilization"
    assert found.problem.startswith("GPU 0 ran kernels for 20 % of the time, and the trace does")
    assert "with_stack=True" in found.advice
    # Where there is a reason, that is the finding.
    for number in range(STEPS):
        job.host("op", "aten::sort", number * STEP + 100, number * STEP + 900)
    assert [each.kind for each in job.findings()] == ["cpu_operator"]


def test_data_parallel() -> None:
    job = Job().busy()
    job.host("user", "DataParallel.forward", 1, 20)
    assert [f.kind for f in job.findings()] == ["data_parallel"]


@pytest.mark.parametrize(("backends", "kinds"), [(["gloo"], ["backend"]), (["nccl"], []), ([], [])])
def test_ddp_over_gloo(backends: list[str], kinds: list[str]) -> None:
    job = Job(backends=backends).busy()
    job.host("user", "DistributedDataParallel.forward", 1, 20)
    assert [f.kind for f in job.findings()] == kinds


def test_the_rank_that_lets_three_others_wait() -> None:
    who = {"node": "n0", "session": 1}
    late = pl.DataFrame(
        [
            {**who, "rank": rank, "pid": rank, "collectives": 5, "last": 5 * (rank == 2),
             "caused": 3e5 * (rank == 2), "waited": 3e5 * (rank != 2)}
            for rank in range(4)
        ]
    )  # fmt: skip
    steps = pl.DataFrame([{**who, "rank": r, "pid": r, "duration": 1_000_000} for r in range(4)])
    by_trace = communication_rules.stragglers(late, steps)
    assert list(by_trace) == [("n0", 2, 2, 1)]
    (found,) = by_trace["n0", 2, 2, 1]
    assert found.problem == "the other ranks waited for rank 2, up to 30 % of its steps"
    assert found.saves_ns == 300_000


def test_a_process_without_a_rank_is_distinguished_from_another_of_its_host() -> None:
    late = pl.DataFrame(
        [
            {"node": "n0", "rank": None, "pid": pid, "session": 1, "collectives": 5,
             "last": 5 * (pid == 7), "caused": 3e5 * (pid == 7), "waited": 3e5 * (pid != 7)}
            for pid in (7, 8)
        ],
        schema_overrides={"rank": pl.Int64()},
    )  # fmt: skip
    steps = late.select("node", "rank", "pid", "session", pl.lit(1_000_000).alias("duration"))
    (found,) = communication_rules.stragglers(late, steps)["n0", None, 7, 1]
    assert found.problem.startswith("the other ranks waited for pid 7 on n0, up to 30 %")
    (alone,) = communication_rules.stragglers(late.head(1), steps.head(1))["n0", None, 7, 1]
    assert alone.problem.startswith("the other ranks waited for n0, up to 30 %")


#: The plugin's advice: a word of it, and our finding.
PLUGIN = {
    "input data loading": "data_loading",
    "on communication": "exposed_communication",
    "low utilization": "utilization",
    "Tensor Cores": "tensor_cores",
    "memory": "memory",
    "DataParallel": "data_parallel",
    "NCCL": "backend",
}
#: Where the plugin is wrong, and why.
WRONG = {
    ("tl_mi210_gpu_only", "utilization"): "without steps and spans it divides by 2^64",
    **dict.fromkeys(
        (
            ("hta_amd_mi250", "tensor_cores"),
            ("tl_mi300_resnet_act_checkpoint", "tensor_cores"),
            ("tl_vllm_prefilldecode", "tensor_cores"),
        ),
        "it knows no kernel of AMD that uses matrix cores",
    ),
}


#: The first finding on each trace, as one who tunes such jobs would say it; None: nothing to do.
FIRST = {
    "dlrm_8rank": "straggler",
    "handmade_compact": "small_gemm",  # of two thirds of the work, at 0.7 % of the peak
    "handmade_modern": "small_gemm",  # of two thirds of the work, at 0.7 % of the peak
    "handmade_old": "small_gemm",  # of two thirds of the work, at 0.7 % of the peak
    "hta_amd_mi250": "startup",
    "hta_cp_alexnet": "startup",
    "hta_cp_event_sync": "startup",
    "hta_cp_simple_add": "startup",
    "hta_cpu_only": "exposed_communication",
    "hta_cupti_counters": None,
    "hta_df_index_resolver": "launch",
    "hta_mtia_inference": "synchronisation",
    "hta_nccl_data": "launch",
    "hta_ns_resolution": "tensor_cores",
    "hta_sampled_2rank": "launch",
    "hta_trace_diff_control": "exposed_communication",
    "hta_trace_diff_test": "copies",
    "hta_triton": "utilization",
    "param_resnet": "data_loading",
    "tb_resnet50_num_workers_0": "data_loading",
    "tl_b200_eager": "launch",
    "tl_h100_Qwen_Qwen1_5_0_5B_Chat": "poor_bandwidth",
    "tl_h100_facebook_timesformer_base_finetuned_k400": "python",
    "tl_mi210_gpu_only": None,
    "tl_mi300_resnet_act_checkpoint": "exposed_communication",
    "tl_vllm_prefilldecode": None,
}
#: A GPU that is little used is no reason: these are.
WHY = {"data_loading", "synchronisation", "cpu_operator", "launch", "startup", "python",
       "exposed_communication", "straggler", "utilization"}  # fmt: skip


@pytest.mark.parametrize("run", traces.runs())
def test_what_the_plugin_advises_we_do(run: str) -> None:
    advised = {
        next(kind for word, kind in PLUGIN.items() if word in text)
        for name, tip in traces.expected(run, "tb_tip").items()
        if name.endswith("/overview")
        for text in tip["recommendations"]
        if text
    }
    kinds = Analyzer(traces.files(run)[0].parent).recommendations()["kind"].to_list()
    assert next(iter(kinds), None) == FIRST[run]
    found = set(kinds)
    wrong = {kind for of, kind in WRONG if of == run}
    assert wrong <= advised
    assert not wrong & found
    advised -= wrong
    if "utilization" in advised:
        assert found & WHY
    assert advised - {"utilization"} <= found


def test_the_line_that_loads_data_too_slowly() -> None:
    run = Analyzer(traces.files("tb_resnet50_num_workers_0")[0].parent)
    best = run.recommendations().row(0, named=True)
    assert (best["kind"], best["operator"]) == ("data_loading", LOAD)
    assert best["stack"] == "resnet50_profiler_api.py(42): <module>"
    steps = run.overview().steps.filter(session=best["session"])
    # While the loop waits for a batch, the device has next to nothing to do.
    assert best["saves_ns"] == pytest.approx(steps["dataloader"].sum(), rel=0.01)


def on_ai_cpu(op_type: str, start: int, end: int, covered_from: int | None = None) -> Job:
    """A job whose second step runs an operator on the AI CPU in its idle interval."""
    job = Job().busy(IDLE)
    job.host("op", "aten::native_dropout", BEGIN + 20, BEGIN + 40, stack="train.py(7): main")
    job.host("op", "aclnnDropout", BEGIN + 22, BEGIN + 38)
    job.host("runtime", "Enqueue", BEGIN + 25, BEGIN + 30, correlation=99)
    job.ran(start, end, "aicpu", correlation=99, unit="AI_CPU", op_type=op_type)
    if covered_from is not None:
        job.ran(covered_from, end, stream=2)
    for number in (1, STEPS):  # as many kernels in each step: none was cut off
        for begin in (10, 20):
            begin += (number - 1) * STEP
            job.ran(begin, begin + 5, correlation=number)
    return job


def test_random_numbers_on_the_ai_cpu_of_an_npu() -> None:
    job = on_ai_cpu("DropoutGenMask", BEGIN + 200, BEGIN + 700)
    found = first(job, "slow_unit", "aten::native_dropout", 400)
    assert found.stack == "train.py(7): main"
    assert found.evidence.endswith("DropoutGenMask once in 500 µs")
    assert "DropoutWithByteMask" in found.advice


def test_of_an_operator_on_the_ai_cpu_only_what_nothing_else_covers() -> None:
    job = on_ai_cpu("Equal", BEGIN + 300, BEGIN + 700, BEGIN + 450)
    found = first(job, "slow_unit", "aten::native_dropout", 150)
    assert "int32" in found.advice
    hidden = on_ai_cpu("Equal", BEGIN + 300, BEGIN + 700, BEGIN + 310)
    assert "slow_unit" not in [each.kind for each in hidden.findings()]


def test_the_cores_of_an_npu_are_not_slow() -> None:
    job = Job().busy(IDLE)
    job.ran(BEGIN + 300, BEGIN + 700, "add", unit="AI_VECTOR_CORE", op_type="Add")
    assert job.findings() == []
