"""What Kubernetes' pod security standards forbid, in a pod's specification.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}
#: Of the baseline, for containers that are not under the restricted standard.
_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
_SELINUX = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies"),
    *("net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start"),
    *("net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time"),
    *("net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes"),
}


def containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind, ())


def against_baseline(pod: dict[str, Any]) -> set[str]:
    """Return what the baseline standard, which the restricted one includes, forbids of a pod."""
    of_pod = pod.get("securityContext", {})
    found = {key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)}
    found |= {"hostPath" for volume in pod.get("volumes", ()) if "hostPath" in volume}
    found |= {f"sysctl {s['name']}" for s in of_pod.get("sysctls", ()) if s["name"] not in _SYSCTLS}
    for each in (of_pod, *(c.get("securityContext", {}) for c in containers(pod))):
        if each.get("privileged"):
            found.add("privileged")
        if each.get("windowsOptions", {}).get("hostProcess"):
            found.add("hostProcess")
        if each.get("procMount", "Default") != "Default":
            found.add("procMount")
        if each.get("seccompProfile", {}).get("type") == "Unconfined":
            found.add("seccomp Unconfined")
        if each.get("appArmorProfile", {}).get("type") == "Unconfined":
            found.add("AppArmor Unconfined")
        options = each.get("seLinuxOptions", {})
        if options.get("user") or options.get("role"):
            found.add("SELinux")
        if options.get("type", "") not in _SELINUX:
            found.add("SELinux")
        added = set(each.get("capabilities", {}).get("add", ())) - _CAPABILITIES
        found |= {f"capability {name}" for name in added}
    for container in containers(pod):
        found |= {"hostPort" for port in container.get("ports", ()) if port.get("hostPort")}
    return found


def against_restricted(pod: dict[str, Any]) -> set[str]:
    """Return what the restricted standard forbids of a pod."""
    found = against_baseline(pod)
    of_pod = pod.get("securityContext", {})
    for volume in pod.get("volumes", ()):
        found |= {f"volume {kind}" for kind in volume.keys() - {"name"} - _VOLUMES}
    if of_pod.get("runAsUser") == 0:
        found.add("runAsUser 0")
    for container in containers(pod):
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False:
            found.add("allowPrivilegeEscalation")
        if not own.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
            found.add("runAsNonRoot")
        if own.get("runAsUser") == 0:
            found.add("runAsUser 0")
        seccomp = own.get("seccompProfile", of_pod.get("seccompProfile", {})).get("type")
        if seccomp not in ("RuntimeDefault", "Localhost"):
            found.add("seccompProfile")
        capabilities = own.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", ()):
            found.add("capabilities not dropped")
        added = set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}
        found |= {f"capability {name}" for name in added}
    return found
