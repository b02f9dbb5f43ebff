"""Memory timelines of torch.profiler are recognised by how they begin, whatever their names."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.sources.torch_memory.find import Form, find, form_of

CURVE_ZEROS = b"[0, 0, 0, 0, 0, 0, 0, 0, 0]"


@pytest.mark.parametrize(
    ("head", "form"),
    [
        (b"[[-1, 1, 512, 7], [9, 2, 64, 0]]", "events"),
        (b"[[-1,1,512,7]]", "events"),
        (b" [\n [-1,\n1, 512, 7],\n [9", "events"),
        # Four times, and not one event of four numbers.
        (b"[[1, 2, 3, 4], [" + CURVE_ZEROS, "curve"),
        (b"[[1, 2], [" + CURVE_ZEROS, "curve"),
        (b"[[" + b"1, " * 40_000, "curve"),
        (b"<html>\n<head><title>GPU Memory Timeline HTML</title></head>", "picture"),
        (b"[]", None),
        (b"[[]]", None),
        (b"[[1, 2, 3], [4, 5, 6]]", None),
        (b'[{"ph": "X"}]', None),
        (b"<html><title>GPU</title>", None),
        (b"", None),
    ],
)
def test_a_beginning(head: bytes, form: Form | None) -> None:
    assert form_of(head) == form


def test_the_name_has_the_rank(tmp_path: Path) -> None:
    file = tmp_path / "rank3.raw.json.gz"
    file.write_bytes(gzip.compress(b"[[-1, 1, 512, 7]]"))
    found = find(str(file))
    assert found is not None
    assert (found.sources[0].rank, found.sources[0].worker) == (3, "rank3")
    assert find(str(tmp_path)) is None


def test_a_picture_has_no_numbers(tmp_path: Path) -> None:
    file = tmp_path / "memory.html"
    file.write_text("<html>\n<head><meta /><title>GPU Memory Timeline HTML</title></head>")
    with pytest.raises(HaiprofError, match=r"is a picture .*memory\.raw\.json\.gz"):
        Analyzer(file)
