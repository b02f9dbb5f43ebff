"""What the loop does between the phases: tensor operations, and the framework's own work."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from recorded_cases import STEPS, TORCH, found, kinds, life, line, node, rank

from haiprof.findings.recorded.case import Device
from haiprof.findings.recorded.hot import shares_between
from haiprof.views.run.hot_lines import LINES_SCHEMA

MS = 1_000_000
LOOP = "main (/job/train.py:7)"
FIT = "main (/job/train.py:30)"
#: torch gives the GIL back in its operators.
NATIVE = {"gil": False}
IN_PACKAGE = {"outer": "lightning", "package": "lightning", "function": "_call_hooks",
              "file": "/x/site-packages/lightning/pytorch/trainer/call.py"}  # fmt: skip


def below(*calls: str) -> dict[str, str]:
    """Return the path of a line below the loop."""
    return {"path": ";".join([LOOP, *calls])}


def trained(samples: int = 70, at: str = LOOP) -> list[dict[str, Any]]:
    """Return what the loop does in its phases, called from a line each."""
    net = "Net.forward (/job/net.py:2)"
    return [
        line("forward", samples // 2, net, path=f"{at};{net}", **NATIVE, **TORCH),
        line("backward", samples - samples // 2, at, path=at, **NATIVE, **TORCH),
    ]


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        # A line of the loop itself, as copy.deepcopy(model.state_dict()) is.
        ([], "in main (/job/train.py:9)"),
        (["update (/job/ema.py:4)"], "in update (/job/ema.py:4)"),
        (["report (/job/m.py:3)", "matrix (/job/m.py:8)"],
         "in matrix (/job/m.py:8), called from report (/job/m.py)"),
    ],
)  # fmt: skip
def test_tensor_operations_between_the_phases_are_named(calls: list[str], says: str) -> None:
    text = calls[-1] if calls else "main (/job/train.py:9)"
    path = ";".join([LOOP, *calls]) if calls else text
    samples = [
        line("other", 20, text, path=path, **NATIVE),
        line("other", 10, text, path=path),  # Python between two operators
        *trained(),
    ]
    (finding,) = found(rank(life({"other": 40}), samples))
    assert (finding.kind, finding.line, finding.phase) == ("tensor_work", text, "other")
    assert finding.problem.endswith(says)
    assert finding.lost_ns == STEPS * 40 * MS


def test_what_a_function_calls_in_turn_is_one_thing() -> None:
    report = "report (/job/m.py:3)"
    parts = [f"part{n} (/job/m.py:{n + 10})" for n in range(5)]
    samples = [line("other", 6, text, **below(report, text), **NATIVE) for text in parts]
    (finding,) = found(rank(life({"other": 40}), [*samples, *trained()]))
    assert (finding.kind, finding.lost_ns) == ("tensor_work", STEPS * 40 * MS)


def test_a_loss_is_in_forward_and_training() -> None:
    loss = line("forward", 40, "weighted (/job/loss.py:3)", **below("weighted (/job/loss.py:3)"),
                **NATIVE)  # fmt: skip
    assert kinds(rank(life(), [loss, *trained(60)])) == []


def test_a_few_tensor_operations_are_in_every_loop() -> None:
    few = line("other", 7, "main (/job/train.py:9)", path="main (/job/train.py:9)", **NATIVE)
    assert kinds(rank(life({"other": 8}), [few, *trained(93)])) == []


@pytest.mark.parametrize("file", ["torch/nn/utils/clip_grad.py", "torch/optim/swa_utils.py"])
def test_what_torch_has_for_it_is_a_part_of_the_update(file: str) -> None:
    clips = line("other", 30, "main (/job/train.py:9)", path="main (/job/train.py:9)", gil=False,
                 package="torch", outer="torch", function="f", file=f"/x/{file}")  # fmt: skip
    assert kinds(rank(life({"other": 40}), [clips, *trained()])) == []


def test_a_loop_without_phases_may_train_in_between() -> None:
    update = line("other", 30, "main (/job/train.py:9)", path="main (/job/train.py:9)", **NATIVE)
    without = life({"other": 40, "optimizer": 0})
    assert kinds(rank(without, [update, *trained()])) == []


def test_the_thread_of_a_job_with_a_gpu_waits_for_it_in_operators() -> None:
    item = line("other", 30, "main (/job/train.py:9)", path="main (/job/train.py:9)", **NATIVE)
    own = life({"other": 40})
    assert kinds(rank(own, [item, *trained()])) == ["tensor_work"]
    gpu = Device("n0", "gpu0", "H200", (0,))
    assert kinds(rank(own, [item, *trained()]), devices=[gpu], nodes=[node(30)]) == []
    pinned = {"loader": [{"pin_memory": True}]}
    assert kinds(rank(own, [item, *trained()], facts=pinned)) == []
    memory = pl.DataFrame({"time": [1], "value": [1.0]})
    assert kinds(rank(own, [item, *trained()], device_memory=memory)) == []


def test_the_frameworks_own_work_has_its_name_and_no_line_of_the_job() -> None:
    glue = [
        line("other", 15, FIT, path=FIT, **IN_PACKAGE),
        line("other", 15, FIT, path=FIT, outer="python lightning", package="python"),
    ]
    (finding,) = found(rank(life({"other": 40}), [*glue, *trained(at=FIT)]))
    assert (finding.kind, finding.line) == ("framework", None)
    assert finding.problem.startswith("lightning itself works between the phases, most of it in ")
    assert "_call_hooks (lightning/pytorch/trainer/call.py)" in finding.problem
    assert finding.lost_ns == STEPS * 40 * MS


def test_gradients_that_a_framework_zeroes_are_a_part_of_the_update() -> None:
    zeroes = {"outer": "transformers torch", "package": "torch", "function": "Module.zero_grad",
              "file": "/x/site-packages/torch/nn/modules/module.py"}  # fmt: skip
    glue = line("other", 30, FIT, path=FIT, **zeroes, **NATIVE)
    assert found(rank(life({"other": 40}), [glue, *trained(at=FIT)])) == []


def test_a_callback_of_the_job_is_named_and_not_the_framework_that_calls_it() -> None:
    text = "Keeps.on_train_batch_end (/job/keeps.py:4)"
    keeps = line("other", 30, text, path=f"{FIT};{text}", **NATIVE)
    (finding,) = found(rank(life({"other": 40}), [keeps, *trained(at=FIT)]))
    assert (finding.kind, finding.line) == ("tensor_work", text)


def test_parts_of_the_time_between_the_phases_have_names() -> None:
    text = "Keeps.on_train_batch_end (/job/keeps.py:4)"
    lines = [
        line("other", 20, FIT, path=FIT, **IN_PACKAGE),
        line("other", 10, text, path=f"{FIT};{text}", **NATIVE),
        line("other", 9, FIT, path=FIT, **TORCH, outer="torch"),
        line("other", 1, "rare (/job/keeps.py:9)", path=f"{FIT};rare (/job/keeps.py:9)"),
        *trained(at=FIT),
    ]
    assert shares_between(pl.DataFrame(lines, LINES_SCHEMA, orient="row")) == {
        "framework (lightning)": 0.5, "Keeps.on_train_batch_end (/job/keeps.py)": 0.25,
    }  # fmt: skip
    assert shares_between(pl.DataFrame(lines[1:2], LINES_SCHEMA, orient="row")) == {}


def test_shares_are_of_the_rest_where_ranges_name_what_logs() -> None:
    report, keeps = "report (/job/keeps.py:9)", "keeps (/job/keeps.py:4)"
    lines = [
        line("other", 40, report, path=f"{FIT};{report}", outer="wandb", package="wandb"),
        line("other", 40, keeps, path=f"{FIT};{keeps}", **NATIVE),
        *trained(at=FIT),
    ]
    frame = pl.DataFrame(lines, LINES_SCHEMA, orient="row")
    assert shares_between(frame) == {"report (/job/keeps.py)": 0.5, "keeps (/job/keeps.py)": 0.5}
    assert shares_between(frame, logged=True) == {"keeps (/job/keeps.py)": 1.0}


def test_what_a_framework_calls_is_named() -> None:
    averages = {"outer": "lightning torch", "package": "torch", "function": "update_parameters",
                "file": "/x/site-packages/torch/optim/swa_utils.py"}  # fmt: skip
    glue = line("other", 30, FIT, path=FIT, **averages, **NATIVE)
    (finding,) = found(rank(life({"other": 40}), [glue, *trained(at=FIT)]))
    assert finding.problem == (
        "lightning itself works between the phases, most of it in "
        "update_parameters (torch/optim/swa_utils.py)"
    )


def test_what_torch_does_where_it_calls_the_phases_is_training() -> None:
    joins = line("other", 30, FIT, path=FIT, gil=False, **TORCH, outer="torch")
    assert kinds(rank(life({"other": 40}), [joins, *trained(at=FIT)])) == []


def test_a_logger_that_the_framework_calls_is_logging() -> None:
    wandb = line("other", 30, FIT, path=FIT, package="wandb", outer="wandb lightning",
                 function="log", file="/x/site-packages/wandb/sdk/run.py")  # fmt: skip
    assert kinds(rank(life({"other": 40}), [wandb, *trained(at=FIT)])) == ["logging"]


def test_tensor_operations_do_not_hide_python_code_beside_them() -> None:
    python = line("other", 15, "tokens (/job/text.py:3)", **below("tokens (/job/text.py:3)"))
    keeps = line("other", 25, "keep (/job/keeps.py:4)", **below("keep (/job/keeps.py:4)"), **NATIVE)
    assert kinds(rank(life({"other": 60}), [python, keeps, *trained(60)])) == [
        "tensor_work", "host_code",
    ]  # fmt: skip
