"""Several runs' rounds of overhead as one: ``python -m gpu.pooled A/gpu.json B/gpu.json``.

Each round has its own block without haiprof, so that rounds of several runs can be put together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.estimates import at_most
from gpu.parts.overhead import LIMITS, costs, profilers, third
from gpu.results import number


def rounds_of(files: Sequence[Path]) -> list[dict[str, float]]:
    """All rounds of these results.

    Raises:
        ValueError: results were not measured on the same GPU, or there are no rounds.
    """
    found: list[dict[str, float]] = []
    gpus: set[Any] = set()
    for file in files:
        results = json.loads(file.read_text())
        gpus.add(results["machine"].get("gpu"))
        found += [one for part in results["parts"] for one in part.get("rounds", ())]
    if len(gpus) > 1:
        raise ValueError(f"these are of different GPUs: {', '.join(map(str, gpus))}")
    if not found:
        raise ValueError("there is no round of the part overhead")
    return found


def lines(rounds: Sequence[dict[str, float]]) -> list[str]:
    """What they say, a line for each target."""
    pairs = [found for found in rounds if "off" in found]
    said = []
    found = costs(pairs)
    for mode, cost in found.items():
        line = f"{mode}: {number(cost.value)} % ({_interval(cost)}), {cost.values} rounds"
        if mode in LIMITS:
            line += f", target <= {LIMITS[mode]:g}: {_WORDS[at_most(cost, LIMITS[mode])]}"
        said.append(line)
    beside = [one for one in rounds if "torch.profiler" in one]
    if beside:
        theirs = profilers(beside)
        said.append(f"torch.profiler: {number(theirs.value)} % ({_interval(theirs)}), "
                    f"{theirs.values} rounds; all at most a third of it: "
                    f"{_WORDS[third(found['all'], theirs)]}")  # fmt: skip
    return said


_WORDS = {True: "met", False: "not met", None: "undecided"}


def _interval(cost: Any) -> str:
    if cost.low is None:
        return "one value"
    return f"95 %: {number(cost.low)} to {number(cost.high)}"


if __name__ == "__main__":
    print("\n".join(lines(rounds_of([Path(word) for word in sys.argv[1:]]))))
