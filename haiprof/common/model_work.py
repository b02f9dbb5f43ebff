"""What a statement of ``haiprof.model`` says that a step computes: attributes of an event.

Tests: tests/recorder/metrics/test_work.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def figure(attributes: Mapping[str, Any], name: str) -> float | None:
    """Return a number of at least 0; None: there is none."""
    value = attributes.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value) if value >= 0 else None
    return None


def given(attributes: Mapping[str, Any]) -> float | None:
    """Return the FLOPs of a step as they were given; None: they were not."""
    whole = figure(attributes, "flops_per_step")
    if whole is not None:
        return whole
    per_token, tokens = figure(attributes, "flops_per_token"), figure(attributes, "tokens_per_step")
    return None if per_token is None or tokens is None else per_token * tokens


def formula(attributes: Mapping[str, Any]) -> float | None:
    """Return them by parameters and attention; None: these are not known."""
    parameters, tokens = figure(attributes, "parameters"), figure(attributes, "tokens_per_step")
    if parameters is None or tokens is None:
        return None
    return (6 * parameters + (figure(attributes, "attention_flops_per_token") or 0)) * tokens
