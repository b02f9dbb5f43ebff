"""What haiprof's own sampler of GPUs tells while the GPU works, and how long each reading takes."""

from __future__ import annotations

import time

from gpu.estimates import quantile
from gpu.part import Part, main

from gpu import jobs


def measure(part: Part) -> None:
    from haiprof import _core

    uuids, state, reason, fix = _core.gpu_list()
    part.fact("NVML", [state, reason, fix])
    if not uuids:
        raise RuntimeError(f"no GPU can be sampled: {reason}; {fix}")
    sampler = _core.HostSampler(basic=0.0, io=0.0, gpu=1.0)
    for uuid in uuids:
        sampler.use_gpu(uuid)
    training = jobs.training("transformer", jobs.Machine(part.device))
    took: list[float] = []
    values: dict[str, float] = {}
    going = part.rounds(part.left() - 1)
    while going() or len(took) < 2:
        training.steps(5)
        training.machine.wait()
        if time.monotonic_ns() < sampler.next_due_ns:
            continue
        begin = time.perf_counter()
        rows = sampler.read(time.monotonic_ns())
        took.append((time.perf_counter() - begin) * 1e3)
        values |= {f"{metric} {instance}": value for _, metric, instance, value, _ in rows}
    part.row("first reading", took[0], "ms")
    part.row("a reading, median", quantile(took[1:], 0.5), "ms",
             note=f"longest: {max(took[1:]):.2f} ms, {len(took)} readings")  # fmt: skip
    instances = [gpu["instance"] for gpu in sampler.gpus()]
    busy = max((values.get(f"gpu.util.percent {name}", 0.0) for name in instances), default=0.0)
    part.row("gpu.util.percent while it trains", busy, "%", target="> 0", met=busy > 0)
    part.fact("values", values)
    part.fact("sources", {
        source["name"]: [source["state"], source["reason"], source["interval_s"]]
        for source in sampler.sources()
    })  # fmt: skip
    part.fact("changes", sampler.changes())


if __name__ == "__main__":
    main(measure)
