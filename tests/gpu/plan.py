"""The parts of the suite in the order in which they run; the last are skipped if time is short."""

from __future__ import annotations

from typing import NamedTuple


class Planned(NamedTuple):
    """One part to run."""

    name: str
    title: str
    module: str
    #: It is ended after so long, and not begun when less than ``ENOUGH`` of it is left.
    seconds: float
    options: str = ""
    group: str = ""
    #: It uses haiprof, and has to wait until that is installed.
    haiprof: bool = True
    #: It uses all the time that is left.
    fills: bool = False


#: A part is not started when less than this share of its time is left.
ENOUGH = 0.5
#: Groups whose parts run in parallel: they count, and compare no times.
ABREAST = ("raw", "correctness")
#: Names for several groups.
UNIONS = {"first": ("raw", "correctness")}
#: Runs with every group: results must say what they were measured on.
ALWAYS = "machine"

_RAW = (
    Planned("raw", "0 CUPTI and NVML without haiprof", "raw", 75, haiprof=False),
    Planned("machine", "The machine", "machine", 40, haiprof=False),
)
_CORRECTNESS = (
    # Those without haiprof first: a build may take a minute.
    Planned("privileges", "B8 GPM and PCIe counters without privileges", "privileges", 40,
            haiprof=False),
    Planned("correlations", "B5 Correlation ids and watermarks", "correlations", 90,
            haiprof=False),
    Planned("refusals", "B12 No buffer, and buffers thrown away", "refusals", 100, haiprof=False),
    Planned("capture", "C Recorded buffers", "capture", 80, haiprof=False),
    Planned("graphs", "A4 CUDA graphs and torch.compile", "counts", 150, "graph,compiled"),
    Planned("counts", "A1 Kernels, against torch.profiler", "counts", 120,
            "transformer,resnet50"),
    Planned("report", "haiprof run, and its report", "report", 150),
    Planned("fsdp", "FSDP in bfloat16, with its side streams", "fsdp", 120),
    Planned("handover", "B1 torch.profiler before, meanwhile and after", "handover", 100),
    Planned("teardown", "B1 torch.profiler with TEARDOWN_CUPTI=1", "handover", 115, "teardown"),
    Planned("sessions", "B1 torch.profiler while kernels are queued", "sessions", 90),
    Planned("late-graphs", "A4 Windows and graphs captured between them", "late_graphs", 80),
    Planned("connections", "A3 Device phases with one hardware queue", "connections", 80),
    Planned("forks", "B9 fork after CUDA is initialised", "forks", 80),
    Planned("collectives", "Collectives of torch.distributed", "collectives", 60),
    Planned("ends", "B10 Ends of a job", "ends", 120),
)  # fmt: skip
_REST = (
    Planned("times", "A1 Kernel times, against torch.profiler", "counts", 90,
            "times,transformer,resnet50"),
    Planned("soak", "A5, B4 Many millions of kernels", "soak", 75),
    Planned("launches", "A2, B2 Cost per launch, and distortion on the GPU", "launches", 36),
    Planned("phases", "A3 Device phases", "phases", 36, "resnet50,transformer"),
    Planned("replays", "A4 Replays of CUDA graphs", "replays", 36),
    Planned("residue", "B11 What recording leaves behind", "residue", 120),
    Planned("flushes", "B3 FlushAll(0)", "flushes", 24),
    Planned("nvml", "B7 NVML and GPM", "nvml", 26),
    Planned("sampling", "haiprof's own sampler of GPUs", "sampling", 16),
)  # fmt: skip
_OVERHEAD = (
    Planned("overhead", "A2 What a step costs more: transformer", "overhead", 50, "transformer",
            fills=True),
)  # fmt: skip
PLAN = tuple(
    planned._replace(group=group)
    for group, parts in (
        ("raw", _RAW),
        ("correctness", _CORRECTNESS),
        ("rest", _REST),
        ("overhead", _OVERHEAD),
    )
    for planned in parts
)


def chosen(only: str) -> tuple[Planned, ...]:
    """The parts that ``only`` names: groups, unions of them or parts, with commas between; or all.

    Raises:
        ValueError: a name is none of these.
    """
    if not only:
        return PLAN
    groups = {part.group for part in PLAN}
    names: set[str] = set()
    for word in only.split(","):
        if wanted := UNIONS.get(word, (word,) if word in groups else ()):
            names |= {ALWAYS} | {part.name for part in PLAN if part.group in wanted}
        elif word in {part.name for part in PLAN}:
            names.add(word)
        else:
            known = ", ".join([*UNIONS, *sorted(groups), *(part.name for part in PLAN)])
            raise ValueError(f"no part or group is called {word!r}; there are {known}")
    return tuple(part for part in PLAN if part.name in names)


def together(plan: tuple[Planned, ...], everything: bool) -> list[tuple[Planned, ...]]:
    """Split a plan into pieces that run one after the other; the parts of a piece run in parallel.

    Args:
        plan: what is to run.
        everything: run the parts of every group in parallel, since no time means anything.
    """
    pieces: list[tuple[Planned, ...]] = []
    for planned in plan:
        if pieces and pieces[-1][0].group == planned.group and (
            everything or planned.group in ABREAST
        ):  # fmt: skip
            pieces[-1] += (planned,)
        else:
            pieces.append((planned,))
    return pieces
