"""The text of a trace in pieces, however it is compressed, and however it is damaged."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import traces

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.sources.kineto import stream
from haiprof.sources.kineto.stream import PIECE, Pieces

DICE = random.Random(1)
TEXT = b"".join(b'{"n": %d},' % DICE.getrandbits(40) for _ in range(150_000))
WAYS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "zstd": lambda data: _arrow("zstd", data),
    "lz4": lambda data: _arrow("lz4", data),
}


def _arrow(codec: str, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        out.write(data)
    result: bytes = sink.getvalue().to_pybytes()
    return result


def read(file: Path) -> tuple[bytes, str | None]:
    with Pieces(str(file)) as pieces:
        text = list(pieces)
    assert max(map(len, text), default=0) <= PIECE
    assert pieces.consumed <= file.stat().st_size
    return b"".join(text), pieces.broken


@pytest.mark.parametrize("way", WAYS)
def test_the_first_bytes_say_how_a_file_is_compressed(way: str, tmp_path: Path) -> None:
    file = tmp_path / "misnamed.json.gz"
    file.write_bytes(WAYS[way](TEXT))
    assert read(file) == (TEXT, None)


@pytest.mark.parametrize("way", ["gzip", "bz2", "xz", "zstd", "lz4"])
def test_a_cut_stream_gives_what_came_before(way: str, tmp_path: Path) -> None:
    whole = WAYS[way](TEXT)
    file = tmp_path / "cut.json"
    file.write_bytes(whole[: len(whole) // 2])
    text, broken = read(file)
    assert broken is not None
    assert broken.startswith(f"{way} cannot be read beyond byte ")
    assert len(TEXT) // 4 < len(text) < len(TEXT)
    assert TEXT.startswith(text)


def test_a_damaged_stream_gives_what_came_before(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(TEXT))
    whole[len(whole) // 2 : len(whole) // 2 + 64] = os.urandom(64)
    file = tmp_path / "damaged.json"
    file.write_bytes(whole)
    text, broken = read(file)
    assert broken is not None
    assert len(text) > len(TEXT) // 4


def test_a_file_of_several_members_that_ends_in_zeros_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    for compress in (gzip.compress, bz2.compress, lzma.compress):
        file.write_bytes(compress(b"[1,") + compress(b"2]") + bytes(512))
        assert read(file) == (b"[1,2]", None)


def test_a_bomb_is_read_in_small_pieces(tmp_path: Path) -> None:
    file = tmp_path / "bomb.json"
    file.write_bytes(gzip.compress(bytes(64 << 20)))
    seen = 0
    with Pieces(str(file)) as pieces:
        for piece in pieces:
            assert len(piece) <= PIECE
            seen += len(piece)
    assert seen == 64 << 20


def bomb(way: str, mebibytes: int) -> bytes:
    """A file that grows to so much text: events, in members that are all the same."""
    event = b'{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":1,"dur":1},'
    block = event * ((1 << 20) // len(event))
    return WAYS[way](b'{"traceEvents":[') + WAYS[way](block) * mebibytes


@pytest.mark.parametrize("way", ["gzip", "bz2", "xz", "zstd"])
def test_a_bomb_is_left_out_and_the_other_files_are_read(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_ALWAYS", 4 << 20)
    traces.write(tmp_path / "rank0.pt.trace.json.gz", traces.small(0))
    file = tmp_path / "rank1.pt.trace.json.gz"
    file.write_bytes(bomb(way, 1 << 12))  # 4 GiB
    read: list[int] = []
    run = Analyzer(tmp_path, on_bytes=read.append)
    assert run.ranks == [0]
    (line,) = run.problems()
    assert line.startswith(f"{file}: ")
    assert "more than 200 times as much" in line
    assert line.endswith("left out; if it is one, unpack it and give that file")
    assert file.stat().st_size < 100 << 20
    with pytest.raises(HaiprofError, match="unpack it and give that file"):
        Analyzer(file)


def test_what_shrinks_as_traces_do_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_ALWAYS", 1 << 20)
    event = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":7,"tid":7,"ts":%d,"dur":%d},'
    text = b"".join(event % (1000 + 10 * n, n % 7) for n in range(60_000))
    for way in ("gzip", "bz2", "xz", "zstd"):
        file = tmp_path / "trace.json"
        file.write_bytes(WAYS[way](text))
        assert len(text) > 1 << 20
        assert read(file) == (text, None)
    monkeypatch.setattr(stream, "_MOST_TIMES", 3)
    with pytest.raises(HaiprofError, match="more than 3 times as much"):
        read(file)


def test_what_is_no_compressed_file_may_be_as_large_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_ALWAYS", 1 << 10)
    monkeypatch.setattr(stream, "_MOST_TIMES", 0)
    (tmp_path / "trace.json").write_bytes(TEXT)
    assert read(tmp_path / "trace.json") == (TEXT, None)


def test_an_empty_file_has_no_pieces(tmp_path: Path) -> None:
    file = tmp_path / "empty.json"
    file.touch()
    assert read(file) == (b"", None)


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HaiprofError, match=r"none\.json: no such file: give a trace"):
        Pieces(str(tmp_path / "none.json"))
    with pytest.raises(HaiprofError, match="cannot be read"):
        Pieces(str(tmp_path))


def test_a_url_is_read_through_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    with fsspec.open("memory://some/trace.json", "wb") as out:
        out.write(gzip.compress(TEXT))
    with Pieces("memory://some/trace.json") as pieces:
        assert b"".join(pieces) == TEXT
    with pytest.raises(HaiprofError, match=r"memory://some/none\.json"):
        Pieces("memory://some/none.json")
    with pytest.raises(HaiprofError, match="cannot be opened"):
        Pieces("nosuchscheme://x")


def test_without_fsspec_a_url_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsspec", "fsspec.core"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(HaiprofError, match="needs the package fsspec: pip install fsspec"):
        Pieces("s3://bucket/trace.json")
