"""Reads the unit of haiprof-perfd."""

from __future__ import annotations

from fixtures import ROOT

UNIT = ROOT / "deploy/systemd/haiprof-perfd.service"


def unit() -> dict[str, dict[str, list[str]]]:
    """Return the values of each key of each section, in order."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in UNIT.read_text("utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return sections
