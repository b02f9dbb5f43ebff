"""``haiprof hang``: whether a job hangs, which rank is to blame, and what that one does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from haiprof.cli.process.console import say, spinner
from haiprof.common.printable import printable
from haiprof.control.doing import Doing
from haiprof.control.hang import Seen, by_run, look, verdict
from haiprof.control.native_culprits import add_native, look_natively
from haiprof.control.native_frames import missing
from haiprof.control.stacks import Looked

NOBODY: Final = 2
NOT_ALL: Final = 3
HANGS: Final = 4
#: Frames of a culprit, and places of the other ranks, that are printed.
_FRAMES: Final = 20
_PLACES: Final = 5


def show_hang(
    target: str | None, least_s: float, hosts: Sequence[str], *, as_json: bool, native: bool = False
) -> int:
    """Print whether a job hangs, and why.

    Args:
        target: as of :func:`haiprof.control.stacks.chosen`.
        least_s: what lasts less is no hang, s.
        hosts: where, if not here.
        as_json: print JSON.
        native: stop the culprits for a moment, to show their C and C++ frames, too.

    Returns:
        The exit code: 0: it does not; 2: no such job here, or no pystack; 3: it does not, as far as
        its processes could be read, and hosts have answered; 4: it hangs.
    """
    complete = True
    if native and not hosts and (why := missing()):
        say(why)
        return NOBODY
    if hosts:
        from haiprof.cli.hosts.hang import look_on

        looked, complete = look_on(hosts, target, least_s)
    else:
        with spinner("looking at the ranks"):
            looked = look(target, least_s)
    if not looked:
        where = "any of these hosts" if hosts else "this node"
        if complete and target is None:
            say(f"nothing is recorded on {where}: name a script, a pid or a task: haiprof hang JOB")
        elif complete:
            say(f"{target}: no Python process on {where} runs it; see haiprof ps")
        return NOBODY if complete else NOT_ALL
    jobs = {run: verdict(ranks, least_s) for run, ranks in by_run(looked).items()}
    if native:
        for seen in jobs.values():
            with spinner("reading native frames"):
                add_native(seen, _look_there if hosts else look_natively)
    if as_json:
        documents = [_document(run, seen) for run, seen in jobs.items()]
        form = {"format": "haiprof-hang", "version": "1.0", "jobs": documents}
        print(json.dumps(form, indent=1))
    else:
        for number, (run, seen) in enumerate(jobs.items()):
            heading = [*([""] if number else []), f"{run or 'not recorded'}:"]
            for line in [*(heading if len(jobs) > 1 else []), *lines(seen)]:
                print(printable(line))
    if any(seen.hang is not None for seen in jobs.values()):
        return HANGS
    return 0 if complete and not any(seen.problems for seen in jobs.values()) else NOT_ALL


def _look_there(culprit: Doing) -> Sequence[Looked]:
    from haiprof.cli.hosts.stacks import look_on

    pid, _ = culprit.busy_thread
    return look_on([culprit.host], str(pid), native=True)[0]


def _document(run: str, seen: Seen) -> dict[str, object]:
    return {
        "run": run,
        "hang": None if seen.hang is None else seen.hang.as_json(),
        "held": seen.held or None,
        "longest_wait_s": seen.longest_s,
        "problems": seen.problems,
    }


def lines(seen: Seen) -> list[str]:
    """Return what to print."""
    hang = seen.hang
    if hang is None:
        waits = seen.held or (
            "no rank is blocked in a collective"
            if seen.longest_s is None
            else f"the longest that a rank has waited for another one is {seen.longest_s:.1f} s"
        )
        return [f"Nothing hangs: {waits}", *_places(seen.doing), *seen.problems]
    found = [hang.problem, f"  kind: {hang.kind}", f"  what to do: {hang.advice}"]
    for one in hang.culprits[:3]:
        frames = one.native or one.busy_in
        if frames:
            where = f" on {one.host}" if one.host else ""
            which = ", its DataLoader's worker" if one.worker else ""
            found += ["", f"rank {one.rank} (pid {one.pid}{where}){which}, innermost first:"]
            found += [f"    {frame}" for frame in frames[:_FRAMES]]
            if len(frames) > _FRAMES:
                found.append(f"    … {len(frames) - _FRAMES} more frames")
    others = {n: one for n, one in seen.doing.items() if n not in hang.ranks}
    return [*found, "", *_places(others), *seen.problems]


def _places(doing: Mapping[int, Doing]) -> list[str]:
    """Return what ranks do, those that do the same together."""
    together: dict[str, list[int]] = {}
    for number in sorted(doing):
        together.setdefault(doing[number].does, []).append(number)
    rows = sorted(together.items(), key=lambda one: len(one[1]))
    found = []
    for does, numbers in rows[:_PLACES]:
        named = ", ".join(map(str, numbers[:8])) + ("…" if len(numbers) > 8 else "")
        who = f"ranks {named}: each" if len(numbers) > 1 else f"rank {named}:"
        found.append(f"{who} {does}")
    if len(rows) > _PLACES:
        found.append(f"… and {len(rows) - _PLACES} other places")
    return found
