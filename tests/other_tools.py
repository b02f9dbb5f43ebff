"""Files of other tools among the recorded data, unpacked where a test asks for them."""

from __future__ import annotations

import tarfile
from pathlib import Path

from real_data import DATA, need


def unpack(tool: str, folder: Path) -> Path:
    """Unpack the files of a tool into a folder; return it. Skips the test where there are none."""
    archive = need(DATA / "other" / f"{tool}.tar.xz")
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member)
            if content is not None:
                (folder / Path(member.name).name).write_bytes(content.read())
    return folder
