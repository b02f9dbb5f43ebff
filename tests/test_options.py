"""Options: from arguments and the environment, checked."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import pytest

from haiprof.options import HOST_RECORDERS, OPTIONS, Options, resolve


def test_what_is_given_wins_over_the_environment_and_that_over_the_default() -> None:
    options, problems = resolve({"time": 5.0}, {"HAIPROF_TIME": "7", "HAIPROF_WARMUP": "120"})
    assert (options.time, options.warmup, options.drain_hz) == (5.0, 120.0, 4.0)
    assert problems == []


@pytest.mark.parametrize(
    ("environment", "intervals"),
    [
        ({}, dict.fromkeys(HOST_RECORDERS, 1.0)),
        ({"HAIPROF_RECORDERS": "all"}, dict.fromkeys(HOST_RECORDERS, 1.0)),
        ({"HAIPROF_RECORDERS": "basic,gpu"}, {"basic": 1.0, "gpu": 1.0}),
        ({"HAIPROF_RECORDERS": " IO, mem"}, {"io": 1.0, "mem": 1.0}),
        ({"HAIPROF_RECORDERS": "trace"}, {}),
        ({"HAIPROF_SAMPLE_HZ": "4"}, dict.fromkeys(HOST_RECORDERS, 0.25)),
        (
            {"HAIPROF_SAMPLE_HZ": "4", "HAIPROF_IO_INTERVAL": "10", "HAIPROF_POWER_INTERVAL": "2"},
            {**dict.fromkeys(HOST_RECORDERS, 0.25), "power": 2.0, "io": 10.0},
        ),
    ],
)
def test_each_recorder_of_the_host_has_its_interval(
    environment: dict[str, str], intervals: dict[str, float]
) -> None:
    options, problems = resolve({}, environment)
    assert problems == []
    assert options.intervals() == intervals


@pytest.mark.parametrize(
    "environment",
    [
        {"HAIPROF_TIME": "-1"},
        {"HAIPROF_WARMUP": "soon"},
        {"HAIPROF_RECORDERS": "basic,disk"},
        {"HAIPROF_RECORDERS": "all,io"},
        {"HAIPROF_BASIC_INTERVAL": "0.001"},
        {"HAIPROF_TRACE": "perhaps"},
        {"HAIPROF_TRACE_STEPS": "-3"},
        {"HAIPROF_TRACE_WITH": "shapes,colours"},
        {"HAIPROF_TRACE_RANKS": "0,,3"},
        {"HAIPROF_TRACE_RANKS": "3-1"},
        {"HAIPROF_TRACE_RANKS": "-1"},
        {"HAIPROF_TRACE_RANKS": "all"},
        {"HAIPROF_SAMPEL_HZ": "4"},
    ],
)
def test_what_cannot_be_used_is_reported_in_one_line_that_names_it(
    environment: dict[str, str],
) -> None:
    options, problems = resolve({}, environment)
    assert options == Options()
    [line] = problems
    [(variable, text)] = environment.items()
    assert line.startswith(f"{variable}={text!r} ")


def test_a_platform_that_asks_for_nothing_special_sees_no_message() -> None:
    options = {"ENABLED": "1", "TIME": "0", "WARMUP": "0", "TRACE": "0", "RECORDERS": "all"}
    options |= {"LOG_DIR": "logs", "TASK_ID": "42", "USER_ID": "7", "BASIC_INTERVAL": "1"}
    _, problems = resolve({}, {f"HAIPROF_{name}": text for name, text in options.items()})
    assert problems == []


def test_a_root_is_the_folder_or_the_one_that_holds_it(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    for sysfs, procfs in (("", ""), ("sys", "proc")):
        given = {"sysfs_root": tmp_path / sysfs, "procfs_root": str(tmp_path / procfs)}
        options, problems = resolve(given, {})
        assert problems == []
        access = options.access()
        assert (access.sysfs, access.procfs) == (str(tmp_path / "sys"), str(tmp_path / "proc"))


@pytest.mark.parametrize("name", ["SYSFS_ROOT", "PROCFS_ROOT"])
def test_an_invalid_root_is_reported_and_the_machines_own_is_used(
    tmp_path: Path, name: str
) -> None:
    for text, why in (
        (str(tmp_path / "nowhere"), "does not exist"),
        (str(tmp_path), "is not a "),
        ("host/sys", "must be an absolute path"),
    ):
        options, problems = resolve({}, {f"HAIPROF_{name}": text})
        (line,) = problems
        assert line.startswith(f"HAIPROF_{name}={text!r} {why}")
        assert line.endswith("using the default")
        assert options.access()[:2] == ("/proc", "/sys")


def test_helpers_of_the_counters_are_carried_as_they_are_given() -> None:
    options, problems = resolve({}, {"HAIPROF_PERFD": "/run/p.sock", "HAIPROF_RESCTRL": "1"})
    assert problems == []
    assert options.access() == ("/proc", "/sys", "/run/p.sock", True)
    assert resolve({}, {"HAIPROF_PERFD": ""})[0].access().perfd == ""
    assert resolve({}, {})[0].access() == ("/proc", "/sys", "/run/haiprof/perfd.sock", False)


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ({}, False),
        ({"kernels": "all"}, True),
        ({"kernels": "all", "graphs": "replays"}, False),
        ({"graphs": "kernels"}, True),
        ({"graphs": "nodes"}, False),
    ],
)
def test_kernels_of_graphs_are_recorded_for_who_asks_for_them_or_for_all(
    given: dict[str, str], recorded: bool
) -> None:
    options, problems = resolve(given, {})
    assert options.graph_kernels == recorded
    assert len(problems) == (given.get("graphs") == "nodes")
    variables = {f"HAIPROF_{name.upper()}": value for name, value in given.items()}
    assert resolve({}, variables)[0].graph_kernels == recorded


@pytest.mark.parametrize(
    ("environment", "traces"),
    [
        ({}, False),
        ({"HAIPROF_RECORDERS": "all"}, False),
        ({"HAIPROF_TRACE": "0"}, False),
        ({"HAIPROF_TRACE": "1"}, True),
        ({"HAIPROF_RECORDERS": "basic,trace"}, True),
    ],
)
def test_a_deep_trace_is_made_only_where_it_is_named(
    environment: dict[str, str], traces: bool
) -> None:
    options, problems = resolve({}, environment)
    assert problems == []
    assert options.traces is traces


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("", range(10)), ("3", [3]), ("0, 3-5,9-9", [0, 3, 4, 5, 9]), ("20", [])],
)
def test_the_ranks_that_make_deep_traces_are_those_that_are_named(
    text: str, ranks: Sequence[int]
) -> None:
    options, problems = resolve({}, {"HAIPROF_TRACE_RANKS": text})
    assert problems == []
    assert [rank for rank in range(10) if options.traces_rank(rank)] == list(ranks)


def test_every_way_to_record_takes_every_option() -> None:
    import haiprof
    from haiprof.cli.app import attach
    from haiprof.cli.arguments import help_text

    of_the_node = {"procfs_root", "sysfs_root", "perfd", "resctrl"}  # its recorder's, by variable
    assert set(inspect.signature(haiprof.start).parameters) == set(OPTIONS) - of_the_node
    of_attach = set(inspect.signature(attach).parameters) - {"target", "report", "dry_run"}
    its_own = {"seconds": "time", "name": "run", "nodes": "", "hostfile": ""}
    assert {its_own.get(name, name) for name in of_attach} - {""} == set(OPTIONS)
    words = help_text()
    assert all(f"--{name.replace('_', '-')}" in words for name in OPTIONS)
