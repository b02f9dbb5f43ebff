"""A loop of Accelerate's, of one process."""

from __future__ import annotations

from accelerate import Accelerator
from parts import data, models, start
from parts.around import Around
from parts.notes import Notes
from parts.settings import Job
from parts.tasks import Helper


def train(job: Job, notes: Notes, helper: Helper) -> None:
    """Train to the end."""
    precision = "bf16" if "bfloat16" in job.extras else "no"
    own = models.build(job, helper)
    around = Around(job, helper, notes, own)
    accelerator = Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=around.accumulate
    )
    (optimizer,) = around.optimizers
    model, optimizer, loader = accelerator.prepare(own, optimizer, data.loader(job, helper))
    notes.mark("start")
    notes.end(-1)
    step = 0
    for _ in range(job.epochs):
        for inputs, targets in loader:
            notes.mark("fetch")
            with accelerator.accumulate(model):
                loss = around.loss(model(inputs), targets, step)
                notes.mark("forward")
                scaled = around.scaler.scale(loss) if around.scaler else loss
                accelerator.backward(scaled)
                notes.mark("backward")
                if "clip" in job.extras and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                if around.scaler:
                    around.scaler.step(optimizer)
                    around.scaler.update()
                else:
                    optimizer.step()
                for schedule in around.schedules:
                    schedule.step()
                optimizer.zero_grad()
                notes.mark("optimizer")
            around.between(step, (inputs, targets), loss)
            notes.mark("between")
            notes.end(step)
            step += 1


def main() -> None:
    """Do as the settings say."""
    job, notes, helper = start.begin()
    train(job, notes, helper)


if __name__ == "__main__":
    main()
