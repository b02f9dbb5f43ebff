"""Settings and workers of real DataLoaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recording import python, run_python
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split

from haiprof.capture import hooks


class Counted(Dataset[Any]):
    """Ten samples; it counts who asks for its length."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.ones(2)


class Broken(Counted):
    """It does not know its length."""

    def __len__(self) -> int:
        raise TypeError("somewhere else")


class Endless(IterableDataset[Any]):
    """Three samples for each worker."""

    def __iter__(self) -> Any:
        return iter([torch.ones(2)] * 3)

    def __len__(self) -> int:
        raise AssertionError("it must not be asked")


class Own:
    """A sampler of the job."""

    def __iter__(self) -> Any:
        return iter([0, 1])

    def __len__(self) -> int:
        raise AssertionError("it must not be asked")


def test_each_setting_is_recorded_at_the_first_iterator(recorded: Any) -> None:
    loader = DataLoader(Counted(), batch_size=4, shuffle=True, drop_last=True)
    assert recorded.events("loader") == []
    for _ in range(3):
        assert len(list(loader)) == 2
    list(DataLoader(Counted(), batch_size=4, shuffle=True, drop_last=True))
    assert recorded.events("loader") == [
        {
            "loader": 0,
            "dataset": f"{__name__}.Counted",
            "subset_of": None,
            "style": "map",
            "samples": 10,
            "batches": 2,
            "batch_size": 4,
            "num_workers": 0,
            "prefetch_factor": None,
            "persistent_workers": False,
            "pin_memory": False,
            "drop_last": True,
            "timeout": 0,
            "sampler": "torch.utils.data.sampler.RandomSampler",
            "batch_sampler": "torch.utils.data.sampler.BatchSampler",
            "collate": "torch.utils.data._utils.collate.default_collate",
            "start_method": None,
        }
    ]


def test_other_settings_are_another_loader(recorded: Any) -> None:
    data = TensorDataset(torch.ones(10, 2))
    for size in (2, 5, 2):
        list(DataLoader(data, batch_size=size))
    part, _ = random_split(data, [4, 6])
    list(DataLoader(part, batch_size=None))
    found = recorded.events("loader")
    assert [(each["loader"], each["batch_size"], each["batches"]) for each in found] == [
        (0, 2, 5), (1, 5, 2), (2, None, 4),
    ]  # fmt: skip
    assert found[2]["dataset"] == "torch.utils.data.dataset.Subset"
    assert found[2]["subset_of"] == "torch.utils.data.dataset.TensorDataset"
    assert found[2]["collate"] == "torch.utils.data._utils.collate.default_convert"


def test_lengths_are_unknown_where_only_the_job_could_tell(recorded: Any) -> None:
    for loader in (
        DataLoader(Endless(), batch_size=2),
        DataLoader(Counted(), sampler=Own()),
        DataLoader(Counted(), batch_sampler=[[0, 1], [2]]),
    ):
        next(iter(loader))
    with pytest.raises(TypeError, match="somewhere else"):
        next(iter(DataLoader(Broken())))
    found = recorded.events("loader")
    assert [(each["samples"], each["batches"]) for each in found] == [(None, None)] * 4
    assert [each["style"] for each in found] == ["iterable", "map", "map", "map"]
    assert found[1]["sampler"] == f"{__name__}.Own"
    assert found[2]["batch_sampler"] == "builtins.list"


def test_the_length_is_asked_for_once_more_than_torch_does(recorded: Any) -> None:
    data = Counted()
    for _ in range(5):
        list(DataLoader(data))
    with_hooks, data.asked = data.asked, 0
    hooks.uninstall()
    for _ in range(5):
        list(DataLoader(data))
    assert with_hooks - data.asked <= 2  # samples and batches


def test_workers_are_known_from_beginning_to_end(recorded: Any) -> None:
    loader = DataLoader(Counted(), batch_size=2, num_workers=2)
    for _ in range(2):
        list(loader)
    (settings,) = recorded.events("loader")
    assert (settings["num_workers"], settings["prefetch_factor"]) == (2, 2)
    assert settings["start_method"] == torch.multiprocessing.get_start_method()
    began, ended = recorded.events("loader_workers"), recorded.events("loader_workers_ended")
    assert len({pid for each in began for pid in each["pids"]}) == 4
    assert ended == [each | {"exit_codes": [0, 0]} for each in began]
    assert [each["loader"] for each in began] == [0, 0]


def test_workers_that_persist_begin_once(recorded: Any) -> None:
    loader = DataLoader(Counted(), num_workers=1, persistent_workers=True)
    for _ in range(3):
        list(loader)
    (began,) = recorded.events("loader_workers")
    assert began["pids"] == [worker.pid for worker in loader._iterator._workers]
    assert recorded.events("loader_workers_ended") == []
    del loader
    assert recorded.events("loader_workers_ended") == [began | {"exit_codes": [0]}]


#: In a program of its own: torch's handler raises wherever the signal comes.
KILLED = """
    import json, os, signal, sys, time
    from haiprof import _core
    from haiprof.capture import hooks
    _core.open_ring(sys.argv[1] + "/test.ring")
    hooks.install(lambda kind, text: print(text))
    events = {}
    _core.event = lambda kind, text, attributes=None: events.update({kind: json.loads(attributes)})
    from torch.utils.data import DataLoader
    batches = iter(DataLoader(list(range(10)), num_workers=1))
    next(batches)
    try:
        os.kill(events["loader_workers"]["pids"][0], signal.SIGKILL)
        while True:
            time.sleep(0.01)
    except RuntimeError as error:
        assert "DataLoader worker" in str(error), error
    del batches
    assert events["loader_workers_ended"] == events["loader_workers"] | {"exit_codes": [-9]}, events
    print("done")
"""


def test_a_worker_that_was_killed_is_named_with_its_signal(shm: Path) -> None:
    assert run_python(KILLED, str(shm), warm=True) == "done\n"


#: The iterator and its workers are there until the interpreter has cleared our modules.
AT_EXIT = """
    import sys
    from haiprof.capture import hooks
    hooks.install(lambda kind, text: print(text))
    from torch.utils.data import DataLoader
    batches = iter(DataLoader(list(range(10)), num_workers=1))
    next(batches)
    sys.modules["kept by somebody"] = batches
    print("done")
"""


def test_an_iterator_that_outlives_our_modules_ends_as_ever() -> None:
    process = python(AT_EXIT, warm=False)
    assert process.communicate(timeout=300) == ("done\n", "")
    assert process.returncode == 0


def test_loaders_made_for_each_batch_fill_no_disk(recorded: Any) -> None:
    for size in range(1, 100):
        list(DataLoader([1, 2], batch_size=size))
    assert [each["loader"] for each in recorded.events("loader")] == list(range(64))


def test_a_forked_child_records_its_loaders_itself(recorded: Any) -> None:
    from haiprof.capture.hooks import loaders

    watched = next(each for each in hooks._attached if isinstance(each, loaders.LoaderSettings))
    loader = DataLoader([1, 2])
    list(loader)
    assert watched._known
    watched._pid -= 1  # as it is after a fork
    list(loader)
    assert len(recorded.events("loader")) == 2
