"""The colours of phases, of kinds of work, and of the rest: one meaning in all figures.

Tests: tests/show/test_shown.py.
"""

from __future__ import annotations

from haiprof.views.run.overview import BETWEEN

#: One colour per phase, the same in every figure.
PHASE_COLOURS = {
    "dataloader": "#e8833a",
    "forward": "#3f7fd6",
    "recompute": "#35b0c4",
    "backward": "#7a5bd0",
    "gradient_sync": "#c4508a",
    "optimizer": "#3fa66a",
    "eval": "#8a94a6",
    "eval_dataloader": "#c2925c",
    "deep_trace": "#a8545c",
    "other": "#b9c1cc",
    BETWEEN: "#b9c1cc",
}
#: One colour per kind of work, likewise; one that is a phase, too, has that one's.
WORK_COLOURS = {
    "kernel": "#1f9e89",
    "communication": PHASE_COLOURS["gradient_sync"],
    "overlap": "#7f7796",
    "waiting": "#d05b5b",
    "memcpy": "#d9b13b",
    "memset": "#a0a45c",
    "graph": "#5f8f3e",
    "runtime": "#b374c9",
    "cpu": "#7fa3d8",
    "dataloader": PHASE_COLOURS["dataloader"],
    "weight": "#a878e0",
    "send": "#e0a08a",
    "recv": "#8fb4ad",
    "idle": PHASE_COLOURS["other"],
    "other": PHASE_COLOURS["other"],
}
#: For series and user ranges, which have no colour of their own: what one means its figure says.
COLOURS = (
    "#1d5fa8",
    "#b5521b",
    "#2c7a45",
    "#93265f",
    "#523a9e",
    "#157a8c",
    "#7d6210",
    "#556070",
    "#9e2b2b",
)


def phase_colour(name: str, position: int) -> str:
    """Return the colour of a phase, or of a user range by its position."""
    return PHASE_COLOURS.get(name) or COLOURS[position % len(COLOURS)]
