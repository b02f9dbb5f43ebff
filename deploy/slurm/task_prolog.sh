#!/bin/sh
# SLURM's TaskProlog, as the user of a job before each task: what it prints becomes the environment.
# shellcheck source=deploy/slurm/settings
. "$(dirname "$(readlink -f "$0")")/settings"
case ${HAIPROF_ENABLED:-$by_default} in
    0 | false | no | off) exit 0 ;;
esac
[ -d "$tree/start" ] || exit 0
echo "export HAIPROF_ENABLED=1"
case :${PYTHONPATH:-}: in
    *":$tree/start:"*) ;;
    *) echo "export PYTHONPATH=$tree/start${PYTHONPATH:+:$PYTHONPATH}" ;;
esac
folder=$logs/$(id -un)
if [ -z "${HAIPROF_LOG_DIR:-}" ] && [ -d "$folder" ]; then
    echo "export HAIPROF_LOG_DIR=$folder"
fi
if [ -z "${HAIPROF_METRICS:-}" ] && [ -n "$textfiles" ]; then
    echo "export HAIPROF_METRICS=$textfiles/haiprof-$SLURM_JOB_ID.prom"
fi
exit 0
