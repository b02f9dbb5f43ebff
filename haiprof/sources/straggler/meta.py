"""The sizes of a job's groups, from the file beside its trace: lines ``name: value``.

Tests: tests/sources/straggler/test_find.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from haiprof.common.choices import quoted
from haiprof.errors import HaiprofError

_LINE: Final = re.compile(r"(\w+):\s+(\S.*)")
_SIZES: Final = ("dp_size", "pp_size", "tp_size", "dsp_size", "vpp_size", "world_size")
_LARGEST: Final = 1 << 16
_MOST: Final = 1 << 24


class Meta(NamedTuple):
    """The sizes of the groups: data, pipeline, tensor, sequence, model chunks of a stage."""

    dp_size: int
    pp_size: int
    tp_size: int
    dsp_size: int
    vpp_size: int
    world_size: int


def place_of(trace: Path) -> Path:
    """Return where the sizes of a trace are."""
    return trace.with_name(f"meta-{trace.stem.removeprefix('trace-')}.yaml")


def read(file: Path) -> Meta:
    """Read the sizes of a job's groups; one that is not named is 1.

    Raises:
        HaiprofError: a line is none, or the sizes contradict each other.
        OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        content = opened.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise HaiprofError(f"{file}: is larger than {_LARGEST >> 10} KiB: give the trace's own")
    sizes = dict.fromkeys(_SIZES, 1)
    lines = content.decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        bare = line.partition("#")[0].strip()
        if not bare:
            continue
        found = _LINE.fullmatch(bare)
        if found is None:
            raise HaiprofError(f"{file}: line {number}, {quoted(bare)}: write it as name: value")
        name, value = found.groups()
        if name not in sizes:
            continue
        if not re.fullmatch(r"[1-9][0-9]{0,7}", value) or int(value) > _MOST:
            raise HaiprofError(f"{file}: {name}: {quoted(value)}: give a number of ranks")
        sizes[name] = int(value)
    meta = Meta(**sizes)
    product = meta.dp_size * meta.pp_size * meta.tp_size * meta.dsp_size
    if meta.world_size != product:
        raise HaiprofError(
            f"{file}: world_size: {meta.world_size}: dp_size * pp_size * tp_size * dsp_size is "
            f"{product}: correct one of them"
        )
    return meta
