"""``haiprof doctor --require``: when a source, a recorder, or all of them count as there."""

from __future__ import annotations

import pytest

from haiprof.cli.doctor.finding import ABSENT, BROKEN, DENIED, OK, Finding
from haiprof.cli.doctor.require import unmet
from haiprof.cli.doctor.sources import explained

FOUND = [
    Finding("recorder", OK, "a record reached its file", core=True),
    Finding("shared memory", DENIED, "closed", "open it", core=True),
    Finding("host cpu", OK, "cpu.util.percent", "", "basic"),
    Finding("host cgroup_cpu", ABSENT, "no group", "", "basic"),
    Finding("host memory_bandwidth", DENIED, "no right", "give it", "mem"),
    Finding("host resctrl", OK, "proc.mbm", "", "mem"),
    Finding("host infiniband", ABSENT, "no ports", "", "ib"),
    Finding("GPU sampling", BROKEN, "NVML fell over", "see nvidia-smi", "gpu"),
]
DENIED_LINE = "mem: memory_bandwidth is denied: no right; fix: give it"
NOTHING_LINES = [f"{name} is absent: there is no source of it here" for name in ("power", "io")]
CORE_LINE = "core: shared_memory is denied: closed; fix: open it"
ABSENT_LINE = "ib: infiniband is absent: no ports"
BROKEN_LINE = "gpu: gpu_sampling is broken: NVML fell over; fix: see nvidia-smi"


@pytest.mark.parametrize(
    ("names", "lines"),
    [
        ("cpu", []),
        ("host_cpu", None),
        ("Host CPU", None),
        ("resctrl, recorder", []),
        ("basic", []),
        ("cgroup_cpu", ["cgroup_cpu is absent: no group"]),
        ("mem", [DENIED_LINE]),
        ("ib,mem,ib", [ABSENT_LINE, DENIED_LINE]),
        ("gpu", [BROKEN_LINE]),
        ("core", [CORE_LINE]),
        ("all", [CORE_LINE, BROKEN_LINE, ABSENT_LINE, DENIED_LINE, *NOTHING_LINES]),
        ("power", NOTHING_LINES[:1]),
        ("cgroup_cpu,ib", ["cgroup_cpu is absent: no group", ABSENT_LINE]),
        ("", None),
        (" , ", None),
        ("memory bandwidth", ["memory_bandwidth is denied: no right; fix: give it"]),
    ],
)
def test_what_is_required(names: str, lines: list[str] | None) -> None:
    if lines is None:
        with pytest.raises(ValueError, match=r"there is nothing named|at least one name"):
            unmet(FOUND, names)
    else:
        assert unmet(FOUND, names) == lines


@pytest.mark.parametrize(
    ("reason", "fix", "where", "given"),
    [
        ("perf_event_open: EACCES", "give it CAP_PERFMON", "#counters", "--cap-add PERFMON"),
        ("the port's counters are of another network namespace", "", "network", "hostNetwork"),
        ("/proc/9/io needs CAP_SYS_PTRACE", "", "#io-of-other", "--cap-add SYS_PTRACE"),
        ("resctrl is not mounted", "mount it", "#resctrl", ""),
    ],
)
def test_a_fix_says_where_it_is_explained_and_in_a_container_how_it_is_given(
    monkeypatch: pytest.MonkeyPatch, reason: str, fix: str, where: str, given: str
) -> None:
    monkeypatch.setattr("haiprof.cli.doctor.sources.in_container", lambda: False)
    outside = explained(reason, fix)
    assert outside.startswith(fix)
    assert "docs/doctor.md" in outside
    assert where in outside
    assert "Kubernetes" not in outside
    monkeypatch.setattr("haiprof.cli.doctor.sources.in_container", lambda: True)
    assert given in explained(reason, fix)
    # What the source itself has reported is not repeated.
    assert explained(reason, "in Kubernetes add it").count("ubernetes") == 1


def test_a_fix_of_nothing_special_stays_as_it_is() -> None:
    assert explained("no disk", "plug one in") == "plug one in"
