"""Every source of samples, recorder by recorder: readable here? If not: why, and how to fix it.

Tests: tests/cli/test_doctor_require.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any, Final

from haiprof.cli.doctor import given, job
from haiprof.cli.doctor.finding import BROKEN, OK, Finding, failed
from haiprof.common.places import PROCFS, SYSFS, Access, in_container
from haiprof.options import ENABLED_VARIABLE, HOST_RECORDERS

#: Words of a reason or fix -> where it is explained, and how to give it to a container.
_MORE: Final = (
    (("perfmon", "perf_event_paranoid"), "docs/doctor.md#counters", str(given.PERFMON)),
    (
        ("network namespace", "hostnetwork", "netns"),
        "docs/doctor.md#the-hosts-network",
        str(given.NETWORK),
    ),
    (("ptrace",), "docs/doctor.md#io-of-other-users-processes", str(given.PTRACE)),
    (("resctrl",), "docs/doctor.md#resctrl", ""),
    (
        ("sysfs_root", "sysfs-root"),
        "docs/doctor.md#the-hosts-sys-and-proc",
        f"{given.SYS}, mounted read-only",
    ),
)


def host_sources(access: Access) -> Iterator[Finding]:
    """Open the sources of each recorder separately and read each once, as a recorder would."""
    for recorder in HOST_RECORDERS:
        if recorder == "gpu":
            yield from _guarded(recorder, gpu_sampling())
        else:
            yield from _guarded(recorder, _of_recorder(recorder, access))


def _guarded(recorder: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """A recorder whose sources cannot even be asked must not hide the others."""
    try:
        yield from findings
    except Exception as error:
        yield failed(f"{recorder} sources", error, recorder)


def _of_recorder(recorder: str, access: Access) -> Iterator[Finding]:
    from haiprof._core import HostSampler

    intervals: dict[str, Any] = dict.fromkeys(HOST_RECORDERS, 0.0)
    sampler = HostSampler(
        **(intervals | {recorder: 1.0} | access._asdict()), own_procfs=PROCFS, own_sysfs=SYSFS
    )
    sampler.watch(os.getpid())  # some sources are those of a process
    sampler.read(time.monotonic_ns())
    for source in sampler.sources():
        what, state = f"host {source['name']}", source["state"]
        if state == OK:
            found = ", ".join(source.get("metrics") or ()) or "events"
            yield Finding(what, OK, found, "", recorder)
        else:
            fix = explained(source["reason"], source["mend"] or "")
            yield Finding(what, state, source["reason"], fix, recorder)


def explained(reason: str, fix: str) -> str:
    """Add to a fix where it is explained and, in a container, how containers are given it."""
    said = f"{reason} {fix}".lower()
    for words, where, gives in _MORE:
        if any(word in said for word in words):
            known = not in_container() or "kubernetes" in said or "hostnetwork" in said
            return "; ".join(filter(None, [fix, "" if known else gives, f"see {where}"]))
    return fix


def gpu_sampling() -> Iterator[Finding]:
    """Sample every GPU as a recorder would, in an interpreter of its own."""
    what, counters = "GPU sampling", "GPU counters"
    program = "import json; from haiprof.cli.gpus import look; print(json.dumps(look()))"
    code, said, error = job.ask_python(program, ENABLED_VARIABLE, "0")
    if code != 0:
        found = f"asking NVML ended with {code}: {error}"
        yield Finding(what, BROKEN, found, "see nvidia-smi", "gpu")
        return
    answer = json.loads(said.splitlines()[-1])
    if answer["state"] != OK:
        yield Finding(what, answer["state"], answer["reason"], answer["mend"], "gpu")
        return
    sources = {source["name"]: source for source in answer["sources"]}
    gpus = ", ".join(f"{gpu['instance']} {gpu['name']}" for gpu in answer["gpus"])
    driver = next((gpu["driver"] for gpu in answer["gpus"]), "")
    for name, source in ((what, sources["gpu"]), (counters, sources["gpu_counters"])):
        if source["state"] != OK:
            yield Finding(name, source["state"], source["reason"], source["mend"], "gpu")
            continue
        metrics = ", ".join(source["metrics"])
        found = f"driver {driver}, {gpus}: {metrics}" if name == what else metrics
        yield Finding(name, OK, found, "", "gpu")
