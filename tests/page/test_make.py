"""The template of the report: how it is built, and that it needs nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from haiprof.show import colours

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "page"
TEMPLATE = ROOT / "haiprof/show/page/page.html"


def make(page: Path, what: str = "build", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(page / "make.py"), what],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        cwd=page,
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the page's folder with what npm installed for it."""
    page = tmp_path_factory.mktemp("checkout") / "page"
    built = make(PAGE, "packages")
    assert built.returncode == 0, built.stderr
    shutil.copytree(PAGE, page, ignore=shutil.ignore_patterns("node_modules"))
    (page / "node_modules").symlink_to(PAGE / "node_modules")
    return page


def test_the_same_sources_give_the_same_bytes(sources: Path) -> None:
    own = sources.parent / "haiprof/show/page/page.html"
    pages = []
    for _ in range(2):
        built = make(sources)
        assert built.returncode == 0, built.stderr
        pages.append(own.read_bytes())
        own.unlink()
    assert pages[0] == pages[1]
    assert make(PAGE).returncode == 0
    assert pages[0] == TEMPLATE.read_bytes()


def test_it_is_built_again_when_a_source_is_another(sources: Path) -> None:
    assert make(sources).returncode == 0
    own = sources.parent / "haiprof/show/page/page.html"
    before = own.stat().st_mtime_ns
    assert make(sources).returncode == 0
    assert own.stat().st_mtime_ns == before
    style = sources / "src/page.css"
    text = style.read_text("utf-8")
    style.write_text(text + ".another { color: red }", "utf-8")
    assert make(sources).returncode == 0
    assert ".another" in own.read_text("utf-8")
    style.write_text(text, "utf-8")


def test_without_what_npm_installs_one_line_says_so(tmp_path: Path) -> None:
    page = tmp_path / "page"
    shutil.copytree(PAGE, page, ignore=shutil.ignore_patterns("node_modules"))
    nowhere = {"npm_config_registry": "http://127.0.0.1:9", "npm_config_fetch_retries": "0"}
    failed = make(page, npm_config_cache=str(tmp_path / "cache"), **nowhere)
    assert failed.returncode == 1
    assert failed.stderr.startswith("page: npm cannot install esbuild, uplot: ")
    assert failed.stderr.count("\n") == 1
    assert not (tmp_path / "haiprof").exists()


def test_the_lock_file_names_no_registry_and_nothing_that_is_installed_runs() -> None:
    assert '"resolved"' not in (PAGE / "package-lock.json").read_text("utf-8")
    assert "ignore-scripts=true" in (PAGE / ".npmrc").read_text("utf-8")


def test_it_allows_its_own_script_and_style_alone_and_keeps_the_licence() -> None:
    assert make(PAGE).returncode == 0
    page = TEMPLATE.read_text("utf-8")
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert "Permission is hereby granted" in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)
    assert page.count("<!--document-->") == page.count("<!--blobs-->") == 1


def test_phases_and_work_have_the_colours_of_all_figures() -> None:
    text = (PAGE / "src/common/colours.ts").read_text("utf-8")
    own = {
        name.strip('"'): value
        for name, value in re.findall(r'^  ("?[\w ]+"?): "(#\w+)"', text, re.M)
    }
    for name, colour in {**colours.WORK_COLOURS, **colours.PHASE_COLOURS}.items():
        assert own[name] == colour, name


def test_what_needs_no_browser(sources: Path) -> None:
    """Columns, hash, statistics, levels of detail, trees: page/tests."""
    ended = make(sources, "test")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"pass [1-9]", ended.stdout)
