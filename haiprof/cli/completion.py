"""What a shell offers when TAB is pressed, beside what typer knows of a command."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand

from haiprof.cli.arguments import flags
from haiprof.errors import HaiprofError


class OwnOptions(TyperCommand):
    """A command that reads its words itself: :mod:`haiprof.cli.arguments`."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return its options that begin so."""
        # Of the click that this typer uses: newer ones bring their own.
        click = BadParameter.__module__.rpartition(".")[0]
        item = import_module(f"{click}.shell_completion").CompletionItem
        return [item(flag) for flag in flags(self.name or "") if flag.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Return the runs of the log directory whose folders begin so, the newest first."""
    from haiprof.cli.logged import log_dir, runs_at

    folder = log_dir()
    try:
        found = runs_at(folder)
    except HaiprofError:
        return []
    paths = [f"{folder}/{run.name}" for run in found]
    names = [run.name for run in found]
    return [word for word in (*names, *paths) if word.startswith(incomplete)]
