"""Exports what a node counts to wherever the option ``metrics`` says. Never raises.

What does not work is said once, with what to do, and the recording goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, Protocol

from haiprof.common.metrics_targets import Targets
from haiprof.recorder.arrow_stream import Batch
from haiprof.recorder.metrics.families import Snapshot
from haiprof.recorder.metrics.node import Node, Recorded

log = logging.getLogger(__name__)

#: From one snapshot to the next, s.
_EVERY_S: Final = 2.0
_EARLY_S: Final = 0.1


class Export(Protocol):
    """Takes snapshots somewhere."""

    def publish(self, snapshot: Snapshot) -> None:
        """Take this one; OSError: that did not work."""

    def close(self) -> None:
        """Take no more."""


class Sampled(Protocol):
    """The node that is sampled, as far as it matters here."""

    @property
    def sources(self) -> Collection[Mapping[str, Any]]:
        """Its sources of samples."""

    @property
    def gpus(self) -> Collection[Mapping[str, Any]]:
        """Its GPUs."""


class Exports:
    """What one recorder exports to."""

    def __init__(
        self,
        targets: Targets,
        node: Mapping[str, str],
        say: Callable[[str], None],
        peak_flops: float = 0.0,
    ) -> None:
        """Begin to export.

        Args:
            targets: to where.
            node: labels of all series: run and node.
            say: takes what does not work, a sentence each.
            peak_flops: of each GPU, FLOP/s; 0: as its vendor states.
        """
        self._say = say
        self._samples = targets.samples
        self._node: Node | None = Node(node, peak_flops)
        self._exports: dict[str, Export] = {}
        self._broken: set[str] = set()
        self._next = 0.0
        for host, port in targets.addresses:
            where = f"{f'[{host}]' if ':' in host else host}:{port}"
            self._open(where, partial(_listen, host, port))
        for path in targets.files:
            self._open(path, partial(_file, path))
        for url in targets.urls:
            self._open(f"otlp:{url}" if url else "otlp", partial(_send, url))

    def _open(self, where: str, make: Callable[[], Export]) -> None:
        try:
            self._exports[where] = make()
        except ImportError as error:
            extra = "otel" if where.startswith("otlp") else "metrics"
            self._problem(where, f"{error}", f"install it: pip install 'haiprof[{extra}]'")
        except (OSError, UnicodeError, OverflowError) as error:
            what = "folder" if where.endswith(".prom") else "address"
            self._problem(where, _reason(error), f"choose another {what} with the option metrics")
        except Exception as error:
            self._problem(where, repr(error), "correct the option metrics")

    def _problem(self, where: str, why: str, what_to_do: str) -> None:
        text = f"metrics are not exported to {where}: {why}; {what_to_do}"
        log.error("%s", text)
        self._say(text)

    def rows_of(self, process: Recorded) -> Callable[[Batch], None] | None:
        """Return what takes the rows of a process of a rank; None: nothing does."""
        if self._node is None or (rank := self._node.begin(process)) is None:
            return None

        return self._guarded(rank.read)

    def rows_of_node(self) -> Callable[[Batch], None] | None:
        """Return what takes the rows of the node; None: nothing does."""
        if self._node is None or not self._samples:
            return None
        return self._guarded(self._node.samples.read)

    def _guarded(self, read: Callable[[Batch], None]) -> Callable[[Batch], None]:
        def take(batch: Batch) -> None:
            if self._node is not None:
                try:
                    read(batch)
                except Exception:
                    self._give_up()

        return take

    def note(self, kind: str, attributes: Mapping[str, Any]) -> None:
        """Take an event of the node."""
        if self._node is not None:
            try:
                self._node.note(kind, attributes)
            except Exception:
                self._give_up()

    def turn(self, sampled: Sampled) -> None:
        """Export what is known now, if it is time to."""
        now = time.monotonic()
        if now >= self._next - _EARLY_S:
            self._next = now + _EVERY_S
            self._publish(sampled)
            if self._node is None:  # what was said last is no longer so
                self._end()

    def close(self, sampled: Sampled) -> None:
        """Export how it ended, and no more."""
        self._publish(sampled)
        self._end()

    def _end(self) -> None:
        for export in self._exports.values():
            try:
                export.close()
            except Exception:
                log.exception("an export of metrics does not end in order")
        self._exports = {}

    def _publish(self, sampled: Sampled) -> None:
        if self._node is None or not self._exports:
            return
        try:
            snapshot = self._node.snapshot(sampled.sources, sampled.gpus)
            for where, export in self._exports.items():
                self._publish_to(where, export, snapshot)
        except Exception:
            self._give_up()

    def _publish_to(self, where: str, export: Export, snapshot: Snapshot) -> None:
        try:
            export.publish(snapshot)
        except OSError as error:
            if where not in self._broken:
                self._broken.add(where)
                self._problem(where, _reason(error), "it is tried again")
        else:
            if where in self._broken:
                self._broken.remove(where)
                log.info("metrics are exported to %s again", where)

    def _give_up(self) -> None:
        """Export nothing more: the recording is worth more."""
        log.exception("metrics are exported no more")
        self._node = None
        self._say("metrics are exported no more: the recorder's log says why")


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _listen(host: str, port: int) -> Export:
    from haiprof.recorder.metrics import exposition
    from haiprof.recorder.metrics.http_server import HttpServer

    def render(snapshot: Snapshot, openmetrics: bool) -> tuple[str, bytes]:
        kind = exposition.OPENMETRICS if openmetrics else exposition.TEXT
        return kind, exposition.render(snapshot, openmetrics=openmetrics)

    return HttpServer((host, port), render)


def _file(path: str) -> Export:
    from haiprof.recorder.metrics.textfile import Textfile

    return Textfile(path)


def _send(url: str) -> Export:
    from haiprof.recorder.metrics.otlp import Otlp

    return Otlp.to(url)
