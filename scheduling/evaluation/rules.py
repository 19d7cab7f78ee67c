"""Rules that start a campaign when a checkpoint appears: what may be asked, and what is due. Pure.

A rule looks at what is new since it was made. `newest` evaluates the newest of those and lets the others go; `every`
evaluates all of them, as many in one campaign as have gathered. The time between campaigns and their number in a day
hold it back; what waits meanwhile is looked at again, so nothing is lost.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from jobs import readers
from jobs.readers import BadSpec
from scheduling.evaluation.asked import directory, gigabytes

DAY = timedelta(days=1)
MOST_AT_ONCE = 50  # checkpoints of one campaign
LONGEST_INTERVAL = timedelta(days=30)
MOST_A_DAY = 1000


class Which(StrEnum):
    NEWEST = "newest"
    EVERY = "every"


@dataclass(frozen=True, kw_only=True)
class RuleSpec:
    """A rule, but for whose it is and where it looks."""

    directory: str
    suite: str
    pattern: str = ""
    which: str = Which.NEWEST
    interval: timedelta = timedelta(0)
    per_day: int = 24
    nodes: int | None = None
    weights_gb: float = 14.0
    is_on: bool = True


@dataclass(frozen=True, kw_only=True)
class Appeared:
    """A complete checkpoint, as its job reported it or as it lies in the directory."""

    path: str
    step: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a rule has asked for so far."""

    seen: Collection[str]  # paths that are dealt with
    last_at: datetime | None = None  # of its newest campaign
    today: int = 0  # campaigns of the last 24 hours


@dataclass(frozen=True, kw_only=True)
class Due:
    start: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()  # a newer one is evaluated instead
    why: str = ""  # nothing starts although there is something new


def due(rule: RuleSpec, there: Sequence[Appeared], asked: Asked, now: datetime) -> Due:
    new = sorted((one for one in _named(rule, there) if one.path not in asked.seen), key=_age)
    if not new:
        return Due()
    if asked.last_at and (until := asked.last_at + rule.interval) > now:
        return Due(why=f"{_count(new)} until {until:%H:%M} UTC: it evaluates at most every {rule.interval}.")
    if asked.today >= rule.per_day:
        return Due(why=f"{_count(new)}: {asked.today} campaigns of the last 24 hours are its limit.")
    if rule.which == Which.NEWEST:
        return Due(start=(new[-1].path,), skip=tuple(one.path for one in new[:-1]))
    return Due(start=tuple(one.path for one in new[:MOST_AT_ONCE]))


def _named(rule: RuleSpec, there: Sequence[Appeared]) -> list[Appeared]:
    """Beneath its directory, and with a name of the pattern; each path once."""
    root = rule.directory.rstrip("/") + "/"
    beneath = {one.path: one for one in there if one.path.startswith(root)}
    return [one for path, one in beneath.items() if matches(rule.pattern, path.removeprefix(root))]


def matches(pattern: str, name: str) -> bool:
    """`*` stands for anything, `/` too; an empty pattern is any name."""
    return not pattern or fnmatch.fnmatchcase(name, pattern)


def _age(one: Appeared) -> tuple[datetime, int, str]:
    return one.at, one.step, one.path


def _count(new: Sequence[Appeared]) -> str:
    return "1 new checkpoint waits" if len(new) == 1 else f"{len(new)} new checkpoints wait"


def _interval(name: str, value: Any) -> timedelta:
    """None and 0 are: whenever one appears."""
    if value is None or value == 0:
        return timedelta(0)
    found = readers.duration(name, value)
    if found is None or found > LONGEST_INTERVAL:
        readers.bad(name, f"is no time up to {LONGEST_INTERVAL.days} days")
    return found


READERS: dict[str, readers.Reader] = {
    "directory": readers.needed(directory),
    "suite": readers.needed(readers.text(60)),
    "pattern": readers.text(100),
    "which": readers.one_of([str(one) for one in Which]),
    "interval": _interval,
    "per_day": readers.whole(1, MOST_A_DAY),
    "nodes": readers.whole(1, 100_000),
    "weights_gb": gigabytes,
    "is_on": readers.truth,
}


def rule(asked: Mapping[str, Any]) -> RuleSpec:
    values = readers.read_all(asked, READERS, "a rule of evaluation")
    for name in ("directory", "suite"):
        if name not in values:
            raise BadSpec(name, "is missing")
    return RuleSpec(**values)


CHANGES: dict[str, readers.Reader] = {name: read for name, read in READERS.items() if name != "directory"}


def changes(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What of a rule is to be another. What it has seen belongs to its directory, so that stays."""
    if "directory" in asked:
        raise BadSpec("directory", "cannot change; make another rule for another directory")
    values = readers.read_all(asked, CHANGES, "a change of a rule of evaluation")
    if "nodes" in asked:
        values.setdefault("nodes", None)  # null takes the limit away
    if not values:
        raise BadSpec("is_on", "or another field to be changed is missing")
    return values
