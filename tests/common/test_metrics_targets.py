"""What the option ``metrics`` may say."""

from __future__ import annotations

import pytest

from haiprof.common.metrics_targets import Targets, targets_of


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("", Targets((), (), ())),
        (":9464", Targets((("127.0.0.1", 9464),), (), ())),
        ("0.0.0.0:80", Targets((("0.0.0.0", 80),), (), ())),
        ("node-1.example:9464", Targets((("node-1.example", 9464),), (), ())),
        ("[::1]:9464", Targets((("::1", 9464),), (), ())),
        ("/a b/c.prom", Targets((), ("/a b/c.prom",), ())),
        ("otlp", Targets((), (), ("",))),
        ("otlp:https://c:4318/x", Targets((), (), ("https://c:4318/x",))),
        (":1,host", Targets((("127.0.0.1", 1),), (), (), True)),
        (":1, /f.prom ,otlp", Targets((("127.0.0.1", 1),), ("/f.prom",), ("",))),
    ],
)
def test_each_form_is_read(text: str, targets: Targets) -> None:
    assert targets_of(text) == targets


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("9464", "'9464'"),
        (":0", "port from 1 to 65535"),
        (":65536", "port from 1 to 65535"),
        ("yes", "HOST:PORT"),
        ("host", "host and where to export to"),
        ("x.prom", "absolute path"),
        ("/a\0.prom", "absolute path"),
        ("otlp:ftp://c", "http or https"),
        ("otlp:http://", "http or https"),
        ("otlp:http://[c", "http or https"),
        ("otlp:http://c:99999", "http or https"),
    ],
)
def test_what_is_none_is_named(text: str, names: str) -> None:
    with pytest.raises(ValueError, match=names.replace("[", r"\[")):
        targets_of(text)
