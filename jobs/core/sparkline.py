"""Draws a series as a small SVG line. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

SPARKLINE_WIDTH, SPARKLINE_HEIGHT = 100.0, 20.0
MAX_POINTS = 60


def sparkline_points(values: Sequence[float | None], least_range: float = 0.0) -> str:
    """Return the `points` of an SVG polyline, or an empty string for fewer than two values.

    The newest value is at the right. Missing and non-finite values leave a gap. A long series is reduced to the last
    value of each of `MAX_POINTS` sections. The height stands for at least `least_range`, so that small changes of a
    nearly constant series look small.
    """
    if len(values) > MAX_POINTS:
        values = [values[(number + 1) * len(values) // MAX_POINTS - 1] for number in range(MAX_POINTS)]
    finite = [(at, value) for at, value in enumerate(values) if value is not None and math.isfinite(value)]
    if len(finite) < 2:
        return ""
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    if (missing := least_range - (high - low)) > 0:
        low, high = low - missing / 2, high + missing / 2
    across, down = SPARKLINE_WIDTH / max(1, len(values) - 1), SPARKLINE_HEIGHT / (high - low) if high > low else 0.0
    return " ".join(f"{at * across:.1f},{SPARKLINE_HEIGHT - (value - low) * down:.1f}" for at, value in finite)
