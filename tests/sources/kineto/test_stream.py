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

from haiprof.errors import HaiprofError
from haiprof.sources.kineto.stream import PIECE, Pieces

TEXT = b"".join(b'{"n": %d},' % random.Random(i).getrandbits(40) for i in range(150_000))
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
    made: bytes = sink.getvalue().to_pybytes()
    return made


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
