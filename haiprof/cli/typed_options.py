"""The options of :mod:`haiprof.options` as those of a typer command.

Tests: tests/cli/test_attach.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from haiprof.cli.arguments import checked, default, is_switch
from haiprof.options import OPTIONS, Option


def takes_options(*but: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a command take every option but those named.

    The command's parameter ``options`` gets those that were given, checked: (name, value).
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        taken = {name: option for name, option in OPTIONS.items() if name not in but}

        @functools.wraps(command)
        def taking(**given: Any) -> None:
            words = {name: given.pop(name) for name in taken}
            command(**given, options=tuple(_read(words)))

        hints = get_type_hints(command, include_extras=True)
        hints.pop("options")
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in taken
        ]
        hints |= {name: _typed(option) for name, option in taken.items()}
        del taking.__wrapped__  # its signature is another one
        parameters = [p.replace(annotation=hints[p.name]) for p in (*own, *more)]
        taking.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        )
        taking.__annotations__ = hints
        return taking

    return decorate


def _read(words: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the values of the options that were given.

    Raises:
        UsageError: one cannot have its value.
    """
    return [
        (name, word if isinstance(word, bool) else checked(_flag(name), word, OPTIONS[name]))
        for name, word in words.items()
        if word is not None
    ]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _typed(option: Option) -> Any:
    flag, usual = _flag(option.name), default(option)
    if is_switch(option):
        shown = "on" if usual else "off"
        names = f"{flag}/--no-{flag[2:]}"
        return Annotated[
            bool | None, typer.Option(names, help=f"{option.meaning} [{shown}]", show_default=False)
        ]
    shown = f" [{usual}]" if str(usual) else ""
    return Annotated[
        str | None,
        typer.Option(flag, help=f"{option.meaning}{shown}", metavar="VALUE", show_default=False),
    ]
