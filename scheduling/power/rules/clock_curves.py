"""Power and speed of one GPU as functions of its clock, and the highest clocks of GPU models. Pure, without NumPy.

Sources, for the A100 with 400 W: idle GPUs draw 60 W (AcmeTrace, InternLM/AcmeTrace, CC-BY-4.0); POLCA (Patel et al.,
ASPLOS'24) measured that lower clocks save up to 20% of the peak power for at most 7% of the speed, and uses 1410 MHz
without a cap, 1275, 1110 and 1305 MHz as caps and 288 MHz in emergencies. The curve between these clocks is ours: power
above idle falls with a power of the clock, and a part of the time is in proportion to the clock. 20% and 7% are taken
as those of 1110 MHz. Another GPU model has the curve of the same share of its highest clock.
"""

from __future__ import annotations

import math

from scheduling.power.rules.energy import MODEL_WORD

MAX_MHZ, MIN_MHZ = 1410, 288
MEASURED_MHZ, MEASURED_POWER, MEASURED_SPEED = 1110, 0.80, 0.93
IDLE_W, FULL_W = 60.0, 400.0
# Of the power above idle, as an exponent of the clock
POWER_EXPONENT = math.log((MEASURED_POWER * FULL_W - IDLE_W) / (FULL_W - IDLE_W)) / math.log(MEASURED_MHZ / MAX_MHZ)
# Of the time at the highest clock, the part that is in proportion to the clock
CLOCK_BOUND = (1 / MEASURED_SPEED - 1) / (MAX_MHZ / MEASURED_MHZ - 1)
# Highest SM clocks by GPU model, from the vendors' data sheets
MODEL_MAX_MHZ = {"a100": 1410, "a800": 1410, "h100": 1980, "h800": 1980, "h200": 1980, "v100": 1530, "l40s": 2520}


def model_mhz(mhz: int, model: str) -> int:
    """The clock of this GPU model that is the same share of its highest one. An unknown model counts as an A100."""
    return round(mhz * _max_mhz(model) / MAX_MHZ)


def model_speed(mhz: int | None, model: str) -> float:
    """The speed of this GPU model at one of its clocks, 1 at the highest (None)."""
    return 1 / (1 - CLOCK_BOUND + CLOCK_BOUND / _clock_share(mhz, model))


def model_power_w(watts: float, mhz: int | None, model: str, idle_w: float = IDLE_W) -> float:
    """What this GPU model draws at one of its clocks, if it draws `watts` at the highest (None)."""
    idle = min(watts, idle_w)
    return idle + (watts - idle) * float(_clock_share(mhz, model) ** POWER_EXPONENT)


def _clock_share(mhz: int | None, model: str) -> float:
    return 1.0 if mhz is None else min(1.0, max(1, mhz) / _max_mhz(model))


def _max_mhz(model: str) -> int:
    words = MODEL_WORD.findall(model.lower())
    return next((MODEL_MAX_MHZ[word] for word in words if word in MODEL_MAX_MHZ), MAX_MHZ)
