"""Values of labels come from the job: it may give any, and as many as it likes."""

from __future__ import annotations

import pytest

from haiprof.recorder.metrics.names import Names, group_kind, label_value


def test_the_first_names_have_series_and_known_ones_always() -> None:
    names = Names(["forward", "other"], 2)
    assert [names(f"range{i}") for i in range(4)] == ["range0", "range1", "other", "other"]
    assert names("forward") == "forward"
    assert names("range1") == "range1"
    assert names.cut_off == 2
    names("range3")
    assert names.cut_off == 2, "each counts once"


def test_endless_names_take_no_memory() -> None:
    names = Names([], 1)
    for i in range(10_000):
        names(str(i))
    assert names.cut_off == 4096


def test_values_are_short_and_harmless() -> None:
    assert label_value("x" * 1000) == "x" * 64
    assert label_value('a"\\\n\x1b[2J\udcff') == 'a"\\\N{REPLACEMENT CHARACTER}' + (
        "\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"
    )


@pytest.mark.parametrize(
    ("purpose", "kind"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "other"),
        ("CONTEXT_PARALLEL_GROUP", "other"),
        ("mesh_dp_shard", "dp"),
        ("mesh_tp", "tp"),
        ("default_pg", "other"),
        ("", "other"),
    ],
)
def test_what_a_group_is_for(purpose: str, kind: str) -> None:
    assert group_kind(purpose) == kind
