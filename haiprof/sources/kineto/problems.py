"""One line for each reason why a Chrome trace could not be read in full.

Tests: tests/sources/kineto/test_import.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from haiprof.common.printable import printable


def cut_lines(truncated: int | None, broken: str | None) -> Iterator[str]:
    """Say where a file ends too early: at which byte, or by which damage."""
    fix = "what came before is here; copy the file again from where it was written"
    if broken is not None:
        yield f"is damaged: {broken}: {fix}"
    elif truncated is not None:
        yield f"is cut off at byte {truncated} of its text: {fix}"


def problem_lines(found: Mapping[str, tuple[int, int, str]]) -> Iterator[str]:
    """Describe what the parser did not understand (``TraceParser.problems``)."""
    for what, (count, offset, example) in found.items():
        times = "once" if count == 1 else f"{count} times, first"
        shown = f" ({printable(example)})" if example else ""
        yield (
            f"{what}, {times} at byte {offset}{shown}: "
            "left out; see whether what wrote the file can be updated"
        )
