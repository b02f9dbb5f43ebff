"""Readable names of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable

_COMPONENT = re.compile(r"(\d{1,4})(?=[A-Za-z_])")
#: The part of a name that stays from run to run; the rest depends on the run or library version.
_LASTING = (
    # HCCL: its group, its turn in that, and its loop.
    re.compile(r"(hcom_[A-Za-z]+?)_*(?:_\d+)+"),
    # NCCL: how arguments are passed.
    re.compile(r"(nccl(?:Dev)?Kernel_\w+)\(.*\)"),
    # torch.compile: the number of a kernel in its graph, which any other kernel shifts, and how
    # older versions of Triton specialised it on its arguments; the key of a graph.
    re.compile(r"(triton_\w*?)(?:_\d+)?(?:_0(?:[dec]*\d+)*[dec]*)?"),
    re.compile(r"(## Call CompiledFxGraph) \w+ ##"),
)


def demangled(names: Iterable[str]) -> dict[str, str]:
    """Return the readable form of each name; names that are not mangled stay unchanged.

    The C++ library reads names of up to 1024 characters. Longer ones (CUTLASS has them) are
    reduced to the qualified name, with ``<…>`` for its template arguments.
    """
    from haiprof import _core

    result = {}
    for name in names:
        readable = _core.demangle(name)
        result[name] = _qualified(name) if readable == name and name.startswith("_Z") else readable
    return result


def short_name(readable: str) -> str:
    """Remove return type, parameters and anonymous namespaces from a demangled name.

    ``void f<int>(float*)`` becomes ``f<int>``. Template arguments stay: they distinguish
    elementwise kernels from each other.
    """
    name = readable.replace("(anonymous namespace)::", "")
    end = _parameters(name)
    if end <= 0:
        return name
    name = name[:end]
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        if name[position] == ">":
            depth += 1
        elif name[position] == "<":
            depth -= 1
        elif name[position] == " " and depth == 0:
            # The text before the last blank outside <> is the return type.
            return name[position + 1 :] or name
    return name


def lasting_name(readable: str) -> str:
    """Remove from a name what differs between runs of the same code.

    ``hcom_allReduce__868_3_1`` becomes ``hcom_allReduce``, and ``triton_poi_fused_add_12``
    ``triton_poi_fused_add``: several kernels may then share a name.
    """
    found = (pattern.fullmatch(readable) for pattern in _LASTING)
    return next((match[1] for match in found if match), readable)


def _parameters(name: str) -> int:
    """Return where the parameter list at the end of a demangled name begins; -1 without one."""
    if not name.endswith(")"):
        return -1
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        if name[position] == ")":
            depth += 1
        elif name[position] == "(":
            depth -= 1
            if depth == 0:
                # After a blank it is not a parameter list: "Memcpy HtoD (Pinned -> Device)".
                return position if name[position - 1 : position] != " " else -1
    return -1


def _qualified(mangled: str) -> str:
    """Read the ``N`` length-and-name chain at the head of a mangled name; unchanged if none."""
    position = 3 if mangled.startswith("_ZN") else 2
    words = []
    while match := _COMPONENT.match(mangled, position):
        end = match.end() + int(match[1])
        word = mangled[match.end() : end]
        if len(word) < int(match[1]):
            return mangled
        words.append(word)
        position = end
    if not words:
        return mangled
    words = [word for word in words if not word.startswith("_GLOBAL__N")]
    more = "<…>" if mangled[position : position + 1] == "I" else ""
    return "::".join(words) + more
