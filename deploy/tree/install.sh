#!/bin/sh
# Installs haiprof into a folder of its own, for jobs whose Python does not have it: docs/clusters.md.
#   install.sh FOLDER REQUIREMENT PYTHON...
# Each Python gets packages of its own, in FOLDER/site/<its version>; it needs pip.
set -eu
if [ $# -lt 3 ]; then
    echo "usage: install.sh FOLDER REQUIREMENT PYTHON..." >&2
    exit 2
fi
folder=$1 requirement=$2
shift 2
here=$(dirname "$(readlink -f "$0")")
mkdir -p "$folder/bin" "$folder/start"
for python; do
    version=$("$python" -c 'import sys; print("%d.%d%s" % (*sys.version_info[:2], sys.abiflags))')
    "$python" -m pip install --quiet --upgrade --target "$folder/site/$version" "$requirement"
    ln -sf "../site/$version/bin/haiprof-perfd" "$folder/bin/haiprof-perfd"
done
cp "$here/sitecustomize.py" "$folder/start/"
cp "$here/haiprof" "$folder/bin/"
chmod -R a+rX "$folder"
