"""The commands as typer knows them. Each imports what it needs when it is called.

Tests: tests/test_options.py.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from haiprof.cli.arguments import UsageError
from haiprof.cli.completion import OwnOptions, runs
from haiprof.cli.typed_options import takes_options

app = typer.Typer(
    name="haiprof",
    help="The profiler that every PyTorch training job runs with, all the time.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def commands() -> set[str]:
    """Return the names of all commands."""
    return {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}


def _show_version(wanted: bool) -> None:
    if wanted:
        from haiprof import __version__, schema
        from haiprof.common import protocol

        print(f"haiprof {__version__}")
        formats = [f"run {schema.MAJOR}.{schema.MINOR}", f"control protocol {protocol.VERSION}"]
        with contextlib.suppress(ImportError):  # without the compiled part it can still be said
            from haiprof._core import RING_LAYOUT

            formats.insert(1, f"ring {RING_LAYOUT}")
        print("formats:", ", ".join(formats))
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show version and formats, and exit.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Options that all commands share."""


@app.command(
    cls=OwnOptions, add_help_option=False, context_settings={"ignore_unknown_options": True}
)
def run(words: Annotated[list[str] | None, typer.Argument(metavar="[--] CMD...")] = None) -> None:
    """Run a command under haiprof, with no change to its code."""
    from haiprof.cli import run as command

    command.main(words or [])


@app.command(
    cls=OwnOptions, add_help_option=False, context_settings={"ignore_unknown_options": True}
)
def trace(words: Annotated[list[str] | None, typer.Argument(metavar="[--] CMD...")] = None) -> None:
    """Run a command under haiprof, with a deep trace of what trains."""
    from haiprof.cli import run as command

    command.main(words or [], trace=True)


_Nodes = Annotated[
    str,
    typer.Option(
        "--nodes",
        "--hosts",
        "-n",
        help="Hosts: these, or the first N of --hostfile, HAIPROF_HOSTS or SLURM's.",
        metavar="A,B,...|N",
    ),
]
_Hostfile = Annotated[str, typer.Option(help="A file of hosts, one per line.", metavar="FILE")]
_Workers = Annotated[
    int | None,
    typer.Option(
        help="Do the work of each rank in N processes on this machine (default: threads).",
        metavar="N",
    ),
]
_Dask = Annotated[
    str | None,
    typer.Option(
        help="Use the workers of a Dask scheduler that sees the same files.",
        metavar="HOST:PORT",
    ),
]


def _hosts(nodes: str, hostfile: str) -> list[str]:
    """Return the hosts to use; empty: this one."""
    from haiprof.cli.hosts.names import hosts_named

    try:
        return hosts_named(nodes, hostfile)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
@takes_options("log_dir", "run", "time", "trace", "warmup")
def attach(
    target: Annotated[
        str,
        typer.Argument(
            help="The job: its pid, script (train.py), task id, or container.", metavar="JOB"
        ),
    ],
    seconds: Annotated[
        float, typer.Option("--time", min=0.1, help="How long to record, s.", metavar="SECONDS")
    ] = 60.0,
    warmup: Annotated[
        float, typer.Option(min=0, help="Delay before recording, s.", metavar="SECONDS")
    ] = 0.0,
    trace: Annotated[bool, typer.Option("--trace", help="Make a deep trace, too.")] = False,
    log_dir: Annotated[
        Path,
        typer.Option(
            help="The folder that runs are written to.",
            metavar="DIR",
            envvar="HAIPROF_LOG_DIR",
            show_envvar=False,
        ),
    ] = Path("haiprof-logs"),
    name: Annotated[str, typer.Option(help="The run's name in it [made up].", metavar="NAME")] = "",
    report: Annotated[bool, typer.Option("--report", help="Write the report, too.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="List the matching processes and how each is reached; do not record.",
        ),
    ] = False,
    nodes: _Nodes = "",
    hostfile: _Hostfile = "",
    *,
    options: tuple[tuple[str, Any], ...],
) -> None:
    """Record a running job, with no restart and no change to its code.

    ``haiprof train.py --time 60`` is the same.
    """
    from haiprof.cli import attach as command
    from haiprof.cli.process.console import say
    from haiprof.common.places import run_dir_for
    from haiprof.control.attach import RecordingPlan

    run = name or command.made_up_run(target)
    folder = run_dir_for(log_dir.expanduser(), run, say).parent
    plan = RecordingPlan(run, folder, seconds, warmup, trace, options)
    if hosts := _hosts(nodes, hostfile):
        from haiprof.cli.hosts.attach import attach_on

        code = attach_on(hosts, target, plan, dry_run=dry_run, report=report)
    else:
        code = command.attach_to(target, plan, dry_run=dry_run, report=report, commands=commands())
    raise typer.Exit(code)


@app.command()
def top(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A run's folder, a log directory, a pid, or a run's name or script [what is "
            "recorded on this machine].",
            metavar="RUN|LOG_DIR|PID|NAME",
        ),
    ] = None,
    hz: Annotated[
        float, typer.Option(help="Frames per second.", min=0.1, max=4.0, metavar="N")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
) -> None:
    """Show a running job in the terminal, without touching it."""
    from haiprof.cli.top import top as show

    show(what, hz, once)


@app.command()
def ls(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A log directory [haiprof-logs].", metavar="[LOG_DIR]"),
    ] = None,
    all_runs: Annotated[
        bool, typer.Option("--all", help="List all runs, not only the newest 50.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """List the runs of a log directory: when, how long, how it ended."""
    from haiprof.cli.ls import list_runs

    list_runs(folder, all_runs=all_runs, as_json=json)


@app.command("runs")
def runs_(
    where: Annotated[
        str | None,
        typer.Argument(
            help="A log directory, a folder with such folders, or a URL of fsspec [haiprof-logs].",
            metavar="[DIR]",
        ),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            help="Only runs that went on then or began later: a date, or how long ago (7d, 12h).",
            metavar="WHEN",
        ),
    ] = "",
    user: Annotated[str, typer.Option(help="Only runs of this user.", metavar="NAME")] = "",
    all_runs: Annotated[
        bool, typer.Option("--all", help="List all runs, not only the first 50.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all that is known of all runs as JSON.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", "-o", help="Write a page like the report's.", metavar="FILE"),
    ] = None,
    workers: _Workers = None,
    dask: _Dask = None,
) -> None:
    """Compare all runs: what their GPU hours were lost to."""
    from haiprof.cli.process.executors import executor_of
    from haiprof.cli.runs import Wanted, show_runs

    with executor_of(workers, dask) as executor:
        show_runs(where, Wanted(since, user, all_runs, as_json, html), executor)


_Run = Annotated[
    str | None,
    typer.Argument(
        help="A run's folder or name, or traces: a file or a folder.",
        metavar="[RUN]",
        autocompletion=runs,
    ),
]
_Last = Annotated[
    bool,
    typer.Option("--last", help="The newest run of the log directory, or of RUN if it is one."),
]


@app.command()
def report(
    run: _Run = None,
    after: Annotated[
        str | None,
        typer.Argument(
            help="A later run: its report then says first what changed.", metavar="[AFTER]"
        ),
    ] = None,
    last: _Last = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write [RUN/report.html].", metavar="FILE"),
    ] = None,
    show: Annotated[
        bool, typer.Option("--open", help="Show it in a web browser, if there is one.")
    ] = False,
    workers: _Workers = None,
    dask: _Dask = None,
) -> None:
    """Write a run's report: one HTML file that works offline."""
    from haiprof.cli.logged import one_run, two_runs
    from haiprof.cli.report import write_report

    if after is None:
        write_report(one_run(run, last=last), output, workers, dask, show=show)
    else:
        before, later = two_runs(run, after, last=last)
        write_report(later, output, workers, dask, before=before, show=show)


@app.command()
def view(
    run: _Run = None,
    last: _Last = False,
    port: Annotated[
        int, typer.Option(help="To listen on, of this machine only [any].", min=0, max=65535)
    ] = 0,
    show: Annotated[
        bool, typer.Option("--open", help="Show it in a web browser, if there is one.")
    ] = False,
) -> None:
    """Show a run in a browser of this machine; follow a running one."""
    from haiprof.cli.logged import one_run
    from haiprof.cli.view import view as serve

    serve(one_run(run, last=last), port, show=show)


@app.command()
def diagnose(
    run: _Run = None,
    last: _Last = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings with their evidence as JSON.")
    ] = False,
    rank: Annotated[int | None, typer.Option(help="This rank only.", metavar="N")] = None,
    between: Annotated[
        str,
        typer.Option(
            help="Only this part of the run, in seconds since it began; either may be left out.",
            metavar="FROM:UNTIL",
        ),
    ] = "",
    baseline: Annotated[
        str,
        typer.Option(
            help="Say first what steps take longer for than in this run; last: the last run of "
            "the same name that ended well.",
            metavar="RUN",
        ),
    ] = "",
    workers: _Workers = None,
    dask: _Dask = None,
) -> None:
    """Say what slowed or ended a run, who is to blame, what to do."""
    from haiprof.cli.diagnose import diagnose as print_findings
    from haiprof.cli.logged import one_run
    from haiprof.cli.process.executors import executor_of

    with executor_of(workers, dask) as executor:
        print_findings(one_run(run, last=last), rank, between, baseline, executor, as_json=as_json)


@app.command("import")
def import_(
    path: Annotated[
        str, typer.Argument(help="A trace, a folder of them, or their URL.", metavar="PATH")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder to write [beside the traces].", metavar="DIR"),
    ] = None,
) -> None:
    """Read traces once, so that they open at once from then on."""
    from haiprof.cli.importing import import_traces

    import_traces(path, out)


@app.command()
def export(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file or folder to write.", metavar="PATH")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="A run's folder or name, or traces: a file or a folder; optionally preceded by "
            "summary or timeline, as msprof has them.",
            metavar="[summary|timeline] [RUN]",
            autocompletion=runs,
        ),
    ] = None,
    last: _Last = False,
    to: Annotated[
        str,
        typer.Option(
            help="csv (every view), perfetto, chrome, tensorboard, parquet; of the sampled stacks "
            "folded or speedscope [csv].",
            metavar="FORMAT",
        ),
    ] = "",
    form: Annotated[
        str,
        typer.Option(
            "--format", help="Of a summary [csv] or a timeline [json].", metavar="csv|json"
        ),
    ] = "",
    rank: Annotated[int | None, typer.Option(help="This rank only.", metavar="N")] = None,
    start: Annotated[
        float | None,
        typer.Option("--from", help="Start this many seconds into the run.", metavar="SECONDS"),
    ] = None,
    until: Annotated[
        float | None, typer.Option(help="End this many seconds into the run.", metavar="SECONDS")
    ] = None,
    path: Annotated[
        str,
        typer.Option(
            "--critical-path",
            help="Draw the critical path over the trace: of this step, or of the longest one.",
            metavar="STEP|longest",
        ),
    ] = "",
    workers: _Workers = None,
    dask: _Dask = None,
) -> None:
    """Write a run for other programs: Perfetto, TensorBoard, tables."""
    from haiprof.cli.export import ExportOptions
    from haiprof.cli.export import export as write
    from haiprof.cli.process.executors import executor_of

    with executor_of(workers, dask) as executor:
        options = ExportOptions(to, form, out, rank, start, until, path)
        write(words or [], options, executor, last=last)


@app.command()
def compare(
    before: Annotated[
        str | None, typer.Argument(help="A run, or traces.", metavar="[BEFORE]")
    ] = None,
    after: Annotated[
        str | None, typer.Argument(help="Another, to compare with it.", metavar="[AFTER]")
    ] = None,
    last: Annotated[
        bool,
        typer.Option(
            "--last",
            help="The newest run and the one of its name before, of the log directory or of "
            "BEFORE; of two folders the newest run of each.",
        ),
    ] = False,
    rank: Annotated[int | None, typer.Option(help="This rank only.", metavar="N")] = None,
) -> None:
    """Say what became slower from one run to another, and what is new."""
    from haiprof.cli.compare import compare as print_comparison
    from haiprof.cli.logged import two_runs

    print_comparison(*two_runs(before, after, last=last), rank)


@app.command()
def sql(
    words: Annotated[
        list[str],
        typer.Argument(
            help="A run, or traces; and a SELECT over its tables.",
            metavar="[RUN] QUESTION",
            autocompletion=runs,
        ),
    ],
    last: _Last = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print all rows as CSV, not a table.")] = False,
) -> None:
    """Answer a question in SQL over the tables of a run."""
    from haiprof.cli.sql import answer

    answer(words, last=last, as_csv=csv)


@app.command()
def mcp(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A log directory, or a run [haiprof-logs].", metavar="[DIR]"),
    ] = None,
) -> None:
    r"""Serve what was recorded to an agent: MCP over stdio.

    It answers questions on the runs below DIR, opens nothing else, and changes
    nothing. Register it with a client of the Model Context Protocol:

    \b
    {"mcpServers": {"haiprof":
      {"command": "haiprof", "args": ["mcp", "/path/to/haiprof-logs"]}}}

    It needs pip install 'haiprof[mcp]'. What it answers: docs/agents.md.
    """
    from haiprof.cli.mcp import serve

    serve(folder)


@app.command()
def recover(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs to close too, or a log directory.", metavar="PATH"),
    ] = None,
) -> None:
    """Write out what is left of runs whose job and recorder have died."""
    from haiprof.cli.recover import recover_all

    raise typer.Exit(recover_all(paths or []))


@app.command()
def collect(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Log directories, or runs' folders: of a host, of this machine, or behind a URL.",
            metavar="[HOST:]DIR...",
        ),
    ],
    into: Annotated[
        Path, typer.Option(help="The folder to collect into.", metavar="FOLDER")
    ] = Path("haiprof-logs"),
    run: Annotated[str, typer.Option(help="This run only [all].", metavar="NAME")] = "",
    nodes: _Nodes = "",
    hostfile: _Hostfile = "",
) -> None:
    """Bring together what each host has recorded on its own."""
    from haiprof.cli.collect import bring, named

    raise typer.Exit(bring(named(sources, nodes, hostfile), into, run))


@app.command()
def ps(
    json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
    nodes: _Nodes = "",
    hostfile: _Hostfile = "",
) -> None:
    """List the jobs that are recorded on this node, and their ranks."""
    from haiprof.cli.ps import list_jobs

    raise typer.Exit(list_jobs(as_json=json, hosts=_hosts(nodes, hostfile)))


_Target = Annotated[
    str, typer.Argument(help="A run, its folder, a pid, or a script.", metavar="RUN|PID|NAME")
]
_Patience = Annotated[
    float, typer.Option(help="How long each rank may take, s.", min=0.1, max=3600.0)
]


@app.command()
def stacks(
    job: Annotated[
        str | None,
        typer.Argument(
            help="A script, a pid, a task or a container [all that is recorded here].",
            metavar="JOB",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    folded: Annotated[
        bool, typer.Option("--folded", help="Print a line per thread, as for flame graphs.")
    ] = False,
    speedscope: Annotated[
        bool, typer.Option("--speedscope", help="Print a file for speedscope.")
    ] = False,
    native: Annotated[
        bool,
        typer.Option(
            "--native", help="Show C and C++ frames, too: stops each process for a moment."
        ),
    ] = False,
    nodes: _Nodes = "",
    hostfile: _Hostfile = "",
) -> None:
    """Show what every thread of a job does now, without stopping it."""
    from haiprof.cli.stacks import Wanted, show_stacks

    asked = {"json": json, "folded": folded, "speedscope": speedscope}
    forms = [form for form, wanted in asked.items() if wanted]
    if len(forms) > 1:
        raise typer.BadParameter(f"--{forms[0]}, --{forms[1]}: choose one of them")
    form = forms[0] if forms else "text"
    raise typer.Exit(show_stacks(Wanted(job, form, _hosts(nodes, hostfile), native)))


@app.command()
def hang(
    job: Annotated[
        str | None,
        typer.Argument(
            help="A script, a pid, a task or a container [all that is recorded here].",
            metavar="JOB",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", help="What lasts less is no hang, s.", min=1.0, metavar="S"),
    ] = 5.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    native: Annotated[
        bool,
        typer.Option(
            "--native", help="Show C and C++ frames, too: stops the culprits for a moment."
        ),
    ] = False,
    nodes: _Nodes = "",
    hostfile: _Hostfile = "",
) -> None:
    """Say whether a job hangs, which rank is to blame, and why."""
    from haiprof.cli.hang import show_hang

    hosts = _hosts(nodes, hostfile)
    raise typer.Exit(show_hang(job, seconds, hosts, as_json=json, native=native))


@app.command()
def stop(
    job: _Target, timeout: _Patience = 30.0, nodes: _Nodes = "", hostfile: _Hostfile = ""
) -> None:
    """End the recording of a job; the job goes on."""
    from haiprof.cli.stop import stop_job

    raise typer.Exit(stop_job(job, timeout, _hosts(nodes, hostfile)))


@app.command()
def flush(
    job: _Target,
    timeout: _Patience = 30.0,
    stacks: Annotated[
        float | None,
        typer.Option(
            help="Sample stacks that often for --time before.", min=1.0, max=200.0, metavar="HZ"
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--time", help="Of --stacks, s.", min=0.1, max=600.0, metavar="S")
    ] = 20.0,
    nodes: _Nodes = "",
    hostfile: _Hostfile = "",
) -> None:
    """Write everything a job has recorded so far to disk."""
    from haiprof.cli.flush import Burst, flush_job

    burst = None if stacks is None else Burst(stacks, seconds)
    raise typer.Exit(flush_job(job, timeout, _hosts(nodes, hostfile), burst))


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
    require: Annotated[
        str,
        typer.Option(
            help="Recorders or sources that must be ok (all: every recorder), else exit with 1.",
            metavar="NAME[,NAME...]",
        ),
    ] = "",
    plan: Annotated[
        bool, typer.Option("--plan", help="Show every counter that would be read.")
    ] = False,
    sysfs_root: Annotated[
        str, typer.Option(help="The node's /sys, or a copy of another machine's.", metavar="DIR")
    ] = "",
    procfs_root: Annotated[
        str, typer.Option(help="The node's /proc, or a copy.", metavar="DIR")
    ] = "",
    cpu: Annotated[
        str,
        typer.Option(help="The CPU, where /proc does not say.", metavar="VENDOR:FAMILY:MODEL"),
    ] = "",
) -> None:
    """Say what can be recorded here and, for the rest, how to get it."""
    from haiprof.cli.doctor import examine

    try:
        code = examine(
            as_json=json,
            sysfs_root=sysfs_root,
            procfs_root=procfs_root,
            cpu=cpu,
            require=require,
            show_plan=plan,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(code)
