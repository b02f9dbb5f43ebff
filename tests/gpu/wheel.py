"""What is carried to a machine with a GPU and no network: ``python tests/gpu/wheel.py FOLDER``.

haiprof as a wheel for that machine's Python, and the wheels of those of its dependencies that such
a machine does not have beside torch. Wants a Python of that version here, and a package index.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

PYTHON = (3, 12)
#: What the machine has: Ubuntu 24.04.
NEWEST = {"GLIBC": (2, 39), "GLIBCXX": (3, 4, 33)}
#: Newer ones of polars are too large to be carried.
MISSING_THERE = ("isal", "polars<1.36", "plotly")
#: What may be carried, MiB.
MOST = 60
SOURCES = Path(__file__).resolve().parents[2]
_NAME = "python{}.{}".format(*PYTHON)


def interpreter() -> str:
    """A Python of that version.

    Raises:
        SystemExit: there is none.
    """
    installed = sorted(Path.home().glob(f".pyenv/versions/*/bin/{_NAME}"))
    for found in filter(None, (shutil.which(_NAME), *map(str, installed))):
        done = subprocess.run([found, "-c", "import venv"], capture_output=True)
        if done.returncode == 0:  # and not a shim for none
            return found
    raise SystemExit(f"there is no {_NAME} on PATH or in ~/.pyenv: install {_NAME} and its venv")


def run(command: Sequence[str]) -> None:
    """Run it; when it fails, that is the end."""
    done = subprocess.run(command)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")


def make(folder: Path, python: str) -> Path:
    """Put the wheels into the folder; return that of haiprof."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as builder:
        run([python, "-m", "venv", builder])
        own = [f"{builder}/bin/python", *pip[1:]]
        run([*own, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(SOURCES)])
        version = "{}.{}".format(*PYTHON)
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 24, 28)]
        run([*own, "download", "--quiet", "--only-binary=:all:", f"--python-version={version}",
             *platforms, "--platform=manylinux2014_x86_64", "--dest", str(folder),
             *MISSING_THERE])  # fmt: skip
    [path] = folder.glob("haiprof-*.whl")
    return path


def versions(symbols: str) -> dict[str, tuple[int, ...]]:
    """The newest version of each library that undefined symbols want, of objdump's ``-T``."""
    newest: dict[str, tuple[int, ...]] = {}
    for library, text in re.findall(r"\b(GLIBC|GLIBCXX)_([\d.]+)", symbols):
        version = tuple(int(number) for number in text.split("."))
        newest[library] = max(newest.get(library, ()), version)
    return newest


def wanted(wheel: Path) -> dict[str, tuple[int, ...]]:
    """The same of all that is compiled in a wheel."""
    said = []
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if archive.open(name).read(4) == b"\x7fELF":
                path = archive.extract(name, folder)
                done = subprocess.run(["objdump", "-T", path], capture_output=True, text=True)
                said.append(done.stdout)
    return versions("\n".join(said))


def too_new(found: dict[str, tuple[int, ...]]) -> list[str]:
    """What the machine does not have, in words."""
    return [
        f"{library} {_dotted(version)} is wanted, the machine has {_dotted(NEWEST[library])}"
        for library, version in found.items()
        if version > NEWEST[library]
    ]


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def main() -> None:
    """Make it and say what it is."""
    folder = Path(sys.argv[1])
    wheel = make(folder, interpreter())
    found = wanted(wheel)
    print(f"{wheel}: wants", ", ".join(f"{k} {_dotted(v)}" for k, v in found.items()))
    if problems := too_new(found):
        raise SystemExit(f"{wheel.name} does not load there: {'; '.join(problems)}")
    size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
    for path in sorted(folder.iterdir()):
        print(f"  {path.stat().st_size / 2**20:6.1f} MiB  {path.name}")
    print(f"  {size:6.1f} MiB  in all, of {MOST} that may be carried")
    if size > MOST:
        raise SystemExit(f"{folder} is too large by {size - MOST:.1f} MiB")


if __name__ == "__main__":
    main()
