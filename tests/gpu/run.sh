#!/usr/bin/env bash
# Measures what needs a GPU, with what the machine has (no network), in less than nine minutes:
#
#   tests/gpu/run.sh RESULTS                    everything; overhead gets what is left of the time
#
# or, with more time in several calls, in this order:
#
#   tests/gpu/run.sh RESULTS --only first       CUPTI and NVML as they are, and whether all is right
#   tests/gpu/run.sh RESULTS --only overhead    what recording costs, alone; two such runs can be
#                                               pooled: python -m gpu.pooled A/gpu.json B/gpu.json
#   tests/gpu/run.sh RESULTS --only rest        times, soak, launches, phases, NVML and the others
#
# --only takes groups (raw, correctness, rest, overhead; first is raw and correctness) and parts,
# with commas between; --device cpu runs it all where there is no GPU.
#
# RESULTS gets summary.json, gpu.json, gpu.md, log.txt and buffers.tar.gz, each of them whole at any
# time and as new as the last row. Variables:
#
#   HAIPROF_WHEEL     haiprof, built before (make gpu-wheel); without it, it is built here
#   PYTHON            the Python with torch and pyarrow (python3)
#   HAIPROF_SHM_DIR   where rings lie (/dev/shm, or the temporary folder when that is too small)
#   SECONDS_IN_ALL    what it may take, from here to the end (540; 360 for --only first)
#   GPU_SUITE_COMMIT  the commit of a copy that has no .git
set -u
begin=$(date +%s)
mkdir -p "${1:?the folder for the results}" || exit
results=$(cd "$1" && pwd)
shift
if [ -n "${HAIPROF_WHEEL:-}" ]; then
  HAIPROF_WHEEL=$(realpath -m "$HAIPROF_WHEEL")
  export HAIPROF_WHEEL
fi
sources=$(cd "$(dirname "$0")/../.." && pwd)
site=$(mktemp -d) || exit
trap 'rm -rf "$site"' EXIT
# Not from the checkout, whose haiprof has no compiled part.
cd "$site" || exit
PYTHONPATH=$site:$sources/tests "${PYTHON:-python3}" -m gpu.suite "$results" --begin "$begin" \
  --sources "$sources" --site "$site" "$@"
