#!/usr/bin/env bash
# Runs what needs a GPU, with what the machine has (no network), in less than nine minutes:
#
#   tests/gpu/run.sh RESULTS
#
# Writes gpu.json and gpu.md into the folder RESULTS. Wants torch with CUDA, pyarrow, pybind11,
# scikit-build-core, cmake and ninja in the Python that PYTHON names (python3).
set -euo pipefail
mkdir -p "${1:?the folder for the results}"
results=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
"$python" -m pip install --quiet --no-index --no-deps --no-build-isolation --target "$site" .
PYTHONPATH=$site "$python" tests/gpu/suite.py "$results"
