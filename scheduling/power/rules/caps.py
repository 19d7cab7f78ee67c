"""Which clocks keep the power of a cluster, row or rack within its budget: POLCA's rule with two priorities. Pure.

    power, of the budget    low-priority jobs    high-priority jobs
    above 80%               1275 MHz
    above 89%               1110 MHz
    still above 89%         1110 MHz             1305 MHz
    above 100%              288 MHz              288 MHz

A reading raises the level to the step of its threshold at once; steps of the same threshold follow each other when the
one before had time to take effect. While power rises, the share that is expected soon counts for the steps that
spare high-priority jobs. Levels are released in reverse order, one at a time, each when all readings of its `hold_s`
were below its threshold by `release`. A command that failed counts as no cap: the next step of a threshold that is
exceeded follows with the next reading. If there is none, the command is repeated: with the next reading while its
threshold is exceeded, else after `settle_s`, because nodes that were not released stay slow.

Without steps the clocks never change, which is no cap, or a static one with `base_mhz`.

`cap_times` says what caps cost a job: the times in which GPUs of it were capped, and how much slower it was. A job
waits for its slowest node, so it has the speed of the lowest clock. Speeds are those of `clock_curves`, not measured:
the steps of a job may be slower for other reasons at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from jobs.core.lifecycle import JobKind
from scheduling.power.rules.clock_curves import MAX_MHZ, MIN_MHZ

LOW_PRIORITY_KINDS = frozenset({JobKind.EVALUATION.value, JobKind.DEBUG.value})


@dataclass(frozen=True, kw_only=True)
class CapStep:
    """Clocks above a share of the budget."""

    above: float
    low_mhz: int
    high_mhz: int = MAX_MHZ
    hold_s: float = 60.0  # longer than an iteration, so that its peak was read before a release


MAX_SLOPE_S = 5.0
ROUNDING_S = 1e-6  # times are sums of steps
POLCA_PERCENTS = (80, 89, 100)
MIN_PERCENT, MAX_PERCENT = 50, 100  # nodes without jobs draw about a quarter of what they draw at most


def polca_steps(percents: Sequence[int]) -> tuple[CapStep, ...]:
    """POLCA's steps with these thresholds in percent: for low-priority jobs, for all, and for the lowest clocks."""
    low, all_jobs, lowest = (percent / 100 for percent in percents)
    return (
        CapStep(above=low, low_mhz=1275),
        CapStep(above=all_jobs, low_mhz=1110),
        CapStep(above=all_jobs, low_mhz=1110, high_mhz=1305),
        CapStep(above=lowest, low_mhz=MIN_MHZ, high_mhz=MIN_MHZ, hold_s=5.0),
    )


POLCA_STEPS = polca_steps(POLCA_PERCENTS)

# Where low-priority jobs draw little: clocks of high-priority jobs fall further before all fall to the lowest
GRADUAL_STEPS = (*POLCA_STEPS[:3], CapStep(above=0.95, low_mhz=810, high_mhz=1110), POLCA_STEPS[3])


@dataclass(frozen=True, kw_only=True)
class CapSettings:
    """The steps, the mildest first. Raises ValueError with a sentence if they are not."""

    steps: tuple[CapStep, ...] = POLCA_STEPS
    release: float = 0.05  # points below the threshold of a step
    settle_s: float = 3.0  # until a cap shows in the readings
    base_mhz: int = MAX_MHZ  # without a step
    lead_s: float = 0.0  # until the next reading and a command after it; 0: a rise is not continued

    def __post_init__(self) -> None:
        for before, after in pairwise(self.steps):
            if after.above < before.above:
                raise ValueError(f"steps: the threshold {after.above:g} follows the higher one {before.above:g}.")
            if after.low_mhz > before.low_mhz or after.high_mhz > before.high_mhz:
                raise ValueError(f"steps: the clocks at {after.above:g} are higher than those of the step before.")

    def expected_share(self, share: float, before: float | None, elapsed_s: float) -> float:
        """The share after `lead_s`, if power goes on to rise as since the reading before. It is never expected to fall.
        Readings that lie far apart say nothing about the next seconds."""
        if before is None or not 0 < elapsed_s <= MAX_SLOPE_S:
            return share
        return share + max(0.0, share - before) * self.lead_s / elapsed_s

    def clocks(self, level: int) -> tuple[int, int]:
        """The clocks of low-priority and high-priority jobs."""
        if not level:
            return self.base_mhz, self.base_mhz
        step = self.steps[level - 1]
        return min(step.low_mhz, self.base_mhz), min(step.high_mhz, self.base_mhz)


NO_CAP = CapSettings(steps=())


def static_cap(mhz: int) -> CapSettings:
    """All GPUs always at this clock."""
    return CapSettings(steps=(), base_mhz=mhz)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapState:
    """The level that was commanded last; 0 is none. A new command has a new number."""

    level: int = 0
    since_s: float = float("-inf")
    command: int = 0
    commanded_s: float = float("-inf")
    above_s: float = float("-inf")  # last reading that was not low enough for a release


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading:
    """Power as a share of the budget. `expected_share` is that of the time when a command would take effect."""

    at_s: float
    share: float
    command_failed: bool = False  # the last command, on any node
    expected_share: float = 0.0

    @property
    def highest_share(self) -> float:
        return max(self.share, self.expected_share)


def next_state(state: CapState, reading: PowerReading, settings: CapSettings) -> CapState:
    """The state after a reading. Readings must come in order of time."""
    level = _raised_level(state, reading, settings)
    if level > state.level:
        return _at_level(state, level, reading.at_s)
    if state.level and reading.share >= settings.steps[state.level - 1].above - settings.release:
        state = replace(state, above_s=reading.at_s)
    elif state.level and _is_held(state, reading, settings):
        return _at_level(state, state.level - 1, reading.at_s)
    return _with_new_command(state, reading.at_s) if _repeats(state, reading, settings) else state


def _raised_level(state: CapState, reading: PowerReading, settings: CapSettings) -> int:
    """The level that this reading needs, at least the present one."""
    shares = [reading.highest_share if step.high_mhz == MAX_MHZ else reading.share for step in settings.steps]
    exceeded = [step.above for step, share in zip(settings.steps, shares, strict=True) if share > step.above]
    if not exceeded:
        return state.level
    last = len(exceeded)
    first = 1 + exceeded.index(exceeded[-1])
    if not first <= state.level < last:
        return max(first, state.level)
    return state.level + (reading.command_failed or _is_settled(state, reading, settings))


def _is_held(state: CapState, reading: PowerReading, settings: CapSettings) -> bool:
    """Whether the level was held for its time."""
    return reading.at_s - max(state.above_s, state.since_s) >= settings.steps[state.level - 1].hold_s - ROUNDING_S


def _is_settled(state: CapState, reading: PowerReading, settings: CapSettings) -> bool:
    return reading.at_s - state.commanded_s >= settings.settle_s - ROUNDING_S


def _repeats(state: CapState, reading: PowerReading, settings: CapSettings) -> bool:
    """Whether the command of the present level failed and is due again."""
    is_above = state.level > 0 and reading.share > settings.steps[state.level - 1].above
    return reading.command_failed and (is_above or _is_settled(state, reading, settings))


def _at_level(state: CapState, level: int, now_s: float) -> CapState:
    return CapState(level=level, since_s=now_s, command=state.command + 1, commanded_s=now_s)


def _with_new_command(state: CapState, now_s: float) -> CapState:
    return replace(state, command=state.command + 1, commanded_s=now_s)


class NodeCap(NamedTuple):
    """A cap of one node of the job. `speed` is 1 at the highest clock."""

    began: datetime
    ended: datetime
    speed: float


@dataclass(frozen=True, kw_only=True)
class CapTime:
    """A time in which some node of the job was capped without a break."""

    began: datetime
    ended: datetime | None  # None: it lasts
    lost_share: float  # of the speed, on average

    def text(self, now: datetime) -> str:
        """Such as "Capped from 14:02 to 14:11 UTC, cost about 3% of the speed"."""
        begin = _time_text(self.began, now)
        span = f"from {begin} to {_time_text(self.ended, now)} UTC" if self.ended else f"since {begin} UTC"
        percent = 100 * self.lost_share
        cost = f"about {percent:.0f}%" if percent >= 1 else "less than 1%"
        return f"Capped {span}, cost {cost} of the speed"


def cap_times(caps: Iterable[NodeCap], now: datetime) -> list[CapTime]:
    """The times in order. Caps of several nodes may overlap; those that last end now."""
    rows = sorted({cap for cap in caps if cap.ended > cap.began})
    edges = sorted({edge for cap in rows for edge in (cap.began, cap.ended)})
    pieces = [NodeCap(low, high, _lowest_speed(rows, low)) for low, high in pairwise(edges)]
    times: list[list[NodeCap]] = []
    for piece in (one for one in pieces if one.speed < 1):
        if times and times[-1][-1].ended == piece.began:
            times[-1].append(piece)
        else:
            times.append([piece])
    return [_cap_time(one, now) for one in times]


def _lowest_speed(rows: Sequence[NodeCap], at: datetime) -> float:
    return min((cap.speed for cap in rows if cap.began <= at < cap.ended), default=1.0)


def _cap_time(pieces: Sequence[NodeCap], now: datetime) -> CapTime:
    seconds = [(piece.ended - piece.began).total_seconds() for piece in pieces]
    lost_s = sum(length * (1 - piece.speed) for length, piece in zip(seconds, pieces, strict=True))
    ended = pieces[-1].ended if pieces[-1].ended < now else None
    return CapTime(began=pieces[0].began, ended=ended, lost_share=lost_s / sum(seconds))


def _time_text(at: datetime, now: datetime) -> str:
    utc = at.astimezone(UTC)
    return f"{utc:%H:%M}" if utc.date() == now.astimezone(UTC).date() else f"{utc:%Y-%m-%d %H:%M}"
