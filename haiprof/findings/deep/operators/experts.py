"""Why mixtures of experts are slow.

Tests: tests/findings/deep/operators/test_problems.py.
"""

from __future__ import annotations

from typing import Final

from haiprof.findings.deep.operators.case import MEMORY, UNIT_ROWS, Operator, Problem, Rule


def _few_tokens(each: Operator) -> Problem | None:
    s = each.cost.sizes
    if "experts" not in s:
        return None
    rows = s["rows"] / s["experts"]
    reached = each.efficiency
    if rows >= UNIT_ROWS or (reached is not None and MEMORY <= reached <= 1) or each.tiny:
        return None
    tokens = f"{s['tokens']} tokens, {s['chosen']} experts each" if "tokens" in s else (
        f"{s['rows']} rows"
    )  # fmt: skip
    return Problem(
        "few_tokens_per_expert",
        f"{tokens}, are {rows:.2g} rows for each of {s['experts']} experts: their weights are read "
        "for hardly any computing",
        "process more tokens at once (larger batches, chunked prefill), place experts on several "
        "devices (expert parallelism) so that each sees more tokens, or store their weights in "
        "fewer bits",
        each.saving_if_amortised,
    )


def _slow_experts(each: Operator) -> Problem | None:
    if not each.slow:
        return None
    return Problem(
        "slow_experts",
        f"multiplying by {each.cost.sizes.get('experts', 'several')} experts reaches "
        f"{each.reached}",
        "tune the fused kernel for these shapes (vLLM's benchmark_moe, AITER), or balance the "
        "experts",
    )


RULES: Final[tuple[Rule, ...]] = (_few_tokens, _slow_experts)
