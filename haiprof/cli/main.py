"""The ``haiprof`` command: finds the command to run; errors are printed as one line.

Tests: tests/cli/test_report.py.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, NoReturn

from haiprof.cli.arguments import UsageError
from haiprof.cli.process.console import reader_gone, say
from haiprof.common.choices import did_you_mean, quoted
from haiprof.common.extras import lacking
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError

_INTERRUPTED = 130
_USAGE = 2
#: Set by a shell that asks how the words so far may go on.
_COMPLETE = "_HAIPROF_COMPLETE"


def main() -> NoReturn:
    """Run the command line of this process, and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # its encoding may lack characters of names
        sys.stdout.reconfigure(errors="backslashreplace")
    words = sys.argv[1:]
    if os.environ.get(_COMPLETE):
        _complete()
    if words[:1] in (["run"], ["trace"]):  # without importing typer: it would delay the command
        from haiprof.cli import run

        run.main(words[1:], trace=words[0] == "trace")
    sys.exit(_run_app(words or ["--help"]))


def _complete() -> NoReturn:
    import typer

    from haiprof.cli.app import app

    typer.main.get_command(app).main([], prog_name="haiprof", complete_var=_COMPLETE)
    sys.exit(0)


def _run_app(words: list[str]) -> int:
    import typer

    # Of the click that this typer uses: newer ones bring their own.
    click_error: type[Exception] = typer.BadParameter.__mro__[2]
    job = None
    try:
        from haiprof.cli.app import app, commands

        if not words[0].startswith("-") and words[0] not in commands():
            job = words[0]  # haiprof train.py --time 60
            words = ["attach", *words]

        # Not app(): it has its own ideas of Ctrl-C and of broken pipes.
        command = typer.main.get_command(app)
        code = 0
        try:
            with command.make_context("haiprof", words) as context:
                command.invoke(context)
        except typer.Exit as end:
            code = end.exit_code
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except HaiprofError as error:
        say(str(error))
        return 1
    except ModuleNotFoundError as error:
        if not (why := lacking(f"haiprof {words[0]}", error)):
            raise
        say(why)
        return 1
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        return reader_gone()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if not where and _working_folder_removed():
            where = "the working folder has been removed, go to another one: "
        say(f"{where}{error.strerror or error}")
        return 1
    except UsageError as error:
        say(str(error))
        return _USAGE
    except click_error as error:
        if job is not None and (hint := did_you_mean(job, commands())):
            say(f"there is no command {quoted(job)}: {hint} see haiprof --help")
            return _USAGE
        say(_one_line(error))
        return int(getattr(error, "exit_code", 2))


def _working_folder_removed() -> bool:
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return True
    return False


def _one_line(error: Any) -> str:
    text = " ".join(str(error.format_message()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "haiprof"
    option = getattr(error, "option_name", None)
    if context is not None and hasattr(error, "possibilities"):  # it is of an unknown option
        names = (name for each in context.command.get_params(context) for name in each.opts)
        hint = did_you_mean(option, names)
        text = f"there is no option {printable(str(option))} of {where}"
        return f"{text}: {hint} see {where} --help" if hint else f"{text}; see {where} --help"
    return f"{text}; see {where} --help"


if __name__ == "__main__":
    main()
