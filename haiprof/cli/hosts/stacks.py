"""``haiprof stacks --nodes``: the stacks of a job's processes on several hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from haiprof.cli.hosts.fan_out import ANSWER_SECONDS, Hosts
from haiprof.cli.process.console import spinner
from haiprof.control import native_frames
from haiprof.control.stacks import SECONDS, Looked

_MODULE: Final = "haiprof.cli.hosts.stacks_end"
#: Of the processes of one host, several at a time.
_NATIVE_SECONDS: Final = 4 * native_frames.SECONDS


def look_on(
    hosts: Sequence[str], target: str | None, *, native: bool = False
) -> tuple[list[Looked], bool]:
    """Return the processes of a job on these hosts, each labelled with its host.

    Args:
        hosts: where.
        target: as of :func:`haiprof.control.stacks.chosen`.
        native: as of :func:`haiprof.control.stacks.look_at`.

    Returns:
        Them, and whether every host has answered.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    found: list[Looked] = []
    complete = True
    seconds = ANSWER_SECONDS + SECONDS + (_NATIVE_SECONDS if native else 0.0)
    with Hosts(hosts, _MODULE, {"target": target, "native": native}) as everyone:
        with spinner(f"reading the stacks on {len(everyone.hosts)} hosts"):
            everyone.listen(seconds, until=lambda host: "looked" in host.said)
        if everyone.interrupted:
            raise KeyboardInterrupt
        for host in everyone.hosts:
            try:
                looked = [Looked.from_json(process) for process in host.said["looked"]]
            except (KeyError, TypeError):
                host.give_up("does not answer" if host.running else "cannot be asked: see above")
                complete = False
                continue
            for process in looked:
                process.label = f"{host.name}: {process.label}"
            found += looked
    return found, complete
