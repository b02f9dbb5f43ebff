"""``haiprof view``: a link, until Ctrl-C."""

from __future__ import annotations

import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

from commands import HAIPROF, haiprof, only_line
from runs import make_run


def test_it_serves_the_page_until_ctrl_c(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with subprocess.Popen(
        [*HAIPROF, "view", str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as viewing:
        assert viewing.stdout is not None
        link = viewing.stdout.readline().strip()
        with urllib.request.urlopen(link, timeout=60) as page:
            assert b"118 steps" in page.read()
        viewing.send_signal(signal.SIGINT)
        assert viewing.wait(60) == 0
        assert viewing.stderr is not None
        assert viewing.stderr.read() == ""


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = haiprof("view", run, "--port", str(port))
    assert done.returncode == 1
    assert f"--port {port}" in only_line(done)


def test_a_run_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = haiprof("view", tmp_path / "nowhere")
    assert done.returncode == 1
    assert "nowhere" in only_line(done)
