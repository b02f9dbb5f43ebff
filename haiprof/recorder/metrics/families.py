"""Every series that a recorder exports of ranks and of itself: name, type, labels and meaning.

docs/metrics-export.md has the same as a table.

Tests: tests/recorder/metrics/test_documented.py.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

#: Labels of what belongs to a rank.
RANK: Final = ("rank", "local_rank")
#: Upper limits of the buckets of step durations, s; the twelfth has none.
BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


class Family(NamedTuple):
    """The series of one name.

    Attributes:
        name: of the series; of a histogram, what its series begin with.
        kind: as Prometheus has it.
        labels: besides those of the node.
        meaning: one sentence.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str


STEP_DURATION: Final = Family(
    "haiprof_step_duration_seconds", "histogram", RANK, "How long steps took."
)
STEPS: Final = Family(
    "haiprof_steps_total", "counter", RANK, "Steps of training that have ended, else of inference."
)
LAST_STEP: Final = Family(
    "haiprof_last_step_timestamp_seconds", "gauge", RANK, "When the newest step ended."
)
TOKENS: Final = Family(
    "haiprof_tokens_total", "counter", RANK, "Tokens of the steps of training, as the job states."
)
SAMPLES: Final = Family(
    "haiprof_samples_total", "counter", RANK, "Samples of the steps of training, as the job states."
)
FLOPS: Final = Family(
    "haiprof_model_flops_total",
    "counter",
    RANK,
    "Floating-point operations of the model in the steps of training, as the job states.",
)
PEAK: Final = Family(
    "haiprof_peak_flops_per_second",
    "gauge",
    RANK,
    "What the GPUs of the rank can compute at most, in the type that the job states.",
)
PHASE: Final = Family(
    "haiprof_phase_seconds_total",
    "counter",
    (*RANK, "phase"),
    "Time of steps by phase, on the host; other: in none, or in one without a name of its own.",
)
DEVICE_PHASE: Final = Family(
    "haiprof_device_phase_seconds_total",
    "counter",
    (*RANK, "phase"),
    "Time of steps by phase, between CUDA events on the GPU.",
)
PAUSE: Final = Family(
    "haiprof_pause_seconds_total",
    "counter",
    (*RANK, "kind"),
    "Time of the garbage collector, of checkpoints and of compiling, within phases or not.",
)
OBSERVED: Final = Family(
    "haiprof_gpu_observed_seconds_total",
    "counter",
    RANK,
    "Time of steps on the GPU in which kernels were recorded throughout.",
)
BUSY: Final = Family(
    "haiprof_gpu_busy_seconds_total",
    "counter",
    RANK,
    "Time in those steps in which the GPU did something.",
)
EXPOSED: Final = Family(
    "haiprof_comm_exposed_seconds_total",
    "counter",
    RANK,
    "Time in those steps in which the GPU communicated and did nothing else.",
)
WAIT: Final = Family(
    "haiprof_collective_wait_seconds_total",
    "counter",
    (*RANK, "group_kind"),
    "Time in which threads waited for communication, by what the group is for.",
)
LAG: Final = Family(
    "haiprof_lag_seconds",
    "gauge",
    RANK,
    "How much longer its newest steps took on average than those of the fastest rank of the node, "
    "without waiting for others.",
)
RANK_GPU: Final = Family(
    "haiprof_rank_gpu_info", "gauge", (*RANK, "UUID"), "1; a GPU that the rank uses."
)
STATE: Final = Family(
    "haiprof_state", "gauge", (*RANK, "state"), "1 for the state that the rank is in, else 0."
)
OVERHEAD: Final = Family(
    "haiprof_overhead_ratio",
    "gauge",
    RANK,
    "Share of the job's time that recording kernels takes, as last measured.",
)
LOST: Final = Family(
    "haiprof_records_lost_total", "counter", RANK, "Records that did not reach the disk."
)
FINDING: Final = Family(
    "haiprof_finding_info",
    "gauge",
    ("kind",),
    "1 while something of this kind costs the job time, or keeps it from going on.",
)
SOURCE: Final = Family(
    "haiprof_source_up", "gauge", ("source",), "1 if a source of samples can be read, else 0."
)
RECORDER_CPU: Final = Family(
    "haiprof_recorder_cpu_seconds_total", "counter", (), "CPU time of the recorder."
)
RECORDER_MEMORY: Final = Family(
    "haiprof_recorder_resident_bytes", "gauge", (), "Resident memory of the recorder."
)
CUT_OFF: Final = Family(
    "haiprof_series_cut_off_total",
    "counter",
    (),
    "Ranks, phases, findings and instances that have no series of their own, since there are too "
    "many.",
)
BUILD: Final = Family(
    "haiprof_build_info", "gauge", ("version",), "1; the version of haiprof that records."
)

FAMILIES: Final = (
    *(STEP_DURATION, STEPS, LAST_STEP, TOKENS, SAMPLES, FLOPS, PEAK),
    *(PHASE, DEVICE_PHASE, PAUSE, OBSERVED, BUSY, EXPOSED, WAIT),
    *(LAG, RANK_GPU, STATE, OVERHEAD, LOST),
    *(FINDING, SOURCE, RECORDER_CPU, RECORDER_MEMORY, CUT_OFF, BUILD),
)


class Histogram(NamedTuple):
    """The value of a histogram.

    Attributes:
        counts: in each bucket of :data:`BUCKETS` alone, and above all of them.
        total: sum of what was counted.
    """

    counts: tuple[int, ...]
    total: float


class Series(NamedTuple):
    """One series and its value: values of the labels in the family's order."""

    family: Family
    labels: tuple[str, ...]
    value: float | Histogram


class Snapshot(NamedTuple):
    """All series of a node at one moment.

    Attributes:
        node: labels that all of them have.
        series: the series of one family follow each other.
        time_ns: when, ns UTC.
        since_ns: since when counters count, ns UTC.
    """

    node: dict[str, str]
    series: tuple[Series, ...]
    time_ns: int
    since_ns: int
