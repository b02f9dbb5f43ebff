"""Runs in which nothing is wrong, of many kinds: what is found in them is a false alarm."""

from __future__ import annotations

from typing import Any

from faults.cases import Case
from faults.drawn import MLP, PIPELINE, TRANSFORMER, job

#: So much computing that exchanging the gradients costs next to nothing.
RANKS: dict[str, Any] = {**TRANSFORMER, "steps": 60, "batch": 16}
#: By what one reads of it: the style, how many ranks, the model, and what is special.
WAYS: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "plain": ("train", 1, MLP, {}),
    "transformer": ("train", 1, TRANSFORMER, {}),
    "two workers": ("train", 1, MLP, {"workers": 2, "layers": 4}),
    "workers and epochs": ("train", 1, TRANSFORMER, {"workers": 1, "epochs": 2, "steps": 70}),
    "evaluation now and then": (
        "train", 1, MLP, {"extras": {"evaluate": {"every": 50, "batches": 3}}},
    ),
    "evaluation of a transformer": (
        "train", 1, TRANSFORMER, {"extras": {"evaluate": {"every": 45, "batches": 4}}},
    ),
    "compiled": ("train", 1, TRANSFORMER, {"extras": {"compiled": {"backend": "aot_eager"}}}),
    "compiled network": ("train", 1, MLP, {"extras": {"compiled": {"backend": "eager"}}}),
    "seldom saved": ("train", 1, MLP, {"extras": {"save": {"every": 50}}}),
    "uneven last batch": ("train", 1, MLP, {"rows": 96 * 49 + 13, "steps": 100, "epochs": 2}),
    "accumulation": ("train", 1, MLP, {"extras": {"accumulate": 4}, "steps": 300, "batch": 48}),
    "schedule": ("train", 1, MLP, {"extras": {"schedule": True}}),
    "varied lengths": (
        "train", 1, TRANSFORMER, {"extras": {"lengths": {"of": [52, 64], "alike": True}}},
    ),
    "said each step": ("train", 1, MLP, {"extras": {"say": {"every": 1}}}),
    "own loss": ("train", 1, TRANSFORMER, {"extras": {"own_loss": True}}),
    "large vocabulary": ("train", 1, TRANSFORMER, {"vocabulary": 8_000, "batch": 4, "width": 96}),
    "bfloat16": ("train", 1, TRANSFORMER, {"extras": {"bfloat16": True}}),
    "clipped": ("train", 1, MLP, {"extras": {"clip": True}}),
    "averaged weights": ("train", 1, MLP, {"extras": {"average": True}}),
    "several optimizers": ("train", 1, MLP, {"layers": 4, "extras": {"several": True}}),
    "scaled gradients": ("train", 1, MLP, {"extras": {"scaler": True}}),
    "small and quick": ("train", 1, MLP, {
        "width": 768, "layers": 4, "batch": 32, "steps": 250,
    }),
    "accelerate": ("accelerated", 1, MLP, {}),
    "accelerate, all together": ("accelerated", 1, TRANSFORMER, {
        "extras": {"clip": True, "schedule": True, "say": {"every": 10}, "accumulate": 2},
        "steps": 160, "batch": 4,
    }),
    "two ranks": ("parallel", 2, RANKS, {"width": 256, "batch": 10}),
    "two ranks of a transformer": ("parallel", 2, RANKS, {}),
    "three ranks": ("parallel", 3, RANKS, {"batch": 12}),
    "lengths alike in all ranks": ("parallel", 2, RANKS, {
        "extras": {"lengths": {"of": [52, 64], "alike": True}},
    }),
    "ranks that evaluate and save": ("parallel", 2, RANKS, {
        "extras": {"evaluate": {"every": 30, "batches": 2}, "save": {"every": 30}},
    }),
    "sharded": ("sharded", 2, RANKS, {"batch": 24}),
    "pipeline": ("staged", 2, PIPELINE, {
        "batch": 32, "microbatches": 32, "extras": {"schedule": "1f1b"},
    }),
    "experts": ("experts", 2, RANKS, {}),
    "planned restart": ("parallel", 2, RANKS, {"steps": 40, "extras": {"again": True}}),
    "trainer": ("with_trainer", 1, TRANSFORMER, {}),
    "trainer that logs": ("with_trainer", 1, TRANSFORMER, {"extras": {"say": {"every": 10}}}),
    "lightning": ("with_lightning", 1, TRANSFORMER, {}),
    "pipeline, all forward first": ("staged", 2, PIPELINE, {
        "batch": 32, "microbatches": 32, "extras": {"schedule": "gpipe"},
    }),
}  # fmt: skip
#: Beside which programs run that take a core now and then, or all the time at a low priority.
LOADED = {
    "loaded machine": ("plain", {"what": "hogs", "count": 1}),
    "loaded machine, ranks": ("two ranks", {"what": "hogs", "count": 1, "nice": 19}),
}


def cases() -> list[Case]:
    """Return all of them."""
    made = []
    for seed, (label, (style, world, model, special)) in enumerate(WAYS.items()):
        settings = {**job(model), **special, "seed": seed}
        made.append(Case(f"healthy: {label}", None, seed, style, settings, world))
    for number, (label, (like, beside)) in enumerate(LOADED.items()):
        style, world, model, special = WAYS[like]
        seed = len(WAYS) + number
        settings = {**job(model), **special, "seed": seed}
        made.append(
            Case(f"healthy: {label}", None, len(made), style, settings, world, conditions=(beside,))
        )
    return made
