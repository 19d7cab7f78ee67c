"""The decayed usage of an account at past times, from its present value and what was used since. Pure.

Usage halves every half-life, so its value at one time and the GPU time of a window give its value at the other end of
the window. `usage_at_edges` goes back from the present value, which is exact although older attempts were deleted.
Over more than `MAX_HALF_LIVES` that would amplify rounding errors; it then starts with nothing at the first edge, which
by the same number of half-lives later makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

MAX_HALF_LIVES = 20.0


def needs_lead(span_s: float, half_life_s: float) -> bool:
    """Whether the edges must begin `MAX_HALF_LIVES` before the first value that is shown."""
    return span_s > MAX_HALF_LIVES * half_life_s


def usage_at_edges(present: float, used: Sequence[float], edges_s: Sequence[float], half_life_s: float) -> list[float]:
    """Return the usage at each edge. `used` has one value per window between edges: the GPU time of the window, decayed
    to its end. The last edge is the present."""
    kept = [0.5 ** ((end - start) / half_life_s) for start, end in pairwise(edges_s)]
    if needs_lead(edges_s[-1] - edges_s[0], half_life_s):
        values = [0.0]
        for part, gain in zip(kept, used, strict=True):
            values.append(values[-1] * part + gain)
        return [*values[:-1], present]
    values = [present]
    for part, gain in zip(reversed(kept), reversed(used), strict=True):
        # After a change of the half-life the present value can be smaller than what was used since
        values.append(max(0.0, (values[-1] - gain) / part))
    return values[::-1]
