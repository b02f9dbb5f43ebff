"""The plan of a deep trace: its length, warm-up, contents and size limit.

Tests: tests/capture/trace/test_trace.py.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from haiprof.options import OPTIONS, TRACE_CONTENTS, Options

#: Default length of a deep trace, steps.
_STEPS: Final = 3


class Plan(NamedTuple):
    """One deep trace.

    Attributes:
        steps: how many, 0 for as many as there are in ``seconds``.
        seconds: how long at most, 0 for as long as ``steps`` take.
        warmup: steps before it; seconds where only ``seconds`` is given.
        mib: memory that its events may take, MiB.
        contents: which of ``TRACE_CONTENTS``.
    """

    steps: int = _STEPS
    seconds: float = 0.0
    warmup: float = 0.0
    mib: int = 128
    contents: frozenset[str] = frozenset(Options().trace_with.split(","))

    @property
    def warmup_steps(self) -> int:
        """Whole steps to let pass."""
        return math.ceil(self.warmup) if self.steps else 0

    @property
    def warmup_seconds(self) -> float:
        """Seconds to let pass."""
        return 0.0 if self.steps else self.warmup


def plan_of(options: Options) -> Plan:
    """Return the plan in a run's options.

    ``time`` is the length where no other is given: all of what is recorded, so that the recording's
    ``warmup`` is all that passes before.
    """
    as_recorded = bool(options.time) and not options.trace_steps and not options.trace_seconds
    seconds = options.time if as_recorded else options.trace_seconds
    return Plan(
        options.trace_steps or (0 if seconds else _STEPS),
        seconds,
        0.0 if as_recorded else options.trace_warmup,
        options.trace_mib,
        frozenset(options.trace_with.split(",")) - {""},
    )


def plan_for_call(
    options: Options,
    *,
    steps: int | None,
    seconds: float | None,
    warmup: float,
    mib: int | None,
    chosen_contents: dict[str, bool | None],
) -> Plan:
    """Return the plan of a call; what it does not give comes from the options.

    An invalid value is reported in one line and counts as not given.
    """
    given = {"trace_steps": steps, "trace_seconds": seconds, "trace_warmup": warmup}
    given["trace_mib"] = mib
    checked = {name: _checked(name, value) for name, value in given.items()}
    base = plan_of(options)
    length = (base.steps, base.seconds)
    if checked["trace_steps"] or checked["trace_seconds"]:
        length = (checked["trace_steps"] or 0, float(checked["trace_seconds"] or 0.0))
    contents = {
        name for name in TRACE_CONTENTS
        if (name in base.contents if chosen_contents[name] is None else chosen_contents[name])
    }  # fmt: skip
    return Plan(
        *length, float(checked["trace_warmup"] or 0.0), checked["trace_mib"] or base.mib,
        frozenset(contents),
    )  # fmt: skip


def _checked(name: str, value: Any) -> Any:
    if value is None:
        return None
    wrong = OPTIONS[name].check(value)
    if wrong is None:
        return value
    from haiprof.capture.stderr import say_once

    say_once(f"trace({name.removeprefix('trace_')}={value!r}) {wrong}; using the default")
    return None
