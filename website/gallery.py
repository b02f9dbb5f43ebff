"""Records small jobs and writes their reports: ``python website/gallery.py FOLDER``.

The site shows the reports, and its notebook opens a run. ``make docs`` calls it when haiprof or an
example has changed.

Tests: tests/website/test_gallery.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
BIN: Final = Path(sys.executable).parent
FAULTS: Final = "examples/train_faults.py"
DIGITS: Final = "examples/train_digits.py"
#: Seconds that a job or a report may take on a busy machine.
LONGEST: Final = 600


class Picture(NamedTuple):
    """A report: of the run of ``record``, or of several that are named in ``report``."""

    name: str
    title: str
    text: str
    record: str = ""
    report: str = ""
    #: The job ends with an error.
    fails: bool = False


PICTURES: Final = (
    Picture(
        "digits",
        "A small network",
        "Two epochs on handwritten digits, with two DataLoader workers.",
        f"haiprof run --run digits {DIGITS} --epochs 2",
    ),
    Picture(
        "starved",
        "The loop waits for data",
        "Each sample takes 5 ms to read, and the training loop reads them itself.",
        f"haiprof run --run starved {FAULTS} --fault starved --steps 100",
    ),
    Picture(
        "late",
        "One rank of two is late",
        "The same slow samples, on rank 1 alone.",
        f"haiprof run --run late -- torchrun --nproc-per-node 2 {FAULTS} --fault late --steps 100",
    ),
    Picture(
        "death",
        "A rank died",
        "Rank 1 raised an exception; rank 0 then lost its connection.",
        f"haiprof run --run death -- torchrun --nproc-per-node 2 {FAULTS} --fault death",
        fails=True,
    ),
    Picture(
        "trace",
        "A deep trace",
        "Operators, modules, memory and the critical path of three steps.",
        f"haiprof trace --run trace -- python {DIGITS} --epochs 1",
    ),
    Picture(
        "before-after",
        "Two runs side by side",
        "With two DataLoader workers, then with none: what changed, and what may be chance.",
        f"haiprof run --run no-workers {DIGITS} --epochs 2 --workers 0",
        report="digits no-workers",
    ),
)


def commands(picture: Picture) -> list[list[str]]:
    """Return the commands that make it, where the runs are in ``haiprof-logs``."""
    runs = (picture.report or picture.name).split()
    report = ["haiprof", "report", *(f"haiprof-logs/{run}" for run in runs)]
    made = [picture.record.split()] if picture.record else []
    return [*made, [*report, "-o", f"{picture.name}.html"]]


def run(words: list[str], folder: Path, fails: bool = False) -> None:
    """Run a command in the folder.

    Raises:
        SystemExit: it failed, or did not, where ``fails``.
    """
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [str(BIN / words[0]), *words[1:]],
        cwd=folder, env=environment, timeout=LONGEST, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if bool(done.returncode) != fails:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}")


def page(pictures: tuple[Picture, ...] = PICTURES) -> str:
    """Return the gallery's page."""
    parts = [
        "# Gallery\n\nReports of small jobs on CPUs, recorded when this site was built. Each is "
        "one HTML file that works offline.\n"
    ]
    for picture in pictures:
        shown = "\n".join(" ".join(words) for words in commands(picture))
        parts.append(
            f"## {picture.title}\n\n{picture.text} [Open the report]({picture.name}.html)\n\n"
            f"```sh\n{shown}\n```\n"
        )
    return "\n".join(parts)


def main(folder: Path) -> None:
    """Record the jobs and write the reports into the folder."""
    folder.mkdir(parents=True)
    (folder / "examples").symlink_to(ROOT / "examples")
    for picture in PICTURES:
        record, report = commands(picture)
        run(record, folder, picture.fails)
        run(report, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
