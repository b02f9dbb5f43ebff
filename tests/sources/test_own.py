"""Runs are found and read, and every broken one gives one line that names file, field and fix."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs

from haiprof.errors import HaiprofError
from haiprof.sources.own import created_ns, open_run


def error_of(path: Path | str) -> str:
    with pytest.raises(HaiprofError) as caught:
        open_run(path)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_run_folder_opens_with_its_processes_in_rank_order(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=12)
    opened = open_run(str(run))
    assert opened.name == "r"
    assert opened.command == ("python", "train.py")
    assert [p.rank for p in opened.processes] == [*range(12), None]
    assert opened.processes[-1].role == "node"
    assert opened.problems == ()


def test_a_log_folder_with_one_run_opens_that_run(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "logs" / "only")
    (tmp_path / "logs" / "notes").mkdir()
    assert open_run(tmp_path / "logs").folder == run


def test_a_log_folder_with_several_runs_lists_them_newest_first(tmp_path: Path) -> None:
    for name, age in (("old", 2), ("new", 0), ("middle", 1)):
        runs.make_run(tmp_path / name)
        runs.write_run(tmp_path / name, created_ns=runs.T0 - age)
    assert "contains 3 runs, newest first: new, middle, old: give one of them" in error_of(tmp_path)


def test_names_come_from_process_json_and_never_from_the_folder(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    (run / "n0#0").rename(run / "renamed#7")
    assert [p.rank for p in open_run(run).processes] == [0, None]


def test_attempts_of_a_rank_and_its_helpers_stay_apart(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    runs.write_process(run, 0)
    (run / "n0#0").rename(run / "n0#0.77")
    runs.write_process(run, 0, attempt=1, pid=78)
    (run / "n0#0").rename(run / "n0#0.78")
    runs.write_process(run, 0, role="process", pid=79)
    runs.write_process(run, None, pid=80)
    labels = [p.label for p in open_run(run).processes]
    assert labels == ["rank 0", "rank 0, attempt 1", "rank 0 (pid 79)", "pid 80 on n0"]


def test_labels_tell_processes_of_one_rank_apart(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    for folder, node, pid in (("a#0.6", "a", 6), ("a#0.6.1", "a", 6), ("a#0.5", "a", 5)):
        runs.write_process(run, 0, node, pid=pid).rename(run / "made")
        (run / "made").rename(run / folder)
    runs.write_process(run, 1, "a")
    runs.write_process(run, 0, "b", pid=5)
    labels = {p.folder.name: p.label for p in open_run(run).processes}
    assert labels == {
        "a#0.5": "rank 0, pid 5, on a",
        "a#0.6": "rank 0, pid 6, in a#0.6",
        "a#0.6.1": "rank 0, pid 6, in a#0.6.1",
        "a#1": "rank 1",
        "b#0": "rank 0, pid 5, on b",
    }


def test_a_command_that_is_not_utf8_is_read_as_text(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    runs.write_run(run, command=["train.py", "\udcff\udcfe"])
    assert open_run(run).command == ("train.py", "??")


def test_a_missing_path_is_one_line(tmp_path: Path) -> None:
    assert "no such folder" in error_of(tmp_path / "nowhere")


def test_a_file_instead_of_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file: give the run folder" in error_of(tmp_path / "file")


def test_an_empty_folder_is_not_a_run(tmp_path: Path) -> None:
    assert "not a haiprof run" in error_of(tmp_path)


def test_a_run_nobody_recorded_into_says_so(tmp_path: Path) -> None:
    assert "no process has recorded anything" in error_of(runs.write_run(tmp_path / "r"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2.0"}, "field 'version' is 2.0, and this haiprof reads 1.x: update haiprof"),
        ({"version": "0.9"}, "open it with the haiprof that wrote it"),
        ({"version": 3}, "field 'version' is 3, not of the form '1.0'"),
        ({"format": "other"}, "field 'format' is 'other', not 'haiprof-run'"),
        ({"created_ns": "yesterday"}, "field 'created_ns' is 'yesterday', not a whole number"),
        ({"created_ns": None}, "field 'created_ns' is None, not a whole number"),
        ({"created_ns": True}, "field 'created_ns' is True, not a whole number"),
        ({"created_ns": 10**30}, "not a whole number of 64 bits"),
        ({"created_ns": 2**62}, f"field 'created_ns' is {2**62}, not a time, ns since 1970"),
        ({"version": "9" * 5000}, "not of the form '1.0'"),
        ({"format": ["x"] * 1000}, "..., not 'haiprof-run'"),
        ({"command": "python"}, "field 'command' is 'python', not a list of words"),
        ({"run": 5}, "field 'run' is 5, not text"),
        ({"problems": "all"}, "field 'problems' is 'all', not a list of texts"),
        ({"problems": [7]}, "field 'problems' is [7], not a list of texts"),
    ],
)
def test_a_wrong_field_of_run_json_is_named(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    run = runs.make_run(tmp_path / "r")
    runs.write_run(run, **changes)
    line = error_of(run)
    assert message in line
    assert line.startswith(f"{run}/run.json: ")


@pytest.mark.parametrize("given", [10**400, float("nan"), float("inf"), -1, "x", [], {}, True])
def test_an_option_that_is_no_amount_is_none(tmp_path: Path, given: object) -> None:
    run = runs.make_run(tmp_path / "r")
    runs.write_run(run, options={"peak_flops": given, "warmup": given})
    opened = open_run(run)
    assert (opened.peak_flops, opened.warmup) == ((1.0, 1.0) if given is True else (0.0, 0.0))


@pytest.mark.parametrize("field", ["started_ns", "ended_ns", "process_started_ns"])
@pytest.mark.parametrize("value", [-(2**62), 2**63 - 1])
def test_a_time_that_is_none_leaves_its_process_out(tmp_path: Path, field: str, value: int) -> None:
    run = runs.make_run(tmp_path / "r", ranks=2)
    runs.write_process(run, 1, **{field: value})
    opened = open_run(run)
    assert [p.rank for p in opened.processes] == [0, None]
    (line,) = opened.problems
    assert f"n0#1/process.json: field '{field}' is {value}, not a time" in line


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe{}", b"", b"null", b"[]", b"7", b'"x"'],
)
def test_a_json_file_of_any_kind_is_one_line(tmp_path: Path, content: bytes) -> None:
    run = runs.make_run(tmp_path / "r", ranks=2)
    (run / "n0#1" / "process.json").write_bytes(content)
    (line,) = open_run(run).problems
    assert line.startswith(f"{run}/n0#1/process.json: ")
    (run / "run.json").write_bytes(content)
    assert error_of(run).startswith(f"{run}/run.json: ")
    assert created_ns(run) == 0


def test_a_later_minor_version_with_unknown_fields_is_read(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    runs.write_run(run, version="1.9", invented={"later": True})
    assert open_run(run).name == "r"


@pytest.mark.parametrize("text", ["", "{", '{"format": "haiprof-run", "ver', "[]", "\xff", "null"])
def test_a_truncated_run_json_is_one_line(tmp_path: Path, text: str) -> None:
    run = runs.make_run(tmp_path / "r")
    (run / "run.json").write_text(text, "latin-1")
    assert error_of(run).startswith(f"{run}/run.json: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": "0"}, "field 'rank' is '0', not a whole number of 64 bits or null"),
        ({"rank": 2**31}, "field 'rank' is 2147483648, not a number from 0 to 2147483647 or null"),
        ({"rank": -1}, "field 'rank' is -1, not a number from 0 to 2147483647 or null"),
        ({"node": ""}, "field 'node' is '', not a name"),
        ({"lost": [1]}, "field 'lost' is [1], not an object of counts"),
        ({"sources": ["procfs"]}, "field 'sources' is ['procfs'], not a list of objects"),
        ({"version": "2.1"}, "update haiprof"),
        ({"trace": "w.json"}, "field 'trace' is 'w.json', not an object"),
        ({"trace": {"file": "w.json"}}, "field 'span' is None, not a whole number"),
        ({"gpus": [{"capability": [9]}]}, "field 'capability' is [9], not two whole numbers"),
    ],
)
def test_a_broken_rank_does_not_hide_the_others(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    run = runs.make_run(tmp_path / "r", ranks=2)
    document = {"format": "haiprof-process", "version": "1.0", "node": "n0", "rank": 1, "pid": 1}
    runs.write_json(run / "n0#1" / "process.json", {**document, **changes})
    opened = open_run(run)
    assert [p.rank for p in opened.processes] == [0, None]
    assert len(opened.problems) == 1
    assert message in opened.problems[0]
    assert str(run / "n0#1" / "process.json") in opened.problems[0]


def test_a_rank_without_process_json_is_a_problem(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=2)
    (run / "n0#1" / "process.json").unlink()
    assert "missing, so its folder is left out" in open_run(run).problems[0]


def test_a_run_whose_only_rank_is_broken_is_an_error(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    (runs.write_process(run) / "process.json").write_text("{")
    assert "cut off or not JSON" in error_of(run)


def test_other_folders_of_a_run_are_ignored(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    (run / "traces").mkdir()
    (run / ".hidden#1").mkdir()
    assert open_run(run).problems == ()


def test_the_machine_of_a_node_is_read_and_an_older_recorder_has_none(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    assert [p.machine for p in open_run(run).processes] == [None, None]
    runs.write_node(run, machine=runs.MACHINE)
    (machine,) = (p.machine for p in open_run(run).processes if p.machine is not None)
    assert machine.dram_peak_bytes_per_s == 400e9
    assert (machine.cpu, machine.sockets, machine.numa_nodes) == ("GenuineIntel:6:143", 2, 2)
    runs.write_node(run, machine=dict.fromkeys(runs.MACHINE))
    (machine,) = (p.machine for p in open_run(run).processes if p.machine is not None)
    assert machine.dram_peak_bytes_per_s is None
    assert (machine.cpu, machine.sockets, machine.dram_peak_how) == ("", None, "")


@pytest.mark.parametrize(
    ("machine", "field"),
    [
        ("EPYC", "machine"),
        ({"dram_peak_bytes_per_s": "fast"}, "machine.dram_peak_bytes_per_s"),
        ({"dram_peak_bytes_per_s": -1.0}, "machine.dram_peak_bytes_per_s"),
        ({"dram_peak_bytes_per_s": float("inf")}, "machine.dram_peak_bytes_per_s"),
        ({"dram_peak_bytes_per_s": 10**400}, "machine.dram_peak_bytes_per_s"),
        ({"sockets": 2.5}, "sockets"),
        ({"cpu": 7}, "cpu"),
    ],
)
def test_a_wrong_field_of_a_machine_is_named(tmp_path: Path, machine: object, field: str) -> None:
    run = runs.make_run(tmp_path / "r")
    runs.write_node(run, machine=machine)
    (problem,) = open_run(run).problems
    assert f"field '{field}' is " in problem
