"""Evaluation rules: parse requests, and decide which checkpoints are due. Pure.

A rule considers checkpoints that are newer than the rule. `newest` evaluates the newest new checkpoint and skips the
others; `every` evaluates all of them, several in one campaign. The minimum interval and the daily limit delay
campaigns; waiting checkpoints are considered again later, so none is lost.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from acmeweb.common.errors import InvalidField
from jobs.core import parsing
from scheduling.evaluation.rules.campaign_requests import read_directory, read_gigabytes

ONE_DAY = timedelta(days=1)
MAX_CHECKPOINTS_PER_CAMPAIGN = 50
MAX_RULE_INTERVAL = timedelta(days=30)
MAX_CAMPAIGNS_PER_DAY = 1000


class CheckpointSelection(StrEnum):
    NEWEST = "newest"
    EVERY = "every"


@dataclass(frozen=True, kw_only=True)
class RuleSpec:
    """The settings of a rule, without its team, user and cluster."""

    directory: str
    suite: str
    pattern: str = ""
    which: str = CheckpointSelection.NEWEST
    interval: timedelta = timedelta(0)
    per_day: int = 24
    nodes: int | None = None
    checkpoint_gb: float = 14.0
    is_enabled: bool = True


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint:
    """A complete checkpoint, reported by its job or found in the directory."""

    path: str
    step: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class RuleHistory:
    """The campaigns and checkpoints of a rule so far."""

    seen: Collection[str]  # processed paths
    last_at: datetime | None = None  # time of its newest campaign
    today: int = 0  # campaigns of the last 24 hours


@dataclass(frozen=True, kw_only=True)
class DueCheckpoints:
    start: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()  # older than the one that is evaluated
    why: str = ""  # why nothing starts although there are new checkpoints


def due_checkpoints(
    rule: RuleSpec, there: Sequence[FoundCheckpoint], history: RuleHistory, now: datetime
) -> DueCheckpoints:
    new = sorted(
        (checkpoint for checkpoint in _matching_checkpoints(rule, there) if checkpoint.path not in history.seen),
        key=_age_key,
    )
    if not new:
        return DueCheckpoints()
    if history.last_at and (until := history.last_at + rule.interval) > now:
        return DueCheckpoints(
            why=f"{_waiting_text(new)} until {until:%H:%M} UTC: the minimum interval is {rule.interval}."
        )
    if history.today >= rule.per_day:
        return DueCheckpoints(
            why=f"{_waiting_text(new)}: the limit of {history.today} campaigns in 24 hours is reached."
        )
    if rule.which == CheckpointSelection.NEWEST:
        return DueCheckpoints(start=(new[-1].path,), skip=tuple(checkpoint.path for checkpoint in new[:-1]))
    return DueCheckpoints(start=tuple(checkpoint.path for checkpoint in new[:MAX_CHECKPOINTS_PER_CAMPAIGN]))


def _matching_checkpoints(rule: RuleSpec, there: Sequence[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """Return the checkpoints inside the directory whose name matches the pattern, each path once."""
    root = rule.directory.rstrip("/") + "/"
    beneath = {checkpoint.path: checkpoint for checkpoint in there if checkpoint.path.startswith(root)}
    return [
        checkpoint for path, checkpoint in beneath.items() if matches_pattern(rule.pattern, path.removeprefix(root))
    ]


def matches_pattern(pattern: str, name: str) -> bool:
    """Whether the name matches. `*` matches anything, including `/`; an empty pattern matches all names."""
    return not pattern or fnmatch.fnmatchcase(name, pattern)


def _age_key(checkpoint: FoundCheckpoint) -> tuple[datetime, int, str]:
    return checkpoint.at, checkpoint.step, checkpoint.path


def _waiting_text(new: Sequence[FoundCheckpoint]) -> str:
    return "1 new checkpoint waits" if len(new) == 1 else f"{len(new)} new checkpoints wait"


def _read_interval(name: str, value: Any) -> timedelta:
    """Read the minimum interval. None and 0 mean no minimum."""
    if value is None or value == 0:
        return timedelta(0)
    interval = parsing.read_duration(name, value)
    if interval is None or interval > MAX_RULE_INTERVAL:
        parsing.raise_invalid_field(name, f"must be a duration of at most {MAX_RULE_INTERVAL.days} days")
    return interval


RULE_READERS: dict[str, parsing.FieldReader] = {
    "directory": parsing.nonempty_reader(read_directory),
    "suite": parsing.nonempty_reader(parsing.text_reader(60)),
    "pattern": parsing.text_reader(100),
    "which": parsing.choice_reader([str(one) for one in CheckpointSelection]),
    "interval": _read_interval,
    "per_day": parsing.integer_reader(1, MAX_CAMPAIGNS_PER_DAY),
    "nodes": parsing.integer_reader(1, 100_000),
    "checkpoint_gb": read_gigabytes,
    "is_enabled": parsing.read_bool,
}


def parse_rule(request: Mapping[str, Any]) -> RuleSpec:
    values = parsing.read_fields(request, RULE_READERS, "an evaluation rule")
    for name in ("directory", "suite"):
        if name not in values:
            raise InvalidField(name, "is missing")
    return RuleSpec(**values)


RULE_CHANGE_READERS: dict[str, parsing.FieldReader] = {
    name: read for name, read in RULE_READERS.items() if name != "directory"
}


def parse_rule_changes(request: Mapping[str, Any]) -> dict[str, Any]:
    """Parse changes of a rule. The directory cannot change, because the processed checkpoints belong to it."""
    if "directory" in request:
        raise InvalidField("directory", "cannot be changed; add another rule for another directory")
    values = parsing.read_fields(request, RULE_CHANGE_READERS, "a change of an evaluation rule")
    if "nodes" in request:
        values.setdefault("nodes", None)  # null removes the limit
    if not values:
        raise InvalidField("is_enabled", "or another field to change is required")
    return values
