"""What the parts found, as one JSON file and one page of tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_WORDS = {True: "met", False: "**not met**", None: "undecided"}


def parsed(lines: str) -> dict[str, Any]:
    """What the lines of a part's file say; a line that was cut off at the end is left out."""
    found: dict[str, Any] = {"rows": [], "facts": {}, "failures": []}
    for line in lines.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "row" in entry:
            found["rows"].append({"what": entry.pop("row"), **entry})
        elif "fact" in entry:
            found["facts"][entry["fact"]] = entry["value"]
        elif "failed" in entry:
            found["failures"].append({"what": entry["failed"], "reason": entry["reason"]})
    return found


def number(value: float) -> str:
    """A number with four significant digits, and none of them in an exponent below a milliard."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", " ")
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1e4 else f"{value:.4g}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _row(row: dict[str, Any]) -> str:
    low, high = row["low"], row["high"]
    interval = "" if low is None or high is None else f"{number(low)} to {number(high)}"
    met = _WORDS[row["met"]] if row["target"] else ""
    cells = (row["what"], f"{number(row['value'])} {row['unit']}", interval,
             str(row["values"]), row["target"], met, row["note"])  # fmt: skip
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def summary(parts: list[dict[str, Any]]) -> dict[str, int]:
    """How many targets were met and not, and how many parts there were."""
    rows = [row for part in parts for row in part["rows"] if row["target"]]
    return {
        "targets_met": sum(row["met"] is True for row in rows),
        "targets_not_met": sum(row["met"] is False for row in rows),
        "targets_undecided": sum(row["met"] is None for row in rows),
        "parts_done": sum(part["state"] == "done" for part in parts),
        "parts_failed": sum(part["state"] in ("failed", "timeout") for part in parts),
        "parts_skipped": sum(part["state"] == "skipped" for part in parts),
        "pieces_failed": sum(len(part["failures"]) for part in parts),
    }


def page(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["# Measured on a GPU", ""]
    lines += [f"- {key}: {_cell(str(value))}" for key, value in results["machine"].items()]
    lines += ["", ", ".join(f"{n} {k.replace('_', ' ')}" for k, n in results["summary"].items())]
    for part in results["parts"]:
        took = f"{part['seconds']:.0f} s"
        lines += ["", f"## {part['title']}", "", f"{part['name']}: {part['state']} ({took})"]
        if part["reason"]:
            lines += ["", f"Reason: {_cell(part['reason'])}"]
        if part["rows"]:
            lines += ["", "| what | measured | 95 % interval | n | target | | |",
                      "|---|---|---|---|---|---|---|"]  # fmt: skip
            lines += [_row(row) for row in part["rows"]]
        for failure in part["failures"]:
            lines += ["", f"Not measured: {failure['what']}: {_cell(failure['reason'])}"]
        if part["facts"]:
            lines += [""]
            lines += [f"- {key}: {_cell(_short(value))}" for key, value in part["facts"].items()]
    return "\n".join(lines) + "\n"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 600 else text[:600] + " …"


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write both files, each whole at any time."""
    results["summary"] = summary(results["parts"])
    for name, text in (
        ("gpu.json", json.dumps(results, indent=1) + "\n"),
        ("gpu.md", page(results)),
    ):
        made = folder / f"{name}.new"
        made.write_text(text)
        made.replace(folder / name)
