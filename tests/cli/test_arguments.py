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
        st.sampled_from(["-n", "--nodes=2", "--name", "--options", "profile.time=1"]),
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
    if read.help:
        return
    assert read.command
    length = len(read.command)
    assert read.command in [words[i : i + length] for i in range(len(words))]


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
    ("words", "message"),
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
        (["--nodes", "x"], "--nodes 'x' must be a whole number"),
        (["-n", "0", "x"], "-n '0' must be a whole number"),
        (["-n", "9" * 5000, "x"], "must be a whole number"),
        (["--name", "a/b", "x"], "one path component"),
        (["--options", "profile.time", "x"], "it takes KEY=VALUE"),
        (["--options", "priority=3", "x"], "profile.recorder, profile.interval.basic"),
        (["--options=profile.tiem=3", "x"], "the keys are profile.time, profile.warmup"),
        (["x", "--options", "profile.tiem=3"], "KEY=VALUE; did you mean 'profile.time'?"),
        (["--options", "profile.time=soon", "x"], "--options profile.time 'soon' is not a number"),
        (["--options", "profile.trace=2", "x"], "--options profile.trace '2' is not 0 or 1"),
        (["--options", "profile.recorder=disk", "x"], "must be all or some of"),
        (["x", "--nodes", "0", "--options", "profile.time=1"], "must be a whole number"),
        (["--report"], "missing command"),
        ([], "missing command"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(words)
    assert message in str(raised.value)


# -- job options behind the script ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "command", "nodes", "given"),
    [
        # As the original took them.
        (
            "train.py --nodes 8 --options profile.time=120 --options profile.trace=1",
            "train.py", 8, {"time": 120.0, "trace": True},
        ),
        (
            "train.py -n 1 --name v2 --options profile.trace=1 --options profile.warmup=120 "
            "--options profile.time=15",
            "train.py", 1, {"run": "v2", "trace": True, "warmup": 120.0, "time": 15.0},
        ),
        ("train.py a -- -n 1 --options profile.time=120", "train.py a", 1, {"time": 120.0}),
        ("train.py -c large.yml -- -n 10", "train.py -c large.yml", 10, {}),
        ("-n 2 --name v2 --options profile.time=3 train.py", "train.py", 2,
         {"run": "v2", "time": 3.0}),
        # All ways to write them.
        ("train.py --nodes=2 --options=profile.recorder=basic,gpu", "train.py", 2,
         {"recorders": "basic,gpu"}),
        ("train.py --options profile.interval.gpu=2 --options profile.interval.basic=5",
         "train.py", None, {"gpu_interval": 2.0, "basic_interval": 5.0}),
        ("torchrun train.py --options profile.trace=true -n 2", "torchrun train.py", 2,
         {"trace": True}),
        # The last word counts.
        ("--time 5 train.py --options profile.time=7", "train.py", None, {"time": 7.0}),
        # The script's own, although they look alike.
        ("train.py --name x", "train.py --name x", None, {}),
        ("train.py -n 4 --nodes 2", "train.py -n 4 --nodes 2", None, {}),
        ("train.py --options lr=1", "train.py --options lr=1", None, {}),
        ("train.py --options profile.time=1 --epochs 3",
         "train.py --options profile.time=1 --epochs 3", None, {}),
        ("train.py --options profile.time=1 -v", "train.py --options profile.time=1 -v", None, {}),
        ("train.py --options", "train.py --options", None, {}),
        ("train.py --name v1 --epochs 3 --options profile.time=1", "train.py --name v1 --epochs 3",
         None, {"time": 1.0}),
        ("train.py --nodes two --options profile.time=1", "train.py --nodes two", None,
         {"time": 1.0}),
        # A -- of the script's, and one that keeps what is before it the script's.
        ("train.py -- --name x y", "train.py -- --name x y", None, {}),
        ("train.py --", "train.py --", None, {}),
        ("train.py -- a -- -n 2", "train.py -- a", 2, {}),
        ("train.py --name v1 -- --options profile.time=1", "train.py --name v1", None,
         {"time": 1.0}),
        # A -- before the command gives it all.
        ("-- train.py -n 1 --options profile.time=1", "train.py -n 1 --options profile.time=1",
         None, {}),
        ("-n 3 -- train.py -- -n 1", "train.py -- -n 1", 3, {}),
    ],
)  # fmt: skip
def test_job_options_stand_behind_the_script(
    line: str, command: str, nodes: int | None, given: dict[str, object]
) -> None:
    read = parse(line.split())
    assert read.command == command.split()
    assert read.nodes == nodes
    assert read.given == given


def test_what_follows_a_traced_script_is_its_own() -> None:
    words = ["train.py", "-n", "1", "--", "--options", "profile.time=1"]
    assert parse(words, "trace").command == words
    with pytest.raises(UsageError, match="no option --nodes of trace"):
        parse(["--nodes", "2", "train.py"], "trace")


def test_hosts_are_named_before_the_command() -> None:
    read = parse(["--hosts", "a,b", "--hostfile=f", "train.py", "--hosts", "c"])
    assert (read.hosts, read.hostfile, read.command) == ("a,b", "f", ["train.py", "--hosts", "c"])


def test_the_help_names_every_option() -> None:
    text = " ".join(help_text().split())
    for flag in ("-n/--nodes", "--hosts", "--hostfile", "--name", "--options"):
        assert flag in text
    for option in OPTIONS.values():
        assert "--" + option.name.replace("_", "-") in text
        assert option.meaning in text


@pytest.mark.parametrize("command", ["run", "trace"])
def test_the_help_fits_into_a_terminal_of_80_columns(command: str) -> None:
    lines = help_text(command).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("-") for line in lines)
