"""Samples of the node as series: the newest value of each that the recorder takes anyway."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from haiprof.recorder.arrow_stream import Batch
from haiprof.recorder.metrics.families import Family, Series
from haiprof.recorder.metrics.names import MOST_COUNTED, label_value
from haiprof.recorder.metrics.sample_families import EXPORTED, GPU

#: Instances of a metric that have series: GPUs of a node, disks, interfaces.
_MOST_INSTANCES: Final = 64
#: A value is the newest for three intervals of its source, and for so many s at least.
_INTERVALS: Final = 3
_LEAST_S: Final = 10.0


class _Newest(NamedTuple):
    """The newest value of one instance of a metric.

    Attributes:
        instance: its whole name; of a label only its beginning.
        value: in the unit of the series.
        at: when it came, s.
    """

    instance: str
    value: float
    at: float


class Samples:
    """The newest samples of a node."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """There are none yet.

        Args:
            clock: returns the time, s.
        """
        self._clock = clock
        self._newest: dict[str, dict[str, _Newest]] = {}
        self._refused: set[str] = set()

    @property
    def cut_off(self) -> int:
        """How many instances had no series."""
        return len(self._refused)

    def read(self, batch: Batch) -> None:
        """Take rows of the node's folder as they are written."""
        if batch.table.name != "samples":
            return
        texts = batch.column("metric").texts
        assert texts is not None
        wanted = {place: text for place, text in enumerate(texts.all) if text in EXPORTED}
        numbers, now = batch.numbers("value"), self._clock()
        for row, place in enumerate(batch.numbers("metric")):
            if (metric := wanted.get(place)) is None or not math.isfinite(numbers[row]):
                continue
            family, scale = EXPORTED[metric]
            instance = batch.value("instance", row)
            # Of a metric of the node its parts have no series: cores, sockets.
            if (instance is not None) is bool(family.labels):
                self._take(metric, _Newest(instance or "", numbers[row] * scale, now))

    def _take(self, metric: str, new: _Newest) -> None:
        of_metric = self._newest.setdefault(metric, {})
        label = label_value(new.instance)
        known = of_metric.get(label)
        if known is None:
            has_room = len(of_metric) < _MOST_INSTANCES
        else:
            has_room = known.instance == new.instance  # else they begin alike
        if has_room:
            of_metric[label] = new
        elif len(self._refused) < MOST_COUNTED:
            self._refused.add(f"{metric} {new.instance}")

    def series(
        self, sources: Iterable[Mapping[str, Any]], gpus: Iterable[Mapping[str, Any]]
    ) -> Iterator[Series]:
        """Return their series; what is no longer sampled has none.

        Args:
            sources: those of samples: ``metrics`` and ``interval_s``.
            gpus: those of the node: ``instance`` and ``uuid``.
        """
        if not self._newest:
            return
        every: dict[str, float] = {}
        for source in sources:
            for metric in source.get("metrics", ()):
                every[metric] = max(every.get(metric, 0.0), source["interval_s"])
        uuids = {label_value(str(gpu["instance"])): label_value(str(gpu["uuid"])) for gpu in gpus}
        now = self._clock()
        for metric, (family, _) in EXPORTED.items():
            lasts = max(_LEAST_S, _INTERVALS * every.get(metric, 0.0))
            of_metric = self._newest.get(metric, {})
            for label in [label for label, new in of_metric.items() if now - new.at > lasts]:
                del of_metric[label]
            for label, new in sorted(of_metric.items()):
                yield Series(family, _labels(family, label, uuids), new.value)


def _labels(family: Family, label: str, uuids: Mapping[str, str]) -> tuple[str, ...]:
    if family.labels == GPU:
        return label.removeprefix("gpu"), uuids.get(label, "")
    return (label,) if family.labels else ()
