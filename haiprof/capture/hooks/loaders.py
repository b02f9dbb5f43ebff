"""Hook on DataLoaders: with which settings each was made, and when its workers began and ended.

Their iterators are watched when they are made, never when they are asked for a batch.
"""

from __future__ import annotations

import contextlib
import operator
import os
from typing import Any, Final

from haiprof.capture.hooks.facts import qualified, record
from haiprof.capture.hooks.replaced import Replaced

#: Kinds of the events.
LOADER: Final = "loader"
WORKERS: Final = "loader_workers"
WORKERS_ENDED: Final = "loader_workers_ended"

#: How often each kind is recorded in a process at most: some jobs make a loader for each batch.
_MOST: Final = 64
#: Loaders that are distinguished without looking at all their settings.
_MOST_KNOWN: Final = 256
#: Settings of a loader that can be read without running code of the job.
_SETTINGS: Final = (
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "drop_last",
    "timeout",
)
_IDENTITY: Final = operator.attrgetter("dataset", "sampler", "batch_sampler", *_SETTINGS)


class LoaderSettings:
    """The iterators of torch's DataLoader."""

    name = "loaders"

    def __init__(self) -> None:
        """Nothing is touched yet."""
        self._replaced: list[Replaced] = []
        self._pid = os.getpid()
        #: Numbers of the settings, by what tells loaders apart quickly, and by all of them.
        self._known: dict[tuple[Any, ...], int] = {}
        self._numbers: dict[str, int] = {}
        #: Which loader an iterator with workers is of, by its address.
        self._working: dict[int, int] = {}
        self._started = 0

    def attach(self) -> str:
        """Watch iterators being made, and their workers being shut down; return how."""
        from torch.utils.data import dataloader

        every = dataloader._BaseDataLoaderIter
        try:
            for owner, name, note in (
                (every, "__init__", self._made),
                # It is called once all workers have been started, from no frame of theirs.
                (every, "_reset", self._reset),
                (dataloader._MultiProcessingDataLoaderIter, "_shutdown_workers", self._ended),
            ):
                self._replaced.append(Replaced(owner, name, note=note))
        except BaseException:
            self.detach()
            raise
        return "on: the iterators of DataLoader"

    def detach(self) -> None:
        """Restore them."""
        while self._replaced:
            self._replaced.pop().restore()

    def _made(self, args: tuple[Any, ...], keywords: dict[str, Any], result: None) -> None:
        loader = args[1] if len(args) > 1 else keywords["loader"]
        if loader.num_workers == 0:  # else it is not known yet how they are started
            self._number(loader)

    def _reset(self, args: tuple[Any, ...], keywords: dict[str, Any], result: None) -> None:
        iterator = args[0]
        workers = getattr(iterator, "_workers", None)
        if not workers or id(iterator) in self._working or self._started >= _MOST:
            return
        number = self._number(args[1])
        pids = [worker.pid for worker in workers]
        if record(WORKERS, f"{_processes(pids)} began", {"loader": number, "pids": pids}):
            self._started += 1
            self._working[id(iterator)] = -1 if number is None else number

    def _ended(self, args: tuple[Any, ...], keywords: dict[str, Any], result: None) -> None:
        iterator = args[0]
        number = self._working.pop(id(iterator), None)
        if number is None or os.getpid() != self._pid:
            return
        pids = [worker.pid for worker in iterator._workers]
        record(
            WORKERS_ENDED,
            f"{_processes(pids)} ended",
            {
                "loader": None if number < 0 else number,
                "pids": pids,
                # Negative: the signal. Null: torch has given up waiting for it.
                "exit_codes": [worker.exitcode for worker in iterator._workers],
            },
        )

    def _number(self, loader: Any) -> int | None:
        """Return the number of a loader's settings; record them when they are new."""
        if os.getpid() != self._pid:  # the child of a fork has a ring of its own
            self._pid, self._started = os.getpid(), 0
            for kept in (self._known, self._numbers, self._working):
                kept.clear()
        dataset, sampler, batches, *settings = _IDENTITY(loader)
        key = (id(dataset), type(dataset), type(sampler), type(batches), *settings)
        number = self._known.get(key)
        if number is not None or len(self._known) >= _MOST_KNOWN:
            return number
        facts = _facts(loader)
        text = repr(facts)
        number = self._numbers.get(text)
        if number is None:
            number = len(self._numbers)
            sentence = f"batches of {facts['dataset']} by {loader.num_workers} worker processes"
            if number >= _MOST or not record(LOADER, sentence, {"loader": number, **facts}):
                return None
            self._numbers[text] = number
        self._known[key] = number
        return number


def _processes(pids: list[int]) -> str:
    return f"{len(pids)} worker processes of a DataLoader"


def _facts(loader: Any) -> dict[str, Any]:
    from torch.utils.data import IterableDataset, Subset

    dataset = loader.dataset
    iterable = isinstance(dataset, IterableDataset)
    samples, batches = (None, None) if iterable else _lengths(loader)
    return {
        "dataset": qualified(type(dataset)),
        "subset_of": qualified(type(dataset.dataset)) if type(dataset) is Subset else None,
        "style": "iterable" if iterable else "map",
        "samples": samples,
        "batches": batches,
        **{name: getattr(loader, name, None) for name in _SETTINGS},
        "sampler": qualified(type(loader.sampler)),
        "batch_sampler": None
        if loader.batch_sampler is None
        else qualified(type(loader.batch_sampler)),
        "collate": qualified(loader.collate_fn),
        "start_method": _start_method(loader),
    }


def _lengths(loader: Any) -> tuple[int | None, int | None]:
    """Return how many samples and batches an epoch of this process has.

    A sampler of the job is not asked. One of torch asks the dataset, as it does itself for every
    epoch.
    """
    from torch.utils import data

    known = (
        data.SequentialSampler,
        data.RandomSampler,
        data.SubsetRandomSampler,
        data.WeightedRandomSampler,
        data.DistributedSampler,
    )
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    with contextlib.suppress(Exception):
        if type(sampler) not in known:
            return None, None
        if batch_sampler is None:
            return len(sampler), len(sampler)
        if type(batch_sampler) is data.BatchSampler and batch_sampler.sampler is sampler:
            return len(sampler), len(batch_sampler)
    return None, None


def _start_method(loader: Any) -> str | None:
    """Return how workers are started: fork, spawn or forkserver; None where there are none."""
    if loader.num_workers == 0:
        return None
    import multiprocessing

    context = loader.multiprocessing_context
    if context is not None:
        return str(context.get_start_method())
    return multiprocessing.get_start_method(allow_none=True)
