"""The series of one node, with no library: what its ranks, its recorder and its sources say."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from haiprof import __version__
from haiprof.common.peak_flops import total_peak
from haiprof.recorder.metrics import families as f
from haiprof.recorder.metrics.names import Names, label_value
from haiprof.recorder.metrics.rank import COMPARED, Rank
from haiprof.recorder.metrics.samples import Samples

#: Ranks and kinds of findings that have series.
_MOST_RANKS: Final = 64
_MOST_FINDINGS: Final = 80
#: GPUs of a rank.
_MOST_GPUS: Final = 16
#: Sources of samples: far more than there are.
_MOST_SOURCES: Final = 64
#: Phases that haiprof knows itself, and how many of the job's own are named beside them.
PHASES: Final = (
    *("dataloader", "forward", "backward", "gradient_sync", "optimizer", "eval"),
    *("eval_dataloader", "recompute", "deep_trace", "other"),
)
_OWN_PHASES: Final = 12 - len(PHASES)
STATES: Final = ("starting", "running", "waiting", "hung", "finished", "failed")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Recorded(Protocol):
    """A recorded process, as far as it matters here."""

    rank: int | None
    local_rank: int | None

    @property
    def gpus(self) -> Sequence[Mapping[str, Any]]:
        """The GPUs that it uses: ``uuid``, ``name`` and ``memory_bytes``."""

    @property
    def lost(self) -> int:
        """Records that the ring lost."""

    @property
    def ending(self) -> str | None:
        """How it ended; None: it has not."""


class _Gpu(NamedTuple):
    """A GPU, as the table of peaks asks for it."""

    uuid: str
    name: str
    memory_bytes: int | None
    multiprocessors: int | None = None


class _Of(NamedTuple):
    """A rank and the process that it is now."""

    counted: Rank
    process: Recorded


class Node:
    """Counts what happens on one node."""

    def __init__(self, node: Mapping[str, str], peak_flops: float = 0.0) -> None:
        """Begin at 0.

        Args:
            node: labels that all series have.
            peak_flops: of each GPU, FLOP/s; 0: as its vendor states.
        """
        self._labels = {name: label_value(text) for name, text in node.items()}
        self._peak_flops = peak_flops
        self._since_ns = time.time_ns()
        self._phases = Names(PHASES, _OWN_PHASES)
        self._ranks: dict[tuple[str, str], _Of] = {}
        self._refused: set[tuple[str, str]] = set()
        self._findings: dict[tuple[str, tuple[int, ...]], None] = {}
        self._findings_refused = 0
        self._hang: tuple[str, frozenset[int], frozenset[int]] | None = None
        #: The node's own, if they are asked for.
        self.samples = Samples()

    def begin(self, process: Recorded) -> Rank | None:
        """Return what counts the rows of a process of a rank.

        Returns:
            That; None: there are too many ranks.
        """
        key = _label(process.rank), _label(process.local_rank)
        known = self._ranks.get(key)
        if known is not None:
            known.counted.begin_process()
        elif len(self._ranks) >= _MOST_RANKS:
            self._refused.add(key)
            return None
        rank = Rank(self._phases) if known is None else known.counted
        self._ranks[key] = _Of(rank, process)
        return rank

    def note(self, kind: str, attributes: Mapping[str, Any]) -> None:
        """Take an event of the node: that a finding or a hang begins, or is over."""
        over = attributes.get("over") is not False
        what = str(attributes.get("kind", ""))
        ranks = tuple(attributes.get("ranks", ()))
        if kind == "hang":
            waiting = frozenset(attributes.get("waiting", ()))
            self._hang = None if over else (what, frozenset(ranks), waiting)
        elif kind == "finding" and not what:  # a recorder took over
            self._findings.clear()
        elif kind == "finding" and over:
            self._findings.pop((what, ranks), None)
        elif kind == "finding":
            if len(self._findings) < _MOST_FINDINGS:
                self._findings[what, ranks] = None
            else:
                self._findings_refused += 1

    def snapshot(
        self, sources: Collection[Mapping[str, Any]], gpus: Collection[Mapping[str, Any]] = ()
    ) -> f.Snapshot:
        """Return all series as they are now.

        Args:
            sources: those of samples: ``name`` and ``state``, and as :class:`Samples` wants them.
            gpus: those of the node: ``instance`` and ``uuid``.
        """
        found: list[f.Series] = []
        for key, one in self._ranks.items():
            one.counted.lost = one.process.lost
            used = [_gpu(each) for each in one.process.gpus]
            found += _of_rank(key, one.counted)
            found += self._peak(key, one.counted, used)
            found += self._state(key, one)
            uuids = {label_value(gpu.uuid): None for gpu in used if gpu.uuid}
            found += [f.Series(f.RANK_GPU, (*key, uuid), 1.0) for uuid in [*uuids][:_MOST_GPUS]]
        found += self._lags()
        found += self._of_node(sources)
        places = {family: i for i, family in enumerate(f.FAMILIES)}
        found.sort(key=lambda series: places[series.family])
        found += self.samples.series(sources, gpus)
        return f.Snapshot(self._labels, tuple(found), time.time_ns(), self._since_ns)

    def _peak(self, key: tuple[str, str], rank: Rank, gpus: Sequence[_Gpu]) -> list[f.Series]:
        """Return what the operations of a rank are measured by, if both are known."""
        if "flops" not in rank.work.totals:
            return []
        types = {rank.work.dtype: 1.0} if rank.work.dtype else {}
        peak, _ = total_peak(gpus, types, self._peak_flops)
        return [] if peak is None else [f.Series(f.PEAK, key, peak)]

    def _state(self, key: tuple[str, str], one: _Of) -> list[f.Series]:
        now = self._state_of(one)
        return [f.Series(f.STATE, (*key, state), float(state == now)) for state in STATES]

    def _state_of(self, one: _Of) -> str:
        ending = one.process.ending
        if ending is not None:
            return {"finished": "finished", "unknown": ""}.get(ending, "failed")
        if self._hang is not None and one.process.rank in self._hang[1]:
            return "hung"
        if self._hang is not None and one.process.rank in self._hang[2]:
            return "waiting"
        return "running" if one.counted.steps else "starting"

    def _lags(self) -> list[f.Series]:
        """Compare ranks by the newest steps that all of them have made."""
        steps = {
            key: dict(one.counted.own)
            for key, one in self._ranks.items()
            if one.process.ending is None
        }
        if len(steps) < 2:
            return []
        common = set.intersection(*(set(own) for own in steps.values()))
        if not common:
            return []
        newest = sorted(common)[-COMPARED:]
        means = {
            key: sum(own[number] for number in newest) / len(newest) for key, own in steps.items()
        }
        least = min(means.values())
        return [f.Series(f.LAG, key, (mean - least) / 1e9) for key, mean in means.items()]

    def _of_node(self, sources: Iterable[Mapping[str, Any]]) -> list[f.Series]:
        kinds = Counter(label_value(kind) for kind, _ in self._findings)
        if self._hang is not None:
            kinds[label_value(self._hang[0])] += 1
        up = {label_value(str(s["name"])): float(s["state"] == "ok") for s in sources}
        cut = self._phases.cut_off + len(self._refused) + self._findings_refused
        cut += max(0, len(up) - _MOST_SOURCES) + self.samples.cut_off
        times = os.times()
        cpu = times.user + times.system + times.children_user + times.children_system
        return [
            *(f.Series(f.FINDING, (kind,), 1.0) for kind in sorted(kinds)),
            *(f.Series(f.SOURCE, (name,), up[name]) for name in sorted(up)[:_MOST_SOURCES]),
            f.Series(f.RECORDER_CPU, (), cpu),
            f.Series(f.RECORDER_MEMORY, (), float(_resident())),
            f.Series(f.CUT_OFF, (), float(cut)),
            f.Series(f.BUILD, (__version__,), 1.0),
        ]


def _of_rank(key: tuple[str, str], rank: Rank) -> list[f.Series]:
    found = [
        f.Series(f.STEP_DURATION, key, rank.durations),
        f.Series(f.STEPS, key, float(rank.steps)),
        f.Series(f.LOST, key, float(rank.lost_before + rank.lost)),
    ]
    if rank.last_step_ns:
        found.append(f.Series(f.LAST_STEP, key, rank.last_step_ns / 1e9))
    if rank.overhead is not None and math.isfinite(rank.overhead):
        found.append(f.Series(f.OVERHEAD, key, rank.overhead))
    if rank.observed is not None:
        of_gpu = ((f.OBSERVED, rank.observed), (f.BUSY, rank.busy), (f.EXPOSED, rank.exposed))
        found += [f.Series(family, key, ns / 1e9) for family, ns in of_gpu]
    stated = {"tokens": f.TOKENS, "samples": f.SAMPLES, "flops": f.FLOPS}
    found += [f.Series(stated[name], key, total) for name, total in rank.work.totals.items()]
    labelled = (
        (f.PHASE, rank.phases),
        (f.DEVICE_PHASE, rank.device_phases),
        (f.PAUSE, rank.pauses),
        (f.WAIT, rank.waits),
    )
    for family, by_name in labelled:
        found += [f.Series(family, (*key, name), ns / 1e9) for name, ns in by_name.items()]
    return found


def _gpu(known: Mapping[str, Any]) -> _Gpu:
    memory = known.get("memory_bytes")
    name = str(known.get("name") or "")
    return _Gpu(str(known["uuid"]), name, memory if isinstance(memory, int) else None)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE


def _label(number: int | None) -> str:
    return "" if number is None else str(number)
