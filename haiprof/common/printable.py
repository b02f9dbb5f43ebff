"""Makes foreign text harmless: a name from a run could control the terminal that shows it.

Tests: tests/show/test_hostile_names.py.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """Replace control characters, line ends, and bytes that are not UTF-8."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def readable(text: str) -> str:
    """Replace what no file can store: bytes of a command or a path that are not UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
