"""Real files of torch_npu, of two ranks at two levels, and a plain reading of them."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from real_data import DATA

ARCHIVE = DATA / "other" / "ascend.tar.xz"


def output(job: Path, rank: int = 0) -> Path:
    """The folder of a rank's analysis."""
    return job / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"


def rows(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, without blanks around their values."""
    with file.open(newline="", encoding="utf-8") as opened:
        found = list(csv.DictReader(opened))
    return [{key: (value or "").strip() for key, value in row.items()} for row in found]


def ns(us: str | float) -> int:
    """Microseconds as ns."""
    return int((Decimal(str(us)) * 1000).to_integral_value("ROUND_HALF_UP"))


class Events:
    """The events of a ``trace_view.json``, each with the name of its layer."""

    def __init__(self, file: Path) -> None:
        self.all: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
        self.layers = {
            event["pid"]: event["args"]["name"]
            for event in self.all
            if event["ph"] == "M" and event["name"] == "process_name"
        }

    def of(self, category: str | None, phase: str = "X") -> list[dict[str, Any]]:
        return [e for e in self.all if e["ph"] == phase and e.get("cat") == category]

    def layer(self, name: str) -> list[dict[str, Any]]:
        return [e for e in self.of(None) if self.layers.get(e["pid"]) == name]
