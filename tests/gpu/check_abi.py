"""Compares src/gpu/cupti_abi.h and src/nvml/nvml_abi.h with NVIDIA's headers of many releases.

    python tests/gpu/check_abi.py [FOLDER]

Downloads the header wheels into FOLDER (default build/abi, about 150 MB) and compiles check_abi.cpp
and check_nvml_abi.cpp against each; for whoever touches those headers or meets a new release, not
for every test run.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"

CU12 = ("nvidia-cuda-cupti-cu12", "nvidia-cuda-runtime-cu12==12.9.79")
CU13 = ("nvidia-cuda-cupti", "nvidia-cuda-runtime==13.*")
#: Release, its packages, and the newest record of each kind in it.
RELEASES = [
    ("12.1.105", CU12, 9, 5, 4, False),
    ("12.4.127", CU12, 9, 5, 4, True),
    ("12.6.80", CU12, 9, 5, 4, True),
    ("12.8.90", CU12, 9, 6, 4, True),
    ("12.9.79", CU12, 9, 6, 4, True),
    ("13.0.85", CU13, 10, 6, 4, True),
    ("13.1.115", CU13, 11, 6, 4, True),
    ("13.3.75", CU13, 12, 6, 4, True),
    ("13.5.25", CU13, 13, 7, 5, True),
]
#: Releases of NVML, and which of the two numberings of fields each has.
NVML_RELEASES = [
    ("nvidia-nvml-dev-cu12==12.9.79", "kThrottleThermalOf575"),
    ("nvidia-nvml-dev==13.0.87", "kThrottleThermalOf580"),
    ("nvidia-nvml-dev==13.5.37", "kThrottleThermalOf580"),
]
#: What cuda.h wants of the compiler's own package, which weighs 40 MB.
HOST_DEFINES = """
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline
#define __noinline__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDART_CB
#define __no_return__ __attribute__((noreturn))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __location__(a) a
#define __specialization_static
"""


def headers(package: str, folder: Path) -> list[Path]:
    """Fetch a package's wheel into a folder of its own; return its folders of headers."""
    place = folder / package.replace("==", "-").replace(".*", "")
    if not place.exists():
        wheels = place.with_suffix(".wheel")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, package],
            check=True,
        )
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(place, [n for n in archive.namelist() if "/include/" in n])
    return sorted(p for p in place.glob("nvidia/*/include"))


def agrees(name: str, program: str, folders: list[Path], *flags: str) -> bool:
    """Compile one program against the headers in some folders, and tell."""
    done = subprocess.run(
        [
            "c++", "-std=c++20", "-fsyntax-only", f"-I{SOURCE}",
            *(f"-isystem{path}" for path in folders), *flags, str(HERE / program),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    print(f"{name}: {'agrees' if done.returncode == 0 else 'differs'}")
    print("".join(f"  {line}\n" for line in errors[:20]), end="")
    return done.returncode == 0


def main() -> int:
    """Compile against every release; return how many disagree."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else HERE.parent.parent / "build" / "abi"
    stub = folder / "stub" / "crt"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "host_defines.h").write_text(HOST_DEFINES)
    wrong = 0
    for release, (cupti, runtime), kernel, copy, fill, per_thread in RELEASES:
        try:
            found = [*headers(f"{cupti}=={release}", folder), *headers(runtime, folder)]
        except subprocess.CalledProcessError:
            print(f"{release}: its wheels cannot be had")
            wrong += 1
            continue
        wrong += not agrees(
            release,
            "check_abi.cpp",
            [stub.parent, *found],
            f"-DKERNEL=CUpti_ActivityKernel{kernel}",
            f"-DMEMCPY=CUpti_ActivityMemcpy{copy}",
            f"-DMEMSET=CUpti_ActivityMemset{fill}",
            *(["-DHAS_PER_THREAD"] if per_thread else []),
        )
    for package, thermal in NVML_RELEASES:
        try:
            found = headers(package, folder)
        except subprocess.CalledProcessError:
            print(f"{package}: its wheel cannot be had")
            wrong += 1
            continue
        wrong += not agrees(package, "check_nvml_abi.cpp", found, f"-DTHERMAL_FIELD={thermal}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
