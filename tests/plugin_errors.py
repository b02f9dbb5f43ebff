"""Where the TensorBoard plugin's numbers of recorded traces are wrong, and why.

``CORRECTED`` has the numbers that the views have otherwise, ``COMPAT`` those that they have
otherwise even when asked for the plugin's. Both are complete: a number that is not listed is equal.
A run's name may have a worker's behind it.
"""

from __future__ import annotations

EXTERNAL = "launches belong to operators by External id, which is none of an operator's here"
COMMUNICATION = "what communicates is known by External id, or one of five names; the rest computes"
CALLS = "a call that only launches a collective's kernel, or none, is communication itself"
DRIVER = "launches through the driver's API are not known"
RANGES = "ranges of the device are taken for ranges, and steps, of the host"
WINDOW = "a trace without steps is as long as its operators"
NAMES = "tensor cores, and operators that can use them, are known by names up to Ampere's"
TWICE = "calls of the runtime in a collective's range are subtracted from it and from its caller"
DOUBLES = "operators that cross by the rounding of doubles are lost"
BACKWARD = "operators of the backward pass are lost where modules are known"
KINDS = "kinds of MTIA's activities are not known"
NO_HOST = "a trace without a host begins and ends at the ends of time"
MERGED = "an operator merged with its only callee loses its launches, which it has by accident here"
FIRST = "whether an operator can use tensor cores is what its first call could"

_HOST_OPERATORS = ("operators.self_host", "operators.device", "operators.self_device")
_TENSOR_OPERATORS = ("operators.tc_self", "operators.tc_total")
_ELIGIBLE = "tc_eligible_ops_kernel_ratio"


def _all(*groups: tuple[str, tuple[str, ...]]) -> dict[str, str]:
    return {number: reason for reason, numbers in groups for number in numbers}


_COMMUNICATING = (COMMUNICATION, ("Kernel", "Communication", "Runtime", "CpuOp"))
_COPYING = (
    COMMUNICATION, ("Kernel", "Memcpy", "Memset", "Communication", "Runtime", "CpuOp"),
)  # fmt: skip
_UNLINKED = (EXTERNAL, (_ELIGIBLE, *_HOST_OPERATORS))
_STEPLESS = (
    WINDOW, ("steps", "Runtime", "CpuOp", "Other", "Total", "gpu_utilization", "sm_efficiency"),
)  # fmt: skip
_UNNAMED = (NAMES, ("tc_ratio", "tc_used_ratio", "kernels.tc_used"))
_CRITICAL_PATH = _all(_STEPLESS, _UNNAMED, _UNLINKED, (EXTERNAL, _TENSOR_OPERATORS))
_ABSENT = (NO_HOST, ("steps", "Kernel", "Runtime", "Other", "Total", "gpu_utilization"))
_LOST = (
    BACKWARD,
    ("operators", "operators.calls", "operators.host", *_HOST_OPERATORS, "operators.shapes"),
)

CORRECTED: dict[str, dict[str, str]] = {
    "dlrm_8rank": _all(_COMMUNICATING, _UNLINKED),
    "dlrm_8rank/worker3_step_12": _all(_COMMUNICATING, _UNLINKED, (COMMUNICATION, ("Memset",))),
    "hta_amd_mi250": _all(_UNNAMED, (NAMES, _TENSOR_OPERATORS)),
    "hta_cp_alexnet": _CRITICAL_PATH,
    "hta_cp_event_sync": _all((EXTERNAL, _HOST_OPERATORS)),
    "hta_cp_simple_add": _CRITICAL_PATH,
    "hta_cupti_counters": _all(
        (WINDOW, ("steps", "Runtime", "CpuOp", "Other", "Total")),
        (EXTERNAL, ("operators.self_host",)),
    ),
    "hta_df_index_resolver": _all(
        (COMMUNICATION, ("Kernel", "Communication")), (CALLS, ("Runtime", "CpuOp")), _UNLINKED
    ),
    "hta_mtia_inference": _all(
        (KINDS, ("Kernel",)), (WINDOW, ("steps", "Runtime", "CpuOp", "Other", "Total"))
    ),
    "hta_nccl_data": _all(
        _COPYING,
        (RANGES, ("CpuOp",)),
        (TWICE, ("operators.self_host",)),
        _UNNAMED,
        (NAMES, (_ELIGIBLE, *_TENSOR_OPERATORS, "operators.tc_eligible")),
    ),
    "hta_ns_resolution": _all(
        (RANGES, ("CpuOp", "Other")),
        (CALLS, ("Communication", "Runtime")),
        (NAMES, (_ELIGIBLE, "operators.tc_eligible")),
        (DOUBLES, ("operators.calls", "operators.host", *_HOST_OPERATORS, "operators.shapes")),
    ),
    "hta_sampled_2rank": _all(
        _COPYING,
        _UNLINKED,
        (EXTERNAL, ("tc_ratio", *_TENSOR_OPERATORS, "operators.tc_eligible")),
    ),
    "hta_trace_diff_control": _all(
        _COPYING, _UNLINKED, (EXTERNAL, ("tc_ratio", *_TENSOR_OPERATORS))
    ),
    "hta_trace_diff_test": _all(_COPYING, _UNLINKED),
    "hta_triton": _all((DRIVER, ("Runtime", "CpuOp", *_HOST_OPERATORS))),
    "param_resnet": _all(
        (WINDOW, ("steps", "Runtime", "Other", "Total", "gpu_utilization", "sm_efficiency")),
        _UNLINKED,
        (NAMES, ("operators.tc_eligible",)),
    ),
    "tl_b200_eager": _all(
        (COMMUNICATION, ("Kernel", "Communication")),
        (DRIVER, ("Runtime", "CpuOp", *_HOST_OPERATORS)),
        (WINDOW, ("steps", "Total", "gpu_utilization", "sm_efficiency")),
        _UNNAMED,
        (NAMES, (_ELIGIBLE, *_TENSOR_OPERATORS, "operators.tc_eligible")),
    ),
    "tl_h100_Qwen_Qwen1_5_0_5B_Chat": _all(
        (DRIVER, ("Runtime", "CpuOp", *_HOST_OPERATORS)),
        _UNNAMED,
        (NAMES, (_ELIGIBLE, *_TENSOR_OPERATORS, "operators.tc_eligible")),
    ),
    "tl_h100_facebook_timesformer_base_finetuned_k400": _all(
        (DRIVER, _HOST_OPERATORS), _UNNAMED, (NAMES, (_ELIGIBLE, *_TENSOR_OPERATORS))
    ),
    "tl_mi210_gpu_only": _all(_ABSENT, (NAMES, ("tc_used_ratio", "kernels.tc_used"))),
    "tl_mi300_resnet_act_checkpoint": _all(
        _COPYING,
        (RANGES, ("steps", "Other", "Total")),
        _UNNAMED,
        (NAMES, (_ELIGIBLE, *_TENSOR_OPERATORS, "operators.tc_eligible")),
        _LOST,
    ),
    "tl_vllm_prefilldecode": _all(
        (WINDOW, ("steps", "Runtime", "CpuOp", "Total", "gpu_utilization")),
        _UNNAMED,
        (NAMES, _TENSOR_OPERATORS),
    ),
}

COMPAT: dict[str, dict[str, str]] = {
    "hta_nccl_data": _all((FIRST, ("operators.tc_eligible",))),
    "hta_sampled_2rank": _all((FIRST, ("operators.tc_eligible",))),
    "param_resnet": _all((MERGED, (_ELIGIBLE, *_HOST_OPERATORS, "launches"))),
    "tl_mi210_gpu_only": _all(_ABSENT),
    "tl_mi300_resnet_act_checkpoint": _all(
        _LOST, (BACKWARD, (_ELIGIBLE, "operators.tc_eligible", "launches"))
    ),
}
