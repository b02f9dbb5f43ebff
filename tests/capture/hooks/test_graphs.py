"""The hook on replays of CUDA graphs; tests/gpu/test_graphs.py has what it records."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from haiprof.capture.hooks import graphs


def test_torchs_own_function_is_replaced_and_given_back() -> None:
    owner = torch.cuda.CUDAGraph
    original = vars(owner)["replay"]
    hook = graphs.GraphReplays(owner)
    assert vars(owner)["replay"] is not original
    assert owner.replay.__doc__ == original.__doc__
    hook.restore()
    assert vars(owner)["replay"] is original


def test_arguments_results_and_errors_pass_through_and_no_graph_is_kept_alive() -> None:
    class Graph:
        def replay(self, *args: object, **keywords: object) -> tuple[object, ...]:
            if not args:
                raise RuntimeError("not captured")
            return (*args, keywords)

    first, second = Graph(), Graph()
    for _ in range(2):  # one recording after another
        hook = graphs.GraphReplays(Graph)
        assert second.replay(1, a=2) == first.replay(1, a=2) == (1, {"a": 2})
        with pytest.raises(RuntimeError, match="not captured"):
            first.replay()
        hook.restore()
    alive = weakref.ref(first)
    del first
    gc.collect()
    assert alive() is None
