"""Trees of deploy/tree, with the haiprof that is installed here."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from fixtures import ROOT

TREE = ROOT / "deploy/tree"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}"
#: One that has nothing of ours.
PYTHON = Path(sys.base_prefix) / "bin" / f"python{VERSION}"


def a_wheel(folder: Path) -> Path:
    """Pack the installed haiprof, as building it anew takes minutes."""
    name, version = "haiprof", importlib.metadata.version("haiprof")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    path = folder / f"{name}-{version}-{tag}-{tag}-linux_{os.uname().machine}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in importlib.metadata.files("haiprof") or ():
            source = Path(str(file.locate()))
            if file.name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "haiprof"):
                continue
            if source.name == "haiprof-perfd":
                wheel.write(source, f"{name}-{version}.data/scripts/{source.name}")
            elif source.suffix != ".pyc":
                wheel.write(source, str(file))
        wheel.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


def install(folder: Path, requirement: Path | str, *pythons: Path | str) -> None:
    """Install haiprof alone: the packages that it needs would be downloaded."""
    done = subprocess.run(
        [TREE / "install.sh", folder, requirement, *pythons],
        env={**os.environ, "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
