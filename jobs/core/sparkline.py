"""A series as a line of a few pixels. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

SPARKLINE_WIDTH, SPARKLINE_HEIGHT = 100.0, 20.0
MAX_POINTS = 60


def sparkline_points(values: Sequence[float | None]) -> str:
    """The `points` of an SVG polyline, `WIDTH` x `HEIGHT`, the newest at the right; empty where there is no line.

    What is no number leaves its place free. A long series is thinned to the last value of each of so many stretches.
    """
    if len(values) > MAX_POINTS:
        values = [values[(number + 1) * len(values) // MAX_POINTS - 1] for number in range(MAX_POINTS)]
    known = [(at, value) for at, value in enumerate(values) if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return ""
    low, high = min(value for _, value in known), max(value for _, value in known)
    across, down = SPARKLINE_WIDTH / max(1, len(values) - 1), SPARKLINE_HEIGHT / (high - low) if high > low else 0.0
    return " ".join(f"{at * across:.1f},{SPARKLINE_HEIGHT - (value - low) * down:.1f}" for at, value in known)
