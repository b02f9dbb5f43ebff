"""C and C++ frames of whom a hang is blamed on: on demand only, since they are stopped for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from haiprof.common.frame_texts import frame_text
from haiprof.control.doing import Doing
from haiprof.control.find import with_pids
from haiprof.control.hang import Seen
from haiprof.control.stacks import Looked, look_at

#: Nobody looks at the frames of more.
_MOST: Final = 3


def look_natively(culprit: Doing) -> Sequence[Looked]:
    """Look at the process in which a culprit on this node is busy, which stops it for a moment."""
    pid, _ = culprit.busy_thread
    return look_at([(process, None) for process in with_pids([pid])], native=True)


def add_native(seen: Seen, look: Callable[[Doing], Sequence[Looked]]) -> None:
    """Add the native frames of the first culprits of a hang, or why there are none.

    Args:
        seen: what was seen of a job.
        look: looks at the process in which a culprit is busy, wherever that is.
    """
    if seen.hang is None:
        return
    culprits = list(seen.hang.culprits)
    for number, one in enumerate(culprits[:_MOST]):
        if not one.busy_in:
            continue
        pid, thread = one.busy_thread
        found = next((each for each in look(one) if each.pid == pid), None)
        problem = (
            "it was not found again" if found is None else found.problem or found.native_problem
        )
        if problem or found is None:
            seen.problems.append(f"rank {one.rank} (pid {pid}): no native frames: {problem}")
            continue
        frames = next((each.frames for each in found.threads if each.thread == thread), ())
        culprits[number] = replace(one, native=tuple(frame_text(*frame) for frame in frames))
    seen.hang = replace(seen.hang, culprits=tuple(culprits))
