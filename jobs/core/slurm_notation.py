"""Parses and formats durations, memory, array indices and signals in Slurm's notation. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from acmeweb.common.errors import InvalidInput

UNLIMITED = "UNLIMITED"
DAYS_PATTERN = re.compile(r"^(\d{1,6})-(\d{1,3})(?::(\d{1,2}))?(?::(\d{1,2}))?$", re.ASCII)
CLOCK_PATTERN = re.compile(r"^(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?$", re.ASCII)
MEMORY_PATTERN = re.compile(r"^(\d{1,15})\s*([KMGT]?)I?B?$", re.ASCII)
MAX_DURATION = timedelta(days=366 * 10)
SIGNAL_PATTERN = re.compile(r"(B:)?(?:SIG)?(USR1|USR2|TERM|INT|HUP|CONT|ALRM|WINCH|URG)(?:@(\d{1,5}))?", re.ASCII)
DEFAULT_GRACE = timedelta(seconds=60)


def parse_duration(text: str) -> timedelta | None:
    """Parse `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`; None for UNLIMITED."""
    text = text.strip()
    if text.upper() in (UNLIMITED, "INFINITE"):
        return None
    if match := DAYS_PATTERN.match(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    elif match := CLOCK_PATTERN.match(text):
        days, (hours, minutes, seconds) = 0, _parse_clock(match)
    else:
        raise InvalidInput(f"{text[:40]!r} is not a duration such as 90, 30:00, 12:00:00 or 2-03:15:00")
    return _check_duration(timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))


def _parse_clock(match: re.Match[str]) -> tuple[int, int, int]:
    first, second, third = match.groups()
    if third is not None:
        return int(first), int(second), int(third)
    return 0, int(first), int(second or 0)  # a single number means minutes, as for sbatch --time


def duration_from_seconds(seconds: float) -> timedelta:
    """Convert the API's numbers, which are seconds."""
    if not 0 <= seconds <= MAX_DURATION.total_seconds():
        shown = f"{seconds:.0f} seconds" if abs(seconds) < 1e15 else "that many seconds"
        raise InvalidInput(f"{shown} is not between 0 and 10 years")
    return timedelta(seconds=seconds)


def _check_duration(duration: timedelta) -> timedelta:
    if duration > MAX_DURATION:
        raise InvalidInput("it is longer than 10 years")
    return duration


def format_duration(duration: timedelta | None) -> str:
    """Return `D-HH:MM:SS`, or `HH:MM:SS` for less than a day."""
    if duration is None:
        return UNLIMITED
    total = max(0, int(duration.total_seconds()))
    days, seconds = divmod(total, 86400)
    clock = f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"
    return f"{days}-{clock}" if days else clock


def parse_memory_mb(text: str) -> int:
    """Parse `1T`, `512G` or `2048` (MB) in powers of 1024. The result is MiB, rounded up."""
    match = MEMORY_PATTERN.match(text.strip().upper())
    if not match:
        raise InvalidInput(f"{text[:40]!r} is not an amount of memory such as 512G or 1T")
    number, unit = int(match[1]), match[2] or "M"
    kib = number * {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}[unit]
    # Rounded up: a job must not get less memory than it requested
    return -(-kib // 1024)


def format_memory(megabytes: int) -> str:
    for unit, size in (("T", 1024**2), ("G", 1024)):
        if megabytes >= size:
            return f"{megabytes / size:.1f}".removesuffix(".0") + unit
    return f"{megabytes}M"


def format_count(number: float, word: str) -> str:
    """Return a number with its noun: `1 GPU`, `2 GPUs`, `0.5 GPUs`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def parse_array(text: str, most: int) -> tuple[list[int], int | None]:
    """Parse `0-99%10` or `1,3,5-9:2`. Return the indices in order and how many tasks may run at once (None: all)."""
    body, percent, limit = text.strip().partition("%")
    # The slice bounds int() to nine digits, whatever the input length
    if percent and not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= most):
        raise InvalidInput(f"{text[:40]!r}: the number of concurrent tasks after % must be between 1 and {most}")
    indices = sorted({index for part in body.split(",") for index in _parse_array_part(part.strip(), most)})
    if len(indices) > most:
        raise InvalidInput(f"{text[:40]!r} has more than {most} tasks")
    return indices, int(limit) if percent else None


def _parse_array_part(part: str, most: int) -> range:
    match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part, re.ASCII)
    if not match:
        raise InvalidInput(f"{part[:40]!r} is not an array index or range such as 7, 0-99 or 0-99%10")
    low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if high < low:
        raise InvalidInput(f"{part[:40]!r} counts down; write {high}-{low}")
    if step < 1:
        raise InvalidInput(f"{part[:40]!r} has a step of 0")
    if (tasks := len(range(low, high + 1, step))) > most:
        raise InvalidInput(f"{part[:40]!r} has {tasks} tasks, more than the {most} allowed")
    return range(low, high + 1, step)


@dataclass(frozen=True, kw_only=True)
class CheckpointSignal:
    """How a job is notified to save a checkpoint before it is stopped: the signal, its receiver and the time
    allowed."""

    signal: str
    shell: bool  # true: only the batch shell receives it; false: all processes except the shell, as for sbatch
    grace: timedelta

    @property
    def text(self) -> str:
        """The notation without the grace period."""
        return f"{'B:' if self.shell else ''}{self.signal}"


def parse_signal(text: str) -> CheckpointSignal:
    """Parse `[B:]USR1[@120]` as for sbatch --signal: seconds after the @, default 60."""
    match = SIGNAL_PATTERN.fullmatch(text.strip().upper())
    if not match:
        raise InvalidInput(f"{text[:40]!r} is not a signal such as USR1, USR1@120 or B:TERM@30")
    grace = timedelta(seconds=int(match[3])) if match[3] else DEFAULT_GRACE
    return CheckpointSignal(signal=match[2], shell=bool(match[1]), grace=grace)
