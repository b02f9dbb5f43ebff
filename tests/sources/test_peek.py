"""The beginning of a file, and whole documents: compressed, damaged, too large."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from haiprof.errors import HaiprofError
from haiprof.sources import peek


def test_a_beginning_is_decompressed(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * (peek.HEAD + 9))
    assert peek.head(file) == b"x" * peek.HEAD
    file.write_bytes(gzip.compress(b"plain"))
    assert peek.head(file) == b"plain"
    file.write_bytes(b"\x1f\x8bno gzip")
    assert peek.head(file) == b""
    assert peek.head(tmp_path) == peek.head(tmp_path / "none") == b""


def test_the_first_event_of_a_list_or_a_trace() -> None:
    event = {"ph": "B", "args": {"iteration": 1}}
    text = b'{"ph": "B", "args": {"iteration": 1}}, {"cut'
    assert peek.first_event(b"\xef\xbb\xbf [" + text) == event
    assert peek.first_event(b'{"schema": 1, "traceEvents" : [' + text) == event
    for other in (b"", b"[", b"[1, 2]", b'{"a": [', b'[{"ph": ', b"[" * 100_000):
        assert peek.first_event(other) is None


def test_what_is_read_whole_has_a_limit_and_is_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    packed = gzip.compress(b'{"a": [1, 2]}')
    for content in (b'{"a": [1, 2]}', packed):
        file.write_bytes(content)
        assert peek.document(file) == {"a": [1, 2]}
    for content, said in (
        (packed[:-9], "is cut off"),
        (packed[:12] + b"\x00" * 9, "is cut off"),
        (b"\xff\xfe\x00", "is not text (byte 0)"),
        (b'{"a": [1, 2', "at character 11"),
        (b"[" * 100_000, "is cut off or damaged"),
    ):
        file.write_bytes(content)
        with pytest.raises(HaiprofError, match=re.escape(said)):
            peek.document(file)
    monkeypatch.setattr(peek, "LARGEST", 1 << 20)
    for content in (b" " * ((1 << 20) + 1), gzip.compress(b" " * (9 << 20))):
        file.write_bytes(content)
        with pytest.raises(HaiprofError, match="more than 1 MiB of text"):
            peek.document(file)
