#!/bin/sh
# SLURM's Epilog, as root on each node of a job: writes out what a job that was killed left in shared
# memory, as its user. It never fails and never waits long: SLURM would drain the node.
# shellcheck source=deploy/slurm/settings
. "$(dirname "$(readlink -f "$0")")/settings"
if [ -n "$textfiles" ]; then
    rm -f -- "$textfiles/haiprof-$SLURM_JOB_ID.prom"
fi
if [ -d "/dev/shm/haiprof-$SLURM_JOB_UID" ]; then
    cd / || exit 0
    PYTHONPATH=$tree/start HOME=/nonexistent timeout --kill-after=5 60 \
        setpriv --reuid="$SLURM_JOB_UID" --regid="$(id -g "$SLURM_JOB_UID")" --init-groups \
        --inh-caps=-all --no-new-privs "$python" -m haiprof recover >&2
fi
exit 0
