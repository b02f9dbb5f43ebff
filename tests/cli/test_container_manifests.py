"""examples/containers, docs/containers.md and ``haiprof doctor`` agree."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from haiprof.cli.app import app
from haiprof.cli.doctor import given, rights
from haiprof.cli.doctor.container import rings_that_fit
from haiprof.cli.doctor.given import Given
from haiprof.options import OPTIONS, Options

TOP = Path(__file__).parents[2]
EXAMPLES = TOP / "examples/containers"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))
PODS = [path for path in MANIFESTS if path.name != "compose.yaml"]
GUIDE = (TOP / "docs/containers.md").read_text()

#: What doctor says to add, and the manifest that adds it.
ADDED = {
    "SHARED_MEMORY": "pod.yaml",
    "LOGS": "pod.yaml",
    "PERFD": "pod.yaml",
    "SYS": "pod.yaml",
    "PERFMON": "perfd.yaml",
    "PTRACE": "sidecar.yaml",
    "PROCESSES": "sidecar.yaml",
    "ALL_PROCESSES": "node.yaml",
    "NETWORK": "node.yaml",
}
NEEDS = {name: each for name, each in vars(given).items() if isinstance(each, Given)}
#: Those that a job has no use for itself.
NOT_THE_JOBS = {"PERFMON", "PTRACE", "PROCESSES", "ALL_PROCESSES", "NETWORK"}


def load(path: Path) -> dict[str, Any]:
    (document,) = yaml.safe_load_all(path.read_text())
    assert isinstance(document, dict)
    return document


def within(part: Any, whole: Any) -> bool:
    """Whether a part of a document is in it: mappings with those keys, lists with those items."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(within(item, other) for other in whole) for item in part)
    return bool(part == whole)


def nodes(document: Any) -> Iterator[Any]:
    yield document
    children = document.values() if isinstance(document, dict) else document
    if isinstance(document, (dict, list)):
        for child in children:
            yield from nodes(child)


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [node for node in nodes(document) if isinstance(node, dict) and "containers" in node]


def size(text: str) -> int:
    """Return the bytes of a quantity of Kubernetes."""
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", text).groups()  # type: ignore[union-attr]
    return int(number) << (20 if unit == "Mi" else 30)


def test_every_need_has_a_manifest() -> None:
    assert ADDED.keys() == NEEDS.keys()


@pytest.mark.parametrize("name", ADDED)
def test_what_doctor_says_to_add_is_in_the_manifest_and_in_the_guide(name: str) -> None:
    need = NEEDS[name]
    wanted = yaml.safe_load(need.kubernetes)
    assert any(within(wanted, node) for node in nodes(load(EXAMPLES / ADDED[name]))), wanted
    for flags in re.split(r"(?= -e )", need.docker):
        assert flags.strip() in GUIDE
    assert need.kubernetes in GUIDE
    if name not in NOT_THE_JOBS:
        job = shlex.split((EXAMPLES / "docker-run.sh").read_text(), comments=True)
        assert set(shlex.split(need.docker)) <= set(job)


@pytest.mark.parametrize("path", PODS, ids=lambda p: p.name)
def test_a_pod_is_whole(path: Path) -> None:
    document = load(path)
    assert {"apiVersion", "kind", "metadata", "spec"} == document.keys()
    if document["kind"] == "DaemonSet":
        spec = document["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert pods(document)
    for pod in pods(document):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert len(volumes) == len(pod["volumes"])
        assert all(len(volume) == 2 for volume in volumes.values())
        used = [mount["name"] for c in pod["containers"] for mount in c["volumeMounts"]]
        assert set(used) == set(volumes)
        for container in pod["containers"]:
            check_container(container, volumes)


def check_container(container: dict[str, Any], volumes: dict[str, Any]) -> None:
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    limits = container["resources"]["limits"]
    capabilities = container.get("securityContext", {}).get("capabilities", {})
    assert set(capabilities.get("add", ())) <= set(rights.CAPABILITIES.values())
    variables = {each["name"]: each.get("value") for each in container.get("env", ())}
    known = {option.variable for option in OPTIONS.values()}
    assert {v for v in variables if v.startswith("HAIPROF_")} <= known
    if "HAIPROF_LOG_DIR" in variables:
        # Doctor would say that an emptyDir ends with the pod.
        logs = volumes[mounts[variables["HAIPROF_LOG_DIR"]]["name"]]
        assert "emptyDir" not in logs
    if "HAIPROF_SYSFS_ROOT" in variables:
        mount = mounts[variables["HAIPROF_SYSFS_ROOT"]]
        assert mount["readOnly"]
        assert volumes[mount["name"]]["hostPath"] == {"path": "/sys"}
    if "/dev/shm" in mounts:
        shm = volumes[mounts["/dev/shm"]["name"]]["emptyDir"]
        fit, _ = rings_that_fit(size(shm["sizeLimit"]), Options().ring_mib << 20)
        assert shm["medium"] == "Memory"
        assert fit >= limits["nvidia.com/gpu"]
        assert size(limits["memory"]) > size(shm["sizeLimit"])
    check_command([str(word) for word in container["command"]])


def check_command(words: list[str]) -> None:
    """Run what is ours of a command, as far as to see that it knows its arguments."""
    if words[:2] == ["haiprof", "run"]:
        assert words[2] == "--"
        words = words[3:]
    if words[0] == "haiprof-perfd":
        program = shutil.which("haiprof-perfd")
        if program is None:
            pytest.skip("haiprof-perfd is not installed")
        help_text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
        assert all(word in help_text.stdout for word in words[1:] if word.startswith("--"))
        return
    assert words[0] in ("torchrun", "sleep")


def test_the_services_of_compose_belong_together() -> None:
    services = load(EXAMPLES / "compose.yaml")["services"]
    assert services.keys() == {"train", "perfd", "attach"}
    train, perfd, attach = services["train"], services["perfd"], services["attach"]
    assert within(["/run/haiprof:/run/haiprof:ro", "/sys:/host/sys:ro"], train["volumes"])
    assert "/run/haiprof:/run/haiprof" in perfd["volumes"]
    assert f"{train['environment']['HAIPROF_SYSFS_ROOT']}:ro" in "".join(train["volumes"])
    assert perfd["cap_add"] == ["PERFMON"]
    assert attach["pid"] == "service:train"
    assert attach["cap_add"] == ["SYS_PTRACE"]
    # One folder at one place, so that the run is written there at once.
    assert attach["environment"].items() <= train["environment"].items()
    assert set(attach["volumes"]) <= set(train["volumes"])
    assert rings_that_fit(1 << 30, Options().ring_mib << 20)[0] >= 8
    assert train["shm_size"] == "1g"
    for service in (train, perfd):
        check_command(service["command"])


def test_the_script_is_one_of_the_shell() -> None:
    path = EXAMPLES / "docker-run.sh"
    assert path.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", path], check=True)
    words = shlex.split(path.read_text(), comments=True)
    check_command(words[words.index("haiprof") :])


def test_what_the_manifests_say_to_type_is_known() -> None:
    """Their first lines show how to attach."""
    for path in MANIFESTS:
        for line in path.read_text().splitlines():
            if line.startswith("#   ") and "haiprof attach" in line:
                words = shlex.split(line.rpartition("haiprof attach")[2])
                assert "train.py" in words
                # Another test may run a train.py just now.
                words = [word.replace("train.py", "of-nobody.py") for word in words]
                done = CliRunner().invoke(app, ["attach", *words, "--dry-run"])
                assert "of-nobody.py: no Python process here runs it" in done.output


def test_the_guide_names_every_manifest_and_no_other() -> None:
    named = set(re.findall(r"\(\.\./examples/containers/([^)]+)\)", GUIDE))
    assert named == {path.name for path in EXAMPLES.iterdir()}


@pytest.mark.parametrize("name", ["containers", "doctor", "attach", "perfd"])
def test_links_between_the_pages_lead_somewhere(name: str) -> None:
    page = TOP / "docs" / f"{name}.md"
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target
