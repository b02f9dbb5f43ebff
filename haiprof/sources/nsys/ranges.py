"""Ranges of NVTX as spans: torch's operators and steps, communication of NCCL.

A range's meaning is read from its text alone, by the rules of
:mod:`haiprof.sources.nsys.words`; a range that no rule covers is one of the user.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from haiprof.sources.imports import marked_steps
from haiprof.sources.imports.imported import whole
from haiprof.sources.nsys import meanings, nccl, words
from haiprof.sources.nsys.database import Database, Expression
from haiprof.sources.nsys.processes import Target

if TYPE_CHECKING:
    import polars as pl

_TABLE: Final = "NVTX_EVENTS"
_WANTED: Final[dict[str, str | Expression]] = {
    "start": "start",
    "end": "end",
    "thread": ("globalTid & 16777215", ("globalTid",)),
    "text": "text",
    "named": "textId",
    "domain": "domainId",
    "payload": "jsonText",
    "payload_text": "jsonTextId",
}
_OF_THREADS: Final = (
    f"eventType in ({', '.join(map(str, words.NVTX_RANGES))}) and globalTid between ? and ?"
)


class Ranges:
    """The ranges of one process of a file."""

    def __init__(
        self, db: Database, target: Target, named: Callable[[pl.Series], pl.Series]
    ) -> None:
        """Choose the process; ``named`` returns texts by their ids."""
        self._db = db
        self._target = target
        self._named = named
        self._domains = self._read_domains()
        self._steps = self._find_steps()
        #: Numbers of modules by name.
        self._modules: dict[str, int] = {}
        #: Unfinished ranges, which are left out.
        self.open = 0

    def frames(self) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Return frames of ``spans`` and of ``collectives``, with ``end`` for ``duration``."""
        import polars as pl

        if not self._db.has(_TABLE, "eventType", "globalTid", "start", "end"):
            return
        pieces = self._db.frames(
            _TABLE, _WANTED, ("globalTid", _OF_THREADS), self._target.threads, ("text", "payload")
        )
        for piece in pieces:
            self.open += piece["end"].null_count()
            frame = piece.filter(pl.col("end").is_not_null()).with_columns(
                pl.coalesce("text", self._named(piece["named"]).filter(piece["end"].is_not_null()))
                .fill_null("")
                .alias("text")
            )
            if frame.height:
                spans = meanings.spans(frame, self._steps, self._modules, self._domain)
                yield spans, self._collectives(frame, spans)

    def _collectives(self, frame: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
        """Return the calls that communicate, with NCCL's details."""
        import polars as pl

        known = {name: meanings.op(name) for name in spans["name"].unique().to_list()}
        ops = pl.Series("op", [known[name] for name in spans["name"].to_list()], pl.String())
        chosen = ops.is_not_null()
        if not chosen.any():
            return pl.DataFrame()
        calls = frame.filter(chosen)
        payloads = calls["payload"].zip_with(
            calls["payload"].is_not_null(), self._named(calls["payload_text"])
        )
        parsed = [nccl.payload(text) for text in payloads.to_list()]
        return (
            spans.filter(chosen)
            .select("start", "end", "thread", "external")
            .with_columns(
                ops.filter(chosen),
                pl.lit("host").alias("side"),
                pl.Series("bytes", [whole(each.get(nccl.BYTES)) for each in parsed], pl.Int64()),
                pl.Series("group", [_text(each.get(nccl.GROUP)) for each in parsed], pl.String()),
                pl.Series("attributes", [_peer(each) for each in parsed], pl.String()),
            )
        )

    def _domain(self, number: int | None) -> str | None:
        if not number:
            return None
        return json.dumps({"domain": self._domains.get(number, str(number))})

    def _read_domains(self) -> dict[int, str]:
        if not self._db.has(_TABLE, "eventType", "domainId", "globalTid"):
            return {}
        inline = "text" if self._db.has(_TABLE, "text") else "null"
        by_id = "textId" if self._db.has(_TABLE, "textId") else "null"
        rows = self._db.rows(
            f"select domainId, {inline}, {by_id} from {_TABLE} "
            "where eventType = ? and globalTid between ? and ?",
            (words.NVTX_DOMAIN, *self._target.threads),
        )
        domains = {}
        for number, text, at in rows:
            name = text if text is not None or at is None else self._db.strings([at]).get(at)
            if number is not None and name:
                domains[number] = str(name)
        return domains

    def _find_steps(self) -> dict[tuple[int, str], int]:
        """Return the ranges that are steps, by start and text, each with its number."""
        return marked_steps.marked(self._that_may_be_steps())

    def _that_may_be_steps(self) -> Iterator[tuple[int, int, str]]:
        db = self._db
        if not db.has(_TABLE, "start", "end", "eventType", "globalTid"):
            return
        like = "like '%step%' or {0} like '%iter%' or {0} like '%run_training_batch%'"
        for column, text, joined in (
            ("text", "n.text", ""),
            ("textId", "s.value", "join StringIds s on s.id = n.textId"),
        ):
            if not db.has(_TABLE, column) or (joined and not db.has("StringIds", "id", "value")):
                continue
            chosen = f"{text} {like.format(text)}"
            sql = (
                f"select n.start, n.end, {text} from {_TABLE} n {joined} where ({chosen}) "
                "and typeof(n.end) = 'integer' and typeof(n.start) = 'integer' "
                f"and {_OF_THREADS} order by n.start"
            )
            for start, end, name in db.rows(sql, self._target.threads):
                yield start, end, str(name)


def _peer(payload: dict[str, Any]) -> str | None:
    peer = whole(payload.get(nccl.PEER))
    return None if peer is None else json.dumps({"peer": peer})


def _text(value: Any) -> str | None:
    # Texts in JSON may contain lone surrogates, which no table can store.
    return None if value is None else str(value).encode("utf-8", "replace").decode()
