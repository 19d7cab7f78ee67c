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

from jobs.core import parsing
from jobs.core.parsing import InvalidField
from scheduling.evaluation.campaign_requests import read_directory, read_gigabytes

ONE_DAY = timedelta(days=1)
MAX_CHECKPOINTS_PER_CAMPAIGN = 50  # checkpoints of one campaign
MAX_RULE_INTERVAL = timedelta(days=30)
MAX_CAMPAIGNS_PER_DAY = 1000


class CheckpointSelection(StrEnum):
    NEWEST = "newest"
    EVERY = "every"


@dataclass(frozen=True, kw_only=True)
class RuleSpec:
    """A rule, but for whose it is and where it looks."""

    directory: str
    suite: str
    pattern: str = ""
    which: str = CheckpointSelection.NEWEST
    interval: timedelta = timedelta(0)
    per_day: int = 24
    nodes: int | None = None
    weights_gb: float = 14.0
    is_on: bool = True


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint:
    """A complete checkpoint, as its job reported it or as it lies in the directory."""

    path: str
    step: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class RuleHistory:
    """What a rule has asked for so far."""

    seen: Collection[str]  # paths that are dealt with
    last_at: datetime | None = None  # of its newest campaign
    today: int = 0  # campaigns of the last 24 hours


@dataclass(frozen=True, kw_only=True)
class DueCheckpoints:
    start: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()  # a newer one is evaluated instead
    why: str = ""  # nothing starts although there is something new


def due_checkpoints(
    rule: RuleSpec, there: Sequence[FoundCheckpoint], asked: RuleHistory, now: datetime
) -> DueCheckpoints:
    new = sorted((one for one in _matching_checkpoints(rule, there) if one.path not in asked.seen), key=_age_key)
    if not new:
        return DueCheckpoints()
    if asked.last_at and (until := asked.last_at + rule.interval) > now:
        return DueCheckpoints(
            why=f"{_waiting_text(new)} until {until:%H:%M} UTC: it evaluates at most every {rule.interval}."
        )
    if asked.today >= rule.per_day:
        return DueCheckpoints(why=f"{_waiting_text(new)}: {asked.today} campaigns of the last 24 hours are its limit.")
    if rule.which == CheckpointSelection.NEWEST:
        return DueCheckpoints(start=(new[-1].path,), skip=tuple(one.path for one in new[:-1]))
    return DueCheckpoints(start=tuple(one.path for one in new[:MAX_CHECKPOINTS_PER_CAMPAIGN]))


def _matching_checkpoints(rule: RuleSpec, there: Sequence[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """Beneath its directory, and with a name of the pattern; each path once."""
    root = rule.directory.rstrip("/") + "/"
    beneath = {one.path: one for one in there if one.path.startswith(root)}
    return [one for path, one in beneath.items() if matches_pattern(rule.pattern, path.removeprefix(root))]


def matches_pattern(pattern: str, name: str) -> bool:
    """`*` stands for anything, `/` too; an empty pattern is any name."""
    return not pattern or fnmatch.fnmatchcase(name, pattern)


def _age_key(one: FoundCheckpoint) -> tuple[datetime, int, str]:
    return one.at, one.step, one.path


def _waiting_text(new: Sequence[FoundCheckpoint]) -> str:
    return "1 new checkpoint waits" if len(new) == 1 else f"{len(new)} new checkpoints wait"


def _read_interval(name: str, value: Any) -> timedelta:
    """None and 0 are: whenever one appears."""
    if value is None or value == 0:
        return timedelta(0)
    found = parsing.read_duration(name, value)
    if found is None or found > MAX_RULE_INTERVAL:
        parsing.raise_invalid_field(name, f"is no time up to {MAX_RULE_INTERVAL.days} days")
    return found


RULE_READERS: dict[str, parsing.FieldReader] = {
    "directory": parsing.nonempty_reader(read_directory),
    "suite": parsing.nonempty_reader(parsing.text_reader(60)),
    "pattern": parsing.text_reader(100),
    "which": parsing.choice_reader([str(one) for one in CheckpointSelection]),
    "interval": _read_interval,
    "per_day": parsing.integer_reader(1, MAX_CAMPAIGNS_PER_DAY),
    "nodes": parsing.integer_reader(1, 100_000),
    "weights_gb": read_gigabytes,
    "is_on": parsing.read_bool,
}


def parse_rule(asked: Mapping[str, Any]) -> RuleSpec:
    values = parsing.read_fields(asked, RULE_READERS, "a rule of evaluation")
    for name in ("directory", "suite"):
        if name not in values:
            raise InvalidField(name, "is missing")
    return RuleSpec(**values)


RULE_CHANGE_READERS: dict[str, parsing.FieldReader] = {
    name: read for name, read in RULE_READERS.items() if name != "directory"
}


def parse_rule_changes(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What of a rule is to be another. What it has seen belongs to its directory, so that stays."""
    if "directory" in asked:
        raise InvalidField("directory", "cannot change; make another rule for another directory")
    values = parsing.read_fields(asked, RULE_CHANGE_READERS, "a change of a rule of evaluation")
    if "nodes" in asked:
        values.setdefault("nodes", None)  # null takes the limit away
    if not values:
        raise InvalidField("is_on", "or another field to be changed is missing")
    return values
