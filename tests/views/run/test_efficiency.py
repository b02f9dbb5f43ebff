"""MFU, HFU, throughput and energy: against what they are by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import (
    Row,
    event,
    loop,
    make_run,
    sample,
    span,
    write_closed,
    write_json,
    write_node,
    write_process,
    write_run,
)

from haiprof import Analyzer, schema

#: A step of :func:`runs.loop`.
STEP_S = 0.012
H100 = {"device": 0, "uuid": "GPU-0", "name": "NVIDIA H100 80GB HBM3", "multiprocessors": 132}
PEAK = 989.4e12


def said(second: float, **attributes: Any) -> Row:
    return event(second, "model", "what a step of the model computes", None, attributes)


def counted(second: float, flops: float, recomputed: float = 0, **more: Any) -> Row:
    attributes = {
        "flops": flops,
        "recomputed": recomputed,
        "dtypes": {"bf16": flops},
        "uncounted": [],
    }
    return event(second, "flops", "a step computed", None, {**attributes, "failures": 0, **more})


def run_with(
    folder: Path, events: Sequence[Row], rank: int = 0, gpus: Sequence[dict[str, Any]] = (H100,)
) -> Path:
    if not folder.exists():
        write_run(folder)
    process = write_process(folder, rank, gpus=list(gpus))
    write_closed(process, schema.SPANS, loop(100))
    write_closed(process, schema.EVENTS, events)
    return folder


def only(run: Path, **given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the one rank and the run; the same when the processes were read before."""
    found = Analyzer(run).efficiency(**given)
    after = Analyzer(run)
    after.summaries()
    for one, other in zip(found, after.efficiency(**given), strict=True):
        assert one.equals(other)
    return found.ranks.row(0, named=True), found.run.row(0, named=True)


def test_mfu_and_hfu_are_those_by_hand(tmp_path: Path) -> None:
    rank, run = only(run_with(tmp_path / "run", [counted(0.5, 4e12, 1e12)]))
    assert rank["step_ns"] == STEP_S * 1e9
    assert (rank["flops_per_step"], rank["flops_how"]) == (3e12, "counted")
    assert (rank["hardware_flops_per_step"], rank["dtype"]) == (4e12, "bf16")
    assert rank["peak_flops"] == pytest.approx(PEAK)
    assert rank["mfu"] == pytest.approx(3e12 / STEP_S / PEAK)
    assert rank["hfu"] == pytest.approx(4e12 / STEP_S / PEAK)
    assert rank["why"] is None
    assert (run["mfu"], run["hfu"]) == pytest.approx((rank["mfu"], rank["hfu"]))


def test_a_tiny_gpt_by_its_formula(tmp_path: Path) -> None:
    # PaLM's appendix B by hand, of 124 M parameters, 12 layers of 12 heads of 64, 1024 tokens.
    per_token = 6 * 124e6 + 12 * 12 * 12 * 64 * 1024
    attributes = {"parameters": 124e6, "attention_flops_per_token": 12 * 12 * 12 * 64 * 1024}
    rank, _ = only(
        run_with(tmp_path / "run", [said(0, **attributes, tokens_per_step=4096, dtype="bfloat16")])
    )
    assert rank["flops_how"] == "formula"
    assert rank["mfu"] == pytest.approx(per_token * 4096 / STEP_S / PEAK, rel=1e-9)
    assert rank["tokens_per_s"] == pytest.approx(4096 / STEP_S)
    assert rank["hfu"] is None
    assert rank["why"] == "what was recomputed is not known: give the option flops"


@pytest.mark.parametrize(
    ("events", "flops", "how"),
    [
        ([said(0, flops_per_step=7.0), counted(0.5, 5)], 7, "given"),
        ([said(0, flops_per_token=2.0, tokens_per_step=3.0)], 6, "given"),
        ([said(0, parameters=1.0, tokens_per_step=2.0), counted(0.5, 5, 1)], 4, "counted"),
        (
            [said(0, parameters=1.0, tokens_per_step=2.0), counted(0.5, 5, uncounted=["a"])],
            12,
            "formula",
        ),
        ([counted(0.5, 5, 1, uncounted=["aten._attention"])], 4, "counted"),
        ([counted(0.5, 5, failures=1)], None, None),
        ([said(0, flops_per_token=2.0)], None, None),
        ([event(0, "model", "", None, {"flops_per_step": "many"})], None, None),
        ([{**said(0), "attributes": "{"}], None, None),
        ([], None, None),
    ],
)
def test_the_best_known_flops_count(
    tmp_path: Path, events: list[Row], flops: float | None, how: str | None
) -> None:
    rank, _ = only(run_with(tmp_path / "run", events))
    assert (rank["flops_per_step"], rank["flops_how"]) == (flops, how)
    assert (rank["why"] or "").startswith("what the model computes") == (flops is None)


def test_what_changes_counts_from_the_step_on_in_which_it_was_said(tmp_path: Path) -> None:
    # Of 100 steps of 12 ms, it is said first within the 26th, and again within the 51st.
    first = said(25.5 * STEP_S, tokens_per_step=100.0, samples_per_step=10.0)
    second = said(50.5 * STEP_S, tokens_per_step=300.0, samples_per_step=10.0)
    rank, _ = only(run_with(tmp_path / "run", [first, second]))
    assert rank["tokens_per_s"] == pytest.approx((50 * 100 + 50 * 300) / (100 * STEP_S))
    assert rank["samples_per_s"] == pytest.approx(10 / STEP_S)


def test_a_peak_that_is_given_counts_and_one_unknown_is_none(tmp_path: Path) -> None:
    odd = {**H100, "name": "NVIDIA Tomorrow"}
    run = run_with(tmp_path / "run", [counted(0.5, 1e12)], gpus=[odd, {**odd, "device": 1}])
    rank, whole = only(run)
    assert (rank["mfu"], rank["peak_flops"]) == (None, None)
    assert rank["why"] == "the peak of NVIDIA Tomorrow is not known: give the option peak_flops"
    assert whole["mfu"] is None
    assert whole["why"] == rank["why"]
    given, _ = only(run, peak_flops=1e15)
    assert given["mfu"] == pytest.approx(1e12 / STEP_S / 2e15)
    write_run(tmp_path / "run", options={"peak_flops": 5e14})
    as_told, _ = only(run)
    assert as_told["mfu"] == pytest.approx(1e12 / STEP_S / 1e15)


def test_without_a_gpu_there_is_no_peak_unless_it_is_given(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [counted(0.5, 1e9)], gpus=())
    rank, _ = only(run)
    assert rank["mfu"] is None
    assert "give the option peak_flops" in rank["why"]
    assert only(run, peak_flops=1e12)[0]["mfu"] == pytest.approx(1e9 / STEP_S / 1e12)


def test_a_type_that_nobody_stated_is_asked_for(tmp_path: Path) -> None:
    rank, _ = only(run_with(tmp_path / "run", [said(0, flops_per_step=1e12)]))
    assert rank["mfu"] is None
    assert "set haiprof.model(dtype=…)" in rank["why"]


def test_an_evaluation_in_the_step_that_was_counted_is_reported(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [])
    process = run / "n0#0"
    write_closed(process, schema.SPANS, [span(601, 2, "phase", "eval", 50)], 1)
    times = {"begun_ns": 1_700_000_000_600_000_000, "ended_ns": 1_700_000_000_620_000_000}
    write_closed(process, schema.EVENTS, [counted(0.62, 1e12, **times)], 1)
    rank, _ = only(run)
    assert rank["why"] == "the counted step contained an evaluation, which is counted with it"


def test_one_rank_counts_for_all_and_the_run_adds_them_up(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [counted(0.5, 4e12), said(0, tokens_per_step=1000.0)])
    run_with(run, [said(0, tokens_per_step=3000.0)], rank=1, gpus=[{**H100, "uuid": "GPU-1"}])
    ranks = Analyzer(run).efficiency().ranks
    assert ranks["mfu"].to_list() == pytest.approx([4e12 / STEP_S / PEAK] * 2)
    _, whole = only(run)
    assert whole["mfu"] == pytest.approx(4e12 / STEP_S / PEAK)
    assert whole["tokens_per_s"] == pytest.approx(4000 / STEP_S)
    assert whole["ranks"] == 2


@pytest.mark.parametrize("tokens", [50.0, None])
def test_energy_is_of_the_steps_and_tensor_activity_is_measured_beside(
    tmp_path: Path, tokens: float | None
) -> None:
    run = write_run(tmp_path / "run")
    gpus = [{**H100, "uuid": f"GPU-{n}", "device": n} for n in range(2)]
    process = write_process(run, 0, gpus=gpus)
    # Ten steps of 1 s from the second second on, in two phases.
    write_closed(
        process,
        schema.SPANS,
        [span(2000 + 1000 * n, 1000, "step", "step", n) for n in range(10)],
    )
    stated = [] if tokens is None else [said(1, tokens_per_step=tokens)]
    write_closed(process, schema.EVENTS, stated)
    node = write_node(
        run, gpus=[{"instance": f"gpu{n}", "index": n, "uuid": f"GPU-{n}"} for n in range(3)]
    )
    rows = []
    for second in range(1, 14):
        busy = 2 < second <= 12
        for gpu in range(3):
            rows.append(sample(second, "gpu.power.watts", 300.0 if busy else 60.0, f"gpu{gpu}"))
            rows.append(
                sample(second, "gpu.tensor_active.ratio", 0.5 if busy else 0.0, f"gpu{gpu}")
            )
        rows.append(sample(second, "cpu.power.watts", 200.0 if busy else 90.0))
    write_closed(node, schema.SAMPLES, rows)
    rank, whole = only(run)
    assert (rank["steps"], rank["step_ns"]) == (10, 1e9)
    assert rank["gpu_joules_per_step"] == pytest.approx(600)
    assert rank["gpu_joules_per_token"] == (tokens and pytest.approx(600 / 50))
    assert rank["tensor_active"] == pytest.approx(0.5)
    assert whole["gpu_joules_per_step"] == pytest.approx(600)
    assert whole["cpu_joules_per_step"] == pytest.approx(200)
    assert whole["joules_per_token"] == (tokens and pytest.approx(800 / 50))


def test_samples_that_cover_little_of_the_steps_make_no_mean(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    process = write_process(run, 0, gpus=[H100])
    write_closed(process, schema.SPANS, [span(0, 100_000, "step", "step", 0)])
    node = write_node(run, gpus=[{"instance": "gpu0", "index": 0, "uuid": "GPU-0"}])
    watts = [sample(second, "gpu.power.watts", 300.0, "gpu0") for second in range(1, 30)]
    write_closed(node, schema.SAMPLES, watts)
    assert only(run)[0]["gpu_joules_per_step"] is None


def test_a_rank_without_steps_and_a_run_without_ranks_have_no_rows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_json(run / "n0#0" / schema.PROCESS_FILE, {})
    write_node(run)
    found = Analyzer(run).efficiency()
    assert (found.ranks.height, found.run.height) == (0, 0)


def test_an_ordinary_run_has_its_rows(tmp_path: Path) -> None:
    analyzer = Analyzer(make_run(tmp_path / "run", ranks=3))
    analyzer.summaries()
    found = analyzer.efficiency()
    assert found.run.equals(Analyzer(tmp_path / "run").efficiency().run)
    assert found.ranks["rank"].to_list() == [0, 1, 2]
    assert found.ranks.select(pl.col("mfu").null_count()).item() == 3
