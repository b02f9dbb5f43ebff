"""``haiprof doctor``: what can be collected here, and for what cannot: why, and how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from haiprof.cli.doctor import container, itself, job, output, reach, sources
from haiprof.cli.doctor import plan as plans
from haiprof.cli.doctor.finding import ABSENT, OK, Finding, failed
from haiprof.cli.doctor.require import unmet
from haiprof.cli.process.console import say
from haiprof.common.places import PROCFS, SYSFS, Access
from haiprof.options import resolve


def examine(
    *,
    as_json: bool,
    sysfs_root: str = "",
    procfs_root: str = "",
    cpu: str = "",
    require: str = "",
    show_plan: bool = False,
) -> int:
    """Print what was found; return 0, or 1 when something is not ok that ``require`` names.

    Args:
        as_json: print JSON, not a table.
        sysfs_root: the node's /sys; for a copy of another machine's, only its counters are
            reported.
        procfs_root: the node's /proc.
        cpu: ``VENDOR:FAMILY:MODEL`` of that machine, where its tree does not say.
        require: names of recorders and sources that must be ok.
        show_plan: print every counter, not only how many.

    Raises:
        ValueError: an invalid argument; one line.
    """
    options, _ = resolve({})
    unusable: list[Finding] = []
    try:
        tree = plans.find_tree(sysfs_root or options.sysfs_root, procfs_root or options.procfs_root)
    except ValueError as error:
        if sysfs_root or procfs_root:
            raise
        # What the recorder would find: the rest works without it.
        tree = plans.Tree(options.sysfs_root or SYSFS, options.procfs_root or PROCFS, False)
        fix = "mount them here, or name where they are: docs/doctor.md#the-hosts-sys-and-proc"
        unusable.append(Finding("sys and proc", ABSENT, str(error).removeprefix("--"), fix))
    if require and tree.dumped:
        raise ValueError(f"--require asks about this machine, not about a copy: {tree.sysfs}")
    plan = plans.plan(tree, cpu)
    works: bool | None = None
    findings: list[Finding] = []
    if not tree.dumped:
        access = Access(tree.procfs, tree.sysfs, options.perfd, options.resctrl)
        findings = [*unusable, *_findings(access)]
        works = all(f.state == OK for f in findings if f.core)
    findings.append(plans.summary(plan, findings))
    missing = unmet(findings, require) if require else None
    if as_json:
        print(output.as_json(findings, works, plan, missing))
    else:
        output.show(findings, plan if show_plan else None)
    for line in missing or ():
        say(line)
    return 1 if missing else 0


def _findings(access: Access) -> Iterator[Finding]:
    def host_sources() -> Iterator[Finding]:
        return sources.host_sources(access)

    def container_around() -> Iterator[Finding]:
        return container.examine(access)

    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        itself.options,
        itself.shared_memory,
        itself.recording,
        job.torch,
        job.start_file,
        job.gpu_kernels,
        reach.attach,
        reach.stacks,
        itself.left_over,
        container_around,
        host_sources,
    )
    for check in checks:
        try:
            yield from check()
        except Exception as error:  # one check that fails must not hide the others
            name = check.__name__.replace("_", " ")
            core = check in (itself.shared_memory, itself.recording)
            yield failed(name, error, core=core)
