"""``haiprof attach --nodes``: records a job on several hosts at once.

Each host first looks for the job's processes. When all have answered they get the signal to begin,
so the time is the same everywhere. A failure of one host does not affect the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from haiprof.cli.attach import ENDS_HERE, INTERRUPTED, NOBODY, NOT_ALL, print_summary, words
from haiprof.cli.hosts.attach_end import written
from haiprof.cli.hosts.fan_out import ANSWER_SECONDS, Host, Hosts, names
from haiprof.cli.hosts.names import how_to_collect
from haiprof.cli.process.console import say, spinner
from haiprof.cli.process.progress import seconds_passing
from haiprof.common.printable import printable
from haiprof.control.attach import RecordingPlan

#: How long beginning and ending may take together, s: a little more than each takes at most there.
_SPARE_SECONDS: Final = 60.0


def attach_on(
    hosts: Sequence[str], target: str, plan: RecordingPlan, *, dry_run: bool, report: bool
) -> int:
    """Record the processes that match ``target`` on every host, and say where the result is.

    Args:
        hosts: where.
        target: see :func:`haiprof.cli.attach.attach_to`; matched on each host separately.
        plan: what to record.
        dry_run: only list the matching processes and how each would be reached.
        report: write the report, too, if the run can be seen from here.

    Returns:
        The exit code: 0; 2: nothing matches on any host; 3: some host has none or was not
        reached, or some process; 130: it was interrupted, and ended early.
    """
    document = {**vars(plan), "log_dir": str(plan.log_dir)}
    task = {"target": target, "dry_run": dry_run, "asked": document}
    with Hosts(hosts, "haiprof.cli.hosts.attach_end", task) as everyone:
        return _attach(everyone, target, plan, dry_run=dry_run, report=report)


def _attach(
    everyone: Hosts, target: str, plan: RecordingPlan, *, dry_run: bool, report: bool
) -> int:
    with spinner("looking for the job"):
        everyone.listen(ANSWER_SECONDS, until=lambda host: "found" in host.said)
    if everyone.interrupted:
        say(ENDS_HERE)
        return INTERRUPTED
    for host in everyone.of(lambda host: "found" not in host.said):
        host.give_up("does not answer" if host.running else "cannot be attached to: see above")
    if without := everyone.of(lambda host: host.said.get("found") == 0):
        say(f"{names(without)}: no Python process there runs {target}")
    with_job = everyone.of(lambda host: host.said.get("found", 0) > 0)
    complete = len(with_job) == len(everyone.hosts)
    if not with_job:
        answered = all("found" in host.said for host in everyone.hosts)
        return NOBODY if answered else NOT_ALL
    if dry_run:
        for host in with_job:
            for line in host.said["ways"]:
                print(printable(f"{host.name}: {line}"))
        return NOT_ALL if not complete or any(host.said["code"] for host in with_job) else 0
    _record(everyone, with_job, plan)
    for line in dict.fromkeys(line for host in with_job for line in host.lines):
        those = [host for host in with_job if line in host.lines]
        say(line if len(those) == len(with_job) else f"{names(those)}: {line}")
    for host in with_job:
        if "runs" not in host.said:
            host.give_up("was lost: the recording there ends automatically")
    _print_runs(with_job, report=report)
    if everyone.interrupted:
        return INTERRUPTED
    done = complete and all(host.said.get("code") == 0 for host in with_job)
    return 0 if done else NOT_ALL


def _record(everyone: Hosts, with_job: Sequence[Host], plan: RecordingPlan) -> None:
    """Have them begin, and wait until all have ended."""
    number = sum(host.said["found"] for host in with_job)
    text = f"{words(plan, number, '1 process')} on {len(with_job)} hosts"
    for host in with_job:
        host.node.send(b"b")
    whole = plan.warmup + plan.seconds
    with seconds_passing(text, whole, say) as bar:
        everyone.listen(whole + _SPARE_SECONDS, lambda host: "runs" in host.said, bar)
    if everyone.interrupted:
        say(ENDS_HERE)
        for host in with_job:
            host.node.send(b"e")
        with spinner("closing the files"):
            everyone.listen(_SPARE_SECONDS, lambda host: "runs" in host.said)
        for host in with_job:  # which they say, too
            host.lines = [line for line in host.lines if line != ENDS_HERE]


def _print_runs(hosts: Sequence[Host], *, report: bool) -> None:
    """Say where each run is: one here, or a part on each host."""
    runs: dict[str, list[Host]] = {}
    for host in hosts:
        for run_dir in host.said.get("runs", ()):
            runs.setdefault(run_dir, []).append(host)
    for name, those in runs.items():
        run_dir = Path(name)
        here = written(run_dir)
        away = [host for host in those if not host.said["runs"][name].items() <= here.items()]
        if len(away) < len(those):
            print_summary(run_dir, report=report)
        if away:
            how = how_to_collect([host.name for host in away], run_dir)
            say(f"{names(away)}: the run is there; collect it with: {how}")
