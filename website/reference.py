"""Pages of the reference, made from the code that they describe.

Tests: tests/website/test_reference.py.
"""

from __future__ import annotations

import json

import typer
import typer.cli

import haiprof
from haiprof import _core, schema
from haiprof.cli import arguments
from haiprof.cli.app import app
from haiprof.options import OPTIONS


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its path in the site."""
    return {
        "reference/python.md": python(),
        "reference/commands.md": commands(),
        "reference/options.md": options(),
        "reference/metrics.md": metrics(),
        "reference/tables.md": tables(),
    }


def python() -> str:
    """Return directives that mkdocstrings replaces by the docstrings of the public names."""
    parts = [
        "# Python\n\nThe public names of `haiprof`. [Analysis](../analysis.md) shows the Analyzer "
        "in use, [Annotate your code](../annotate.md) the others.\n"
    ]
    for name in sorted(haiprof.__all__, key=str.lower):
        parts.append(_directive(f"haiprof.{name}", name, level=2))
        if name == "Analyzer":
            parts += [
                _directive(_home(method), method, level=3)
                for method in dir(haiprof.Analyzer)
                if not method.startswith("_")
            ]
    return "\n".join(parts)


def _home(method: str) -> str:
    """Return where a method of the Analyzer is defined: it delegates most of them."""
    found = getattr(haiprof.Analyzer, method)
    function = getattr(found, "fget", found)
    return f"{function.__module__}.{function.__qualname__}"


def _directive(path: str, heading: str, level: int) -> str:
    shown = {"heading": heading, "toc_label": heading, "heading_level": level, "members": False}
    options = "".join(f"      {key}: {json.dumps(value)}\n" for key, value in shown.items())
    return f"::: {path}\n    options:\n{options}"


def commands() -> str:
    """Return the help of each command."""
    group = typer.main.get_command(app)
    parts = [
        "# Command line\n\nThe help of each command. [Commands](../cli.md) explains them, "
        "their output and their exit codes.\n"
    ]
    with group.make_context("haiprof", [], resilient_parsing=True) as context:
        for name, command in group.commands.items():  # type: ignore[attr-defined]
            if name in ("run", "trace"):  # whose words are not read by typer
                parts.append(f"## `haiprof {name}`\n\n```\n{arguments.help_text(name)}```\n")
                continue
            text = typer.cli.get_docs_for_click(
                obj=command, ctx=context, indent=1, name=name, call_prefix="haiprof"
            )
            parts.append(text.replace("``", "`").strip() + "\n")
    return "\n".join(parts).replace("`" * 2 + "`console", "```console")


def options() -> str:
    """Return a table of the options of a recording."""
    rows = []
    for option in OPTIONS.values():
        usual = arguments.default(option)
        if isinstance(usual, bool):
            shown = "on" if usual else "off"
        else:
            shown = f"`{usual}`" if str(usual) else ""
        flag = "--" + option.name.replace("_", "-")
        rows.append((f"`{option.name}`<br>`{flag}`<br>`{option.variable}`", shown, option.meaning))
    return (
        "# Options\n\nEach option as an argument of `haiprof.start()`, of `haiprof run`, and as a "
        "variable. [Recording](../recording.md#options) explains them.\n\n"
        + _table(("option", "default", "meaning"), rows)
    )


def metrics() -> str:
    """Return a table of the metrics that each source samples."""
    rows = [
        (f"`{source['name']}`", ", ".join(f"`{name}`" for name in source["metrics"]))  # type: ignore[attr-defined]
        for source in _core.HostSampler().sources()
        if source["metrics"]
    ]
    return (
        "# Metrics by source\n\nWhat each source of samples records. Units, limits and how each "
        "is computed: [Metrics](../metrics.md). `haiprof doctor` says which of them a machine "
        "has.\n\n" + _table(("source", "metrics"), rows)
    )


def tables() -> str:
    """Return the columns of each table on disk."""
    parts = [
        f"# Tables on disk\n\nVersion {schema.MAJOR}.{schema.MINOR}. Times are ns since the Unix "
        "epoch (UTC), durations ns, sizes bytes; null is not known.\n"
    ]
    for table in schema.TABLES.values():
        rows = [
            (f"`{c.name}`", c.kind + (", null" if c.nullable else ""), c.meaning)
            for c in table.columns
        ]
        parts.append(
            f"## {table.name}\n\nA row: {table.row}.\n\n"
            + _table(("column", "type", "meaning"), rows)
        )
    return "\n".join(parts)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    cells = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
