"""Emulated machines: a distribution's kernel, a file system of our own in memory, no disk, no KVM.

Under QEMU's own translation (TCG) the kernel's real drivers find the uncore counters of the CPU
that is emulated, which no virtual machine of a cloud has. They can be opened and read; they stand
still.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

KERNEL_PACKAGE = "linux-image-amd64"
#: How long a machine may take from power-on to power-off, s.
PATIENCE = 300.0


class Machine(NamedTuple):
    """What QEMU is to emulate: two sockets of four cores, each with 512 MiB."""

    cpu: str
    modules: tuple[str, ...] = ()


class Kernel(NamedTuple):
    """A kernel image and the folder of its modules."""

    image: Path
    modules: Path


def fetch_kernel(folder: Path) -> Kernel:
    """Download the distribution's kernel into ``folder``, once; skip where that is not possible."""
    for tool in ("qemu-system-x86_64", "apt-get", "dpkg"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (apt-get install qemu-system-x86, on Debian)")
    if not list(folder.glob("boot/vmlinuz-*")):
        folder.mkdir(parents=True, exist_ok=True)
        depends = _run(["apt-cache", "depends", KERNEL_PACKAGE], folder)
        package = next(
            line.split()[-1] for line in depends.splitlines() if "Depends: linux-image" in line
        )
        _run(["apt-get", "download", package], folder)
        archive = next(folder.glob(f"{package}_*.deb"))
        _run(["dpkg", "-x", archive.name, "."], folder)
        archive.unlink()
    return Kernel(next(folder.glob("boot/vmlinuz-*")), next(folder.glob("lib/modules/*")))


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def boot(machine: Machine, kernel: Kernel, init: Path, folder: Path) -> list[str]:
    """Run ``init`` as the first and only process of the machine; return the lines it printed."""
    files = {"init": init}
    for name in machine.modules:
        files[name] = next(kernel.modules.rglob(name))
    archive = folder / "initramfs"
    archive.write_bytes(initramfs(files))
    command = ["qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none"]
    command += ["-serial", "stdio", "-machine", "q35", "-accel", "tcg", "-m", "1G"]
    command += ["-cpu", machine.cpu, "-smp", "8,sockets=2,cores=4"]
    for node, cpus in enumerate(("0-3", "4-7")):
        command += ["-object", f"memory-backend-ram,id=m{node},size=512M"]
        command += ["-numa", f"node,nodeid={node},memdev=m{node},cpus={cpus}"]
    command += ["-numa", "dist,src=0,dst=1,val=21"]
    command += ["-kernel", str(kernel.image), "-initrd", str(archive)]
    command += ["-append", "console=ttyS0 quiet rdinit=/init panic=-1"]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.replace("\r", "").splitlines()


def initramfs(files: Mapping[str, Path]) -> bytes:
    """Make an archive of the form that the kernel unpacks into memory (cpio, "newc")."""
    archive = bytearray()
    folders = {str(folder): None for name in files for folder in reversed(Path(name).parents[:-1])}
    entries = [(folder, 0o040755, b"") for folder in folders]
    for name, path in files.items():
        if path.is_symlink():
            entries.append((name, 0o120777, os.fsencode(path.readlink())))
        else:
            entries.append((name, 0o100755, path.read_bytes()))
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        archive += b"070701" + b"".join(b"%08X" % field for field in fields)
        archive += name.encode() + b"\0"
        archive += bytes(-len(archive) % 4)
        archive += content
        archive += bytes(-len(archive) % 4)
    return bytes(archive)
