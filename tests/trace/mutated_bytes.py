"""Mutations of bytes: text that is none, files cut or damaged, compressed ones, bombs."""

from __future__ import annotations

import gzip
import random
import re
import zlib

from mutation import TURNS, Event, Maker, Sources, add, edit, timed

#: What a compressed bomb grows to.
BOMB_BYTES = 256 << 20


def _add_text() -> None:
    def name(value: str | bytes, source: str = "sync") -> Maker:
        """Replace names in the text, where JSON itself can be broken."""
        new = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value

        def mutate(sources: Sources) -> bytes:
            count = iter(range(10**9))
            return re.sub(
                rb'"name": ?"[^"\\]*"',
                lambda m: b'"name": "' + new + b'"' if next(count) % 3 == 0 else m[0],
                sources.text(source),
            )

        return mutate

    for what, value, reported in (
        ("stray_byte", b"aten::\xff\xfe", False),
        ("cut_character", b"aten::\xe2\x82", False),
        ("overlong", b"aten::\xc0\xaf", False),
        ("surrogate_bytes", b"aten::\xed\xa0\x80", False),
        ("lone_surrogate", b"aten::\\ud83d", False),
        ("surrogates_swapped", b"aten::\\ude00\\ud83d", False),
        ("zero_escape", b"aten::\\u0000mm", False),
        ("zero_byte", b"aten::\x00mm", False),
        ("control_bytes", b"aten::\x01\x1b[31m\x7f", False),
        ("line_break", b"aten::\nmm\r\n", False),
        ("bad_escape", b"aten::\\q\\x41", False),
        ("cut_escape", b"aten::\\u12", False),
        ("backslash_at_end", b"aten::\\", True),
        ("quote", b'aten::"mm', True),
        ("markup", b"<script>alert(1)</script>&amp;", False),
        ("path", b"../../../../tmp/aten", False),
        ("empty", b"", False),
        ("beyond_the_plane", "aten::\U0001f600".encode(), False),
        ("right_to_left", "\u202eaten::mm\u2066".encode(), False),
        ("formula", b"=cmd|' /C calc'!A0", False),
        ("long", b"a" * 100_000, False),
    ):
        add(f"text.{what}", name(value), reported)

    def distinct(events: list[Event], chance: random.Random) -> None:
        sample = next(e for e in events if timed(e))
        events += [{**sample, "name": f"operator {n:x}" * 5, "ts": n} for n in range(20_000)]

    add("text.many_names", edit("sync", distinct))


_add_text()


def _add_damage() -> None:
    def cut(number: int) -> Maker:
        source = TURNS[number % 4]

        def mutate(sources: Sources) -> bytes:
            text = sources.text(source)
            return text[: sources.chance.randrange(1, len(text) - 10)]

        return mutate

    def cut_after(pattern: bytes, source: str = "amd") -> Maker:
        def mutate(sources: Sources) -> bytes:
            text = sources.text(source)
            found = list(re.finditer(pattern, text))
            return text[: found[len(found) // 2].end()]

        return mutate

    def flipped(number: int) -> Maker:
        source = ("amd", "sync", "whole", "host")[number % 4]

        def mutate(sources: Sources) -> bytes:
            text = bytearray(sources.text(source))
            for _ in range(1 + number % 20):
                text[sources.chance.randrange(len(text))] ^= 1 << sources.chance.randrange(8)
            return bytes(text)

        return mutate

    def moved(number: int) -> Maker:
        source = ("amd", "whole", "sync")[number % 3]

        def mutate(sources: Sources) -> bytes:
            text = sources.text(source)
            low, high = sorted(sources.chance.sample(range(len(text)), 2))
            part = text[low : min(high, low + 5000)]
            where = sources.chance.randrange(len(text))
            how = number % 4
            if how == 0:  # a part is missing
                return text[:low] + text[low + len(part) :]
            if how == 1:  # a part is there twice
                return text[:where] + part + text[where:]
            if how == 2:  # a page of zeros, as after a crash of the machine
                return text[:low] + bytes(4096) + text[low + 4096 :]
            return text[:low] + sources.chance.randbytes(50) + text[low:]

        return mutate

    for number in range(16):
        add(f"cut.anywhere_{number}", cut(number), reported=True)
    for what, pattern in (
        ("after_quote", rb'"name": ?"'), ("within_name", rb'"name": ?"..'),
        ("after_colon", rb'"ts":'), ("within_number", rb'"ts": ?\d\d'),
        ("after_dot", rb"\d\.(?=\d)"), ("after_brace", rb"\{"),
        ("after_comma", rb"\},"), ("after_event", rb"\}(?=,)"),
        ("within_key", rb'"arg'), ("after_events", rb"\}\s*\](?=,)"),
    ):  # fmt: skip
        add(f"cut.{what}", cut_after(pattern), reported=True)
    add("cut.within_escape", lambda s: s.text("sync")[:4000] + b'"name": "\\u20', reported=True)
    add(
        "cut.within_character",
        lambda s: s.text("sync")[:4000] + b'"name": "\xe2\x82',
        reported=True,
    )
    for number in range(24):
        add(f"damage.bits_{number}", flipped(number))
    for number in range(16):
        add(f"damage.blocks_{number}", moved(number))


_add_damage()


def _bomb(start: bytes, fill: bytes, end: bytes = b"") -> bytes:
    """A gzip file that grows to :data:`BOMB_BYTES`: members of which one is there many times."""
    block = fill * ((4 << 20) // len(fill))
    middle = gzip.compress(block, 6, mtime=0)
    first, last = gzip.compress(start, mtime=0), gzip.compress(end, mtime=0)
    return first + middle * (BOMB_BYTES // len(block)) + last


def _add_compressed() -> None:
    def packed(text: bytes) -> bytes:
        return gzip.compress(text, mtime=0)

    def changed(offset: int, value: bytes) -> Maker:
        def mutate(sources: Sources) -> bytes:
            data = bytearray(packed(sources.text("amd")))
            where = len(data) + offset if offset < 0 else offset
            data[where : where + len(value)] = value
            return bytes(data)

        return mutate

    def flipped(number: int) -> Maker:
        def mutate(sources: Sources) -> bytes:
            data = bytearray(packed(sources.text("amd")))
            data[sources.chance.randrange(18, len(data) - 8)] ^= 1 << sources.chance.randrange(8)
            return bytes(data)

        return mutate

    for number, part in enumerate((0.05, 0.3, 0.6, 0.9, 0.999)):
        add(
            f"gzip.cut_{number}",
            lambda s, part=part: (whole := packed(s.text("amd")))[: int(len(whole) * part)],
            reported=True,
        )
    for number in range(8):
        add(f"gzip.bit_{number}", flipped(number), reported=True)
    add("gzip.only_magic", lambda s: b"\x1f\x8b", reported=True)
    add("gzip.only_head", lambda s: packed(s.text("amd"))[:10], reported=True)
    add("gzip.method", changed(2, b"\x07"), reported=True)
    add("gzip.flags", changed(3, b"\xe0"), reported=True)
    add("gzip.checksum", changed(-8, b"\x00\x00\x00\x00"), reported=True)
    add("gzip.size", changed(-4, b"\x00\x00\x00\x00"), reported=True)
    add("gzip.trailing_rubbish", lambda s: packed(s.text("amd")) + b"rubbish", reported=True)
    add("gzip.trailing_zeros", lambda s: packed(s.text("amd")) + bytes(512))
    add("gzip.empty", lambda s: packed(b""), reported=True)
    add("gzip.twice", lambda s: packed(packed(s.text("amd"))), reported=True)
    add("gzip.members", lambda s: packed(s.text("amd")[:9000]) + packed(s.text("amd")[9000:]))
    add("gzip.deflate_only", lambda s: zlib.compress(s.text("amd")), reported=True)

    events = b'{"schemaVersion": 1, "traceEvents": ['
    event = b'{"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "name": "'
    for what, bomb in {
        "blanks": lambda: _bomb(b"{", b" "),
        "zeros": lambda: _bomb(b"", b"\x00"),
        "brackets": lambda: _bomb(b"", b"["),
        "objects": lambda: _bomb(b"", b'{"a":'),
        "name": lambda: _bomb(events + event, b"x", b'"}]}'),
        "key": lambda: _bomb(events + event + b'x", "', b"k", b'": 1}]}'),
        "number": lambda: _bomb(events + b'{"ph": "X", "ts": 1', b"0", b"}]}"),
        "fraction": lambda: _bomb(events + b'{"ph": "X", "ts": 1.', b"3", b"}]}"),
        "header": lambda: _bomb(b'{"INFO": "', b"x", b'", "traceEvents": []}'),
        "headers": lambda: _bomb(b'{"a": [', b'"yyyyyyyy", ', b'1], "traceEvents": []}'),
        "argument": lambda: _bomb(events + event + b'x", "args": {"a": [', b"1,", b"1]}}]}"),
        "shapes": lambda: _bomb(events + event + b'x", "args": {"Input Dims": [', b"1,", b"1]}}]}"),
        "escapes": lambda: _bomb(events + event, b"\\u0041", b'"}]}'),
        "empty_events": lambda: _bomb(events, b"{}, ", b"{}]}"),
        "numbers_for_events": lambda: _bomb(events, b"7, ", b"7]}"),
    }.items():
        # A reader may pass over what it has no use for, however long it is.
        harmless = what in ("key", "fraction", "header", "headers", "argument")
        add(f"bomb.{what}", lambda s, bomb=bomb: bomb(), reported=not harmless)


_add_compressed()
