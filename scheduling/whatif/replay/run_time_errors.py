"""Expected run times with random errors around the true ones, as a scheduler would see them. Pure and seeded.

`helios` has the errors of HeliosArtifact's substitute for predictions on Philly: one job in ten is within 10% of the
truth, half within 50%, seven in ten within 100%, nine in ten within 1,000%, the rest up to a factor of one hundred. A
number is the spread (sigma) of a log-normal error.
"""

from __future__ import annotations

import numpy as np

from acmeweb.common.errors import InvalidField
from jobs.traces.trace import Floats

PERCENTILES = (0, 10, 50, 70, 90, 100)
ERROR_FACTORS = (0.0, 0.1, 0.5, 1.0, 10.0, 100.0)


def check_noise(noise: str) -> str:
    """Return the text if it is `none`, `helios` or a number from 0 to 10."""
    if noise not in ("none", "helios"):
        try:
            sigma = float(noise)
        except ValueError:
            raise InvalidField("noise", f"{noise!r} is not one of none, helios or a number") from None
        if not 0 <= sigma <= 10:
            raise InvalidField("noise", f"{noise} must be between 0 and 10")
    return noise


def expected_run_times(runtime_s: Floats, noise: str, seed: int) -> Floats:
    """The run times with errors of the given kind."""
    if noise == "none":
        return runtime_s
    dice = np.random.default_rng((seed, 1))
    if noise != "helios":
        return runtime_s * np.exp(dice.normal(0, float(noise), len(runtime_s)))
    off = np.interp(dice.uniform(0, 100, len(runtime_s)), PERCENTILES, ERROR_FACTORS)
    # Too short as often as too long: off by 50% means multiplied or divided by 1.5
    factor: Floats = (1 + off) ** dice.choice((-1.0, 1.0), len(runtime_s))
    return runtime_s * factor
