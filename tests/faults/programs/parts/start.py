"""How every program begins."""

from __future__ import annotations

import torch
from parts import settings
from parts.notes import Notes, watch
from parts.settings import Job
from parts.tasks import Helper


def begin() -> tuple[Job, Notes, Helper]:
    """Return what a program is to do, what it notes, and what helps it."""
    job = settings.read()
    torch.set_num_threads(job.threads)
    notes = Notes(job)
    helper = Helper(job, notes)
    watch(notes)
    helper.run("start", 0)
    return job, notes, helper
