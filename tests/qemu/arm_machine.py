"""An emulated AArch64 machine: Debian's kernel and Python, in memory, and programs of ours."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from fixtures import ROOT
from machine import initramfs

#: Whose files the machine has, beside the kernel.
PACKAGES = (
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libexpat1",
    "zlib1g", "libgcc-s1", "libstdc++6", "libffi8", "libssl3", "libbz2-1.0", "liblzma5",
    "libpython3.11-dev",
)  # fmt: skip
#: Of those, what is not needed there.
_LEFT_OUT = (
    *("usr/share", "usr/lib/aarch64-linux-gnu/gconv", "etc"),
    *("usr/include", "usr/lib/python3.11/config-3.11-aarch64-linux-gnu"),
)
_COMPILER = "aarch64-linux-gnu-g++"
#: How long a machine may take from power-on to power-off, s. It starts some 80 programs.
_PATIENCE = 900.0


def fetch_tree(folder: Path) -> Path:
    """Bring the packages' files into ``folder``, once; skip where that is not possible."""
    for tool in ("qemu-system-aarch64", _COMPILER, "apt-get", "dpkg"):
        if shutil.which(tool) is None:
            why = "apt-get install qemu-system-arm g++-aarch64-linux-gnu, on Debian"
            pytest.skip(f"{tool} is not installed ({why})")
    tree = folder / "tree"
    if (tree / "boot").is_dir():
        return tree
    # As apt of such a machine would, with nothing changed in that of this one.
    for part in ("state/lists/partial", "cache/archives/partial", "packages"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    apt = [f"-oDir::State={folder}/state", f"-oDir::Cache={folder}/cache"]
    apt += ["-oAPT::Architecture=arm64", "-oAPT::Architectures=arm64"]
    apt += ["-oDir::State::status=/dev/null"]
    _run(["apt-get", *apt, "-qq", "update"], folder)
    depends = _run(["apt-cache", *apt, "depends", "linux-image-arm64"], folder)
    kernel = next(line.split()[-1] for line in depends.splitlines() if "linux-image" in line[1:])
    _run(["apt-get", *apt, "download", kernel, *PACKAGES], folder / "packages")
    unpacked = folder / "unpacked"
    for package in sorted((folder / "packages").glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(unpacked)], folder)
    unpacked.rename(tree)
    return tree


def build_programs(tree: Path, folder: Path) -> dict[str, Path]:
    """Build what is to run on the machine of these files; by name."""
    system = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    system += [f"-DCMAKE_CXX_COMPILER={_COMPILER}", f"-DCMAKE_C_COMPILER={_COMPILER[:-2]}cc"]
    system += [f"-DHEADERS={tree}/usr/include"]
    for command in (
        ["cmake", "-S", ROOT / "tests/qemu/arm", "-B", folder, *system],
        ["cmake", "--build", folder, "-j2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    named = [folder / name for name in ("inject", "read_stacks", "libpython_layout.so")]
    return {path.name: path for path in [*named, *folder.glob("attach_*_test")]}


def boot(cpu: str, tree: Path, files: Mapping[str, Path], folder: Path) -> Sequence[str]:
    """Run the file ``init`` as the first process of a machine; return the lines that it printed."""
    archive = folder / "initramfs"
    every = {
        str(path.relative_to(tree)): path
        for path in sorted(tree.rglob("*"))
        if (path.is_file() or path.is_symlink())
        and not str(path.relative_to(tree)).startswith(("boot", "lib/modules", *_LEFT_OUT))
    }
    archive.write_bytes(initramfs({**every, **files}))
    (kernel,) = tree.glob("boot/vmlinuz-*")
    command = ["qemu-system-aarch64", "-nodefaults", "-no-reboot", "-display", "none"]
    command += ["-serial", "stdio", "-machine", "virt", "-accel", "tcg", "-m", "1G", "-smp", "2"]
    command += ["-cpu", cpu, "-kernel", str(kernel), "-initrd", str(archive)]
    command += ["-append", "console=ttyAMA0 quiet rdinit=/init panic=-1"]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.replace("\r", "").splitlines()


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout
