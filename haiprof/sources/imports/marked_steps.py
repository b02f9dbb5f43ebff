"""Which ranges that a user marked are the steps of the job: by their texts and how they follow.

Tests: tests/sources/nsys/test_ranges.py.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

#: Lightning's name for each training batch, without a number.
BATCH: Final = "[pl][profile]run_training_batch"
#: A range that may be a step: torch.profiler's, or a word for one and its number.
STEP: Final = re.compile(
    r"(?P<family>ProfilerStep#|(?:(?:train(?:ing)?|global)[ _-]?)?(?:step|iter|iteration)[ _:#=]*)"
    r"(?P<number>\d{1,9})",
    re.IGNORECASE,
)
#: The same as a filter for ranges of many texts, which may match more than that.
MAY_BE: Final = r"(?i)step|iter|run_training_batch"

_Range = tuple[int, int, str, int]


def marked(ranges: Iterable[tuple[int, int, str]]) -> dict[tuple[int, str], int]:
    """Return the ranges that are steps, by start and text, each with its number.

    Ranges of one family (same text before the number) are steps if they follow each other without
    overlap and their numbers increase, and there are at least two unless torch.profiler named them.
    Of several such families the one with the longest total counts. Batches of Lightning, which have
    no number, are counted from 0.

    Args:
        ranges: start, end and text of each.
    """
    families: dict[str, list[_Range]] = defaultdict(list)
    for start, end, text in sorted(ranges):
        found = STEP.fullmatch(text)
        if found is not None:
            family = families[found["family"].lower().strip()]
            family.append((start, end, text, int(found["number"])))
        elif text == BATCH:
            family = families[text]
            family.append((start, end, text, len(family)))
    best: list[_Range] = []
    for name, rows in families.items():
        rows.sort()
        enough = len(rows) > 1 or name.startswith("profilerstep")
        if enough and _one_after_the_other(rows) and _length(rows) > _length(best):
            best = rows
    return {(start, text): number for start, _, text, number in best}


def _one_after_the_other(rows: list[_Range]) -> bool:
    return all(
        end <= later and number < next_number
        for (_, end, _, number), (later, _, _, next_number) in itertools.pairwise(rows)
    )


def _length(rows: list[_Range]) -> int:
    return sum(end - start for start, end, _, _ in rows)
