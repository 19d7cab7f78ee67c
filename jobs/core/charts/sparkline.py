"""Draws a series as a small SVG line. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

SPARKLINE_WIDTH, SPARKLINE_HEIGHT = 100.0, 20.0
MAX_POINTS = 60


def sparkline_points(
    values: Sequence[float | None], scale: tuple[float, float] | None = None, least_range: float = 0.0
) -> str:
    """Return the `points` of an SVG polyline, or an empty string for fewer than two values.

    The newest value is at the right. Missing and non-finite values leave a gap. A long series is reduced to the last
    value of each of `MAX_POINTS` sections. Lines that are compared with each other have the same `scale`; by default
    a line fills the height, which stands for at least `least_range`, so that small changes of a nearly constant series
    look small.
    """
    if len(values) > MAX_POINTS:
        values = [values[(number + 1) * len(values) // MAX_POINTS - 1] for number in range(MAX_POINTS)]
    finite = [(at, value) for at, value in enumerate(values) if value is not None and math.isfinite(value)]
    if len(finite) < 2:
        return ""
    low, high = scale or _own_scale([value for _, value in finite], least_range)
    across, down = SPARKLINE_WIDTH / max(1, len(values) - 1), SPARKLINE_HEIGHT / (high - low) if high > low else 0.0
    return " ".join(f"{at * across:.1f},{SPARKLINE_HEIGHT - (value - low) * down:.1f}" for at, value in finite)


def _own_scale(values: Sequence[float], least_range: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    missing = max(0.0, least_range - (high - low))
    return low - missing / 2, high + missing / 2
