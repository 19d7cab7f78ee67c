"""How Slurm's users write durations, memory and array indices; parsed and printed. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

UNLIMITED = "UNLIMITED"
DAYS_PATTERN = re.compile(r"^(\d{1,6})-(\d{1,3})(?::(\d{1,2}))?(?::(\d{1,2}))?$", re.ASCII)
CLOCK_PATTERN = re.compile(r"^(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?$", re.ASCII)
MEMORY_PATTERN = re.compile(r"^(\d{1,15})\s*([KMGT]?)I?B?$", re.ASCII)
MAX_DURATION = timedelta(days=366 * 10)
SIGNAL_PATTERN = re.compile(r"(B:)?(?:SIG)?(USR1|USR2|TERM|INT|HUP|CONT|ALRM|WINCH|URG)(?:@(\d{1,5}))?", re.ASCII)
DEFAULT_GRACE = timedelta(seconds=60)


class BadNotation(ValueError):
    """The text is not of the notation; the message is a sentence without its subject."""


def parse_duration(text: str) -> timedelta | None:
    """`MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`; None for UNLIMITED."""
    text = text.strip()
    if text.upper() in (UNLIMITED, "INFINITE"):
        return None
    if match := DAYS_PATTERN.match(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    elif match := CLOCK_PATTERN.match(text):
        days, (hours, minutes, seconds) = 0, _parse_clock(match)
    else:
        raise BadNotation(f"{text[:40]!r} is no duration such as 90, 30:00, 12:00:00 or 2-03:15:00")
    return _check_duration(timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))


def _parse_clock(match: re.Match[str]) -> tuple[int, int, int]:
    first, second, third = match.groups()
    if third is not None:
        return int(first), int(second), int(third)
    return 0, int(first), int(second or 0)  # one number means minutes, as for sbatch --time


def duration_from_seconds(seconds: float) -> timedelta:
    """The API's integers are seconds."""
    if not 0 <= seconds <= MAX_DURATION.total_seconds():
        shown = f"{seconds:.0f} seconds" if abs(seconds) < 1e15 else "that many seconds"
        raise BadNotation(f"{shown} is not between 0 and 10 years")
    return timedelta(seconds=seconds)


def _check_duration(duration: timedelta) -> timedelta:
    if duration > MAX_DURATION:
        raise BadNotation("it is longer than 10 years")
    return duration


def format_duration(duration: timedelta | None) -> str:
    """`D-HH:MM:SS`, the days left out where there are none."""
    if duration is None:
        return UNLIMITED
    total = max(0, int(duration.total_seconds()))
    days, rest = divmod(total, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def parse_memory_mb(text: str) -> int:
    """`1T`, `512G`, `2048` (MB) in powers of 1024; the result is MiB, rounded up."""
    match = MEMORY_PATTERN.match(text.strip().upper())
    if not match:
        raise BadNotation(f"{text[:40]!r} is no amount of memory such as 512G or 1T")
    number, unit = int(match[1]), match[2] or "M"
    kib = number * {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}[unit]
    return -(-kib // 1024)


def format_memory(megabytes: int) -> str:
    for unit, size in (("T", 1024**2), ("G", 1024)):
        if megabytes >= size:
            return f"{megabytes / size:.1f}".removesuffix(".0") + unit
    return f"{megabytes}M"


def format_count(number: int, word: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def parse_array(text: str, most: int) -> tuple[list[int], int | None]:
    """`0-99%10`, `1,3,5-9:2`: the indices in order and how many may run at once (None: all)."""
    body, percent, limit = text.strip().partition("%")
    if percent and not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= most):
        raise BadNotation(f"{text[:40]!r}: after % stands how many tasks may run at once, from 1 to {most}")
    indices = sorted({index for part in body.split(",") for index in _parse_array_part(part.strip(), most)})
    if len(indices) > most:
        raise BadNotation(f"{text[:40]!r} has more than {most} tasks")
    return indices, int(limit) if percent else None


def _parse_array_part(part: str, most: int) -> range:
    match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part, re.ASCII)
    if not match:
        raise BadNotation(f"{part[:40]!r} is no array index or range such as 7, 0-99 or 0-99%10")
    low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if high < low:
        raise BadNotation(f"{part[:40]!r} counts down; write {high}-{low}")
    if step < 1:
        raise BadNotation(f"{part[:40]!r} has a step of 0")
    if (found := len(range(low, high + 1, step))) > most:
        raise BadNotation(f"{part[:40]!r} has {found} tasks, more than the {most} allowed")
    return range(low, high + 1, step)


@dataclass(frozen=True, kw_only=True)
class CheckpointSignal:
    """How a job is asked to save its work before it is stopped: which signal, who gets it, and how long it may take."""

    signal: str
    shell: bool  # the batch shell alone; otherwise everything but the shell, as for sbatch
    grace: timedelta

    @property
    def text(self) -> str:
        """Without the grace: whom to send what."""
        return f"{'B:' if self.shell else ''}{self.signal}"


def parse_signal(text: str) -> CheckpointSignal:
    """`[B:]USR1[@120]`, as for sbatch --signal: seconds after the @, 60 without one."""
    match = SIGNAL_PATTERN.fullmatch(text.strip().upper())
    if not match:
        raise BadNotation(f"{text[:40]!r} is no signal such as USR1, USR1@120 or B:TERM@30")
    grace = timedelta(seconds=int(match[3])) if match[3] else DEFAULT_GRACE
    return CheckpointSignal(signal=match[2], shell=bool(match[1]), grace=grace)
