"""Run a command beside processes that keep the CPUs busy: ``busy.py COUNT COMMAND…``."""

from __future__ import annotations

import subprocess
import sys


def main(count: int, command: list[str]) -> int:
    """Return the exit code of ``command``, beside ``count`` processes that only spin."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
