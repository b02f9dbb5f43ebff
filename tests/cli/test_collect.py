"""``haiprof collect``: several hosts' folders become one run, whatever comes in between."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, haiprof_on_terminal, only_line, start_haiprof
from recording import wait_for
from runs import (
    event,
    sample,
    span,
    write_closed,
    write_json,
    write_live,
    write_node,
    write_process,
    write_run,
)

from haiprof import Analyzer, schema
from haiprof.collect import shell
from haiprof.collect.gather import collect
from haiprof.collect.named import source
from haiprof.collect.source import SourceError
from haiprof.common.owned_files import Folder
from haiprof.recorder.closing import close_stream

pytestmark = pytest.mark.usefixtures("shm")

#: What stands for ssh: each host is a folder beside it, its user's home. What the file ``before``
#: there says is done first, and what ``after`` says is what the host's answer goes through.
SSH = """#!/bin/sh
here=$(dirname "$0")
echo "$1" >> "$here/asked"
[ -d "$here/$1" ] || { echo "ssh: no route to $1" >&2; exit 255; }
cd "$here/$1"
case "$2" in *"exec tar"*) what=fetch;; *) what=look;; esac
as=
[ -e "$here/before-$what" ] && . "$here/before-$what"
if [ -e "$here/after-$what" ]
then $as /bin/sh -c "$2" | /bin/sh "$here/after-$what"
else exec $as /bin/sh -c "$2"
fi
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the hosts."""
    folder = tmp_path / "the net"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("HAIPROF_SSH_COMMAND", f"'{folder}/ssh'")
    monkeypatch.chdir(tmp_path)
    return folder


def record(logs: Path, node: str, *ranks: int, run: str = "v2", world: int = 2) -> Path:
    """Write what a host has of a run: its node and some ranks, of 40 steps each."""
    folder = write_run(logs / run, host=node)
    closed = write_node(folder, node)
    rows = [sample(n, "cpu.util.percent", 50.0 + n) for n in range(60)]
    write_closed(closed, schema.SAMPLES, rows)
    for rank in ranks:
        process = write_process(folder, rank, node, world_size=world, boot_id=f"boot of {node}")
        steps = [span(20.0 * n, 12.0, "step", "step", n) for n in range(40)]
        write_closed(process, schema.SPANS, steps)
        write_closed(process, schema.EVENTS, [event(1, "exit", "stopped recording")])
    return folder


def tree(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return every file of a folder: its bytes, and what shows that nobody has written it again."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns,
        )
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {name: content for name, (content, _, _) in tree(folder).items()}


def names_in(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def no_bar(_: str, __: int) -> Any:
    return contextlib.nullcontext(lambda _: None)


# -- one run of several hosts -----------------------------------------------------------------


def test_two_hosts_become_one_run(net: Path) -> None:
    one, two = record(net / "a/logs", "a", 0), record(net / "b/logs", "b", 1)
    done = haiprof("collect", "a:logs", f"me@b:{net}/b/logs", "--into", "all")
    assert done.returncode == 3  # nobody is called me@b
    assert (
        only_line(done) == f"haiprof: me@b:{net}/b/logs: cannot be reached (ssh: no route to me@b)"
    )
    done = haiprof("collect", "a:logs", f"b:{net}/b/logs", "--into", "all")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "all/v2: 2 nodes, 2 processes, 2 of them new or updated\n"
    merged = contents(Path("all/v2"))
    expected = {**contents(one), **contents(two)}
    assert merged.pop("run.json") in (
        contents(one)["run.json"], contents(two)["run.json"],
    )  # fmt: skip
    del expected["run.json"]
    assert merged == expected
    assert names_in("all") == ["v2"]
    run = Analyzer("all")
    assert set(run.ranks) == {0, 1}
    assert run.steps().height == 80
    assert {process.node for process in run.run.processes} == {"a", "b"}
    assert run.run.problems == ()
    for path in Path("all/v2").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_a_second_time_changes_nothing(net: Path) -> None:
    record(net / "a/logs", "a", 0)
    record(net / "b/logs", "b", 1)
    words = ("collect", "a:logs", "b:logs", "--into", "all")
    assert haiprof(*words).returncode == 0
    before = tree(Path("all"))
    done = haiprof(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "all/v2: 2 nodes, 2 processes, nothing new\n"
    assert tree(Path("all")) == before


def test_several_runs_stay_several_and_one_can_be_chosen(net: Path) -> None:
    for run in ("v1", "v2", "v3"):
        record(net / "a/logs", "a", 0, run=run)
    record(net / "b/logs", "b", 1, run="v2")
    assert haiprof("collect", "--run", "v2", "a:logs", "b:logs", "--into", "one").returncode == 0
    assert names_in("one") == ["v2"]
    done = haiprof("collect", "a:logs", "b:logs", "--into", "all")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "all/v1", "all/v2", "all/v3",
    ]  # fmt: skip
    assert set(Analyzer("all/v2").ranks) == {0, 1}
    assert set(Analyzer("all/v1").ranks) == {0}
    done = haiprof("collect", "--run", "v1", "a:logs", "b:logs", "--into", "none")
    assert done.returncode == 3
    assert only_line(done) == "haiprof: b:logs: has no run v1"
    done = haiprof("collect", "--run", "v4", "a:logs", "--into", "none")
    assert done.returncode == 1


def test_the_folder_of_a_run_is_enough(net: Path) -> None:
    record(net / "a/logs", "a", 0)
    (net / "a/logs/v2").rename(net / "a/renamed")
    done = haiprof("collect", "a:renamed", "--into", "all")
    assert done.returncode == 0
    assert set(Analyzer("all/v2").ranks) == {0}


def test_who_began_the_run_says_what_it_is(net: Path) -> None:
    for host, created in (("a", 3), ("b", 1), ("c", 2)):
        record(net / host / "logs", host, 0)
        write_run(net / host / "logs/v2", host=host, created_ns=created)
    assert haiprof("collect", "a:logs", "--into", "all").returncode == 0
    assert haiprof("collect", "b:logs", "c:logs", "--into", "all").returncode == 0
    assert haiprof("collect", "a:logs", "--into", "all").returncode == 0
    assert Analyzer("all").run.host == "b"


@pytest.mark.parametrize("turned", [False, True])
def test_hosts_of_one_name_do_not_overwrite_each_other(net: Path, turned: bool) -> None:
    for host, pid in (("a", 7), ("b", 8)):
        folder = write_run(net / host / "logs/v2")
        write_closed(
            write_node(folder, "box", started_ns=pid), schema.SAMPLES,
            [sample(1, "cpu.util.percent", float(pid))],
        )  # fmt: skip
        process = write_process(folder, 0, "box", pid=pid)
        write_closed(process, schema.SPANS, [span(20.0 * n, pid, "step", "s", n) for n in range(9)])
    assert haiprof("collect", "a:logs", "b:logs", "--into", "all").returncode == 0
    assert names_in("all/v2") == ["box", "box#0", "box#0.2", "box.2", "run.json"]
    before = tree(Path("all"))
    again = ("b:logs", "a:logs") if turned else ("b:logs",)
    done = haiprof("collect", *again, "--into", "all")
    assert "nothing new" in done.stdout
    assert tree(Path("all")) == before
    assert sorted(Analyzer("all").steps()["duration"].unique()) == [7_000_000, 8_000_000]


def test_a_folder_that_two_hosts_share_is_taken_once(net: Path) -> None:
    record(net / "a/logs", "a", 0)
    record(net / "a/logs", "b", 1)
    (net / "b").symlink_to(net / "a")
    done = haiprof("collect", "a:logs", "b:logs", "--into", "all")
    assert done.stdout == "all/v2: 2 nodes, 2 processes, 4 of them new or updated\n"
    assert contents(Path("all/v2")) == contents(net / "a/logs/v2")


@pytest.mark.parametrize("turned", [False, True])
def test_of_an_older_copy_and_the_original_the_one_that_says_more_counts(
    net: Path, turned: bool
) -> None:
    folder = record(net / "a/logs", "a", 0)
    shutil.copytree(net / "a/logs", "backup")
    process = Path("backup/v2/a#0")
    (process / "spans-0.arrow").unlink()
    write_process(Path("backup/v2"), 0, "a", state="live", ended_ns=None, boot_id="boot of a")
    write_process(folder, 0, "a", boot_id="boot of a")
    sources = ("a:logs", "backup") if turned else ("backup", "a:logs")
    done = haiprof("collect", *sources, "--into", "all")
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(Path("all/v2")) == contents(folder)


def test_a_file_that_was_written_anew_comes_again(net: Path) -> None:
    folder = record(net / "a/logs", "a", 0)
    trace = folder / "a#0" / "rank0.pt.trace.json.gz"
    for content in (b"one", b"two"):
        trace.write_bytes(content)
        assert haiprof("collect", "a:logs", "--into", "all").returncode == 0
        assert contents(Path("all/v2")) == contents(folder)


def test_what_is_not_of_the_run_stays_where_it_is(net: Path) -> None:
    folder = record(net / "a/logs", "a", 0)
    for name in ("report.html", ".run-a-17", "a#0/.spans", "a#0/spans-9.partial", ".trace-a-1/x"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    write_json(folder / "haiprof-import/run.json", {})
    (folder / "a#0/link").symlink_to("/etc/passwd")
    (folder / "a#0/rank0.pt.trace.json.gz").write_bytes(b"a trace")
    (net / "a/logs/notes").mkdir()
    (net / "a/logs/notes/n.txt").write_text("x")
    done = haiprof("collect", "a:logs", "--into", "all")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(contents(Path("all"))) == [
        "v2/a#0/events-0.arrow", "v2/a#0/process.json", "v2/a#0/rank0.pt.trace.json.gz",
        "v2/a#0/spans-0.arrow", "v2/a/process.json", "v2/a/samples-0.arrow", "v2/run.json",
    ]  # fmt: skip


# -- where from -------------------------------------------------------------------------------


def test_names_with_spaces_and_quotes_are_only_names(net: Path) -> None:
    odd = "a b'\"$(touch hacked)`touch hacked`;touch hacked&*\\"
    record(net / "a" / odd, "a", 0, run=f"-{odd}")
    record(Path(odd), "b", 1, run=f"-{odd}")
    done = haiprof("collect", f"a:{odd}", f"./{odd}", "--into", f"all {odd}")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(Analyzer(f"all {odd}").ranks) == {0, 1}
    assert not list(net.parent.rglob("hacked"))


def test_this_machine_needs_no_ssh(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HAIPROF_SSH_COMMAND")
    monkeypatch.setenv("HOME", str(net / "a"))
    record(net / "a/logs", "a", 0)
    record(Path("logs"), "b", 1)
    record(net / "logs:c", "c", 2)
    words = ["logs", "localhost:logs", f"{net}/logs:c"]
    assert haiprof("collect", *words, "--into", "all").returncode == 0
    assert set(Analyzer("all").ranks) == {0, 1, 2}


def test_home_can_be_named(net: Path) -> None:
    record(net / "a/logs", "a", 0)
    for words in ("a:~/logs", "a:./logs", f"a:{net}/a/logs"):
        assert haiprof("collect", words, "--into", "all").returncode == 0


def test_many_hosts_are_named_once(net: Path) -> None:
    names = [f"n{n}" for n in range(20)]
    for rank, name in enumerate(names):
        record(net / name / "logs", name, rank, world=20)
    (net / "hosts").write_text("".join(f"{name} slots=8\n" for name in names))
    (net / "before-look").write_text(
        'touch "$here/now-$1"; ls "$here" | grep -c ^now- >> "$here/at-once"; sleep 0.3; '
        'rm "$here/now-$1"\n'
    )
    done = haiprof("collect", "logs", "--hostfile", net / "hosts", "--into", "all")
    assert done.stdout == "all/v2: 20 nodes, 20 processes, 40 of them new or updated\n"
    assert set(Analyzer("all").ranks) == set(range(20))
    assert 1 < max(map(int, (net / "at-once").read_text().split())) <= 8
    done = haiprof("collect", "logs", "--nodes", "n1,n2", "--into", "two")
    assert done.stdout == "two/v2: 2 nodes, 2 processes, 4 of them new or updated\n"
    environment = {**os.environ, "HAIPROF_HOSTFILE": str(net / "hosts")}
    done = haiprof("collect", "logs", "-n", "3", "--into", "three", env=environment)
    assert done.stdout.startswith("three/v2: 3 nodes")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-oProxyCommand=x:logs"], "there is no option -o of haiprof collect"),
        (["--", "-oProxyCommand=x:logs"], "is not a valid host name"),
        (["a:"], "a:: missing folder: put it after the colon"),
        (["a:x\ny"], "with a line break in its name cannot be collected"),
        (["logs", "--nodes", "3"], "3 hosts were requested and 0 are known"),
        (["logs", "--nodes", "a,-b"], "'-b' is not a valid host name"),
        ([], "[HOST:]DIR..."),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    net: Path, words: list[str], message: str
) -> None:
    done = haiprof("collect", *words)
    assert done.returncode == 2
    assert message in only_line(done)


def test_ssh_is_asked_not_to_wait_for_ever(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HAIPROF_SSH_COMMAND")
    fake = net / "bin"
    fake.mkdir()
    (fake / "ssh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{net}/words"; exit 255\n')
    (fake / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    done = haiprof("collect", "me@[fe80::1]:logs")
    assert only_line(done) == "haiprof: me@[fe80::1]:logs: cannot be reached"
    words = (net / "words").read_text().splitlines()
    assert words[:8] == [
        "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15",
        "me@fe80::1",
    ]  # fmt: skip
    # csh's history and fish's escapes are of other signs.
    assert not set("!\n") & set("".join(words[8:]))


# -- while it is recorded ---------------------------------------------------------------------


def test_what_grows_is_taken_as_far_as_it_is_and_the_rest_later(net: Path) -> None:
    folder = record(net / "a/logs", "a", 0)
    process = write_process(folder, 1, "a", state="live", ended_ns=None)
    steps = [[span(20.0 * n, 12.0, "step", "step", n)] for n in range(40)]
    live = write_live(process, schema.SPANS, steps)
    whole = live.read_bytes()
    live.write_bytes(whole[: len(whole) // 2])
    words = ("collect", "a:logs", "--into", "all")
    done = haiprof(*words)
    assert done.returncode == 0
    assert only_line(done).startswith("haiprof: v2: still being recorded at a:logs: collect again")
    before = tree(Path("all/v2/a#0"))
    some = Analyzer("all").steps().height
    assert 50 < some < 80
    live.write_bytes(whole)
    assert haiprof(*words).returncode == 0
    assert Analyzer("all").steps().height == 80
    closed = live.with_name(close_stream(Folder.at(live.parent), live.name).name)
    write_process(folder, 1, "a")
    done = haiprof(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "all/v2: 1 node, 2 processes, 1 of them new or updated\n"
    assert contents(Path("all/v2")) == contents(folder)
    assert closed.name in names_in("all/v2/a#1")
    assert tree(Path("all/v2/a#0")) == before


def test_a_copy_that_was_closed_here_is_opened_again_by_a_source_that_grew(net: Path) -> None:
    folder = record(net / "a/logs", "a", 0)
    process = write_process(folder, 1, "a", state="live", ended_ns=None)
    steps = [[span(20.0 * n, 12.0, "step", "step", n)] for n in range(40)]
    live = write_live(process, schema.SPANS, steps)
    whole = live.read_bytes()
    live.write_bytes(whole[: len(whole) // 2])
    assert haiprof("collect", "a:logs", "--into", "all").returncode == 0
    close_stream(Folder.at(Path("all/v2/a#1")), "spans-0.arrows")
    live.write_bytes(whole)
    assert haiprof("collect", "a:logs", "--into", "all").returncode == 0
    assert Analyzer("all").steps().height == 80


def test_a_file_that_is_closed_while_it_is_to_be_fetched_comes_all_the_same(net: Path) -> None:
    folder = record(net / "a/logs", "a", 0)
    process = write_process(folder, 1, "a", state="live", ended_ns=None)
    write_live(process, schema.SPANS, [[span(20.0 * n, 12.0, "step", "s", n)] for n in range(40)])
    shutil.copytree(process, net / "closed")
    close_stream(Folder.at(net / "closed"), "spans-0.arrows")
    (net / "before-fetch").write_text(
        f'[ -e "{net}/closed" ] && rm -r "logs/v2/a#1" && mv "{net}/closed" "logs/v2/a#1"\n'
    )
    done = haiprof("collect", "a:logs", "--into", "all")
    assert done.returncode == 0
    assert contents(Path("all/v2")) == contents(folder)
    assert Analyzer("all").steps().height == 80


def test_a_process_without_a_document_is_left_out_and_named(net: Path) -> None:
    folder = record(net / "a/logs", "a", 0)
    (folder / "a#0" / "process.json").write_text('{"format": "haipr')
    (folder / "a#1").mkdir()  # its recorder is about to write it
    done = haiprof("collect", "a:logs", "--into", "all")
    assert done.returncode == 0
    assert only_line(done) == (
        "haiprof: a:logs/v2/a#0/process.json: missing, cut off or not JSON; its folder is left out"
    )
    assert names_in("all/v2") == ["a", "run.json"]


# -- what goes wrong --------------------------------------------------------------------------


def test_a_host_that_is_away_is_named_and_the_others_are_collected(net: Path) -> None:
    record(net / "a/logs", "a", 0)
    done = haiprof("collect", "a:logs", "away:logs", "--into", "all")
    assert done.returncode == 3
    assert only_line(done) == "haiprof: away:logs: cannot be reached (ssh: no route to away)"
    assert set(Analyzer("all").ranks) == {0}
    done = haiprof("collect", "away:logs", "--into", "none")
    assert (done.returncode, done.stdout) == (1, "")


def test_a_folder_that_is_not_there_and_one_without_runs_are_distinguished(net: Path) -> None:
    (net / "a/empty").mkdir(parents=True)
    (net / "a/file").write_text("x")
    for folder, message in [
        ("empty", "has no run: give a log directory or a run's folder"),
        ("gone", "no such folder there, or it may not be read"),
        ("file", "no such folder there, or it may not be read"),
    ]:
        done = haiprof("collect", f"a:{folder}", "--into", "all")
        assert done.returncode == 1
        assert only_line(done) == f"haiprof: a:{folder}: {message}"
    write_json(net / "a/empty/odd/run.json", {"format": "of another program"})
    done = haiprof("collect", "a:empty", "--into", "all")
    assert done.returncode == 1
    assert "a:empty/odd/run.json: not from a haiprof run, or cut off" in done.stderr


def test_a_connection_that_is_lost_leaves_what_is_whole_and_is_taken_up(net: Path) -> None:
    folder = record(net / "a/logs", "a", 0, 1, 2)
    (folder / "a#1" / "rank1.pt.trace.json.gz").write_bytes(os.urandom(3_000_000))
    record(net / "b/logs", "b", 3)
    (net / "after-fetch").write_text("head -c 1000000\n")
    words = ("collect", "a:logs", "b:logs", "--into", "all")
    done = haiprof(*words)
    assert done.returncode == 3
    assert "haiprof: a:logs: the answer broke off" in done.stderr
    assert "haiprof: a:logs: 2 folders have not arrived completely" in done.stderr
    # Whole folders only, all of whose files are those of the source.
    there = contents(Path("all/v2"))
    assert there.items() <= {**contents(net / "b/logs/v2"), **contents(folder)}.items()
    assert names_in("all/v2") == ["a", "a#0", "b", "b#3", "run.json"]
    assert set(Analyzer("all/v2").ranks) == {0, 3}
    (net / "after-fetch").unlink()
    kept = tree(Path("all/v2/a#0"))
    assert haiprof(*words).returncode == 0
    assert contents(Path("all/v2/a#1")) == contents(folder / "a#1")
    assert set(Analyzer("all").ranks) == {0, 1, 2, 3}
    assert tree(Path("all/v2/a#0")) == kept
    assert names_in("all") == ["v2"]


def test_a_listing_that_is_cut_is_not_taken_for_all(net: Path) -> None:
    record(net / "a/logs", "a", 0)
    (net / "after-look").write_text(f'tee "{net}/answer"\n')
    whole = source("a:logs").look("")
    assert len(whole.files) == 6
    length = (net / "answer").stat().st_size
    for cut in [*range(0, length, 61), length - 1]:
        (net / "after-look").write_text(f"head -c {cut}\n")
        with pytest.raises(SourceError, match=r"a:logs: the answer broke off"):
            source("a:logs").look("")


@pytest.fixture
def slow(net: Path) -> Path:
    """A host whose answer stops in the middle of a large file, the last of three."""
    folder = record(net / "a/logs", "a", 0, 1)
    (folder / "a#1" / "zz.pt.trace.json.gz").write_bytes(os.urandom(3_000_000))
    (net / "after-fetch").write_text("head -c 2000000; sleep 60\n")
    return folder


def start_slow() -> subprocess.Popen[str]:
    process = start_haiprof("collect", "a:logs", "--into", "all")

    def large() -> bool:
        with contextlib.suppress(FileNotFoundError):  # a small one, which is whole by now
            parts = Path("all/.collecting").glob("*.partial")
            return any(part.stat().st_size >= 1 << 20 for part in parts)
        return False

    wait_for(large)
    return process


def test_ctrl_c_leaves_what_is_whole(net: Path, slow: Path) -> None:
    process = start_slow()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert err == (
        "haiprof: interrupted: what has arrived is complete; run the same command for the rest\n"
    )
    assert not list(Path("all").rglob("*.partial"))
    assert names_in("all/v2") == ["a", "a#0", "run.json"]
    assert set(Analyzer("all/v2").ranks) == {0}
    (net / "after-fetch").unlink()
    assert haiprof("collect", "a:logs", "--into", "all").returncode == 0
    assert contents(Path("all/v2")) == contents(slow)


def test_one_that_is_killed_is_gone_on_with(net: Path, slow: Path) -> None:
    process = start_slow()
    other = haiprof("collect", "a:logs", "--into", "all")
    assert other.returncode == 1
    assert only_line(other) == (
        "haiprof: all: another haiprof collect writes into it: wait until it ends"
    )
    process.kill()
    process.communicate()
    assert set(Analyzer("all/v2").ranks) == {0}
    (net / "after-fetch").unlink()
    # What had come of the second rank does not come again.
    kept = next(Path("all/.collecting").glob("*/spans-0.arrow")).stat().st_ino
    assert haiprof("collect", "a:logs", "--into", "all").returncode == 0
    assert contents(Path("all/v2")) == contents(slow)
    assert Path("all/v2/a#1/spans-0.arrow").stat().st_ino == kept
    assert names_in("all") == ["v2"]


def test_a_host_that_says_nothing_is_given_up(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(net / "a/logs", "a", 0)
    record(net / "b/logs", "b", 1)
    (net / "before-look").write_text('[ "$1" = b ] && sleep 60\n')
    monkeypatch.setattr(shell, "SILENT_SECONDS", 8.0)
    outcome = collect([source("a:logs"), source("b:logs")], Path("all"), "", no_bar)
    assert outcome.failed == ["b:logs: does not answer for 8 s"]
    assert set(Analyzer("all").ranks) == {0}


def test_a_file_that_may_not_be_read_is_reported(net: Path) -> None:
    folder = record(net / "a/logs", "a", 0)
    (folder / "a#0" / "spans-0.arrow").chmod(0)
    if os.getuid() == 0:
        # Root without its capabilities is a user like others.
        (net / "before-fetch").write_text("as='setpriv --inh-caps=-all --bounding-set=-all'\n")
    done = haiprof("collect", "a:logs", "--into", "all")
    assert done.returncode == 3
    line = only_line(done)
    assert line.startswith("haiprof: a:logs: 1 folder has not arrived completely (tar: ")
    assert "v2/a#0/spans-0.arrow" in line
    assert "Permission denied" in line
    assert names_in("all/v2") == ["a", "run.json"]


@pytest.mark.parametrize("kind", ["file", "missing right"])
def test_a_destination_that_cannot_be_written_is_reported(net: Path, kind: str) -> None:
    record(net / "a/logs", "a", 0)
    into = Path("all")
    if kind == "file":
        into.write_text("")
        line = "haiprof: all: File exists"
    else:
        into = Path("/proc/self/all")
        line = "haiprof: /proc/self/all: No such file or directory"
    done = haiprof("collect", "a:logs", "--into", into)
    assert done.returncode == 1
    assert only_line(done).startswith(line)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    if subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_leaves_what_is_whole(net: Path, small_disk: Path) -> None:
    folder = record(net / "a/logs", "a", 0, 1)
    (folder / "a#1" / "zz.pt.trace.json.gz").write_bytes(os.urandom(3_000_000))
    done = haiprof("collect", "a:logs", "--into", small_disk / "all")
    assert done.returncode == 1
    assert only_line(done) == (
        f"haiprof: {small_disk}/all: No space left on device: "
        "what has arrived is complete; run the same command for the rest"
    )
    assert set(Analyzer(small_disk / "all/v2").ranks) == {0}
    assert not list(small_disk.rglob("*.partial"))
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    assert haiprof("collect", "a:logs", "--into", small_disk / "all").returncode == 0
    assert contents(small_disk / "all/v2") == contents(folder)


def evil_archive(change: Callable[[tarfile.TarInfo], None]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("./v2/a#0/spans-0.arrow", "./../../evil", "/tmp/evil", "./v2/a#0/evil"):
            member = tarfile.TarInfo(name)
            member.size = 4
            change(member)
            archive.addfile(member, io.BytesIO(b"evil"))
    return buffer.getvalue()


def to_link(member: tarfile.TarInfo) -> None:
    member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0


@pytest.mark.parametrize("change", [lambda member: None, to_link])
def test_a_host_cannot_write_where_it_was_not_asked(
    net: Path, change: Callable[[tarfile.TarInfo], None]
) -> None:
    record(net / "a/logs", "a", 0)
    (net / "evil.tar").write_bytes(evil_archive(change))
    (net / "after-fetch").write_text(f'cat "{net}/evil.tar"; cat > /dev/null\n')
    done = haiprof("collect", "a:logs", "--into", "all")
    assert done.returncode == 3
    names = {path.name for path in Path("all").rglob("*")}
    assert not any("evil" in name for name in names)
    assert not Path("/tmp/evil").exists()
    assert not any(path.is_symlink() for path in Path("all").rglob("*"))
    assert "a#0" not in names


@pytest.mark.parametrize("bad", ["../x", "/x", "v2/..", "v2/../x", "..", ".", ""])
def test_a_host_cannot_name_a_folder_elsewhere(net: Path, bad: str) -> None:
    record(net / "a/logs", "a", 0)
    one = (net / "a/logs/v2/run.json").read_text()
    two = (net / "a/logs/v2/a/process.json").read_text()
    listing = "\0".join(
        [f"{bad}/run.json", one, f"{bad}/p/process.json", two, "v2/run.json", one,
         f"v2/{bad}/process.json", two, "", f"4 1.0 {bad}/p/x", f"4 1.0 v2/{bad}/x", "end", ""]
    )  # fmt: skip
    (net / "listing").write_text(listing)
    (net / "after-look").write_text(f'cat > /dev/null; cat "{net}/listing"\n')
    before = {path for path in net.parent.rglob("*") if "all" not in path.parts}
    haiprof("collect", "a:logs", "--into", "deep/all")
    after = {path for path in net.parent.rglob("*") if "all" not in path.parts}
    assert after - before == {net.parent / "deep", net / "asked"}


@pytest.mark.parametrize("name", ["../x", "..", "", "/tmp/x"])
def test_a_run_cannot_name_a_folder_elsewhere(net: Path, name: str) -> None:
    folder = record(net / "a/logs", "a", 0)
    write_run(folder, run=name)
    done = haiprof("collect", "a:logs/v2", "--into", "all")
    assert done.returncode == 1
    assert "a:logs/v2/run.json: not from a haiprof run, or cut off" in done.stderr
    assert not list(Path("all").iterdir())


def test_an_answer_of_another_kind_is_reported(net: Path) -> None:
    record(net / "a/logs", "a", 0)
    for answer in ("echo welcome", "printf 'x\\0y\\0\\0what is this\\0end\\0'"):
        (net / "after-look").write_text(f"cat > /dev/null; {answer}\n")
        done = haiprof("collect", "a:logs", "--into", "all")
        assert done.returncode == 1
        assert only_line(done).startswith("haiprof: a:logs: ")


# -- URLs -------------------------------------------------------------------------------------


def test_a_url_is_read_through_fsspec(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    one = record(net / "a/logs", "a", 0)
    record(net / "b/logs", "b", 1)
    done = haiprof("collect", f"file://{net}/a/logs", "b:logs", "--into", "all")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(Analyzer("all").ranks) == {0, 1}
    memory = fsspec.filesystem("memory")
    memory.put(str(one), "/bucket/v2", recursive=True)
    try:
        outcome = collect([source("memory://bucket")], Path("two"), "", no_bar)
        assert (outcome.failed, outcome.missing) == ([], [])
        assert contents(Path("two/v2")) == contents(one)
        before = tree(Path("two"))
        again = collect([source("memory://bucket/v2")], Path("two"), "", no_bar)
        assert (again.bytes, again.runs["v2"].new) == (0, set())
        assert tree(Path("two")) == before
    finally:
        memory.rm("/bucket", recursive=True)


def test_a_file_that_ends_early_behind_a_url_is_not_taken_for_whole(
    net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = pytest.importorskip("fsspec").filesystem("file")
    record(net / "a/logs", "a", 0)
    size = type(local).size
    monkeypatch.setattr(type(local), "size", lambda self, path: size(self, path) + 1)
    outcome = collect([source(f"file://{net}/a/logs")], Path("all"), "", no_bar)
    (line,) = outcome.failed
    assert line.endswith(": its end is missing")
    assert names_in("all/v2") == ["run.json"]


def test_what_is_wrong_with_a_url_is_one_line(net: Path) -> None:
    (net / "without").mkdir()
    (net / "without/fsspec.py").write_text("raise ImportError('none here')\n")
    path = f"{net}/without:{os.environ.get('PYTHONPATH', '')}"
    for url, environment, message in [
        ("nope://x/y", {}, "Protocol not known: nope"),
        ("s3://x/y", {"PYTHONPATH": path}, "needs the package fsspec: pip install fsspec"),
        (f"file://{net}/gone", {}, "no such folder there"),
    ]:
        done = haiprof("collect", url, "--into", "all", env={**os.environ, **environment})
        assert done.returncode == 1
        assert message in only_line(done)


def test_a_terminal_shows_how_far_it_is(net: Path) -> None:
    folder = record(net / "a/logs", "a", 0)
    (folder / "a#0" / "zz.pt.trace.json.gz").write_bytes(os.urandom(3_000_000))
    (net / "after-fetch").write_text("head -c 2000000; sleep 1; cat\n")
    code, out, seen = haiprof_on_terminal("collect", "a:logs", "--into", "all")
    assert code == 0
    assert out.startswith("all/v2: 1 node, 1 process")
    assert "collecting" in seen
    assert "MB" in seen
