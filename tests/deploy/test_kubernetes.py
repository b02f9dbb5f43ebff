"""Jobs of deploy/kubernetes: Kubernetes accepts them, under its restricted standard for pods.

tests/deploy/test_rights.py runs what they run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from charts import check, load, pod_of, render
from fixtures import ROOT
from pod_security import against_restricted, containers

from haiprof.cli.doctor.container import rings_that_fit
from haiprof.common.metrics_targets import targets_of
from haiprof.options import ENABLED_VARIABLE, OPTIONS, Options

JOBS = sorted((ROOT / "deploy/kubernetes").glob("job*.yaml"))


@pytest.mark.parametrize("path", JOBS, ids=lambda p: p.name)
def test_it_is_as_its_schema_has_it(path: Path) -> None:
    document = load(path)
    assert document["kind"] == "Job"
    check(document)


@pytest.mark.parametrize("path", JOBS, ids=lambda p: p.name)
def test_the_restricted_standard_allows_it(path: Path) -> None:
    assert against_restricted(pod_of(path)) == set()
    for container in containers(pod_of(path)):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def of_pod(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda pod: pod.__setitem__(key, value)


def of_container(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda pod: pod["containers"][0]["securityContext"].__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (of_pod("hostNetwork", True), "hostNetwork"),
        (of_pod("hostPID", True), "hostPID"),
        (of_pod("hostIPC", True), "hostIPC"),
        (of_pod("securityContext", {"runAsNonRoot": True}), "seccompProfile"),
        (of_container("privileged", True), "privileged"),
        (of_container("procMount", "Unmasked"), "procMount"),
        (of_container("runAsUser", 0), "runAsUser 0"),
        (of_container("runAsNonRoot", False), "runAsNonRoot"),
        (of_container("allowPrivilegeEscalation", True), "allowPrivilegeEscalation"),
        (of_container("capabilities", {}), "capabilities not dropped"),
        (of_container("capabilities", {"drop": ["ALL"], "add": ["CHOWN"]}), "capability CHOWN"),
        (of_container("seccompProfile", {"type": "Unconfined"}), "seccomp Unconfined"),
        (of_container("appArmorProfile", {"type": "Unconfined"}), "AppArmor Unconfined"),
        (of_container("seLinuxOptions", {"type": "spc_t"}), "SELinux"),
        (lambda pod: pod["volumes"].append({"name": "x", "hostPath": {"path": "/"}}), "hostPath"),
        (lambda pod: pod["volumes"].append({"name": "x", "nfs": {}}), "volume nfs"),
        (lambda pod: pod["containers"][0]["ports"][0].update(hostPort=9464), "hostPort"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_standard_forbids_is_found(
    change: Callable[[dict[str, Any]], None], named: str
) -> None:
    pod = copy.deepcopy(pod_of(JOBS[0]))
    change(pod)
    assert named in against_restricted(pod)


@pytest.mark.parametrize("path", JOBS, ids=lambda p: p.name)
def test_its_recorder_has_what_it_needs(path: Path) -> None:
    pod = pod_of(path)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    used = {mount["name"] for each in containers(pod) for mount in each["volumeMounts"]}
    assert used == volumes.keys()
    variables = {each["name"]: each.get("value") for each in container["env"]}
    known = {option.variable for option in OPTIONS.values()} | {ENABLED_VARIABLE}
    assert variables.keys() - known <= {"PYTHONPATH"}
    assert variables[ENABLED_VARIABLE] == "1"
    assert "persistentVolumeClaim" in mounts[variables["HAIPROF_LOG_DIR"]]
    shm = mounts["/dev/shm"]["emptyDir"]
    assert shm == {"medium": "Memory", "sizeLimit": "1Gi"}
    ranks = container["resources"]["limits"]["nvidia.com/gpu"]
    assert rings_that_fit(1 << 30, Options().ring_mib << 20)[0] >= ranks


@pytest.mark.parametrize("path", JOBS, ids=lambda p: p.name)
def test_the_chart_finds_its_metrics_and_has_its_claim(path: Path) -> None:
    chart = render(
        "--set=image.repository=x,podMonitor.enabled=true", "--set=perfd.namespaces={training}"
    )
    (monitor,) = (d["spec"] for d in chart if d["kind"] == "PodMonitor")
    (claim,) = (d for d in chart if d["kind"] == "PersistentVolumeClaim")
    labels = load(path)["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    pod = pod_of(path)
    (container,) = pod["containers"]
    (port,) = container["ports"]
    assert port["name"] == monitor["podMetricsEndpoints"][0]["port"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    (address,) = targets_of(variables["HAIPROF_METRICS"]).addresses
    assert address == ("0.0.0.0", port["containerPort"])
    (name,) = (m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/run/haiprof")
    (perfd,) = (volume for volume in pod["volumes"] if volume["name"] == name)
    assert perfd["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_image_without_haiprof_has_it_from_the_image_of_the_dockerfile() -> None:
    pod = pod_of(ROOT / "deploy/kubernetes/job-without-haiprof.yaml")
    (first,) = pod["initContainers"]
    (job,) = pod["containers"]
    command, recursive, source, target = first["command"]
    assert (command, recursive) == ("cp", "-r")
    dockerfile = (ROOT / "deploy/Dockerfile").read_text("utf-8")
    assert f"COPY --from=build {source.removesuffix('/.')} " in dockerfile
    assert [mount["mountPath"] for mount in first["volumeMounts"]] == [target]
    (mount,) = (m for m in job["volumeMounts"] if m["mountPath"] == target)
    assert mount["readOnly"] is True
    assert {"name": "PYTHONPATH", "value": f"{target}/start"} in job["env"]
