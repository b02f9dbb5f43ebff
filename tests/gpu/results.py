"""What the parts found: five files, each whole at any time.

``summary.json`` is what to look at first, ``gpu.json`` has everything, ``gpu.md`` is the page to
read, ``log.txt`` what the parts wrote on stderr, ``buffers.tar.gz`` the files that they left.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_WORDS = {True: "met", False: "**not met**", None: "undecided"}


def parsed(lines: str) -> dict[str, Any]:
    """What the lines of a part's file say; a line that was cut off at the end is left out.

    Of rows with the same name the last one counts.
    """
    found: dict[str, Any] = {"rows": [], "facts": {}, "failures": [], "rounds": [], "skipped": ""}
    rows: dict[str, dict[str, Any]] = {}
    for line in lines.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "row" in entry:
            what = entry.pop("row")
            rows[what] = {"what": what, **entry}
        elif "fact" in entry:
            found["facts"][entry["fact"]] = entry["value"]
        elif "failed" in entry:
            found["failures"].append({"what": entry["failed"], "reason": entry["reason"]})
        elif "round" in entry:
            found["rounds"].append(entry["round"])
        elif "skipped" in entry:
            found["skipped"] = entry["skipped"]
    found["rows"] = list(rows.values())
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


def counted(parts: list[dict[str, Any]]) -> dict[str, int]:
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


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """What to know first: how far it came, each part's end, and what is not as it should be."""
    parts = results["parts"]
    return {
        "state": results["state"],
        **counted(parts),
        "machine": results["machine"],
        "waiting": results["waiting"],
        "parts": {part["name"]: _end(part) for part in parts},
        "not_met": [_line(part, row) for part, row in _judged(parts, False)],
        "undecided": [_line(part, row) for part, row in _judged(parts, None)],
        "not_measured": [f"{part['name']}: {failure['what']}: {failure['reason']}"
                         for part in parts for failure in part["failures"]],
    }  # fmt: skip


def _judged(
    parts: list[dict[str, Any]], met: bool | None
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(part, row) for part in parts for row in part["rows"]
            if row["target"] and row["met"] is met]  # fmt: skip


def _end(part: dict[str, Any]) -> str:
    rows = f"{len(part['rows'])} rows, {part['seconds']:.0f} s"
    return f"{part['state']}, {rows}" + (f": {part['reason']}" if part["reason"] else "")


def _line(part: dict[str, Any], row: dict[str, Any]) -> str:
    value = f"{number(row['value'])} {row['unit']}".strip()
    return " ".join(f"{part['name']}: {row['what']}: {value}, target {row['target']}; "
                    f"{row['note']}".split())[:300]  # fmt: skip


def short(found: dict[str, Any]) -> str:
    """The summary in one line, of which many fit into a log."""
    bad = {name: end[:100] for name, end in found["parts"].items()
           if end.startswith(("failed", "timeout"))}  # fmt: skip
    kept = {key: found[key] for key in ("state", *counted([]))}
    not_met = [line[:70] for line in found["not_met"][:6]]
    return json.dumps({**kept, "waiting": len(found["waiting"]), "failed": bad, "not_met": not_met})


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


def write(folder: Path, results: dict[str, Any], log: Sequence[str] = ()) -> dict[str, Any]:
    """Write what there is, the summary first; return the summary."""
    results["summary"] = counted(results["parts"])
    found = summary(results)
    replace(folder / "summary.json", (json.dumps(found, indent=1) + "\n").encode())
    replace(folder / "gpu.json", (json.dumps(results, indent=1) + "\n").encode())
    replace(folder / "gpu.md", page(results).encode())
    replace(folder / "log.txt", "".join(f"{line}\n" for line in log).encode())
    return found


def pack(files: Path, archive: Path) -> None:
    """Put a folder's content into one archive, if it has any."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for path in sorted(files.iterdir()):
            tar.add(path, path.name)
    if any(files.iterdir()):
        replace(archive, content.getvalue())


def replace(path: Path, content: bytes) -> None:
    """Make a file have this content at once; a reader sees the old one or the new one.

    The new one is written beside the folder, where a kill leaves nothing among the results. Two
    files of one folder are not replaced at the same time.
    """
    new = path.parent.with_name(f".{path.parent.name}.new")
    try:
        new.write_bytes(content)
        new.replace(path)
    except OSError:  # the folder is a mount of its own, or lies in one that is not ours
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(content)
        new.replace(path)
