"""Which kernels and host operations communicate, and which collective each is: an extensible table.

A rule is a regular expression, searched in the name without regard to case, and the collective
that it means. ``None`` leaves that to the words in the name (``AllReduce``, ``SendRecv``); without
such a word, the collective is not known (RCCL names all its kernels
``ncclDevKernel_Generic``). The first rule that matches decides. Users put rules of their own
before these.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.short_texts import kept_if_short


class Rule(NamedTuple):
    """``pattern`` matches names that communicate; ``op`` is which collective they are."""

    pattern: str
    op: str | None = None


#: Kernels that communicate.
KERNELS: tuple[Rule, ...] = (
    # Libraries of collectives; RCCL keeps the names of NCCL.
    Rule(r"nccl|rccl|oneccl|hccl|hcom_"),
    Rule(r"mscclpp|msccl"),
    Rule(r"nvshmem|rocshmem"),
    # Expert parallelism. DeepEP's layout kernels only count.
    Rule(r"deep_?ep::(intra|inter)node|dpsk::ep", "all_to_all"),
    Rule(r"pplx.*all_?to_?all|mori::.*(dispatch|combine)", "all_to_all"),
    # Symmetric memory of torch, and its barriers.
    Rule(r"multimem_(one_shot_|two_shot_)?(all_?reduce)", "all_reduce"),
    Rule(r"multimem_all_?gather", "all_gather"),
    Rule(r"(one|two)_?shot_?all_?reduce", "all_reduce"),
    Rule(r"(one|two)_?shot_?(reduce_?scatter|all_?gather|all_?to_?all)"),
    # Custom all-reduce of vLLM, SGLang and AITER; quick reduce; TensorRT-LLM; FlashInfer.
    Rule(r"cross_device_reduce", "all_reduce"),
    Rule(r"quick_?reduce::|allreduce_prototype", "all_reduce"),
    Rule(r"all_?reduce_?fusion|lamport.*(all_?reduce|rms)", "all_reduce"),
    Rule(r"moe_?(finalize|reduction)_?all_?reduce", "all_reduce"),
    # User buffers of Transformer Engine.
    Rule(r"userbuffers_.*(push|pull)?(send|recv)", "send_recv"),
    Rule(r"userbuffers"),
    # A collective's name with an additional word, as in custom kernels.
    Rule(r"(^|[^a-z])(all_?reduce|reduce_?scatter|all_?gather|all_?to_?all)(v|_?kernel|_|<|\(|$)"),
)  # fmt: skip

#: Ranges of the host in which a backend communicates.
BACKENDS: tuple[Rule, ...] = (Rule(r"^(nccl|gloo|mpi|ucc|hccl|xccl|rccl):"),)

#: Operations of the host that are a collective: those, and torch's wrappers around them.
OPERATIONS: tuple[Rule, ...] = (
    *BACKENDS,
    Rule(r"^record_param_comms$"),
    Rule(r"^_?c10d(_functional)?::"),
)

#: Words in a name and the collective that they mean; the first match decides.
WORDS: tuple[tuple[str, str], ...] = (
    (r"all_?reduce", "all_reduce"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?gather", "all_gather"),
    (r"all_?to_?all|alltoall", "all_to_all"),
    (r"send_?recv", "send_recv"),
    (r"broadcast|bcast", "broadcast"),
    (r"scatter", "scatter"),
    (r"gather", "gather"),
    (r"barrier", "barrier"),
    (r"reduce", "reduce"),
    (r"send", "send"),
    (r"recv|receive", "recv"),
)


def communicates(column: str = "name") -> pl.Expr:
    """Say of each row of a column of names whether the kernel communicates."""
    pattern = "|".join(f"(?:{rule.pattern})" for rule in KERNELS)
    return pl.col(column).cast(pl.String).str.contains(f"(?i){pattern}").fill_null(False)


def communication(
    names: Iterable[str], rules: Sequence[Rule | tuple[str, str | None]] = KERNELS
) -> dict[str, str | None]:
    """Return the ``names`` that communicate, each with its collective (None: not known)."""
    said = _by_rules(tuple(Rule(*rule) for rule in rules))
    return {name: found.op for name in names if (found := said(name)) is not None}


class _Communicates(NamedTuple):
    op: str | None


@functools.lru_cache(16)
def _by_rules(rules: tuple[Rule, ...]) -> Callable[[str], _Communicates | None]:
    any_of = re.compile("|".join(f"(?:{rule.pattern})" for rule in rules) or r"(?!)", re.IGNORECASE)

    @kept_if_short
    def said(name: str) -> _Communicates | None:
        if not any_of.search(name):
            return None
        # Compiled on first use: most traces do not communicate.
        op = next(r.op for r in rules if re.search(r.pattern, name, re.IGNORECASE))
        return _Communicates(op or collective(name))

    return said


def collective(name: str) -> str | None:
    """Return the collective that the words of a name mean."""
    lowered = name.lower()
    return next((op for word, op in WORDS if re.search(word, lowered)), None)


def by_name(names: pl.Series, chosen: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Say of each row of a Categorical column whether its text is one of ``chosen``."""
    mask: npt.NDArray[np.bool_] = (
        names.is_in(pl.Series(list(chosen), dtype=pl.String).cast(names.dtype).implode())
        .fill_null(False)
        .to_numpy()
    )
    return mask
