"""Which GPUs a trace that does not name its own can be of, by the names of its kernels.

Libraries name the architecture that a kernel was generated for. Code for an NVIDIA architecture
also runs on later ones, unless it uses what only that one has (``sm90`` with ``wgmma``); code for
an AMD architecture runs on that alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from haiprof.common.gpu_models import MODELS, Model

_NVIDIA: Final = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
_AMD: Final = ("gfx908", "gfx90a", "gfx942", "gfx950")

#: What a name that matches says about the architecture.
_EVIDENCE: Final = (
    *((re.compile(rf"{name}|ISA{name[3:]}(?![0-9a-z])"), (name,)) for name in _AMD),
    # HIP's calls, AMD's code objects, its libraries (Tensile, MIOpen, Composable Kernel).
    (re.compile(r"^hip[A-Z]|\.kd$"), _AMD),
    (re.compile(r"^Cijk_|gtcx|xdlops|_xdl_|mfma|^_ZN2ck|\bck::|miopen|rocm", re.IGNORECASE), _AMD),
    # AITER supports these two.
    (re.compile(r"\baiter|_aiter", re.IGNORECASE), ("gfx942", "gfx950")),
    (re.compile(r"sm100|tcgen05|utcmma", re.IGNORECASE), ("sm_100",)),
    (re.compile(r"sm_?90|wgmma", re.IGNORECASE), ("sm_90",)),
    (re.compile(r"nvjet_"), ("sm_90", "sm_100")),
    (re.compile(r"sm_?80|^ampere_", re.IGNORECASE), _NVIDIA[2:]),
    (re.compile(r"sm_?75|^turing_", re.IGNORECASE), _NVIDIA[1:]),
    (re.compile(r"^volta_|^cudnn|cublas|cutlass", re.IGNORECASE), _NVIDIA),
)


def candidates(names: Iterable[str]) -> tuple[Model, ...]:
    """Return the GPUs that can have run kernels, operators or calls of the runtime of these names.

    All that are known, if no name says more; none, if the names contradict each other.
    """
    possible = {*_NVIDIA, *_AMD}
    for name in names:
        for pattern, architectures in _EVIDENCE:
            if pattern.search(name):
                possible &= {*architectures}
    return tuple(model for model in MODELS if model.architecture in possible)
