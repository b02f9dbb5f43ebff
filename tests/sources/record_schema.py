"""Records the run that ``earlier_schemas`` keeps of a schema, before its MINOR is raised.

python -P tests/sources/record_schema.py

It is of the haiprof that this Python imports, into earlier_schemas/schema-MAJOR.MINOR: a loop of
twelve steps on a CPU. What names the machine is taken out of its documents, and its folders out of
the stacks. A folder may be given instead.

Tests: tests/sources/test_earlier_schemas.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from haiprof import schema

#: Seconds that the recorder may take to close its files.
PATIENCE = 120.0
#: What takes the place of what names the machine, its user or their folders.
HOST = "n0"
NAMELESS = {
    "host": HOST,
    "node": HOST,
    "user": None,
    "cwd": "/job",
    "log_dir": "logs",
    "command": ["python", "train.py"],
    "boot_id": "00000000-0000-0000-0000-000000000000",
}


def job(log_dir: str) -> None:
    """Record twelve steps, a mark and a value."""
    import torch
    import torch._dynamo  # which an optimizer imports at its first step: as long as all others
    from torch.utils.data import DataLoader, TensorDataset

    import haiprof

    haiprof.start(log_dir=log_dir, run="run")
    # Rates need two samples.
    time.sleep(1.2)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (batch,) in DataLoader(TensorDataset(torch.rand(96, 64)), batch_size=8):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.05)
        haiprof.step()
    haiprof.mark("done")
    haiprof.mark("loss", 0.5)
    haiprof.stop()


def record(folder: Path) -> None:
    """Run the job, and put its run into a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        words = [sys.executable, *(["-P"] if sys.flags.safe_path else []), __file__, "--job"]
        subprocess.run([*words, scratch], check=True, env=_without_options())
        run = Path(scratch, "run")
        until = time.monotonic() + PATIENCE
        while not _closed(run):
            if time.monotonic() > until:
                raise SystemExit(f"the recorder did not close its files within {PATIENCE:.0f} s")
            time.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _copy(run, folder)


def _without_options() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HAIPROF_")}
    return {**kept, "HAIPROF_SHM_DIR": os.environ.get("HAIPROF_SHM_DIR", "/dev/shm")}


def _closed(run: Path) -> bool:
    documents = [json.loads(path.read_text()) for path in run.glob("*/process.json")]
    return len(documents) == 2 and all(document["state"] == "closed" for document in documents)


def _copy(run: Path, folder: Path) -> None:
    """Copy documents without names, and tables as they are."""
    _copy_document(run / "run.json", folder / "run.json")
    for process in (path for path in run.iterdir() if path.is_dir()):
        _, hash_, number = process.name.rpartition("#") if "#" in process.name else ("", "", "")
        (folder / f"{HOST}{hash_}{number}").mkdir()
        for path in process.iterdir():
            copy = folder / f"{HOST}{hash_}{number}" / path.name
            if path.suffix == ".json":
                _copy_document(path, copy)
            elif path.name.startswith("frames-"):
                _copy_frames(path, copy)
            else:
                shutil.copy(path, copy)


def _copy_document(path: Path, copy: Path) -> None:
    document = json.loads(path.read_text(), object_hook=_nameless)
    copy.write_text(json.dumps(document, indent=1) + "\n")


def _nameless(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: NAMELESS.get(name, value) for name, value in fields.items()}


def _copy_frames(path: Path, copy: Path) -> None:
    with pa.OSFile(os.fsencode(path)) as file:
        frames = pa.ipc.open_file(file).read_all()
    files = pa.array(map(_placeless, frames["file"].to_pylist())).dictionary_encode()
    column = pa.DictionaryArray.from_arrays(files.indices.cast(pa.uint32()), files.dictionary)
    place = frames.schema.get_field_index("file")
    frames = frames.set_column(place, frames.schema.field(place), column)
    with pa.OSFile(os.fsencode(copy), "wb") as file, pa.ipc.new_file(file, frames.schema) as writer:
        writer.write_table(frames.combine_chunks())


def _placeless(file: str) -> str:
    """The path of a module as it would be in a folder of all modules."""
    if file == __file__:
        return "/job/train.py"
    found = [place for place in sys.path if place and file.startswith(f"{place}/")]
    return f"/python{file[len(max(found, key=len)) :]}" if found else file


def main() -> None:
    """Record the job, or be it."""
    if sys.argv[1:2] == ["--job"]:
        job(sys.argv[2])
        return
    kept = Path(__file__).with_name("earlier_schemas") / f"schema-{schema.MAJOR}.{schema.MINOR}"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else kept
    record(folder)
    print(folder)


if __name__ == "__main__":
    main()
