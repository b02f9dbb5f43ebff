"""What is concluded from short texts is kept."""

from __future__ import annotations

from haiprof.common.short_texts import kept_if_short


def test_short_texts_are_looked_at_once_and_long_ones_each_time() -> None:
    seen: list[tuple[str | None, ...]] = []

    @kept_if_short
    def length(*texts: str | None) -> int:
        seen.append(texts)
        return sum(len(text or "") for text in texts)

    assert [length("ab", None), length("ab", None), length(None, "ab")] == [2, 2, 2]
    assert seen == [("ab", None), (None, "ab")]
    seen.clear()
    long = "x" * 2001
    assert [length(long), length(long)] == [2001, 2001]
    assert len(seen) == 2
