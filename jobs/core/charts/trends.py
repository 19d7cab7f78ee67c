"""How a figure has changed since yesterday, in words. Pure."""

from __future__ import annotations


def change_text(value: int | None, before: float | None, unit: str = "") -> str:
    """Return `▲ 3 points`, `▼ 12` or `no change`; empty if one of the values is unknown."""
    if value is None or before is None:
        return ""
    difference = value - round(before)
    if not difference:
        return "no change"
    size = f"{'▲' if difference > 0 else '▼'} {abs(difference):,}"
    if unit != "%":
        return size
    return f"{size} point{'' if abs(difference) == 1 else 's'}"
