"""Findings on devices that the host gave nothing to do: the advice fits the job and the cause."""

from __future__ import annotations

import pytest
from planted import BEGIN, IDLE, SLOW, STEP, US, Job, first
from trace_rows import kernel, span, table

from haiprof.findings.deep import rules
from haiprof.findings.deep.recommendation import Finding
from haiprof.views.trace.linking.linked import link

#: What makes a job of a kind: names of host spans, and whether they are calls of the runtime.
TRAINS = ("user", "Optimizer.step#SGD.step")
COMPILED = ("op", "CompiledFunction")
GRAPHED = ("runtime", "cudaGraphLaunch")
ON_AMD = ("runtime", "hipMemcpyAsync")
SERVES = ("op", "vllm::unified_attention")
PREFILLS = ("user", "execute_context_1(800)_generation_0(0)")
DECODES = ("user", "execute_context_0(0)_generation_9(9)")
SGLANG = ("op", "sgl_kernel::rmsnorm")


def of_kind(job: Job, *marks: tuple[str, str]) -> Job:
    for at, (category, name) in enumerate(marks):
        job.host(category, name, 20 + at, 20 + at)
    return job


@pytest.mark.parametrize(
    ("marks", "advice"),
    [
        ((), "use torch.compile or CUDA graphs; larger batches give each launch more to do"),
        ((TRAINS,), "use torch.compile or CUDA graphs; larger batches give"),
        ((COMPILED,), "use CUDA graphs (torch.compile(mode='reduce-overhead')); larger"),
        ((GRAPHED,), "use torch.compile; larger"),
        ((COMPILED, GRAPHED), "larger batches give each launch more to do"),
        ((ON_AMD,), "use torch.compile or HIP graphs; larger"),
        ((SERVES,), "serve without --enforce-eager, so that CUDA graphs are captured; serve more"),
        (
            (SERVES, PREFILLS),
            "this is a prefill step: serve without --enforce-eager, so that CUDA graphs are "
            "captured; prefill more requests, or larger chunks, at a time",
        ),
        ((SERVES, DECODES, GRAPHED), "this is a decode step: serve more requests at a time"),
        ((SERVES, DECODES, PREFILLS, GRAPHED), "serve more requests at a time"),
        ((SGLANG,), "serve without --disable-cuda-graph; serve more requests at a time"),
    ],
)
def test_how_a_job_launches_less(marks: tuple[tuple[str, str], ...], advice: str) -> None:
    job = of_kind(Job().busy(IDLE), *marks)
    job.host("op", "aten::addmm", BEGIN + 300, BEGIN + 701)
    found = first(job, "launch", "aten::addmm", 400)
    assert found.advice.startswith(advice)


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_that_launches_many_kernels_is_fused_once(fused: bool) -> None:
    job = of_kind(Job().busy(IDLE), *([("user", "Optimizer.step#FusedAdam.step")] * fused))
    job.host("user", "Optimizer.step#Adam.step", BEGIN + 300, BEGIN + 701)
    job.host("op", "aten::add_", BEGIN + 300, BEGIN + 701)
    found = first(job, "launch", "Optimizer.step#Adam.step", 400)
    assert ("fused optimizer" in found.advice) is not fused


def test_gradients_need_not_be_set_to_zero() -> None:
    job = Job().busy(IDLE)
    job.host("user", "Optimizer.zero_grad#SGD.zero_grad", BEGIN + 300, BEGIN + 701)
    job.host("op", "aten::zero_", BEGIN + 300, BEGIN + 701)
    found = first(job, "launch", "Optimizer.zero_grad#SGD.zero_grad", 400)
    assert found.advice.startswith("use zero_grad(set_to_none=True) or torch.compile")


@pytest.mark.parametrize(
    ("calls", "advice", "not_advice"),
    [
        (("cudaMalloc",), "expandable_segments:True", "empty_cache"),
        (("cudaFree", "cudaMalloc"), "nearly full or something calls", "input"),
        (("hipFree", "hipMalloc"), "nearly full or something calls", "expandable"),
        (("hipMalloc",), "pad inputs to few sizes", "expandable"),
        (("cuMemMap", "cuMemSetAccess"), "expandable segments still grow", "expandable_segments:"),
    ],
)
def test_what_an_allocator_needs_depends_on_its_calls(
    calls: tuple[str, ...], advice: str, not_advice: str
) -> None:
    job = Job().busy(IDLE)
    if calls[0].startswith("hip"):
        of_kind(job, ON_AMD)
    length = 400 // len(calls)
    for place, name in enumerate(calls):
        begin = BEGIN + 300 + place * length
        # Of several, the first takes longer.
        longer = 50 if len(calls) > 1 and not place else 0
        job.host("runtime", name, begin + 50 * place, begin + length + longer)
    found = next(each for each in job.findings() if each.kind == "allocator")
    assert advice in found.advice
    assert not_advice not in found.advice
    assert calls[0] in found.evidence


def test_a_cache_that_is_emptied_in_the_step() -> None:
    job = Job().busy(IDLE)
    job.host("runtime", "cudaFree", BEGIN + 300, BEGIN + 700)
    job.host("python", "torch/cuda/memory.py(9): empty_cache", BEGIN + 290, BEGIN + 700)
    (found,) = job.findings()
    assert found.advice == "do not call torch.cuda.empty_cache() in the step"


@pytest.mark.parametrize(
    ("operator", "call", "marks", "advice"),
    [
        ("aten::item", "cudaStreamSynchronize", (), "take .item()"),
        ("aten::nonzero", "cudaStreamSynchronize", (TRAINS,), "take .item()"),
        ("aten::to", "cudaStreamSynchronize", (), "copy from and to pinned memory"),
        ("aten::index", "cudaMemcpy", (), "copy from and to pinned memory"),
        ("my::op", "cudaDeviceSynchronize", (TRAINS,), "wait for the device less often"),
        ("my::op", "cudaDeviceSynchronize", (), "launch the next batch before waiting"),
    ],
)
def test_what_waits_for_the_device(
    operator: str, call: str, marks: tuple[tuple[str, str], ...], advice: str
) -> None:
    job = of_kind(Job().busy(IDLE), *marks)
    job.host("op", operator, BEGIN + 200, BEGIN + 690)
    job.host("runtime", call, BEGIN + 210, BEGIN + 680)
    assert first(job, "synchronisation", operator, 400).advice.startswith(advice)


def test_python_code_that_launches_nothing() -> None:
    job = Job().busy(IDLE)
    job.host("python", "train.py(9): main", 0, 3 * STEP)
    job.host("python", "data.py(3): prepare", BEGIN + 280, BEGIN + 700)
    job.host("python", "data.py(7): decode", BEGIN + 300, BEGIN + 600)
    found = first(job, "python", "data.py(3): prepare", 400)
    assert found.stack == "data.py(3): prepare"
    # What the profiler does is not the job's.
    own = Job().busy(IDLE)
    own.host("python", "torch/profiler/profiler.py(9): start", BEGIN + 280, BEGIN + 700)
    assert own.findings() == []


def test_code_that_is_loaded_at_its_first_use() -> None:
    def kinds(*earlier: str) -> list[Finding]:
        names = [*earlier, "gemm", "implicit_gemm"]
        spans = [
            span("runtime", "cudaLaunchKernel", 10 * at, 10 * at + 5, correlation=at + 1)
            for at in range(len(names) - 1)
        ]
        spans += [
            span("op", "aten::conv2d", 900 * US, 6_000 * US),
            span("runtime", "cudaLaunchKernel", 1_000 * US, 6_000 * US, correlation=len(names)),
        ]
        ran = [
            kernel(name, (at + 1) * 100 * US, (at + 2) * 100 * US, correlation=at + 1)
            for at, name in enumerate(names[:-1])
        ]
        ran.append(kernel(names[-1], 6_010 * US, 9_000 * US, correlation=len(names)))
        linked = link(table("spans", spans), table("kernels", ran))
        return rules.recommendations(linked, table("allocations", []))

    found = next(each for each in kinds() if each.kind == "startup")
    assert (found.operator, found.saves_ns) == ("aten::conv2d", 5_000 * US)
    assert "torch.profiler.schedule" in found.advice
    # A kernel of that name had run before: its launch only took long.
    assert "startup" not in [each.kind for each in kinds("implicit_gemm")]


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("op", "aten::unique_cpu", "cpu_operator"),
        ("op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data_loading"),
        ("runtime", "cudaMalloc", "allocator"),
    ],
)
def test_a_step_is_shorter_without_what_the_host_did(category: str, name: str, kind: str) -> None:
    job = Job().busy(IDLE)
    job.host(category, name, BEGIN + 300, BEGIN + 699)
    found = next(each for each in job.findings() if each.kind == kind)
    assert found.step_saves_ns == 399 * US


@pytest.mark.parametrize("since", [100, 250])
def test_a_step_is_shorter_by_what_the_host_waited_for_a_device(since: int) -> None:
    """Without the wait, the host does what it does after it, and launches, so much sooner."""
    job = Job().busy(IDLE)
    (launching,) = (each for each in job.spans if each.get("correlation") == 50 + SLOW)
    launching.update(start=launching["start"] - 3 * US, duration=2 * US)
    job.host("runtime", "cudaDeviceSynchronize", BEGIN + since, BEGIN + 305)
    found = next(each for each in job.findings() if each.kind == "synchronisation")
    assert (found.operator, found.step) == ("cudaDeviceSynchronize", SLOW)
    assert found.step_saves_ns == (300 - since) * US
