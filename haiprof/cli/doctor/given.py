"""How a container is given what it lacks: the flags of Docker, the fields of Kubernetes.

Tests: tests/cli/test_doctor_container.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Given(NamedTuple):
    """One such thing. ``kubernetes`` is YAML: the field of the pod or of its container."""

    docker: str
    kubernetes: str

    def __str__(self) -> str:
        return f"Docker: {self.docker}; Kubernetes: {self.kubernetes}"


SHARED_MEMORY: Final = Given("--shm-size 1g", "emptyDir: {medium: Memory, sizeLimit: 1Gi}")
LOGS: Final = Given(
    "-v /data/haiprof-logs:/logs -e HAIPROF_LOG_DIR=/logs",
    "volumeMounts: [{name: logs, mountPath: /logs}]",
)
PERFMON: Final = Given("--cap-add PERFMON", "securityContext: {capabilities: {add: [PERFMON]}}")
PERFD: Final = Given(
    "-v /run/haiprof:/run/haiprof:ro", "hostPath: {path: /run/haiprof, type: Directory}"
)
PTRACE: Final = Given(
    "--cap-add SYS_PTRACE", "securityContext: {capabilities: {add: [SYS_PTRACE]}}"
)
#: The processes of another container, and those of the machine.
PROCESSES: Final = Given("--pid container:NAME", "shareProcessNamespace: true")
ALL_PROCESSES: Final = Given("--pid host", "hostPID: true")
NETWORK: Final = Given("--network host", "hostNetwork: true")
SYS: Final = Given("-v /sys:/host/sys:ro -e HAIPROF_SYSFS_ROOT=/host/sys", "hostPath: {path: /sys}")
