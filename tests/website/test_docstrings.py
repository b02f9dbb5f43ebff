from __future__ import annotations

from pathlib import Path

import pytest

SOURCE = '''
def f():
    """Return one.

    See :func:`haiprof.start` and :class:`~haiprof.Analyzer`.

    Example:
        >>> f()
        1
    """
'''


@pytest.mark.site
def test_roles_become_code_and_an_example_a_section(tmp_path: Path) -> None:
    import docstrings
    import griffe

    extensions = griffe.load_extensions(docstrings.Docstrings)
    (tmp_path / "documented.py").write_text(SOURCE)
    module = griffe.load("documented", search_paths=[tmp_path], extensions=extensions)
    parsed = module["f"].docstring.parse("google")
    assert [section.kind.value for section in parsed] == ["text", "examples"]
    assert "See `haiprof.start` and `haiprof.Analyzer`." in parsed[0].value
