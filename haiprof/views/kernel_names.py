"""Names of kernels for people."""

from __future__ import annotations

import re
from collections.abc import Iterable

_COMPONENT = re.compile(r"(\d{1,4})(?=[A-Za-z_])")
#: Of a name, what stays from run to run; the rest is of this run, or of this version of a library.
_LASTING = (
    # HCCL: its group, its turn in that, and its loop.
    re.compile(r"(hcom_[A-Za-z]+?)_*(?:_\d+)+"),
    # NCCL: how arguments are handed over.
    re.compile(r"(nccl(?:Dev)?Kernel_\w+)\(.*\)"),
    # torch.compile: the number of a kernel among those of its graph, which any other one shifts,
    # and how older versions of Triton specialised it on its arguments; the key of a graph.
    re.compile(r"(triton_\w*?)(?:_\d+)?(?:_0(?:[dec]*\d+)*[dec]*)?"),
    re.compile(r"(## Call CompiledFxGraph) \w+ ##"),
)


def demangled(names: Iterable[str]) -> dict[str, str]:
    """Return the readable form of each name; what is not mangled stays as it is.

    The C++ library reads names of up to 1024 characters. Of longer ones (CUTLASS has them) the
    qualified name alone is told, with ``<…>`` for its template arguments.
    """
    from haiprof import _core

    made = {}
    for name in names:
        readable = _core.demangle(name)
        made[name] = _qualified(name) if readable == name and name.startswith("_Z") else readable
    return made


def short_name(readable: str) -> str:
    """Leave return type, parameters and anonymous namespaces out of a demangled name.

    ``void f<int>(float*)`` is ``f<int>``. Template arguments stay: of elementwise kernels they are
    what tells one from another.
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
            # What stands before the last blank outside <> is the return type.
            return name[position + 1 :] or name
    return name


def lasting_name(readable: str) -> str:
    """Leave out of a name what differs between runs of the same code.

    ``hcom_allReduce__868_3_1`` is ``hcom_allReduce``, and ``triton_poi_fused_add_12`` is
    ``triton_poi_fused_add``: kernels of one name are then what they have in common.
    """
    found = (pattern.fullmatch(readable) for pattern in _LASTING)
    return next((match[1] for match in found if match), readable)


def _parameters(name: str) -> int:
    """Return where the parameter list begins that a demangled name ends with; -1 without one."""
    if not name.endswith(")"):
        return -1
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        if name[position] == ")":
            depth += 1
        elif name[position] == "(":
            depth -= 1
            if depth == 0:
                # After a blank it is no list of parameters: "Memcpy HtoD (Pinned -> Device)".
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
