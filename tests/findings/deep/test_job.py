"""What kind of job a trace is of."""

from __future__ import annotations

import pytest
from trace_frames import kernels_of, spans_of

from haiprof.findings.deep.job import Job, job_of
from haiprof.views.trace.linking.linked import link


def job(*names: str, kernel: str = "gemm", device: str = "") -> Job:
    spans = [
        {"name": name, "start": at, "duration": 1,
         "category": "runtime" if name.startswith(("cuda", "hip", "cu")) else "user"}
        for at, name in enumerate(names)
    ]  # fmt: skip
    return job_of(
        link(spans_of(spans), kernels_of([{"start": 0, "duration": 1, "name": kernel}])), device
    )


@pytest.mark.parametrize(
    "name", ["AddmmBackward0", "autograd::engine::evaluate_function: X", "Optimizer.step#SGD.step"]
)
def test_a_job_that_trains(name: str) -> None:
    assert job(name).trains
    assert not job("aten::mm").trains


@pytest.mark.parametrize(
    "name", ["CompiledFunction", "Torch-Compiled Region: 0/1", "## Call CompiledFxGraph fabc ##"]
)
def test_a_job_that_is_compiled(name: str) -> None:
    assert job(name).compiled
    assert job(kernel="triton_poi_fused_add_0").compiled
    assert not job("aten::mm", kernel="_fwd_kernel").compiled
    assert not job("torch/_inductor/config.py(3): <module>").compiled


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"])
def test_a_job_that_launches_graphs(name: str) -> None:
    assert job(name).graphed
    assert not job("cudaLaunchKernel").graphed


def test_what_a_server_does() -> None:
    served = job(
        "vllm::all_reduce",
        "execute_context_1(888_788544)_generation_0(0)",
        "execute_context_0(0)_generation_8(8)",
        "execute_context_2(10)_generation_8(8)",
    )
    assert (served.server, served.prefills, served.decodes, served.mixed) == ("vLLM", 1, 1, 1)
    assert job("sglang/srt/model_executor.py(5): run").server == "SGLang"
    assert job("vllm/worker.py(5): run").server == "vLLM"
    assert job("aten::mm").server == ""


@pytest.mark.parametrize(
    ("name", "device", "vendor"),
    [
        ("cudaLaunchKernel", "", "nvidia"),
        ("hipLaunchKernel", "", "amd"),
        ("aten::mm", "AMD Instinct MI300X", "amd"),
        ("aten::mm", "Tesla V100-SXM2-16GB", "nvidia"),
        ("aten::mm", "", ""),
    ],
)
def test_who_made_the_gpu(name: str, device: str, vendor: str) -> None:
    assert job(name, device=device).vendor == vendor


def test_how_parameters_and_gradients_are_spread() -> None:
    assert job("DistributedDataParallel.forward").ddp
    assert job("FSDP::all_gather").sharded
    assert not job("aten::mm").ddp
    assert not job("aten::mm").sharded
    assert job("Optimizer.step#FusedAdam.step").fused_optimizer
