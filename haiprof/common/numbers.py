"""Formats numbers for people."""

from __future__ import annotations

from datetime import datetime, timezone


def milliseconds(ns: float) -> str:
    """Format a duration: ``12.3 ms``, ``1.42 s``, ``830 µs``; a difference may be negative."""
    if ns < 0:
        return f"-{milliseconds(-ns)}"
    if ns >= 999.5e9:
        return f"{ns / 1e9:,.0f} s".replace(",", " ")
    if ns >= 999.5e6:
        return f"{ns / 1e9:.3g} s"
    return f"{ns / 1e6:.3g} ms" if ns >= 999.5e3 else f"{ns / 1e3:.3g} µs"


def size(count: float) -> str:
    """Format a number of bytes: ``640 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1023.5:
            return f"{count:.3g} {unit}" if abs(count) < 999.5 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def percent(share: float) -> str:
    """Format a share of one: ``38 %``, ``0.4 %`` when it is small, at last ``under 0.001 %``."""
    value = share * 100
    if 0 < value < 0.001:
        return "under 0.001 %"
    return f"{value:.0f} %" if value >= 1 or value == 0 else f"{value:.1g} %"


def rate(bytes_per_s: float) -> str:
    """Format a bandwidth as vendors of memory and networks do: ``204.8 GB/s``, ``3.2 MB/s``."""
    if bytes_per_s >= 1e9:
        return f"{bytes_per_s / 1e9:.1f} GB/s"
    return f"{bytes_per_s / 1e6:.3g} MB/s"


def energy(joules: float) -> str:
    """Format an energy: ``830 J``, ``12.4 kJ``, and from 3.6 MJ on ``1.25 kWh``."""
    for unit, size_of, until in (("J", 1, 1e3), ("kJ", 1e3, 1e6), ("MJ", 1e6, 3.6e6)):
        if joules < until:
            return f"{joules / size_of:.3g} {unit}"
    hours = joules / 3.6e6
    return f"{hours:.3g} kWh" if hours < 999.5 else f"{hours:,.0f} kWh".replace(",", " ")


def hours(count: float) -> str:
    """Format hours: ``1 024``, ``12.4``, ``0.03``, at last ``under 0.01``."""
    if 0 < count < 0.01:
        return "under 0.01"
    if count < 0.0995:
        return f"{count:.2g}"
    return f"{count:,.0f}".replace(",", " ") if count >= 999.5 else f"{count:.3g}"


def utc(time_ns: int) -> str:
    """Write a time as ``2026-01-31 12:00:00.123``."""
    whole = datetime.fromtimestamp(time_ns // 10**9, tz=timezone.utc)
    return f"{whole:%Y-%m-%d %H:%M:%S}.{time_ns % 10**9 // 10**6:03d}"
