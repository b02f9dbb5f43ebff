#!/usr/bin/env bash
# Measures what needs a GPU, with what the machine has (no network), in less than nine minutes:
#
#   tests/gpu/run.sh RESULTS [suite.py's arguments …]
#
# Writes gpu.json, gpu.md and buffers/ into the folder RESULTS. Wants torch with CUDA, pyarrow,
# pybind11, scikit-build-core, cmake, ninja and a C++ compiler in the Python that PYTHON names
# (python3). SECONDS_IN_ALL (540) is what it may take, from here to the end; GPU_SUITE_COMMIT names
# the commit of a copy that has no .git.
set -euo pipefail
until=$(($(date +%s) + ${SECONDS_IN_ALL:-540}))
mkdir -p "${1:?the folder for the results}"
results=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.."
sources=$PWD
python=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
"$python" -m pip install --quiet --no-index --no-deps --no-build-isolation --target "$site" .
# Not from the checkout, whose haiprof has no compiled part.
cd "$site"
PYTHONPATH=$site:$sources/tests "$python" -m gpu.suite "$results" --until "$until" \
  --sources "$sources" "$@"
