#!/bin/sh
# A training job under haiprof, with all that a container can be given: docs/containers.md.
exec docker run --rm --gpus all \
    --shm-size 1g \
    -v /data/haiprof-logs:/logs -e HAIPROF_LOG_DIR=/logs \
    -v /run/haiprof:/run/haiprof:ro \
    -v /sys:/host/sys:ro -e HAIPROF_SYSFS_ROOT=/host/sys \
    registry.example/train \
    haiprof run -- torchrun --nproc-per-node 8 train.py
