"""How far what is on disk of a ring reaches.

Tests: tests/recorder/test_segments.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from haiprof import schema


@dataclass(slots=True)
class Reach:
    """How far the records on disk reach: what the next recorder of a ring must know.

    It travels with each batch, so it is true whenever the batch is there.
    """

    #: Lane -> number of its first record that is not on disk yet.
    lanes: dict[int, int] = field(default_factory=dict)
    #: Cause -> records lost before that point.
    lost: dict[str, int] = field(default_factory=dict)

    def to_metadata(self) -> dict[str, str]:
        """Return it as Arrow metadata."""
        return {
            schema.KEY_THROUGH: json.dumps(self.lanes),
            schema.KEY_LOST: json.dumps(self.lost),
        }

    def merge(self, other: Reach) -> None:
        """Take the maximum of both."""
        for lane, number in other.lanes.items():
            self.lanes[lane] = max(number, self.lanes.get(lane, 0))
        for cause, count in other.lost.items():
            self.lost[cause] = max(count, self.lost.get(cause, 0))
