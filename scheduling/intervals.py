"""How often a training should save: Young's and Daly's interval, from its own failures and its measured stall. Pure.

With a mean time M between failures and a save that holds training up for d, an interval t costs d / t for saving and
about t / 2M for what is done again. Young's optimum is sqrt(2 d M); Daly's higher-order estimate ("A higher order
estimate of the optimum checkpoint interval for restart dumps", 2006) holds also where d is no longer small against M.
Only the part of a save that blocks training counts: what a background process writes costs no step.
"""

from __future__ import annotations

import math


def advised_s(*, mttf_s: float, stall_s: float) -> float:
    """Daly's interval between the ends of two saves."""
    if stall_s <= 0 or mttf_s <= 0:
        raise ValueError("mttf_s, stall_s: both must be above 0")
    if stall_s >= 2 * mttf_s:
        return mttf_s
    part = math.sqrt(stall_s / (2 * mttf_s))
    return math.sqrt(2 * stall_s * mttf_s) * (1 + part / 3 + part * part / 9) - stall_s
