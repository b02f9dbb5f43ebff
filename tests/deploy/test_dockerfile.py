"""The Dockerfile has no fault that hadolint knows, and copies what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures import ROOT

FILE = ROOT / "deploy/Dockerfile"
TEXT = FILE.read_text("utf-8")


def test_hadolint_finds_nothing_to_say_of_it() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, "--no-color", FILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    wrong = TEXT.replace("USER 65532:65532", "USER root")
    done = subprocess.run([program, "--no-color", "-"], input=wrong, capture_output=True, text=True)
    assert "should not be root" in done.stdout


def test_the_image_is_of_an_ordinary_user_and_has_no_compiler() -> None:
    _, image = re.split(r"^FROM \$\{BASE\}$", TEXT, flags=re.MULTILINE)
    assert re.findall(r"^USER (.*)$", image, re.MULTILINE) == ["65532:65532"]
    assert "RUN" not in image
    assert "COPY --from=build /opt/haiprof /opt/haiprof" in image


def test_the_folder_that_it_installs_is_the_one_that_it_searches() -> None:
    assert "/haiprof/deploy/tree/install.sh /opt/haiprof " in TEXT
    assert (ROOT / "deploy/tree/install.sh").stat().st_mode & 0o111
    assert "ENV PATH=/opt/haiprof/bin:${PATH} PYTHONPATH=/opt/haiprof/start" in TEXT


def test_the_build_gets_no_file_that_git_ignores() -> None:
    left_out = (ROOT / "deploy/Dockerfile.dockerignore").read_text("utf-8").split()
    ignored = {"build/", "dist/", "/demo/", "/haiprof-logs/", "/page/node_modules/"}
    assert ignored <= set((ROOT / ".gitignore").read_text("utf-8").split())
    assert {path.strip("/") for path in ignored} | {".git", ".venv*"} <= set(left_out)
