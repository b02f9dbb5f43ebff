"""A document of a page with every kind of section, made here: no run is needed to test the page."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

TEMPLATE = Path(__file__).parents[2] / "haiprof/show/page/page.html"
TYPES = {"f4": "f32", "f8": "f64", "i4": "i32", "u4": "u32", "u2": "u16", "u1": "u8"}
#: A name that would run if it ever became markup.
HOSTILE = "</script><img src=x onerror=\"document.title='broken into'\">"
PHASES = ["dataloader", "forward", "backward", "gradient_sync", "optimizer"]


class Blob:
    """Columns that one blob holds."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._bytes = b""

    def column(self, values: Any, kind: str = "f8", **how: Any) -> dict[str, Any]:
        """Add a column; ``kind`` is numpy's type code."""
        array = np.ascontiguousarray(values, dtype=f"<{kind}")
        self._bytes += b"\0" * (-len(self._bytes) % 8)
        at = len(self._bytes)
        self._bytes += array.tobytes()
        return {"type": TYPES[kind], "blob": self._number, "at": at, "n": array.size, **how}

    def text(self) -> str:
        """Return it as the page reads it."""
        packed = zlib.compressobj(9, zlib.DEFLATED, -15)
        return base64.b64encode(packed.compress(self._bytes) + packed.flush()).decode()


def write(path: Path, document: dict[str, Any], blobs: list[Blob]) -> Path:
    """Put a document into the template."""
    text = json.dumps(document, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    page = TEMPLATE.read_text("utf-8")
    own = f'<script type="application/json" id="document">{text}</script>'
    data = "\n".join(
        f'<script type="text/plain" id="blob-{k}">{blob.text()}</script>'
        for k, blob in enumerate(blobs)
    )
    page = page.replace("<!--document-->", own).replace("<!--blobs-->", data)
    path.write_text(page, "utf-8")
    return path


def build() -> None:
    """Build the template, and install what its tests need, unless all is there."""
    make = [sys.executable, str(TEMPLATE.parents[3] / "page/make.py")]
    for what in ("packages", "build"):
        subprocess.run([*make, what], check=True)


def of(sections: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a document with one tab."""
    return {
        "format": 1,
        "title": "haiprof: r",
        "name": "r",
        "facts": [],
        "origin_ns": "0",
        "duration": 1.0,
        "headline": [],
        "ranks": [],
        "chosen_ranks": [],
        "tabs": [{"id": "only", "title": "Only", "sections": sections}],
        "made_by": "haiprof",
    }


def step_times(ranks: int, steps: int) -> np.ndarray[Any, Any]:
    """Return seconds by rank and step: one rank is late, and one step takes all of them long."""
    noise = np.random.default_rng(7).gamma(8, 0.0015, (ranks, steps))
    times = 0.31 + noise + 0.02 * np.sin(np.arange(steps) / 17)
    times[min(5, ranks - 1)] += 0.09
    times[:, steps // 3] += 0.8
    return np.asarray(times)


def whole(
    path: Path,
    ranks: int = 8,
    steps: int = 240,
    compared: bool = False,
    lanes_of: Sequence[int] = (0, 5),
) -> Path:
    """Write a page on a run with every kind of section, with lanes of some ranks."""
    blob, detail = Blob(0), Blob(1)
    times = step_times(ranks, steps)
    starts = np.concatenate([[4.0], 4.0 + np.cumsum(times.max(0))])
    duration = float(starts[-1] + 3)
    tabs = [
        {"id": "wrong", "title": "What is wrong", "sections": _wrong(starts, steps)},
        {"id": "run", "title": "Run", "sections": _run(blob, starts, times, duration, compared)},
        {"id": "ranks", "title": "Ranks", "sections": _ranks(blob, times, compared)},
        {"id": "step", "title": "Step", "sections": _step(detail, starts, times, lanes_of)},
        {"id": "code", "title": "Code", "sections": _code(detail, compared)},
        {"id": "machine", "title": "Machine", "sections": _machine(blob, duration)},
        {"id": "missing", "title": "Not recorded", "sections": _missing()},
    ]
    document: dict[str, Any] = {
        "format": 1,
        "title": "haiprof: digits-7",
        "name": "digits-7",
        "facts": ["8 ranks on 2 nodes", f"{steps} steps", "1 min 24 s", "2026-11-28 14:02 UTC"],
        "origin_ns": "1795874520000000000",
        "duration": duration,
        "headline": [
            "Half of the time of a step is lost: rank 5 reaches the gradient sync 90 ms after"
            " the others, because its data loader reads from a slow disk."
        ],
        "ranks": list(range(ranks)),
        "chosen_ranks": [0, 5],
        "tabs": tabs,
        "made_by": "haiprof 0.1.0",
    }
    if compared:
        document["before"] = {
            "name": "digits-6",
            "facts": ["8 ranks on 2 nodes"],
            "origin_ns": "1795870000000000000",
            "duration": duration,
        }
    return write(path, document, [blob, detail])


def _wrong(starts: np.ndarray[Any, Any], steps: int) -> list[dict[str, Any]]:
    slow = steps // 3
    place = {"tab": "run", "from": float(starts[slow]), "to": float(starts[slow + 1])}
    items = [
        {
            "kind": "late_rank",
            "title": "Rank 5 is late in each step",
            "text": "The others wait 90 ms for it in gradient_sync.",
            "severity": "problem",
            "lost": 21.6,
            "share": 0.26,
            "ranks": [5],
            "line": "train.py:88 in load_batch",
            "fix": "Give its data loader more workers, or move its shards to the local disk.",
            "confidence": 0.93,
            "place": {"tab": "step", "rank": 5, "step": 12},
            "evidence": [
                {"text": "90 ms more in dataloader than the median", "place": {"tab": "ranks"}},
                {"text": "its disk is busy 97 % of the time", "place": {"tab": "machine"}},
                {"text": "time in load_batch", "place": {"tab": "code", "frame": "load_batch"}},
            ],
        },
        {
            "kind": "long_step",
            "title": f"Step {slow} took 0.8 s longer than the others",
            "text": "All ranks waited at once: a checkpoint was written.",
            "severity": "problem",
            "lost": 0.8,
            "share": 0.01,
            "place": place,
            "evidence": [{"text": "a checkpoint of 2.1 GB", "place": place}],
        },
        {
            "kind": "name",
            "title": "Names are shown as they are",
            "text": f"Such as {HOSTILE}",
            "severity": "note",
            "evidence": [],
        },
    ]
    return [{"kind": "findings", "id": "findings", "title": "Findings", "items": items}]


def _run(
    blob: Blob,
    starts: np.ndarray[Any, Any],
    times: np.ndarray[Any, Any],
    duration: float,
    compared: bool,
) -> list[dict[str, Any]]:
    steps = times.shape[1]
    at = blob.column(np.diff(starts), "f8", delta=True, offset=float(starts[0]))
    median = np.median(times, 0)
    shares = {"dataloader": 0.2, "forward": 0.28, "backward": 0.38, "gradient_sync": 0.09}
    marks = [
        {"at": float(starts[steps // 3]), "kind": "checkpoint", "text": "written to /data/ck"},
        {
            "at": float(starts[steps // 2]),
            "to": float(starts[steps // 2 + 9]),
            "kind": "eval",
            "text": HOSTILE,
        },
    ]
    line: dict[str, Any] = {
        "name": "median of all ranks",
        "x": at,
        "y": blob.column(median, "f4"),
        "low": blob.column(times.min(0), "f4"),
        "high": blob.column(times.max(0), "f4"),
    }
    if compared:
        line["before"] = {"x": at, "y": blob.column(median * 0.9, "f4")}
    sections = [
        {
            "kind": "series",
            "id": "steptime",
            "title": "Step time",
            "axis": "run",
            "unit": "s",
            "lines": [line],
            "marks": marks,
            "note": "Median; the band is from the fastest rank to the slowest.",
        },
        {
            "kind": "series",
            "id": "phases",
            "title": "Phases",
            "axis": "run",
            "unit": "s",
            "stacked": True,
            "lines": [
                {"name": name, "x": at, "y": blob.column(median * share, "f4")}
                for name, share in shares.items()
            ],
        },
    ]
    grid = np.linspace(0, duration, 3000)
    for name, unit, values in (
        ("GPU busy", "%", 80 + 12 * np.sin(grid / 3)),
        ("Tokens", "tokens/s", 51_000 + 4_000 * np.cos(grid)),
    ):
        sections.append(
            {
                "kind": "series",
                "id": name.lower().replace(" ", "-"),
                "title": name,
                "axis": "run",
                "unit": unit,
                "lines": [
                    {"name": name, "x": blob.column(grid, "f4"), "y": blob.column(values, "f4")}
                ],
            }
        )
    return sections


def _ranks(blob: Blob, times: np.ndarray[Any, Any], compared: bool) -> list[dict[str, Any]]:
    ranks, steps = times.shape
    means = times.mean(1)
    columns: list[dict[str, Any]] = [
        {"name": "rank", "values": [f"rank {k}" for k in range(ranks)]},
        {
            "name": "step",
            "unit": "s",
            "values": means.tolist(),
            "bar": True,
            "help": "mean of all steps",
        },
        {
            "name": "dataloader",
            "unit": "s",
            "values": (means * 0.2).tolist(),
            "bar": True,
            "colour": "dataloader",
        },
        {"name": "node", "values": [f"node-{k // 4}" for k in range(ranks)]},
        {"name": "memory", "unit": "B", "values": [None, *[2.0**33 + k for k in range(ranks - 1)]]},
    ]
    if compared:
        columns[1]["before"] = (means * 0.93).tolist()
        columns[1]["chance"] = ["may be chance" if k % 3 == 0 else None for k in range(ranks)]
    return [
        {
            "kind": "heat",
            "id": "heat",
            "title": "Step time by rank",
            "unit": "s",
            "rows": [{"label": f"rank {k}", "rank": k} for k in range(ranks)],
            "steps": blob.column(np.arange(steps), "u4"),
            "values": blob.column(np.round(times / 5e-5), "u2", scale=5e-5),
        },
        {
            "kind": "table",
            "id": "ranks",
            "title": "Ranks",
            "rows": ranks,
            "columns": columns,
            "places": [
                {"tab": "step", "rank": k, "step": 0} if k in (0, 5) else None for k in range(ranks)
            ],
        },
        {
            "kind": "bars",
            "id": "shares",
            "title": "Time by phase",
            "unit": "s",
            "stacked": True,
            "categories": [f"rank {k}" for k in range(ranks)],
            "parts": [
                {"name": name, "values": (means * share).tolist()}
                for name, share in zip(PHASES, (0.2, 0.28, 0.38, 0.09, 0.05), strict=True)
            ],
        },
    ]


def _step(
    blob: Blob, starts: np.ndarray[Any, Any], times: np.ndarray[Any, Any], ranks: Sequence[int]
) -> list[dict[str, Any]]:
    sections = []
    for rank in dict.fromkeys(min(rank, len(times) - 1) for rank in ranks):
        shares = np.array([0.2, 0.28, 0.38, 0.09, 0.05])
        lengths = (times[rank][:, None] * shares).ravel()
        begins = (
            starts[:-1, None] + times[rank][:, None] * np.concatenate([[0], np.cumsum(shares)[:-1]])
        ).ravel()
        kernels = np.random.default_rng(rank)
        n = 40 * times.shape[1]
        at = np.sort(kernels.uniform(starts[0], starts[-1], n))
        length = np.minimum(kernels.gamma(1, 0.002, n), np.diff(at, append=at[-1] + 1) * 0.9)
        ranges_at = starts[:-1]
        lanes = [
            {
                "name": "phases",
                "group": "Host",
                "colour": "phase",
                "names": PHASES,
                "from": blob.column(begins),
                "length": blob.column(lengths, "f4"),
                "name_of": blob.column(np.tile(np.arange(5), times.shape[1]), "u1"),
            },
            {
                "name": "user ranges",
                "group": "Host",
                "names": ["step", "attention", "mlp", HOSTILE],
                "from": blob.column(
                    np.concatenate(
                        [ranges_at, ranges_at + 0.05, ranges_at + 0.16, ranges_at + 0.18]
                    )
                ),
                "length": blob.column(np.repeat([0.3, 0.1, 0.1, 0.02], times.shape[1]), "f4"),
                "name_of": blob.column(np.repeat([0, 1, 2, 3], times.shape[1]), "u1"),
                "depth": blob.column(np.repeat([0, 1, 1, 2], times.shape[1]), "u1"),
            },
            {
                "name": "stream 7",
                "group": "GPU 0",
                "names": ["gemm_128x128_tn", "flash_fwd", "elementwise", "reduce"],
                "from": blob.column(at),
                "length": blob.column(length, "f4"),
                "name_of": blob.column(kernels.integers(0, 4, n), "u2"),
                "detail": [
                    {
                        "name": "bytes",
                        "unit": "B",
                        "values": blob.column(kernels.uniform(1e6, 1e9, n), "f4"),
                    }
                ],
            },
            {
                "name": "communication",
                "group": "GPU 0",
                "colour": "phase",
                "names": ["communication"],
                "from": blob.column(starts[:-1] + 0.25),
                "length": blob.column(np.full(times.shape[1], 0.05), "f4"),
                "name_of": blob.column(np.zeros(times.shape[1]), "u1"),
            },
        ]
        sections.append(
            {
                "kind": "lanes",
                "id": f"lanes-{rank}",
                "title": "Lanes",
                "rank": rank,
                "axis": "run",
                "lanes": lanes,
                "steps": {
                    "number": blob.column(np.arange(times.shape[1]), "u4"),
                    "from": blob.column(starts[:-1]),
                    "to": blob.column(starts[1:]),
                },
            }
        )
    return sections


def _code(blob: Blob, compared: bool) -> list[dict[str, Any]]:
    names = [
        "<module>",
        "train",
        "load_batch",
        "read",
        "forward",
        "attention",
        "mlp",
        "backward",
        "step",
        "main",
        HOSTILE,
    ]
    places = [f"{'train' if k % 2 else 'model'}.py:{10 * k + 3}" for k in range(len(names))]
    parent = [-1, 0, 1, 2, 1, 4, 4, 1, 1, 5, 5]
    self_s = [0.2, 0.5, 4, 9, 1, 8, 6, 20, 3, 1.5, 0.7]
    shift = np.array([1, 1, 0.6, 0.4, 1, 1.2, 1.1, 1, 1.4, 1, 1])
    sections: list[dict[str, Any]] = []
    trees = []
    for name, factor in (("all", 1.0), ("forward", 0.4)):
        tree = {
            "name": name,
            "name_of": blob.column([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "u2"),
            "parent": blob.column(parent, "i4"),
            "self": blob.column(np.array(self_s) * factor, "f4"),
        }
        if compared:
            tree["before"] = blob.column(np.array(self_s) * factor * shift, "f4")
        trees.append(tree)
    sections.append(
        {
            "kind": "flame",
            "id": "flame",
            "title": "Where the host's time goes",
            "unit": "s",
            "names": names,
            "places": places,
            "trees": trees,
        }
    )
    return sections


def _machine(blob: Blob, duration: float) -> list[dict[str, Any]]:
    grid = np.arange(0, duration, 0.1)
    noise = np.random.default_rng(3)
    sections = []
    for group, names in {
        "CPU": ["Busy", "Throttled", "Waiting for a core"],
        "Memory": ["Resident", "Bandwidth"],
        "Storage": ["Read", "Written", "Disk busy"],
        "GPU": ["Power", "Clock", "Temperature"],
    }.items():
        for k, name in enumerate(names):
            still = k == 1
            values = np.zeros(len(grid)) if still else 40 + np.cumsum(noise.normal(0, 1, len(grid)))
            values = np.clip(values, 0, None)
            if not still:
                values[len(grid) // 2 : len(grid) // 2 + 20] = np.nan
            sections.append(
                {
                    "kind": "series",
                    "id": f"{group}-{name}".lower().replace(" ", "-"),
                    "title": name,
                    "group": group,
                    "axis": "run",
                    "unit": "B/s" if group == "Storage" else "%",
                    "moves": not still,
                    "lines": [
                        {
                            "name": f"node-{n}",
                            "x": blob.column(grid, "f4"),
                            "y": blob.column(values * (1 + n / 5), "f4"),
                        }
                        for n in range(2)
                    ],
                }
            )
    return sections


def _missing() -> list[dict[str, Any]]:
    return [
        {
            "kind": "text",
            "id": "absent",
            "title": "Not recorded",
            "lines": ["GPU counters: no permission (run as root)"],
        },
        {
            "kind": "series",
            "id": "uncore",
            "title": "Memory bandwidth",
            "axis": "run",
            "unit": "B/s",
            "lines": [],
            "empty": "Memory controllers are counted by haiprof-perfd: see `haiprof doctor`.",
        },
    ]
