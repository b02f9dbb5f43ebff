#!/bin/sh
# SLURM's Prolog, as root on each node of a job: its user gets a folder for runs.
# It never fails and never waits long: SLURM would drain the node.
# shellcheck source=deploy/slurm/settings
. "$(dirname "$(readlink -f "$0")")/settings"
# shellcheck disable=SC2016  # for the shell within
timeout 10 sh -c '
    folder=$1/$2
    [ -d "$folder" ] && exit
    mkdir -m 0700 "$folder" && chown -- "$3" "$folder"
' sh "$logs" "$SLURM_JOB_USER" "$SLURM_JOB_UID" || echo "haiprof: no $logs/$SLURM_JOB_USER" >&2
exit 0
