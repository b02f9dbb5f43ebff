"""A recorder stays for a launched command, whoever started the recorder."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from recording import (
    process_file,
    python,
    read_table,
    recorders,
    the_recorder,
    wait_for,
    wait_recorded,
)

from haiprof.common.owned_files import Folder
from haiprof.common.places import open_rings, ring_dir
from haiprof.common.process_life import start_time_of
from haiprof.options import Options
from haiprof.recorder.command import Command, commands_in, remove_note, write_note
from haiprof.recorder.launch import start_recorder


def started(pid: int) -> Command:
    start_time = start_time_of(pid)
    assert start_time is not None
    return Command(pid, start_time)


@contextmanager
def sleeping() -> Iterator[tuple[subprocess.Popen[bytes], Command]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process, started(process.pid)
        finally:
            process.kill()


def record(tmp_path: Path) -> int:
    return start_recorder(
        ring_dir(tmp_path / "run"), tmp_path / "run", Options(sample_hz=20, drain_hz=20)
    )


def the_node(tmp_path: Path) -> Path:
    folders = wait_for(lambda: list((tmp_path / "run").glob("*/process.json")), what="a folder")
    return next(p.parent for p in folders if "#" not in p.parent.name)


def sampled(tmp_path: Path) -> bool:
    rows = read_table(the_node(tmp_path), "samples").to_pylist()
    return any(r["metric"] == "proc.rss.bytes" and r["instance"] == "command" for r in rows)


def test_the_recorder_of_a_rank_that_was_first_samples_the_command_and_stays_for_it(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    import haiprof, sys
    haiprof.start(sys.argv[1], run="run", hooks=False, sample_hz=20, drain_hz=20)
    haiprof.flush()
    print("ready", flush=True)
    sys.stdin.readline()
    haiprof.stop()
    """
    with sleeping() as (process, command):
        job = python(program, str(tmp_path), stdin=subprocess.PIPE)
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        first = the_recorder(shm)
        write_note(ring_dir(tmp_path / "run"), command)
        second = record(tmp_path)
        wait_for(lambda: second not in recorders(shm), what="the second recorder's end")
        wait_for(lambda: sampled(tmp_path), what="samples of the command")
        rank = next(p for p in (tmp_path / "run").iterdir() if "#" in p.name)
        job.communicate("\n")
        wait_for(lambda: process_file(rank)["state"] == "closed", what="the rank's end")
        assert the_recorder(shm) == first
        process.kill()
        process.wait()
        wait_recorded(shm)
    assert process_file(the_node(tmp_path))["state"] == "closed"
    assert not list(shm.glob("*/*"))


def test_a_recorder_that_is_killed_has_a_successor_that_samples_the_command(
    shm: Path, tmp_path: Path
) -> None:
    with sleeping() as (process, command):
        write_note(ring_dir(tmp_path / "run"), command)
        killed = record(tmp_path)
        the_node(tmp_path)
        os.kill(killed, signal.SIGKILL)
        wait_recorded(shm)
        record(tmp_path)
        wait_for(lambda: sampled(tmp_path), what="samples of the command")
        process.kill()
        process.wait()
        wait_recorded(shm)


def test_of_two_commands_the_second_is_sampled_when_the_first_has_ended(
    shm: Path, tmp_path: Path
) -> None:
    rings = ring_dir(tmp_path / "run")
    with sleeping() as (first, one), sleeping() as (second, other), sleeping() as (third, brief):
        write_note(rings, one)
        recorder = record(tmp_path)
        wait_for(lambda: recorders(shm) == [recorder], what="the recorder")
        write_note(rings, other)
        write_note(rings, brief)
        third.kill()
        third.wait()
        wait_for(lambda: set(commands_in(Folder.at(rings))) == {one, other}, what="the two")
        first.kill()
        first.wait()
        wait_for(lambda: commands_in(Folder.at(rings)) == [other], what="the second's turn")
        assert recorders(shm) == [recorder]
        second.kill()
        second.wait()
        wait_recorded(shm)
    assert not list(shm.glob("*/*"))


def test_without_a_command_to_stay_for_the_second_leaves(shm: Path, tmp_path: Path) -> None:
    program = """
    import haiprof, sys
    from haiprof.common.places import ring_dir
    from haiprof.recorder.launch import start_recorder
    session = haiprof.start(sys.argv[1], run="run", hooks=False)
    haiprof.flush()
    print(start_recorder(ring_dir(session.run_dir), session.run_dir, session.options), flush=True)
    sys.stdin.readline()
    """
    job = python(program, str(tmp_path), stdin=subprocess.PIPE)
    assert job.stdout is not None
    second = int(job.stdout.readline())
    assert the_recorder(shm) != second
    job.communicate("\n")
    wait_recorded(shm)


def test_a_recorder_that_comes_when_all_is_over_leaves_the_node_s_files_as_they_are(
    shm: Path, tmp_path: Path
) -> None:
    with sleeping() as (process, command):
        write_note(ring_dir(tmp_path / "run"), command)
        record(tmp_path)
        wait_for(lambda: sampled(tmp_path), what="samples of the command")
        process.kill()
        process.wait()
        wait_recorded(shm)
    before = process_file(the_node(tmp_path))
    assert before["ended"] is not None
    open_rings(ring_dir(tmp_path / "run"), make=True)  # of a rank, which has gone
    late = os.pidfd_open(record(tmp_path))
    try:
        assert select.select([late], [], [], 30)[0]
    finally:
        os.close(late)
    assert process_file(the_node(tmp_path)) == before
    assert not list(shm.glob("*/*"))


@pytest.mark.parametrize(
    "name", ["7.command", "7-8.commands", "x-8.command", "7--8.command", "7-8"]
)
def test_a_file_of_another_name_is_no_note(name: str, shm: Path, tmp_path: Path) -> None:
    rings = ring_dir(tmp_path / "run")
    write_note(rings, Command(7, 8))
    (rings / name).touch()
    folder = Folder.at(rings)
    assert commands_in(folder) == [Command(7, 8)]
    remove_note(folder, Command(7, 8))
    remove_note(folder, Command(7, 8))
    assert commands_in(folder) == []
    (rings / name).unlink()
    rings.rmdir()
    assert commands_in(folder) == []
