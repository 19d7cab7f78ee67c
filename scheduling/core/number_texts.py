"""Numbers and durations as text for charts, tables and sentences. Pure."""

from __future__ import annotations


def format_number(value: float) -> str:
    """At most three significant digits, with separators of thousands."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def duration_text(seconds: float) -> str:
    """The two largest units, such as 45 s, 12 min, 3 h 20 min or 2 d 4 h. Below ten seconds with one decimal."""
    if seconds < 10:
        return f"{seconds:.1f} s" if 0 < seconds != int(seconds) else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 and whole % 60 else f"{round(whole / 60)} min"
    hours, minutes = divmod(round(whole / 60), 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, rest = divmod(round(whole / 3600), 24)
    return f"{days} d {rest} h" if rest else f"{days} d"
