"""Which GPUs of a node belong to a rank, so that the node's samples of them are the rank's."""

from __future__ import annotations

from collections.abc import Iterable

from haiprof.runs import ROLE_NODE, Process
from haiprof.views.run.series import ADDITIVE_UNITS, Stat


def instances(process: Process, everybody: Iterable[Process]) -> dict[str, list[str]]:
    """Return the instances (``gpu0``, ``gpu0/mig1``) of a process's GPUs by folder name.

    Joined by uuid, since ordinals of CUDA and of NVML differ. The key is the folder of the node
    that sampled them: a node may have had several recorders in turn.
    """
    wanted = {_bare(gpu.uuid) for gpu in process.gpus if gpu.uuid}
    found: dict[str, list[str]] = {}
    for node in everybody if wanted else ():
        if node.role == ROLE_NODE and node.node == process.node:
            mine = [g.instance for g in node.gpus if g.instance and _bare(g.uuid) in wanted]
            if mine:
                found[node.folder.name] = sorted(set(mine), key=_natural)
    return found


def parent(instance: str) -> str:
    """Return the GPU of an instance: ``gpu0`` for ``gpu0/mig1`` and for itself."""
    return instance.split("/", 1)[0]


def together(stats: Iterable[dict[str, Stat]]) -> dict[str, Stat]:
    """Combine the GPUs of one rank, each given as metric -> statistics.

    Bytes and watts are added (for maxima the sum is an upper bound), percentages, ratios and
    temperatures averaged.
    """
    by_metric: dict[str, list[Stat]] = {}
    for one in stats:
        for metric, stat in one.items():
            by_metric.setdefault(metric, []).append(stat)
    return {metric: _one(metric, found) for metric, found in by_metric.items()}


def _one(metric: str, found: list[Stat]) -> Stat:
    adds = metric.rsplit(".", 1)[-1] in ADDITIVE_UNITS
    mean = sum(s.mean for s in found) / (1 if adds else len(found))
    top = sum(s.maximum for s in found) if adds else max(s.maximum for s in found)
    begin, end = min(s.begin for s in found), max(s.end for s in found)
    return Stat(mean, top, len(found), begin, end, max(s.samples for s in found))


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _natural(instance: str) -> tuple[int, str]:
    return len(instance), instance
