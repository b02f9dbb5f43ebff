"""The words after ``haiprof run``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haiprof.cli.arguments import UsageError, help_text, parse
from haiprof.options import OPTIONS

WORDS = st.lists(
    st.one_of(
        st.sampled_from(["--", "-", "--report", "--run", "--run=a", "--no-hooks", "--hooks=1"]),
        st.sampled_from(["--sample-hz", "--sample-hz=2", "--ring-mib", "8", "train.py", "-x"]),
        st.text(max_size=8),
    ),
    max_size=8,
)


@given(WORDS)
def test_any_words_are_read_or_refused_in_one_line(words: list[str]) -> None:
    refused = None
    try:
        read = parse(words)
    except UsageError as error:
        refused = str(error)
    if refused is not None:
        assert len(refused.splitlines()) == 1
        return
    assert read.help or (read.command and words[-len(read.command) :] == read.command)


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1))
def test_what_follows_two_dashes_is_the_command_untouched(command: list[str]) -> None:
    assert parse(["--report", "--", *command]).command == command


def test_options_of_the_command_are_its_own() -> None:
    read = parse(["--sample-hz", "2", "train.py", "--run", "x", "--report"])
    assert read.command == ["train.py", "--run", "x", "--report"]
    assert read.given == {"sample_hz": 2.0}
    assert not read.report


def test_every_option_can_be_given_both_ways() -> None:
    read = parse(
        ["--log-dir=a", "--run", "b", "--drain-hz=8", "--ring-mib", "4", "--no-hooks", "c"]
    )
    assert read.given == {
        "log_dir": Path("a"),
        "run": "b",
        "drain_hz": 8.0,
        "ring_mib": 4,
        "hooks": False,
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--frobnicate", "x"], "--frobnicate"),
        (["-q", "x"], "-q"),
        (["--sample-hz", "often", "x"], "'often' is not a number"),
        (["--ring-mib", "1.5", "x"], "'1.5' is not a whole number"),
        (["--ring-mib", "1", "x"], "between 2 and 1024 MiB"),
        (["--sample-hz=nan", "x"], "between"),
        (["--run", "a/b", "x"], "one path component"),
        (["--report=yes", "x"], "takes no value"),
        (["--log-dir"], "needs a value"),
        (["--report"], "which command?"),
        ([], "which command?"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], told: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(words)
    assert told in str(raised.value)


def test_the_help_names_every_option() -> None:
    text = help_text()
    for option in OPTIONS.values():
        assert "--" + option.name.replace("_", "-") in text
        assert option.meaning in text
