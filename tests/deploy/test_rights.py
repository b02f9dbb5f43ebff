"""What the manifests run starts with the very rights that they give, in namespaces.

A container here has the capabilities, the user, the read-only root and the volumes of its manifest,
and ``no_new_privs`` as ``allowPrivilegeEscalation: false`` sets it. Seccomp profiles belong to
runtimes, and are not tried.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from charts import pod_of, render
from containers import container
from fixtures import ROOT
from recording import process_file, read_table
from systemd import unit
from trees import PYTHON, a_wheel, install

pytestmark = pytest.mark.jobs

PERFMON = 38
SITE = Path(sys.executable).parents[1] / f"lib/python3.{sys.version_info[1]}/site-packages"
#: Starts the helper as its manifest does, and waits until it says that it listens at its socket.
HELPER = """
import os, subprocess, sys, time
from pathlib import Path
log = Path("{folder}/log")
helper = subprocess.Popen({words!r}, stderr=log.open("w"))
while "listens at /run/haiprof/perfd.sock" not in log.read_text():
    assert helper.poll() is None, log.read_text()
    time.sleep(0.01)
print("ready", flush=True)
while not Path("{folder}/END").exists():
    time.sleep(0.01)
helper.terminate()
sys.exit(helper.wait())
"""
#: Trains, if it may not do what a pod under the restricted standard may not.
JOB = """
import os, socket, time
from pathlib import Path
import torch

for folder in ("/", "/opt", "/haiprof", "/usr"):
    try:
        Path(folder, "written").touch()
    except OSError:
        continue
    raise SystemExit(f"{folder} can be written")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
print("ready", flush=True)
while not Path("/logs/END").exists():
    time.sleep(0.01)
print(os.getuid(), "trained")
"""


def confined(context: dict[str, Any]) -> str:
    """Return the shell's words that give up all but what a security context leaves."""
    capabilities = context["capabilities"]
    assert capabilities["drop"] == ["ALL"]
    kept = {"PERFMON": f"cap_{PERFMON}"}
    added = ",".join(f"+{kept[name]}" for name in capabilities.get("add", ()))
    sets = f"-all,{added}" if added else "-all"
    user, group = context["runAsUser"], context["runAsGroup"]
    words = [f"--reuid={user}", f"--regid={group}", "--clear-groups", f"--bounding-set={sets}"]
    words += ["--inh-caps=-all"]
    if context["allowPrivilegeEscalation"] is False:
        words += ["--no-new-privs"]
    return f'set -- setpriv {" ".join(words)} "$@"'


#: All that is not mounted anew is read-only.
READ_ONLY = """
for at in / /usr /opt/python /opt/all /bin /sbin /lib /lib64; do
    if mountpoint -q $at; then mount -o remount,ro,bind $at; fi
done
"""


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


def test_the_charts_helper_starts_with_exactly_its_capability(tmp_path: Path) -> None:
    (daemon_set,) = (d for d in render("--set=image.repository=x") if d["kind"] == "DaemonSet")
    (spec,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert spec["securityContext"]["readOnlyRootFilesystem"] is True
    volume = tmp_path / "volume"
    volume.mkdir()
    program = shutil.which("haiprof-perfd")
    assert program is not None
    shutil.copy(program, volume)
    words = [f"{volume}/{spec['command'][0]}", *spec["args"]]
    before = "mkdir -p run/haiprof host/sys\nmount -t tmpfs -o mode=755 none run/haiprof\n"
    before += "mount -t sysfs -o ro none host/sys 2>/dev/null || :\n"
    before += READ_ONLY + confined(spec["securityContext"])
    helper = HELPER.format(words=words, folder=volume)
    with container(tmp_path, helper, volume=str(volume), before=before) as pod:
        (pid,) = pod.children()
        found = status(pid)
        assert found["Uid"].split() == ["0"] * 4
        only = f"{1 << PERFMON:016x}"
        assert (found["CapBnd"], found["CapPrm"], found["CapEff"]) == (only, only, only)
        assert int(found["CapInh"], 16) == int(found["CapAmb"], 16) == 0
        assert found["NoNewPrivs"] == "1"
        log = (volume / "log").read_text()
        assert "listens at /run/haiprof/perfd.sock" in log
        assert "no right" not in log
        pod.finish(f"{volume}/END".lstrip("/"))


def test_the_unit_starts_the_helper_with_exactly_its_capability(tmp_path: Path) -> None:
    service = unit()["Service"]
    assert service["AmbientCapabilities"] == service["CapabilityBoundingSet"] == ["CAP_PERFMON"]
    assert service["NoNewPrivileges"] == ["yes"]
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o777)
    volume.chmod(0o777)
    program = shutil.which("haiprof-perfd")
    assert program is not None
    shutil.copy(program, volume)
    user, cap = 4242, f"cap_{PERFMON}"
    before = "mkdir -p run/haiprof\nmount -t tmpfs -o mode=755,uid=4242 none run/haiprof\n"
    before += READ_ONLY
    before += (
        f"set -- setpriv --reuid={user} --regid={user} --clear-groups --bounding-set=-all,+{cap} "
        f'--inh-caps=-all,+{cap} --ambient-caps=-all,+{cap} --no-new-privs "$@"'
    )
    words = [f"{volume}/haiprof-perfd", "--allow-any"]
    helper = HELPER.format(words=words, folder=volume)
    with container(tmp_path, helper, volume=str(volume), before=before) as service_:
        (pid,) = service_.children()
        found = status(pid)
        assert found["Uid"].split() == [str(user)] * 4
        only = f"{1 << PERFMON:016x}"
        assert (found["CapBnd"], found["CapPrm"], found["CapEff"]) == (only, only, only)
        assert "no right" not in (volume / "log").read_text()
        service_.finish(f"{volume}/END".lstrip("/"))


def test_without_its_capability_the_helper_says_so(tmp_path: Path) -> None:
    if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) < 1:
        pytest.skip("kernel.perf_event_paranoid lets every user count here")
    volume = tmp_path / "volume"
    volume.mkdir()
    program = shutil.which("haiprof-perfd")
    assert program is not None
    shutil.copy(program, volume)
    context = {
        "capabilities": {"drop": ["ALL"]},
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
    }
    before = "mkdir -p run/haiprof\nmount -t tmpfs -o mode=755 none run/haiprof\n"
    before += READ_ONLY + confined(context)
    helper = HELPER.format(words=[f"{volume}/haiprof-perfd"], folder=volume)
    with container(tmp_path, helper, volume=str(volume), before=before) as pod:
        assert "no right to open counters" in (volume / "log").read_text()
        pod.finish(f"{volume}/END".lstrip("/"))


def test_a_job_without_rights_is_recorded_by_what_the_other_image_brings(tmp_path: Path) -> None:
    """deploy/kubernetes/job-without-haiprof.yaml, with the tree that its first container copies."""
    if not PYTHON.exists():
        pytest.skip(f"there is no {PYTHON}")
    pod = pod_of(ROOT / "deploy/kubernetes/job-without-haiprof.yaml")
    (spec,) = pod["containers"]
    context = {**pod["securityContext"], **spec["securityContext"]}
    assert context["readOnlyRootFilesystem"] is True
    volume = tmp_path / "volume"
    (volume / "logs").mkdir(parents=True)
    (volume / "logs").chmod(0o777)
    tree = volume / "haiprof"
    install(tree, a_wheel(tmp_path), PYTHON)
    # What it needs of others, which the tree of an image has, too.
    for name in ("pyarrow", "numpy", "numpy.libs", "isal"):
        (tree / f"site/3.{sys.version_info[1]}" / name).symlink_to(f"/opt/all/{name}")
    variables = {each["name"]: each.get("value", "train") for each in spec["env"]}
    variables.pop("HAIPROF_METRICS")
    before = f"mkdir haiprof logs\nmount --bind {volume}/haiprof haiprof\n"
    before += f"mount --bind {volume}/logs logs\nmount -o remount,ro,bind haiprof\n"
    before += "".join(f"export {name}='{value}'\n" for name, value in variables.items())
    before += 'export PYTHONPATH="$PYTHONPATH:/opt/site" HOME=/tmp\n'
    before += "mount -t tmpfs -o mode=1777 none tmp\n"
    before += READ_ONLY + confined(context)
    with container(tmp_path, JOB, packages=str(SITE), volume=str(volume), before=before) as job:
        found = status(job.pid)
        assert found["Uid"].split() == [str(context["runAsUser"])] * 4
        assert all(int(found[f"Cap{kind}"], 16) == 0 for kind in ("Bnd", "Prm", "Eff", "Amb"))
        assert found["NoNewPrivs"] == "1"
        assert job.finish("logs/END") == f"{context['runAsUser']} trained\n"
        assert job.stderr == ""
    (folder,) = (volume / "logs").glob("train/*#0")
    assert process_file(folder)["state"] == "closed"
    spans = read_table(folder, "spans")
    assert spans["name"].to_pylist().count("forward") == 30
