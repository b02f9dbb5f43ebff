"""What the suite runs on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from pathlib import Path

from gpu.part import Part, main


def measure(part: Part) -> None:
    part.fact("user", os.getuid())
    for package in ("torch", "triton", "nvidia-cuda-cupti", "nvidia-ml-py", "pyarrow"):
        try:
            part.fact(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            part.fact(package, "not installed")
    part.fact("cupti-python", _cupti_python())
    if part.device == "cuda":
        for file in ("/proc/driver/nvidia/version", "/proc/driver/nvidia/params"):
            part.piece(file, _file, part, file)
        part.piece("nvidia-ml-py", _nvml, part)
    part.piece("torch", _torch, part)


def _cupti_python() -> str:
    return "installed" if importlib.util.find_spec("cupti") else "not installed, so not compared"


def _file(part: Part, file: str) -> None:
    wanted = ("NVRM", "RmProfilingAdminOnly", "RestrictProfiling")
    found = [line for line in Path(file).read_text().splitlines() if line.startswith(wanted)]
    part.fact(file, "; ".join(found))


def _nvml(part: Part) -> None:
    import pynvml

    pynvml.nvmlInit()
    part.fact("driver", str(pynvml.nvmlSystemGetDriverVersion()))


def _torch(part: Part) -> None:
    import torch

    from gpu import cupti

    part.fact("cuda of torch", torch.version.cuda)
    if part.device == "cuda":
        torch.zeros(1, device="cuda")
        part.fact("gpu", torch.cuda.get_device_name(0))
        part.fact("gpu memory, MiB", torch.cuda.mem_get_info()[1] >> 20)
    library = cupti.loaded()
    part.fact("cupti", f"{library.version()} ({Path(library.path).name})")


if __name__ == "__main__":
    main(measure)
