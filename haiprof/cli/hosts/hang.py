"""``haiprof hang --nodes``: the ranks of a job on several hosts, looked at for one verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from haiprof.cli.hosts.fan_out import ANSWER_SECONDS, Hosts
from haiprof.cli.process.console import spinner
from haiprof.control.hang import Looked
from haiprof.control.stacks import SECONDS

_MODULE: Final = "haiprof.cli.hosts.hang_end"


def look_on(hosts: Sequence[str], target: str | None, least_s: float) -> tuple[list[Looked], bool]:
    """Return the ranks of a job on these hosts, and whether every host has answered.

    Args:
        hosts: where.
        target: as of :func:`haiprof.control.stacks.chosen`.
        least_s: what lasts less is no hang, s.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    found: list[Looked] = []
    complete = True
    with Hosts(hosts, _MODULE, {"target": target, "least_s": least_s}) as everyone:
        with spinner(f"looking at the ranks on {len(everyone.hosts)} hosts"):
            everyone.listen(ANSWER_SECONDS + 2 * SECONDS, until=lambda host: "looked" in host.said)
        if everyone.interrupted:
            raise KeyboardInterrupt
        for host in everyone.hosts:
            try:
                found += [Looked.from_json(rank, host.name) for rank in host.said["looked"]]
            except (KeyError, TypeError):
                host.give_up("does not answer" if host.running else "cannot be asked: see above")
                complete = False
    return found, complete
