"""The one exception that a user of haiprof sees.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations


class HaiprofError(Exception):
    """Input or surroundings that haiprof cannot work with.

    ``str()`` of it is one line for the user: the file, the field, and the fix.
    """
