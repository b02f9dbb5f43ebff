"""``--require``: what must be there, by the names of recorders and sources.

Tests: tests/cli/test_doctor_require.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from haiprof.cli.doctor.finding import ABSENT, OK, Finding
from haiprof.common.choices import did_you_mean
from haiprof.options import ALL, HOST_RECORDERS

#: haiprof itself: shared memory, a clock, a record all the way to a file.
CORE = "core"


def unmet(findings: Sequence[Finding], names: str) -> list[str]:
    """Return one line for each name that is not ok.

    A source is ok when its state is. A recorder is ok when one of its sources is and no other is
    more than absent: few machines have every source of one, but what is there must be readable.

    Args:
        findings: all that was found.
        names: recorders or sources, commas between them; ``core``: haiprof itself; ``all``: that
            and every recorder.

    Raises:
        ValueError: an unknown name; one line.
    """
    recorders = [CORE, *HOST_RECORDERS]
    sources = {f.name: f for f in findings}
    lines = []
    for name in _wanted(names, recorders):
        if name == CORE:
            lines += [_line(f"{name}: {f.name}", f) for f in findings if f.core and f.state != OK]
        elif name in recorders:
            lines += _of_recorder(name, [f for f in findings if f.recorder == name])
        elif name in sources:
            lines += [] if sources[name].state == OK else [_line(name, sources[name])]
        else:
            known = [ALL, *recorders, *sources]
            hint = f"{did_you_mean(name, known)} ".lstrip()
            raise ValueError(
                f"there is nothing named {name!r} here; {hint}the names are {', '.join(known)}"
            )
    return lines


def _wanted(names: str, recorders: list[str]) -> list[str]:
    wanted = [name.strip().lower().replace(" ", "_") for name in names.split(",")]
    wanted = [name for name in wanted if name]
    if not wanted:
        raise ValueError("it needs at least one name")
    return list(dict.fromkeys(r for name in wanted for r in (recorders if name == ALL else [name])))


def _of_recorder(name: str, own: list[Finding]) -> list[str]:
    worse = [f for f in own if f.state not in (OK, ABSENT)]
    if worse:
        return [_line(f"{name}: {worse[0].name}", worse[0])]
    if any(f.state == OK for f in own):
        return []
    if not own:
        return [f"{name} is absent: there is no source of it here"]
    return [_line(f"{name}: {own[0].name}", own[0])]


def _line(what: str, f: Finding) -> str:
    fix = f"; fix: {f.fix}" if f.fix else ""
    return f"{what} is {f.state}: {f.found}{fix}"
