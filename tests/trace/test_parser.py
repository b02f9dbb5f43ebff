"""The parser of trace files: what it finds, however a file is cut, odd or damaged."""

from __future__ import annotations

import functools
import gzip
import json
import random
import re
import resource
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import chrome_traces
import numpy as np
import pytest
from chrome_traces import differences, expected, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import DATA, lacking

from haiprof import _core

TRACES = sorted((DATA / "traces").glob("*/*.gz"))
needs_traces = pytest.mark.skipif(not TRACES, reason=lacking(DATA / "traces"))


def unpacked(path: Path) -> bytes:
    with gzip.open(path) as file:
        return file.read()


def event(**members: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 2, "ts": 10,
            "dur": 5, **members}  # fmt: skip


def document(*events: Any, **members: Any) -> bytes:
    texts = (each if isinstance(each, str) else json.dumps(each) for each in events)
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in members.items())
    return f'{{{head}"traceEvents": [{", ".join(texts)}]}}'.encode()


def everything(parser: _core.TraceParser) -> Any:
    """All that a parser has to tell, to be compared."""
    groups = {
        group: {name: (str(array.dtype), array.tobytes()) for name, array in columns.items()}
        for group, columns in parser.take().items()
    }
    found = (parser.strings(), parser.header, parser.truncated, parser.events)
    # Of an example, the end depends on how much of the file was there.
    problems = {name: (n, offset) for name, (n, offset, _) in parser.problems.items()}
    return groups, found, problems


def names_of(parser: _core.TraceParser) -> list[str]:
    strings = parser.strings()
    codes = parser.take().get("spans", {}).get("name", np.array([], np.uint32))
    return [strings[code] for code in codes if code != chrome_traces.NO_TEXT]


def column(raw: bytes, group: str, name: str) -> list[Any]:
    parser = parse(raw)
    array = parser.take()[group].get(name)
    if array is None:
        return []
    how = chrome_traces.GROUPS[group][name].how if name in chrome_traces.GROUPS[group] else None
    return chrome_traces.values(array, parser.strings(), how)


@needs_traces
@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}-{path.name[:7]}")
def test_a_recorded_trace_is_read_as_a_plain_reader_reads_it_however_it_is_cut(path: Path) -> None:
    raw = unpacked(path)
    parser = parse(raw)
    rows, header = expected(raw)
    assert differences(parser, rows) == []
    assert {name: json.loads(text) for name, text in parser.header.items()} == header
    assert (parser.problems, parser.truncated) == ({}, None)
    whole = everything(parse(raw))
    dice = random.Random(path.name)
    for largest in (4, 20) if len(raw) < 1_000_000 else (20,):
        pieces = [int(2 ** dice.uniform(0, largest)) for _ in range(1000)]
        assert everything(parse(raw, pieces)) == whole


# -- odd values, generated ------------------------------------------------------------------------


def braces(members: Iterable[str]) -> str:
    return f"{{{','.join(members)}}}"


WORDS = ["null", "true", "false", "NaN", "Infinity", "-Infinity", "N/A"]
written = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(0, 9999).map(str),
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?\Z"),
)
texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "aten::add", "[memory]", "0x7f00", "0xffffffffffffffff", "N/A", "x"]),
    written,
)
strings = st.one_of(
    texts.map(json.dumps),
    texts.filter(str.isprintable).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.text("\ud800\udc00\ude00a", max_size=4).map(json.dumps),
).filter(lambda text: not re.search(r":\s*N/A", text))
values = st.recursive(
    st.one_of(written, strings, st.sampled_from(WORDS[:-1])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda each: f"[{' , '.join(each)}]"),
        st.dictionaries(strings, inner, max_size=3).map(
            lambda each: braces(f"\n{name} :{value}" for name, value in each.items())
        ),
    ),
    max_leaves=8,
)
MEMBERS = sorted(
    {m for group in chrome_traces.BY_MEMBER.values() for m in group if m[0] == "/"} | {"/other"}
)
arguments = st.dictionaries(
    st.sampled_from(MEMBERS).map(lambda name: json.dumps(name[1:])),
    st.one_of(values, st.sampled_from(WORDS), written),
    max_size=6,
).map(lambda each: braces(f" {name}: {value}" for name, value in each.items()))
times = st.one_of(written, written.map(json.dumps), st.integers(0, 10**16).map(str))
events = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXiIRsftCMBE").map(json.dumps)},
    optional={
        "cat": st.one_of(
            st.sampled_from(["cpu_op", "Kernel", "kernel", "cuda_profiler_range", "odd", ""]).map(
                json.dumps
            ),
            values,
        ),
        "name": st.one_of(strings, values),
        "pid": values,
        "tid": values,
        "ts": times,
        "dur": times,
        "id": values,
        "args": st.one_of(arguments, arguments, values),
        "other": values,
    },
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    pieces = []
    for each in draw(st.lists(events, max_size=6)):
        order = draw(st.permutations(sorted(each)))
        blank = draw(st.sampled_from(["", " ", "\n  "]))
        pieces.append(braces(f'{blank}"{name}":{blank}{each[name]}' for name in order))
    text = f"[{' ,'.join(pieces)}]"
    if draw(st.booleans()):
        text = f'{{"a": {draw(values)}, "traceEvents" :{text}, "b":{draw(values)} }}'
    return text.encode("utf-8", "surrogatepass")


@settings(max_examples=400)
@given(files())
def test_odd_values_are_read_as_a_plain_reader_reads_them(raw: bytes) -> None:
    rows, header = expected(raw)
    parser = parse(raw)
    assert differences(parser, rows) == []
    assert parser.truncated is None
    assert {name: json.loads(text) for name, text in parser.header.items()} == header


@settings(max_examples=200)
@given(files(), st.lists(st.integers(1, 40), min_size=1, max_size=8), st.data())
def test_what_is_found_does_not_depend_on_the_pieces(
    raw: bytes, pieces: list[int], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(raw)))
    damage = data.draw(st.sampled_from([b"", b'"', b"{", b"}", b"]", b",", b"\\", b"\xff"]))
    damaged = raw[:at] + damage + raw[at + data.draw(st.integers(0, 3)) :]
    assert everything(parse(damaged, pieces)) == everything(parse(damaged))


# -- what must be exact ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("1623143089861123.456", 1623143089861123456),
        ('"1623143089861123.456"', 1623143089861123456),
        ("9223372036854775.807", 2**63 - 1),
        ("-9223372036854775.807", -(2**63 - 1)),
        ("0.0004999", 0),
        ("0.0005", 1),
        ("-0.0005", -1),
        ("1.6231430898611234567e15", 1623143089861123457),
        ("1e-400", 0),
        ("0e99999999999", 0),
        ("000012.5", 12500),
    ],
)
def test_a_time_is_exact_to_the_nanosecond(written: str, ns: int) -> None:
    raw = document(f'{{"ph": "X", "cat": "cpu_op", "ts": {written}, "dur": 1}}')
    assert column(raw, "spans", "start") == [ns]


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("9223372036854775.808", "ts is too large"),
        ("1e400", "ts is too large"),
        ('"soon"', "ts is not a number"),
        ("[1]", "ts is not a number"),
        ("true", "ts is not a number"),
        ("12x", "ts is not a number"),
    ],
)
def test_a_time_that_is_none_costs_its_event_and_is_counted(written: str, reason: str) -> None:
    raw = document(f'{{"ph": "X", "cat": "cpu_op", "ts": {written}}}', event(name="next"))
    parser = parse(raw)
    assert parser.problems == {reason: (1, raw.index(b'"ts": ') + 6 + (written[0] == '"'),
                                        written.strip('"'))}  # fmt: skip
    assert names_of(parser) == ["next"]


def test_ids_are_whole_up_to_64_bits() -> None:
    raw = document(*(event(args={"correlation": value}) for value in (2**64 - 1, 2**53 + 1, -1)),
                   event(args={"correlation": -7}))  # fmt: skip
    assert column(raw, "spans", "correlation") == [2**64 - 1, 2**53 + 1, None, None]
    assert list(parse(raw).problems) == ["correlation is negative"]


def test_a_stream_that_is_not_there_is_none() -> None:
    raw = document(*(event(cat="kernel", args={"stream": value}) for value in (7, -1, 2**32 - 1)))
    assert column(raw, "activities", "stream") == [7, None, None]
    assert parse(raw).problems == {}


def test_words_that_are_no_json_are_none_and_raw_text_stays_json() -> None:
    raw = document(
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":{"blocks per SM":N/A,'
        '"est. achieved occupancy %": NaN,"queued":-Infinity,"stream":"N/A", "device": 3}}',
        '{"ph":"M","name":"x","args":{"a":N/A, "b": [ 1 , Infinity ],"c":"q\\u0041\n"}}',
    )
    parser = parse(raw)
    strings, taken = parser.strings(), parser.take()
    assert taken["activities"]["device"].tolist() == [3]
    assert not {"blocks_per_sm", "occupancy", "queued", "stream"} & taken["activities"].keys()
    text = strings[taken["metadata"]["arguments"][0]]
    assert text == '{"a":null,"b":[1,null],"c":"q\\u0041\\u000a"}'
    assert parser.problems == {}


def test_bytes_that_are_no_utf8_are_replaced_and_counted() -> None:
    raw = document(event(name="@"), event(name="@")).replace(b"@", b"\xf0\x9f\x98\x80\xff\xe2\x82")
    parser = parse(raw)
    assert names_of(parser) == ["\U0001f600\ufffd\ufffd"] * 2
    assert [value[0] for value in parser.problems.values()] == [2]


def test_half_of_a_surrogate_pair_and_the_path_of_a_windows_file() -> None:
    parser = parse(document('{"ph":"X","cat":"cpu_op","ts":1,"dur":1,"name":"\\ud83d\\ude00'
                            '\\ud83d C:\\Users"}'))  # fmt: skip
    assert names_of(parser) == ["\U0001f600\ufffd C:\\Users"]


def test_the_last_of_two_members_of_one_name_wins() -> None:
    raw = document('{"args":{"correlation":1,"stream":3},"name":"a","cat":"kernel","ph":"X","ts":1,'
                   '"dur":1,"name":"b","args":{"correlation":2,"correlation":4}}')  # fmt: skip
    taken = parse(raw).take()["activities"]
    assert taken["correlation"].tolist() == [4]
    assert "stream" not in taken
    assert column(raw, "activities", "name") == ["b"]


def test_rows_link_collectives_to_what_made_them() -> None:
    said = {"Collective name": "allreduce", "In msg nelems": 8, "Process Group Ranks": "[0, 1]"}
    raw = document(event(), event(args=said), event(cat="kernel", args=said))
    taken = parse(raw).take()["collectives"]
    assert (taken["side"].tolist(), taken["row"].tolist()) == ([0, 1], [1, 0])
    assert column(raw, "collectives", "ranks") == ["[0, 1]"] * 2


def test_rows_are_taken_once_and_codes_stay() -> None:
    parser = _core.TraceParser(chrome_traces.CATEGORIES)
    parser.feed(b"[" + json.dumps(event(name="a")).encode() + b",")
    first = parser.take()["spans"]
    assert parser.take() == {}
    parser.feed(bytearray(json.dumps(event(name="b")).encode() + b"]"))
    parser.finish()
    second = parser.take()["spans"]
    strings = parser.strings()
    assert [strings[code] for part in (first, second) for code in part["name"]] == ["a", "b"]
    assert parser.strings(len(strings) - 1) == ["b"]
    assert parser.strings(len(strings)) == []
    del parser
    assert first["start"].tolist() == [10_000]


def test_categories_say_where_events_go() -> None:
    parser = _core.TraceParser({"": "activities", "*": "spans", "trace": ""}, ["*"])
    nameless = {name: value for name, value in event(name="n").items() if name != "cat"}
    parser.feed(document(nameless, event(cat="Trace"), event(cat="new", args={"a": [1, 2]})))
    parser.finish()
    taken, strings = parser.take(), parser.strings()
    assert {group: len(columns["start"]) for group, columns in taken.items()} == {
        "activities": 1,
        "spans": 1,
    }
    assert strings[taken["spans"]["arguments"][0]] == '{"a":[1,2]}'
    assert parser.problems == {}


def test_a_category_that_nobody_knows_is_a_problem() -> None:
    parser = parse(document(event(cat="new"), event(cat="new"), event()))
    (problem,) = parser.problems.items()
    assert (problem[0], problem[1][0], problem[1][2]) == ("cat is not known", 2, "new")
    assert len(parser.take()["spans"]["start"]) == 1


@pytest.mark.parametrize(
    ("categories", "arguments"), [({"kernel": "kernels"}, []), ({"kernel": "spans"}, ["cpu_op"])]
)
def test_a_wrong_table_of_categories_is_refused(
    categories: dict[str, str], arguments: list[str]
) -> None:
    with pytest.raises(ValueError, match=r"kernels|cpu_op"):
        _core.TraceParser(categories, arguments)


def test_nothing_can_follow_the_end() -> None:
    parser = parse(document(event()))
    parser.finish()
    with pytest.raises(ValueError, match="finished"):
        parser.feed(b"x")
    with pytest.raises(TypeError):
        _core.TraceParser({}).feed("text")  # type: ignore[arg-type]


def test_other_threads_run_while_a_piece_is_parsed() -> None:
    raw = document(*(event(ts=i) for i in range(300_000)))
    turns = 0
    for _ in range(10):  # this thread may get no CPU meanwhile
        parser = _core.TraceParser(chrome_traces.CATEGORIES)
        feeding = threading.Thread(target=parser.feed, args=(raw,))
        feeding.start()
        turns = 0
        while feeding.is_alive():
            turns += 1
            time.sleep(0)
        feeding.join()
        assert parser.events == 300_000
        if turns > 10:
            break
    assert turns > 10


# -- damage ---------------------------------------------------------------------------------------


def test_a_file_cut_anywhere_gives_every_whole_event_before_the_cut() -> None:
    raw = document(*(event(name=f"n{i}", args={"Input Dims": [[i, 2], []]}) for i in range(5)),
                   schemaVersion=1)[:-1] + b', "after": [1, {"x": "]}"}]}'  # fmt: skip
    ends = [at + 1 for at in range(len(raw)) if raw[at : at + 2] in (b"},", b"}]")][:5]
    for cut in range(len(raw)):
        parser = parse(raw[:cut], [7])
        assert names_of(parser) == [f"n{i}" for i in range(sum(end <= cut for end in ends))], cut
        if cut == 0:
            assert list(parser.problems) == ["file is empty"]
        else:
            assert parser.truncated is not None
            assert 0 <= parser.truncated <= cut
            assert parser.problems == {}
    whole = parse(raw)
    assert (whole.truncated, whole.problems) == (None, {})


def test_damage_costs_the_event_that_it_is_in() -> None:
    good = [json.dumps(event(name=f"n{i}")) for i in range(6)]
    for broken in ('{"ph": "X", "name": "x, "cat": "cpu_op", "ts": 1}', '{"ph" "X"}', "{'ph': 1}",
                   '{"ph": }', '{"ph": "X", "ts": 1 2, "args": {"a": [{"b": 1}]}}', "{]}",
                   '{"args": {"a": 1, }{ }}'):  # fmt: skip
        raw = document(*good[:3], broken, *good[3:])
        parser = parse(raw)
        assert names_of(parser) == [f"n{i}" for i in range(6)], broken
        ((reason, (count, offset, _)),) = parser.problems.items()
        assert (reason, count) == ("event is not JSON", 1)
        assert raw.index(broken.encode()) < offset < raw.index(b'"n3"')
        assert parser.truncated is None


def test_damage_in_the_last_event_keeps_what_follows_the_list() -> None:
    raw = document(event(), '{"ph" "X"}')[:-1] + b', "baseTimeNanoseconds": 5}'
    parser = parse(raw)
    assert parser.header == {"baseTimeNanoseconds": "5"}
    assert list(parser.problems) == ["event is not JSON"]


def test_elements_that_are_no_events_are_counted() -> None:
    parser = parse(document("1", event(), "null", "[[{}]]", '"x"', "", event()))
    assert len(names_of(parser)) == 2
    assert {name: value[0] for name, value in parser.problems.items()} == {
        "event is not an object": 4,
        "event is missing": 1,
    }


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "file is empty"),
        (b"  \n", "file is empty"),
        (b"PK\x03\x04", "file is neither a JSON object nor a list"),
        (b'{"a": 1}', "traceEvents is missing"),
        (b'{"traceEvents": {}}', "traceEvents is not a list"),
        (b'{"traceEvents": [],, "a": 1}', "file is not JSON from here on"),
        (b"[]garbage" + b"\0" * 1000, "file goes on behind its end"),
        (b'{"traceEvents": [], "traceEvents": []}', "traceEvents is there more than once"),
        (b'{"a": [1, 2}, "traceEvents": []}', "header is not JSON, or nested too deep"),
    ],
)
def test_a_file_that_is_no_trace_is_one_problem(raw: bytes, problem: str) -> None:
    for pieces in ([1], [len(raw) + 1]):
        parser = parse(raw, pieces)
        assert list(parser.problems) == [problem]
        assert parser.truncated is None
        assert parser.take() == {}


def test_a_byte_order_mark_is_no_problem() -> None:
    parser = parse(b"\xef\xbb\xbf" + document(event()), [1])
    assert (len(names_of(parser)), parser.problems) == (1, {})


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_a_bomb_of_brackets_is_a_problem_and_no_crash(bracket: str) -> None:
    depth = 500_000
    close = {"[": "]", '{"a":': "}"}[bracket]
    bomb = bracket * depth + "1" + close * depth
    shapes = '{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"args":{"Input Dims":%s}}'
    unknown = '{"ph":"X","cat":"cpu_op","name":"b","ts":1,"dur":1,"args":{"unknown":%s}}'
    raw = document(shapes % bomb, unknown % bomb, event(name="c"), f"[{bomb}]")
    parser = parse(raw, [1 << 16])
    assert names_of(parser) == ["a", "b", "c"]
    assert parser.problems.keys() == {"Input Dims is nested too deep", "event is not an object"}
    assert parse(raw[: len(raw) // 3], [1 << 16]).truncated is not None
    header = parse(b'{"h": %s, "traceEvents": []}' % bomb.encode())
    assert list(header.problems) == ["header is not JSON, or nested too deep"]


def test_an_event_without_end_takes_bounded_memory_and_the_next_ones_are_read() -> None:
    mb = 1 << 20
    parser = _core.TraceParser(chrome_traces.CATEGORIES)
    parser.feed(b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(400):
        parser.feed(b"x" * mb)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 80 * 1024  # KiB
    parser.feed(b'"}, ' + json.dumps(event(name="next")).encode() + b"]}")
    parser.finish()
    assert names_of(parser) == ["next"]
    assert list(parser.problems) == ["event is larger than 16 MiB"]
    assert parser.truncated is None
    whole = parse(b'[{"name": "%s"}, %s]' % (b"x" * (65 * mb), json.dumps(event()).encode()))
    assert list(whole.problems) == ["event is larger than 16 MiB"]


# -- mutations of recorded traces -----------------------------------------------------------------


@functools.cache
def specimens() -> tuple[tuple[str, ...], ...]:
    """Of each recorded run, what is before the events, and some of these as they are written."""
    result = []
    for path in TRACES:
        text = unpacked(path)[:400_000].decode("utf-8", "replace")
        begin = text.index('"traceEvents"')
        found = re.findall(r"\{\s*\"(?:ph|name|cat)\".*?\}\s*(?=,\s*\{|\])", text[begin:], re.S)
        if found:
            result.append((text[:begin] + '"traceEvents": [', *found[:40]))
    return tuple(result)


ODD = ["-1", "1e308", "-9223372036854775809", "18446744073709551616", "null", "true", '"x"', "-",
       "[]", "{}", "N/A", "NaN", '"\\ud800"', "[" * 3000, f'"{"y" * 5000}"', "0x10"]  # fmt: skip


def mutate(text: str, dice: random.Random) -> bytes:
    raw = text.encode()
    spots = [match.end() for match in re.finditer(r'":\s*', text)]
    at = dice.choice(spots) if spots else 0
    match dice.randrange(9):
        case 0:  # a value of another type
            end = re.compile(r'"(?:[^"\\]|\\.)*"|[^,\]}]*').match(text, at)
            assert end is not None
            raw = (text[:at] + dice.choice(ODD) + text[end.end() :]).encode()
        case 1:  # a member gone
            raw = re.sub(r'"[^"]*":\s*[^,\]}]*,', "", text[at:], count=1).encode()
            raw = text[:at].encode() + raw
        case 2:  # cut off
            raw = raw[: dice.randrange(len(raw))]
        case 3:  # bytes that are no text
            at = dice.randrange(len(raw))
            raw = raw[:at] + dice.randbytes(dice.randrange(1, 9)) + raw[at + dice.randrange(9) :]
        case 4:  # said twice
            at, end = sorted(dice.randrange(len(raw)) for _ in range(2))
            raw = raw[:end] + raw[at:]
        case 5:  # a bomb
            raw = raw[:at] + dice.choice([b"[", b'{"a":', b'{"args":{']) * 20_000 + raw[at:]
        case 6:  # a piece missing
            at = dice.randrange(len(raw))
            raw = raw[:at] + raw[at + dice.randrange(1, 400) :]
        case 7:  # one bit
            at = dice.randrange(len(raw))
            raw = raw[:at] + bytes([raw[at] ^ (1 << dice.randrange(8))]) + raw[at + 1 :]
        case 8:  # quotes and brackets
            at = dice.randrange(len(raw))
            raw = raw[:at] + dice.choice([b'"', b"{", b"}", b"[", b"]", b"\\", b","]) + raw[at:]
    return raw


@needs_traces
@pytest.mark.parametrize("seed", range(6))
def test_mutated_traces_are_read_or_reported(seed: int) -> None:
    dice = random.Random(seed)
    silent = 0
    for i in range(100):
        head, *events = specimens()[(i + seed) % len(specimens())]
        text = head + ", ".join(events) + "]}"
        raw = mutate(text, dice)
        if dice.random() < 0.3:
            raw = mutate(raw.decode("utf-8", "replace"), dice)
        begun = time.process_time()
        parser = parse(raw)
        assert time.process_time() - begun < 2
        found = everything(parser)
        assert everything(parse(raw, [dice.randrange(1, 400) for _ in range(9)])) == found
        groups = found[0]
        # One event gives a row in a group and perhaps one of collectives; counters are not here.
        assert all(len(columns) > 0 for columns in groups.values())
        assert parser.events <= 4 * len(events)
        if parser.problems or parser.truncated is not None:
            for count, offset, example in parser.problems.values():
                assert count > 0
                assert 0 <= offset <= len(raw)
                assert len(example) <= 80
        else:
            silent += 1
            # Nothing is reported: then it is JSON, and a plain reader finds the same.
            try:
                rows, _ = expected(raw)
            except (ValueError, RecursionError, KeyError):
                continue
            assert differences(parse(raw), rows) == []
    assert silent < 90


def test_numbers_are_numpy_arrays_of_the_documented_types() -> None:
    raw = document(event(cat="kernel", args={"stream": 7, "blocks per SM": 1.5}), event())
    columns = parse(raw).take()["activities"]
    assert columns["start"].dtype == np.int64
    assert columns["stream"].dtype == np.uint32
    assert columns["blocks_per_sm"].dtype == np.float64
