"""Broken traces: real ones, each mutated in one way, the same bytes every time.

    for name, data in mutations(DATA / "traces"): ...

A name is ``<group>.<what>``. :data:`REPORTED` contains those that lose or invent something unless
a reader says so; the others are odd, but a reader may accept them. No trace is read before the
first mutation is made, so tests can be named without any.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import mutated_bytes
import mutated_shape
import mutated_values
from mutation import MADE, SOURCES, Sources, reported_names

#: The modules that register their mutations when they are imported.
MODULES = (mutated_values, mutated_shape, mutated_bytes)
BOMB_BYTES = mutated_bytes.BOMB_BYTES
#: All names.
NAMES = tuple(MADE)
#: Those of which a reader must say something.
REPORTED = frozenset(reported_names)

__all__ = ["BOMB_BYTES", "NAMES", "REPORTED", "SOURCES", "make", "mutations"]


def mutations(traces: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each mutation's name and bytes; ``traces`` holds the folders of :data:`SOURCES`."""
    for name in NAMES:
        yield name, make(name, traces)


def make(name: str, traces: Path) -> bytes:
    """Return the bytes of one mutation; those that begin with 1f 8b are a gzip file."""
    return MADE[name](Sources(traces, random.Random(name)))
