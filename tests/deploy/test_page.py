"""docs/clusters.md: what it shows is run, rendered or compared with the file that it is of."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from charts import check, helm
from fixtures import ROOT
from trees import PYTHON, a_wheel

PAGE = (ROOT / "docs/clusters.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHELL = "\n".join(text for kind, text in BLOCKS if kind == "sh")
#: Programs that have nothing to do here: their words are noted.
NOTED = ("docker", "kubectl", "systemctl", "systemd-sysusers", "module", "srun", "haiprof")
NOTE = """#!/bin/sh
for word in {name} "$@"; do printf '%s\\0' "$word"; done >> {notes}
printf '\\n' >> {notes}
"""
#: The Python of a machine: it has no compiler, so that it takes a wheel in place of the sources.
MACHINES_PYTHON = """#!/bin/sh
for word; do
    shift
    case $word in .\\[*\\]) word={wheel}${{word#.}} ;; esac
    set -- "$@" "$word"
done
exec {python} "$@"
"""


class Ran(NamedTuple):
    """What the commands of the page left, where, and the words of those that were noted."""

    folder: Path
    noted: list[list[str]]
    rendered: str


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run all commands of the page, one after the other, with another root."""
    if not PYTHON.exists():
        pytest.skip(f"there is no {PYTHON}")
    folder, bin_ = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("bin")
    clone = folder / "clone"
    clone.mkdir()
    (clone / "deploy").symlink_to(ROOT / "deploy")
    (values,) = (text for kind, text in BLOCKS if kind == "yaml")
    (clone / "values.yaml").write_text(values)
    notes = folder / "notes"
    for name in NOTED:
        (bin_ / name).write_text(NOTE.format(name=name, notes=notes))
    render = f'shift 2\nexec {shlex.quote(helm())} template "$@"'
    (bin_ / "helm").write_text(f"#!/bin/sh\n{render} > {folder / 'rendered'}\n")
    wheel = a_wheel(tmp_path_factory.mktemp("wheel"))
    (bin_ / "python3").write_text(MACHINES_PYTHON.format(wheel=wheel, python=PYTHON))
    for program in bin_.iterdir():
        program.chmod(0o755)
    script = re.sub(r"(?<![\w.])/(?=(?:etc|opt)/)", f"{folder}/", SHELL)
    done = subprocess.run(
        ["bash", "-euc", script.replace("export PYTHONPATH", "export UNUSED")],
        cwd=clone,
        env={
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "IMAGE": "train/haiprof",
            "PIP_NO_DEPS": "1",
            "HOME": str(folder),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    noted = [line.split("\0")[:-1] for line in notes.read_text().splitlines()]
    return Ran(folder, noted, (folder / "rendered").read_text())


def test_shellcheck_finds_nothing_to_say_of_its_commands() -> None:
    program = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("shellcheck is not installed")
    commands = f"IMAGE=$1\n{SHELL}"
    done = subprocess.run(
        [program, "--shell=bash", "-"], input=commands, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    kinds = [kind for kind, _ in BLOCKS]
    assert set(kinds) == {"sh", "yaml", ""}
    assert kinds.count("yaml") == kinds.count("") == 1


def test_its_tree_has_haiprof_for_the_python_that_it_names(ran: Ran) -> None:
    tree = ran.folder / "opt/haiprof"
    (shown,) = re.findall(r"^export (PYTHONPATH=\S+) (HAIPROF_ENABLED=1)$", PAGE, re.MULTILINE)
    variables = dict(each.replace("/opt/haiprof", str(tree)).split("=") for each in shown)
    done = subprocess.run(
        [PYTHON, "-c", "import haiprof, sys; print(haiprof.__file__, sys._haiprof_armed)"],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(tree / "site")), done.stderr
    assert done.stdout.endswith(" True\n")


def test_its_image_is_built_by_what_the_dockerfile_knows(ran: Ran) -> None:
    build, push = (words for words in ran.noted if words[0] == "docker")
    assert build[1:3] == ["build", "-f"]
    text = (ROOT / build[3]).read_text("utf-8")
    (argument,) = (words.split("=")[0] for words in build if words.startswith("PYTHON="))
    assert f"ARG {argument}=" in text
    assert push == ["docker", "push", build[build.index("-t") + 1]]


def test_its_values_are_the_charts(ran: Ran) -> None:
    documents = list(filter(None, yaml.safe_load_all(ran.rendered)))
    for document in documents:
        check(document)
    kinds = {document["kind"] for document in documents}
    assert kinds >= {"DaemonSet", "PersistentVolumeClaim", "PodMonitor", "PrometheusRule"}
    names = {f"{d['kind']}/{d['metadata']['name']}".lower() for d in documents}
    (waited,) = (words[-1] for words in ran.noted if words[:1] == ["kubectl"] and "status" in words)
    assert waited in names


def test_what_kubectl_applies_is_there_and_the_namespaces_are_those_of_the_page(ran: Ran) -> None:
    files = [words[-1] for words in ran.noted if words[0] == "kubectl" and "apply" in words]
    assert len(files) == 2
    namespaces = list(yaml.safe_load_all((ROOT / files[0]).read_text("utf-8")))
    for document in namespaces:
        check(document)
    levels = {
        d["metadata"]["name"]: d["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for d in namespaces
    }
    assert levels == {"haiprof": "privileged", "training": "restricted"}
    claims = [d for d in yaml.safe_load_all(ran.rendered) if d and "Claim" in d["kind"]]
    assert [claim["metadata"]["namespace"] for claim in claims] == ["training"]
    assert (ROOT / files[1]).is_file()


def test_slurm_is_told_of_scripts_that_are_installed(ran: Ran) -> None:
    (configuration,) = (text for kind, text in BLOCKS if kind == "")
    scripts = dict(line.split("=") for line in configuration.splitlines())
    assert scripts.keys() == {"Prolog", "TaskProlog", "Epilog"}
    for path in scripts.values():
        installed = ran.folder / path.lstrip("/")
        assert os.access(installed, os.X_OK)
        assert (installed.parent / "settings").is_file()
    described = set(re.findall(r"^\| `(\w+\.sh)` \|", PAGE, re.MULTILINE))
    assert described == {Path(path).name for path in scripts.values()}


def test_the_module_and_the_service_are_installed_where_they_are_looked_for(ran: Ran) -> None:
    module = ran.folder / "opt/modulefiles/haiprof/0.1.0"
    assert module.read_text() == (ROOT / "deploy/modules/haiprof").read_text()
    unit = (ran.folder / "etc/systemd/system/haiprof-perfd.service").read_text()
    assert "EnvironmentFile=-/etc/haiprof/perfd\n" in unit
    (line,) = (ran.folder / "etc/haiprof/perfd").read_text().splitlines()
    name, _, options = line.partition("=")
    assert f"${name}" in unit
    program = ran.folder / "opt/haiprof/bin/haiprof-perfd"
    assert f"ExecStart=/{program.relative_to(ran.folder)} " in unit
    text = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
    assert options.partition("=")[0] in text
    assert (ran.folder / "etc/sysusers.d/haiprof.conf").is_file()


def test_its_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE)
    assert len(targets) > 10
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target
    assert "docs/clusters.md" in (ROOT / "README.md").read_text("utf-8")


def test_it_names_no_image_as_if_somebody_had_published_it() -> None:
    images = set()
    for path in (ROOT / "deploy").rglob("*"):
        if path.is_file() and path.suffix in (".yaml", ".tpl"):
            images |= set(re.findall(r"image: (?!$)([^\s{\"]+)$", path.read_text(), re.MULTILINE))
    assert images == {"registry.example/train", "registry.example/haiprof"}
