"""The chart renders what Kubernetes accepts, with no more rights than haiprof-perfd needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts import CHART, check, render, run_helm
from fixtures import ROOT
from pod_security import against_baseline

import haiprof
from haiprof.cli.doctor import rights

DASHBOARDS = ROOT / "haiprof/dashboards"
IMAGE = "--set=image.repository=train/haiprof"
ALL = (
    IMAGE,
    "--set=perfd.namespaces={one,two}",
    "--set=perfd.allow.users={1000}",
    "--set=perfd.allow.groups={2000,2001}",
    "--set=image.pullSecrets={secret}",
    "--set=perfd.priorityClassName=system-node-critical",
    "--set=perfd.nodeSelector.gpu=yes",
    "--set=perfd.tolerations[0].operator=Exists",
    "--set=podMonitor.enabled=true",
    "--set=podMonitor.labels.release=prometheus",
    "--set=podMonitor.namespaces={one}",
    "--set=rules.enabled=true",
    "--set=rules.labels.release=prometheus",
    "--set=dashboards.annotations.grafana_folder=haiprof",
)


@pytest.fixture(scope="module")
def everything() -> list[dict[str, Any]]:
    return render(*ALL)


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def helpers_pod(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (daemon_set,) = of_kind(documents, "DaemonSet")
    pod: dict[str, Any] = daemon_set["spec"]["template"]["spec"]
    return pod


def test_helm_finds_nothing_to_say_of_it() -> None:
    done = run_helm("lint", "--strict", CHART, *ALL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


def test_each_manifest_is_as_its_schema_has_it(everything: list[dict[str, Any]]) -> None:
    for document in [*everything, *render(IMAGE)]:
        check(document)
    kinds = {document["kind"] for document in everything}
    assert kinds == {
        *("DaemonSet", "PersistentVolume", "PersistentVolumeClaim"),
        *("ConfigMap", "PodMonitor", "PrometheusRule"),
    }


@pytest.mark.parametrize("kind", ["DaemonSet", "PodMonitor", "PrometheusRule"])
def test_a_word_that_no_schema_has_is_found(everything: list[dict[str, Any]], kind: str) -> None:
    (document,) = of_kind(everything, kind)
    wrong = json.loads(json.dumps(document))
    wrong["spec"]["frobnicate"] = True
    with pytest.raises(Exception, match="frobnicate"):
        check(wrong)


def test_the_helper_has_one_capability_and_is_not_privileged(
    everything: list[dict[str, Any]],
) -> None:
    pod = helpers_pod(everything)
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["PERFMON"]}
    assert set(context["capabilities"]["add"]) <= set(rights.CAPABILITIES.values())
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert pod["automountServiceAccountToken"] is False
    # What the baseline forbids is why it runs beside the jobs: nothing else is.
    assert against_baseline(pod) == {"hostPath", "capability PERFMON"}
    writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
    assert writable == ["/run/haiprof"]


def test_the_helper_knows_the_options_that_it_is_given(
    everything: list[dict[str, Any]],
) -> None:
    (container,) = helpers_pod(everything)["containers"]
    assert container["args"] == [
        *("--sysfs-root=/host/sys", "--allow-uid=1000"),
        *("--allow-group=2000", "--allow-group=2001"),
    ]
    anybody = helpers_pod(render(IMAGE, "--set=perfd.allow.any=true"))["containers"][0]["args"]
    assert anybody == ["--sysfs-root=/host/sys", "--allow-any"]
    large = helpers_pod(render(IMAGE, "--set=perfd.allow.users={4294967294}"))["containers"][0]
    assert large["args"][-1] == "--allow-uid=4294967294"


def test_nothing_runs_but_the_helper(everything: list[dict[str, Any]]) -> None:
    """The recorder of each job serves its metrics: there is no exporter to run."""
    assert len(of_kind(everything, "DaemonSet")) == 1
    assert len(helpers_pod(everything)["containers"]) == 1
    assert not of_kind(render("--set=perfd.enabled=false"), "DaemonSet")


def test_each_namespace_has_a_claim_of_its_own_on_the_helpers_folder(
    everything: list[dict[str, Any]],
) -> None:
    volumes = {v["metadata"]["name"]: v["spec"] for v in of_kind(everything, "PersistentVolume")}
    claims = of_kind(everything, "PersistentVolumeClaim")
    assert [claim["metadata"]["namespace"] for claim in claims] == ["one", "two"]
    assert len(volumes) == 2
    for claim in claims:
        volume = volumes[claim["spec"]["volumeName"]]
        names = {key: claim["metadata"][key] for key in ("namespace", "name")}
        assert volume["claimRef"] == names
        assert volume["hostPath"]["path"] == "/run/haiprof"
        assert claim["spec"]["accessModes"] == volume["accessModes"] == ["ReadOnlyMany"]
        assert claim["spec"]["storageClassName"] == volume["storageClassName"] == ""


def test_dashboards_and_alerts_are_those_of_the_package(everything: list[dict[str, Any]]) -> None:
    found = {}
    for map_ in of_kind(everything, "ConfigMap"):
        assert map_["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert map_["metadata"]["annotations"] == {"grafana_folder": "haiprof"}
        found.update(map_["data"])
    assert {name: json.loads(text) for name, text in found.items()} == {
        f"haiprof-{path.name}": json.loads(path.read_text("utf-8"))
        for path in DASHBOARDS.glob("*.json")
    }
    (rule,) = of_kind(everything, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((DASHBOARDS / "alerts.yml").read_text("utf-8"))
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_a_package_of_the_chart_has_the_dashboards(
    everything: list[dict[str, Any]], tmp_path: Path
) -> None:
    done = run_helm("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("haiprof-*.tgz")
    assert render(*ALL, chart=package) == everything


def test_prometheus_scrapes_the_pods_of_the_namespaces(everything: list[dict[str, Any]]) -> None:
    (monitor,) = of_kind(everything, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["one"]}
    (open_,) = of_kind(render(IMAGE, "--set=podMonitor.enabled=true"), "PodMonitor")
    assert open_["spec"]["namespaceSelector"] == {"any": True}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "image.repository: name the image that you built from deploy/Dockerfile"),
        ((IMAGE, "--set=perfd.enable=false"), "'enable' not allowed"),
        ((IMAGE, "--set=perfd.allow.users={root}"), "got string, want integer"),
        ((IMAGE, "--set=podMonitor.interval=often"), "does not match pattern"),
    ],
)
def test_a_wrong_value_is_named(words: tuple[str, ...], line: str) -> None:
    done = run_helm("template", "haiprof", CHART, *words)
    assert done.returncode != 0
    assert line in done.stderr


@pytest.mark.parametrize(
    ("release", "name"), [("haiprof", "haiprof-perfd"), ("a" * 53, f"haiprof-{'a' * 32}-perfd")]
)
def test_names_are_short_enough(release: str, name: str) -> None:
    (daemon_set,) = of_kind(render(IMAGE, release=release), "DaemonSet")
    assert daemon_set["metadata"]["name"] == name


def test_the_charts_version_is_haiprofs() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (version,) = {chart["version"], chart["appVersion"]}
    assert version == haiprof.__version__
    (container,) = helpers_pod(render(IMAGE))["containers"]
    assert container["image"] == f"train/haiprof:{version}"


def test_what_it_says_after_the_installation_is_true() -> None:
    template = (CHART / "templates/NOTES.txt").read_text()
    assert "{{" in template
    done = run_helm("install", "haiprof", CHART, "--dry-run=client", *ALL)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "daemonset/haiprof-perfd" in notes
    assert "haiprof-metrics=true" in notes
    assert "serves root alone" not in notes
