"""Saving and loading checkpoints, recorded without a change in the job."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import run_python


def names(recorded: Any) -> list[str]:
    return [row.name for row in recorded.spans() if row.name.startswith("checkpoint.")]


def test_each_call_that_returns_is_a_span(recorded: Any, tmp_path: Path) -> None:
    state = {"weight": torch.arange(1000.0)}
    torch.save(state, tmp_path / "state.pt")
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.save(state, str(tmp_path / "nowhere" / "state.pt"))
    loaded = torch.load(tmp_path / "state.pt", map_location="cpu")
    assert torch.equal(loaded["weight"], state["weight"])
    assert names(recorded) == ["checkpoint.save", "checkpoint.load"]


def test_a_call_within_another_is_a_part_of_it(
    recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nested:
        def __reduce__(self) -> tuple[Callable[[], dict[Any, Any]], tuple[()]]:
            torch.save({}, io.BytesIO())
            return dict, ()

    torch.save(Nested(), io.BytesIO())
    torch.save({}, io.BytesIO())
    assert names(recorded) == ["checkpoint.save", "checkpoint.save"]


def test_the_functions_are_what_they_were_to_who_looks(recorded: Any) -> None:
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save is torch.serialization.save
    assert torch.load.__name__ == "load"
    assert torch.load.__doc__


def test_distributed_checkpoints_count_once_also_in_the_background(tmp_path: Path) -> None:
    program = """
        import sys, time
        from pathlib import Path
        from haiprof import _core
        from haiprof.capture import hooks
        _core.open_ring(sys.argv[1] + "/test.ring")
        reports = []
        hooks.install(lambda kind, text: reports.append(text))
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        import torch.distributed.checkpoint as dcp
        state = {"model": {"weight": torch.ones(1000)}}
        dcp.save(state, checkpoint_id=sys.argv[1] + "/one")
        dcp.load(state, checkpoint_id=sys.argv[1] + "/one")
        dcp.async_save(state, checkpoint_id=sys.argv[1] + "/two").result()
        hooks.uninstall()
        dcp.save(state, checkpoint_id=sys.argv[1] + "/three")
        assert dcp.save is dcp.state_dict_saver.save
        assert not reports, reports
        dist.destroy_process_group()
        sys.path.insert(0, sys.argv[2])
        from phases import read_spans
        found = read_spans(Path(sys.argv[1]) / "test.ring")
        print([row.name for row in found if row.name.startswith("checkpoint.")])
    """
    result = run_python(program, str(tmp_path), str(Path(__file__).parents[2]), warm=True)
    assert result.splitlines()[-1] == str(
        ["checkpoint.save", "checkpoint.load", "checkpoint.async_save", "checkpoint.save"]
    )


def test_safetensors_are_checkpoints_too(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    program = """
        import sys
        from pathlib import Path
        from haiprof import _core
        from haiprof.capture import hooks
        _core.open_ring(sys.argv[1] + "/test.ring")
        hooks.install()
        import torch
        from safetensors.torch import load_file, save_file
        save_file({"weight": torch.ones(10)}, sys.argv[1] + "/a.safetensors")
        load_file(sys.argv[1] + "/a.safetensors")
        sys.path.insert(0, sys.argv[2])
        from phases import read_spans
        print([row.name for row in read_spans(Path(sys.argv[1]) / "test.ring")])
    """
    result = run_python(program, str(tmp_path), str(Path(__file__).parents[2]), warm=True)
    assert result.splitlines()[-1] == str(["checkpoint.save", "checkpoint.load"])
