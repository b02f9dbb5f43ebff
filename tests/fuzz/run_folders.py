"""Fuzzes whole runs: one file of a run is damaged, and the run is analysed, exported, recovered.

Each trial asks some of what can be asked, since a report takes longer than a hundred tables.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parent.parent))
os.environ.setdefault("POLARS_MAX_THREADS", "2")

import pyarrow as pa
import runs
import traces
from damage import damaged, damaged_json, forged, with_odd_values
from supervised import fault_of, main

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.cli.main import _run_app as haiprof
from haiprof.errors import HaiprofError
from haiprof.recorder.reach import Reach
from haiprof.recorder.segments import TableWriter

_STEPS = 24
#: What is left out of a run because of an error that nobody thought of.
_CRUDE = re.compile(r"is left out: (?!HaiprofError)\w+(Error|Exception|Exit|Interrupt): ")


def _of_gpus(folder: Path) -> None:
    """Two ranks with a GPU each, closed."""
    runs.make_gpu_run(folder, 2, _STEPS)


def _still_live(folder: Path) -> None:
    """A rank that is being recorded and a node, as streams of a recorder."""
    run = runs.write_run(folder)
    here = {"host": os.uname().nodename, "state": "live", "ended_ns": None}  # to be recovered
    process = runs.write_process(run, 0, **here)
    node = runs.write_node(run, machine=runs.MACHINE, **here)
    events = [
        runs.event(0.1, "mark", "begin"),
        runs.event(0.2, "lost", "3 records were overwritten", None, {"cause": "a", "n": 3}),
        *(runs.recording_begins(36.0), runs.recording_ends(120.0), runs.measured(1)),
    ]
    for place, table, rows in (
        (process, schema.SPANS, runs.loop(_STEPS)),
        (process, schema.SAMPLES, runs.host_samples(6)),
        (process, schema.EVENTS, events),
        (process, schema.DEVICE_SPANS, runs.device_loop(_STEPS)),
        (process, schema.KERNELS, runs.kernel_loop(4, 8)),
        (node, schema.SAMPLES, runs.node_samples(6, gpus=1)),
    ):
        writer = TableWriter(place, table)
        writer.prepare()
        half = len(rows) // 2
        first, second = runs.recorded_batches(table, rows, len(rows) - half)
        writer.append(first, Reach({0: first.rows}, {"overwritten": 3}))
        writer.append(second, Reach({0: len(rows)}, {"overwritten": 3}))
        writer.push()


def _of_four(folder: Path) -> None:
    """Four ranks on two nodes, one slow; started again, with what a model tells of itself."""
    run = runs.make_run(folder, 3, _STEPS, slow_rank=1)
    attributes = {"parameters": 10**9, "trainable": 10**9, "tokens": 4096, "flops": 1e12}
    again = runs.write_process(run, 3, "n1", attempt=1, world_size=4, started_ns=runs.T0 + 10**9)
    runs.write_closed(again, schema.SPANS, runs.loop(_STEPS))
    lasting = [runs.event(0.1, kind, "one", 3, attributes) for kind in ("model", "flops", "attach")]
    runs.write_closed(
        again, schema.EVENTS, [*lasting, runs.event(0.2, "checkpoint", "", 4, attributes)]
    )
    node = runs.write_node(run, "n1", machine=runs.MACHINE)
    runs.write_closed(node, schema.SAMPLES, runs.node_samples(6))


#: Methods of an Analyzer that need nothing.
_VIEWS = (
    "steps", "phases", "samples", "spans", "events", "kernels", "device_spans", "device_phases",
    "kernel_totals", "graph_replays", "kernels_recorded", "pipeline", "overhead", "imbalance",
    "efficiency", "goodput", "summaries", "headline", "recommendations", "clock", "overview",
    "operators", "idle", "temporal", "overlap", "launches", "queue_length", "bandwidth", "memory",
    "kernel_kinds", "step_trace", "op_statistics", "stragglers", "modules", "distributed",
)  # fmt: skip


def _imported(folder: Path) -> None:
    """Two ranks of which there are traces of torch.profiler."""
    for rank in range(2):
        traces.write(folder.with_name("traces") / f"rank_{rank}.json", traces.small(rank))
    haiprof(["import", str(folder.with_name("traces")), "--out", str(folder)])


_RUNS: tuple[Callable[[Path], None], ...] = (_of_gpus, _still_live, _of_four, _imported)
_content: dict[int, dict[str, bytes]] = {}


def _files(which: int, folder: Path) -> dict[str, bytes]:
    if which not in _content:
        place = folder / "seed"
        _RUNS[which](place)
        found = sorted(file for file in place.rglob("*") if file.is_file())
        _content[which] = {str(file.relative_to(place)): file.read_bytes() for file in found}
        shutil.rmtree(place)
    return _content[which]


def _damaged_file(name: str, files: dict[str, bytes], random_: random.Random) -> bytes:
    content = files[name]
    other = files[random_.choice(list(files))]
    if name.endswith(".json"):
        return damaged_json(content, other, random_)
    if random_.random() < 0.5:
        return damaged(content, other, random_)
    table = schema.TABLES[Path(name).name.split("-")[0]]
    opened = pa.ipc.open_stream(content) if name.endswith("s") else pa.ipc.open_file(content)
    rows = opened.read_all().to_pylist()
    rewrite = forged if random_.random() < 0.3 else with_odd_values
    return rewrite(table, rows, random_)


def trial(seed: str, number: int, folder: Path) -> list[str]:
    """Damage one file of a run, and ask of the run what can be asked."""
    random_ = random.Random(f"{seed} {number}")
    os.environ["HAIPROF_SHM_DIR"] = str(folder / "shm")
    files = _files(random_.randrange(len(_RUNS)), folder)
    kinds = random_.choice((".json", ".arrow", ".arrow"))
    name = random_.choice([name for name in files if Path(name).suffix.startswith(kinds)])
    run = folder / "run"
    for each, content in files.items():
        (run / each).parent.mkdir(parents=True, exist_ok=True)
        (run / each).write_bytes(content)
    (run / name).write_bytes(_damaged_file(name, files, random_))
    return [f"{fault}\n{name}" for fault in _asked(run, folder, random_)]


def _asked(run: Path, folder: Path, random_: random.Random) -> list[str]:
    faults: list[str] = []

    def ask(what: str, question: Callable[[], object]) -> object:
        try:
            return question()
        except HaiprofError as error:
            if "\n" in str(error) or not str(error):
                faults.append(f"not one line\n{what}: {error}")
        except OSError as error:
            if error.errno is None:
                faults.append(fault_of(what, error))
        except BaseException as error:
            faults.append(fault_of(what, error))
        return None

    analyzer = ask("open", lambda: Analyzer(run))
    if isinstance(analyzer, Analyzer):
        light, heavy = _questions(analyzer, run, folder)
        ask("processes", analyzer.processes)
        for name in random_.sample(list(light), 4):
            ask(name, light[name])
        if random_.random() < 0.1:
            name = random_.choice(list(heavy))
            ask(name, heavy[name])
        ask("problems", analyzer.problems)
        crude = [line for line in analyzer._ranks.problems if _CRUDE.search(line)]
        faults += [f"{line.split('is left out: ')[1]}\nleft out" for line in crude[:1]]
    if random_.random() < 0.2:
        ask("top", lambda: haiprof(["top", str(run), "--once"]))
    if random_.random() < 0.02:
        ask("ps", lambda: haiprof(["ps"]))
    if random_.random() < 0.15:
        for _ in range(2):
            ask("recover", lambda: haiprof(["recover", str(run)]))
        ask("analysed after recover", lambda: Analyzer(run).summaries())
    return faults


def _questions(
    analyzer: Analyzer, run: Path, folder: Path
) -> tuple[dict[str, Callable[[], object]], dict[str, Callable[[], object]]]:
    light: dict[str, Callable[[], object]] = {name: getattr(analyzer, name) for name in _VIEWS}
    light["samples of a metric"] = lambda: analyzer.samples("cpu.*")
    light["a part"] = lambda: analyzer.between(0.05, 0.2).summaries()
    out = str(folder / "out")
    ranks = analyzer.ranks or [0]
    heavy: dict[str, Callable[[], object]] = {
        "show_overview": lambda: str(analyzer.show_overview()),
        "show_one_rank": lambda: str(analyzer.show_one_rank(ranks[0])),
        "report": lambda: analyzer.report(f"{out}.html"),
        "haiprof report": lambda: haiprof(["report", str(run), "-o", f"{out}.html"]),
    }
    for to in ("csv", "perfetto", "chrome", "parquet", "tensorboard"):
        words = ["export", str(run), "--to", to, "-o", out]
        heavy[f"export {to}"] = lambda words=words: haiprof(words)  # type: ignore[misc]
    return light, heavy


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(trial)
