"""Numbers as people read them."""

from __future__ import annotations

import pytest

from haiprof.common.numbers import energy, rate


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (0.0, "0 J"),
        (830.0, "830 J"),
        (12_400.0, "12.4 kJ"),
        (2.5e6, "2.5 MJ"),
        (3.6e6, "1 kWh"),
        (4.5e6, "1.25 kWh"),
        (4.5e10, "12 500 kWh"),
    ],
)
def test_energy_is_formatted_in_the_unit_that_fits(joules: float, text: str) -> None:
    assert energy(joules) == text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(0.0, "0 MB/s"), (3.2e6, "3.2 MB/s"), (204.8e9, "204.8 GB/s"), (4e12, "4000.0 GB/s")],
)
def test_a_bandwidth_is_formatted_in_powers_of_ten(bytes_per_s: float, text: str) -> None:
    assert rate(bytes_per_s) == text
