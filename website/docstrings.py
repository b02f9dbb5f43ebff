"""Has griffe read docstrings of haiprof: roles of Sphinx, and examples of one method.

Tests: tests/website/test_docstrings.py.
"""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

ROLE: Final = re.compile(r":\w+:`~?([^`]+)`")
ALONE: Final = re.compile(r"^( *)Example:$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites docstrings to what mkdocstrings shows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = ALONE.sub(r"\1Examples:", text)
