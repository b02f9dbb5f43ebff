"""Many millions of kernels, most of them in CUDA graphs: memory of job and GPU, and losses.

With graphs, some collectors run out of CUPTI's device buffers after 25 million records, and get
records without times from then on.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from gpu.part import Part, main, scratch

from gpu import jobs, modes, recorded

FEWEST, WANTED = 10_000_000, 25_000_000
POINTS = 10
#: Graph replays and single launches of a round; ten rounds have to fit in also on a busy CPU.
ROUND = {"cuda": (200, 5_000), "cpu": (2, 500)}
#: Rounds after which it is enough without a GPU, where only that it runs is of interest.
BRIEF = 3 * POINTS
#: Growth from the second point to the last, MiB, that is none.
FLAT = 32.0
LOST = ("timeless", "dropped", "foreign_buffers", "damaged_buffers")


def measure(part: Part) -> None:
    part.needs_kernels()
    import haiprof

    with scratch() as folder:
        haiprof.start(folder, run=recorded.RUN, hooks=False, kernels="all", budget=0.0, ring_mib=64)
        launches = jobs.Launches(jobs.Machine(part.device))
        samples = run(part, launches)
        if len(samples) < POINTS:
            raise RuntimeError(f"only {len(samples)} points were reached")
        counts = modes.counts()
        begin = time.monotonic()
        haiprof.stop()
        closed = recorded.closed(Path(folder), max(1.0, part.left() - 5))
        part.fact("stopping took, s", round(time.monotonic() - begin, 2))
        tell(part, ten(samples), counts)
        if closed:
            on_disk(part, Path(folder), counts)
        else:
            part.failed("rows on disk", "haiprof's recorder had not closed its files in time")


def run(part: Part, launches: jobs.Launches) -> list[dict[str, float]]:
    """Launch until enough, or until the time is nearly over; what was seen after each round."""
    machine = launches.machine
    replays, eager = ROUND[machine.device]
    going = part.spend(part.left() - 12)
    # From before the first context on CUPTI has traced; setting up is not part of the soak.
    machine.wait()
    before = modes.counts()["kernels"]
    launched = 0
    begin = time.monotonic()
    samples: list[dict[str, float]] = []
    while launched < WANTED and going() and (machine.cuda or len(samples) < BRIEF):
        launches.replays(replays)
        launches.eager(eager)
        machine.wait()
        launched += replays * launches.NODES + eager
        counts = modes.counts()
        samples.append({
            "launched": launched,
            "seconds": time.monotonic() - begin,
            "rss_mib": rss_mib(),
            "gpu_mib": gpu_mib(machine),
            **{cause: counts[cause] for cause in LOST},
        })  # fmt: skip
    if samples:
        samples[-1]["recorded"] = modes.counts()["kernels"] - before
    return samples


def ten(samples: list[dict[str, float]]) -> list[dict[str, float]]:
    """Ten of them at equal distances, the last among them."""
    return [samples[len(samples) * (n + 1) // POINTS - 1] for n in range(POINTS)]


def rss_mib() -> float:
    """Memory of this process that no other shares a file of, MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def gpu_mib(machine: jobs.Machine) -> float:
    """Memory of the GPU that is in use, by whomever, MiB."""
    import torch

    if not machine.cuda:
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def tell(part: Part, points: list[dict[str, float]], counts: dict[str, int]) -> None:
    last = points[-1]
    launched = int(last["launched"])
    part.row("kernels launched", launched, "kernels", target=f">= {FEWEST}",
             met=launched >= FEWEST,
             note=f"{launched / last['seconds']:.0f} kernels/s; {WANTED} are wanted")  # fmt: skip
    got = last["recorded"]
    part.row("kernels recorded", got, "kernels", target=f"= {launched}", met=got == launched)
    for what, key in (("memory of the job", "rss_mib"), ("memory of the GPU", "gpu_mib")):
        grown = last[key] - points[1][key]
        part.row(f"growth of the {what} from the second of ten points on", grown, "MiB",
                 target=f"<= {FLAT:g}", met=grown <= FLAT,
                 note=", ".join(f"{point[key]:.0f}" for point in points))  # fmt: skip
    for cause in LOST:
        part.row(f"lost: {cause}", counts[cause], "", target="= 0", met=counts[cause] == 0,
                 note=", ".join(f"{point[cause]:.0f}" for point in points))  # fmt: skip
    part.fact("points", points)
    part.fact("counts", counts)
    spent = 100 * counts["thread_ns"] / 1e9 / last["seconds"]
    part.row("CPU time of haiprof's thread", spent, "% of a core")
    part.row("CPU time of haiprof's thread for a record",
             counts["thread_ns"] / max(counts["kernels"], 1), "ns")  # fmt: skip


def on_disk(part: Part, folder: Path, counts: dict[str, int]) -> None:
    import pyarrow as pa

    count = size = 0
    for file in folder.glob(f"{recorded.RUN}/*#*/kernels-*.arrow"):
        size += file.stat().st_size
        with pa.memory_map(str(file)) as source:
            reader = pa.ipc.open_file(source)
            count += sum(reader.get_batch(n).num_rows for n in range(reader.num_record_batches))
    losses = recorded.events(folder, "lost")
    total = counts["kernels"] + counts["others"]
    part.row("records that are on disk", 100 * count / max(total, 1), "%",
             note="at this rate the ring may be overwritten before it is read")  # fmt: skip
    missing = total - count - overwritten(losses)
    part.row("records that are neither on disk nor counted as lost", missing, "records",
             target="<= 0", met=missing <= 0)  # fmt: skip
    part.row("size on disk of a record", size / max(count, 1), "bytes", target="<= 10",
             met=size <= 10 * count)  # fmt: skip
    part.fact("events", losses)


def overwritten(events: list[str]) -> int:
    """How many records the run's events say were overwritten in the ring."""
    found = (re.search(r"(\d+) records were overwritten", text) for text in events)
    return sum(int(match[1]) for match in found if match)


if __name__ == "__main__":
    main(measure)
