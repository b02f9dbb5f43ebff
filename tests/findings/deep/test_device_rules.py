"""Findings on how devices are used: only what their hardware can do, and what the trace shows."""

from __future__ import annotations

import dataclasses

import pytest
from planted import BEGIN, H100, IDLE, SLOW, STEP, STEPS, US, Job, of_memory

from haiprof.findings.deep.case import Device

V100 = Device("Tesla V100-SXM2-32GB", None, (7, 0))
P100 = Device("Tesla P100", None, (6, 0))
MI300 = Device("AMD Instinct MI300X", None, (9, 4))


def multiplying(kernel: str, device: Device, types: str | None, *marks: str) -> Job:
    """A job that only multiplies matrices of these types by kernels of this name."""
    job = Job(name=kernel, devices=(device,)).busy()
    for row in job.spans:
        if row["name"] == "aten::mm":
            row["types"] = types
        if row["name"] == "cudaLaunchKernel" and device is MI300:
            row["name"] = "hipLaunchKernel"
        if row["category"] == "runtime" and row["duration"] == 0:
            # The second kernel of a step is of its operator, too.
            row["start"] -= 495 * US
    for place, name in enumerate(marks):
        job.host("user", name, 20 + place, 20 + place)
    return job


FLOAT, HALF, BRAIN = '["float", "float"]', '["c10::Half", "c10::Half"]', '["c10::BFloat16"]'


@pytest.mark.parametrize(
    ("kernel", "device", "types", "advice"),
    [
        ("volta_sgemm_128x64_tn", V100, None, "compute in float16"),
        ("volta_sgemm_128x64_tn", V100, FLOAT, "compute in float16"),
        ("ampere_sgemm_64x32", H100, None, "compute in bfloat16 (torch.autocast), or allow TF32"),
        # The kernel's name says nothing, but the inputs do.
        ("_matmul_kernel_0d1d", H100, FLOAT, "compute in bfloat16"),
        ("_matmul_kernel_0d1d", H100, BRAIN, None),
        ("_matmul_kernel_0d1d", H100, HALF, None),
        ("_matmul_kernel_0d1d", H100, None, None),
        # Without tensor cores, or with them in use.
        ("sgemm_128x64", P100, FLOAT, None),
        ("nvjet_tst_128x256", H100, FLOAT, None),
        ("Cijk_Ailk_Bljk_SB_MT64x64x8_MI32x32x1", MI300, FLOAT, None),
        ("Cijk_Ailk_Bljk_SB_MT64x64x8", MI300, FLOAT, None),
    ],
)
def test_advice_on_types_is_what_the_gpu_can_do(
    kernel: str, device: Device, types: str | None, advice: str | None
) -> None:
    found = multiplying(kernel, device, types).findings()
    assert [each.kind for each in found] == (["tensor_cores"] if advice else [])
    if advice:
        assert found[0].advice.startswith(advice)
        assert found[0].saves_ns == STEPS * STEP * US
        assert found[0].operator == "aten::mm"


def test_the_scaler_is_for_training() -> None:
    (infers,) = multiplying("volta_sgemm", V100, None).findings()
    assert "GradScaler" not in infers.advice
    (trains,) = multiplying("volta_sgemm", V100, None, "Optimizer.step#SGD.step").findings()
    assert "GradScaler" in trains.advice


@pytest.mark.parametrize(
    ("kind", "name", "copy_kind", "advice"),
    [
        ("memcpy", "Memcpy HtoD (Pageable -> Device)", "HtoD", "copy the next input while"),
        ("memcpy", "Memcpy DtoH (Device -> Pageable)", "DtoH", "copy results to the host less"),
        ("memcpy", "Memcpy DtoD (Device -> Device)", "DtoD", "avoid the copies"),
        ("memset", "Memset (Device)", None, "let the kernels that come next"),
    ],
)
def test_copies_that_nothing_hides(
    kind: str, name: str, copy_kind: str | None, advice: str
) -> None:
    job = Job().busy(IDLE)
    job.launch(BEGIN + 100, 70, "cudaMemcpyAsync")
    job.ran(BEGIN + 200, BEGIN + 700, name, kind=kind, copy_kind=copy_kind, correlation=70,
            stream=9, bytes=2**20)  # fmt: skip
    (found,) = job.findings()
    assert (found.kind, found.saves_ns, found.step) == ("copies", 400 * US, SLOW)
    assert found.advice.startswith(advice)
    assert found.evidence.endswith("once in 500 µs, 1 MiB")


@pytest.mark.parametrize(("waits", "saves"), [(True, 399), (False, 0)])
def test_a_step_is_shorter_by_what_really_waited(waits: bool, saves: int) -> None:
    """Without a wait, the host does not launch the second kernel sooner if nothing is copied."""
    job = Job().busy(IDLE)
    job.launch(BEGIN + 100, 70, "cudaMemcpyAsync")
    job.ran(BEGIN + 200, BEGIN + 700, "Memcpy HtoD", kind="memcpy", correlation=70, stream=9)
    if waits:
        job.host("runtime", "cudaDeviceSynchronize", BEGIN + 110, BEGIN + 699)
    found = next(each for each in job.findings() if each.kind == "copies")
    assert (found.saves_ns, found.step) == (400 * US, SLOW)
    assert found.step_saves_ns == saves * US


def test_a_server_fills_the_memory_on_purpose() -> None:
    full = [of_memory(76 * 2**30)]
    assert [each.kind for each in Job(allocations=full).busy().findings()] == ["memory"]
    served = Job(allocations=full).busy()
    served.host("op", "vllm::unified_attention", 1, 2)
    assert served.findings() == []
    trains = Job(allocations=full).busy()
    trains.host("user", "Optimizer.step#SGD.step", 20, 20)
    assert "checkpointing" in trains.findings()[0].advice
    assert "checkpointing" not in Job(allocations=full).busy().findings()[0].advice


def test_the_name_of_a_gpu_tells_its_maker() -> None:
    unnamed = dataclasses.replace(V100, name="")
    assert [f.kind for f in multiplying("volta_sgemm", unnamed, None).findings()] == [
        "tensor_cores"
    ]
