"""``python -m haiprof``: the command, where it is not on PATH.

Tests: tests/cli/test_report.py.
"""

from haiprof.cli.main import main

if __name__ == "__main__":
    main()
