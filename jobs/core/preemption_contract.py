"""What a preemptible job is promised: protection after each start, preemption at checkpoints, a daily maximum. Pure.

A cluster limits what jobs may ask for (`ContractLimits`). The contract of a job is fixed when it is submitted.
`PreemptionContract.standing` is the only rule that says whether a job may be preempted. The engine chooses victims with
it, and `jobs.actions.stop.preempt` checks it again with the rows as they are then.

A contract covers preemption only. Drains, time limits, recovery and users may stop the job at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from acmeweb.common.errors import InvalidField

DAY = timedelta(days=1)
MAX_EXEMPT_MINUTES = 10_080
# A job that is preempted only at checkpoints is stopped at most this long after it has reported one
CHECKPOINT_TOLERANCE = timedelta(seconds=60)
# A job that does not save within this time of a request counts as protected until it saves a checkpoint by itself
CHECKPOINT_ANSWER_TIME = timedelta(minutes=15)
CONTRACT_FIELDS = ("preempt_exempt_time", "preempt_at_checkpoint", "preemptions_per_day")


class CheckpointClause(StrEnum):
    """Whether jobs may state that they are preempted only at checkpoints."""

    REFUSED = "refused"
    OPTIONAL = "optional"
    REQUIRED = "required"


class Preemptability(StrEnum):
    NOW = "now"
    AFTER_CHECKPOINT = "after checkpoint"
    PROTECTED = "protected"


@dataclass(frozen=True, kw_only=True)
class PreemptionFacts:
    """What is recorded about the live attempt of a job, and when earlier attempts were preempted."""

    started_at: datetime | None = None  # by our clock; None: the cluster has not confirmed the start
    saved_at: datetime | None = None  # the newest checkpoint of this attempt on remote storage
    asked_at: datetime | None = None  # the newest request for a checkpoint
    preempted_at: tuple[datetime, ...] = ()

    @property
    def has_open_request(self) -> bool:
        """Whether it was asked for a checkpoint and has not saved one since."""
        return self.asked_at is not None and (self.saved_at is None or self.asked_at >= self.saved_at)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Whether a job may be preempted, as a sentence. `until`: when a protection ends by itself, if that is known."""

    may: Preemptability
    why: str
    until: datetime | None = None


ANY_TIME = Standing(may=Preemptability.NOW, why="It can be preempted now.")


@dataclass(frozen=True, kw_only=True)
class PreemptionContract:
    """The terms of one job. The default promises nothing."""

    exempt_time: timedelta = timedelta(0)
    at_checkpoint: bool = False
    per_day: int | None = None

    @classmethod
    def of(cls, job: Any) -> PreemptionContract:
        """That of a job, its row or its spec, which have `CONTRACT_FIELDS`."""
        exempt_time, at_checkpoint, per_day = (getattr(job, name) for name in CONTRACT_FIELDS)
        return cls(exempt_time=exempt_time, at_checkpoint=at_checkpoint, per_day=per_day)

    @property
    def is_default(self) -> bool:
        return not (self.exempt_time or self.at_checkpoint or self.per_day is not None)

    def text(self) -> str:
        """The contract as one sentence."""
        if self.per_day == 0:
            return "Is never preempted."
        after = f"after {duration_text(self.exempt_time)}" if self.exempt_time else ""
        checkpoint = "at checkpoints" if self.at_checkpoint else ""
        when = ", then ".join(filter(None, (after, checkpoint))) or "at any time"
        limit = "" if self.per_day is None else f", at most {_times(self.per_day)} a day"
        return f"Can be preempted {when}{limit}."

    def note(self) -> str:
        """What a user must know about the checkpoint clause; empty without it."""
        if not self.at_checkpoint or self.per_day == 0:
            return ""
        return "A job that reports no checkpoints is not preempted."

    def standing(self, facts: PreemptionFacts, now: datetime) -> Standing:
        """Whether the job may be preempted now."""
        if self.is_default:
            return ANY_TIME
        return self._exemption(facts, now) or self._daily_limit(facts, now) or self._at_checkpoint(facts, now)

    def _exemption(self, facts: PreemptionFacts, now: datetime) -> Standing | None:
        if not self.exempt_time:
            return None
        until = facts.started_at + self.exempt_time if facts.started_at else None
        if until and until <= now:
            return None
        why = f"It is protected from preemption for {duration_text(self.exempt_time)} after each start."
        return Standing(may=Preemptability.PROTECTED, why=why, until=until)

    def _daily_limit(self, facts: PreemptionFacts, now: datetime) -> Standing | None:
        recent = sorted(at for at in facts.preempted_at if at > now - DAY)
        if self.per_day is None or len(recent) < self.per_day:
            return None
        until = recent[-self.per_day] + DAY if self.per_day else None
        why = f"It is protected from preemption: it can be preempted at most {_times(self.per_day)} a day."
        return Standing(may=Preemptability.PROTECTED, why=why, until=until)

    def _at_checkpoint(self, facts: PreemptionFacts, now: datetime) -> Standing:
        saved, asked = facts.saved_at, facts.asked_at
        if not self.at_checkpoint or (saved and now - saved <= CHECKPOINT_TOLERANCE):
            return ANY_TIME
        if saved is None:
            why = "It is protected from preemption: it has not reported a checkpoint since its start."
        elif asked and facts.has_open_request and now - asked > CHECKPOINT_ANSWER_TIME:
            why = (
                "It is protected from preemption until its next checkpoint: it did not save one within"
                f" {duration_text(CHECKPOINT_ANSWER_TIME)} of a request."
            )
        else:
            return Standing(may=Preemptability.AFTER_CHECKPOINT, why="It can be preempted after its next checkpoint.")
        return Standing(may=Preemptability.PROTECTED, why=why)


@dataclass(frozen=True, kw_only=True)
class ContractLimits:
    """What a cluster offers. The default offers nothing, so preemptible jobs can be preempted at any time.

    min_exempt, max_exempt   the protection after a start; jobs that ask for none get the minimum
    checkpoint_clause        whether jobs may state it, or all have it
    min_per_day              the smallest daily maximum that jobs may ask for; None: jobs cannot ask for one
    max_per_day              the largest one, which jobs that ask for none get; None: unlimited
    """

    min_exempt: timedelta = timedelta(0)
    max_exempt: timedelta = timedelta(0)
    checkpoint_clause: CheckpointClause = CheckpointClause.REFUSED
    min_per_day: int | None = None
    max_per_day: int | None = None

    def columns(self, stated: Mapping[str, Any], *, cluster: str, preemptible: bool) -> dict[str, Any]:
        """The fields of the contract for a job that states these, or `InvalidField`."""
        if not preemptible:
            for name in CONTRACT_FIELDS:
                if stated.get(name) is not None and stated[name] is not False:
                    raise InvalidField(name, "applies only to preemptible jobs; set preemptible too")
            return {}
        return {
            "preempt_exempt_time": self._exempt_time(stated.get("preempt_exempt_time"), cluster),
            "preempt_at_checkpoint": self._at_checkpoint(stated.get("preempt_at_checkpoint"), cluster),
            "preemptions_per_day": self._per_day(stated.get("preemptions_per_day"), cluster),
        }

    def _exempt_time(self, asked: timedelta | None, cluster: str) -> timedelta:
        if asked is None:
            return self.min_exempt
        if not self.max_exempt:
            raise InvalidField("preempt_exempt_time", f"is not offered by {cluster}")
        _refuse_outside("preempt_exempt_time", asked, self.min_exempt, self.max_exempt, cluster, duration_text)
        return asked

    def _at_checkpoint(self, asked: bool | None, cluster: str) -> bool:
        if asked and self.checkpoint_clause == CheckpointClause.REFUSED:
            raise InvalidField("preempt_at_checkpoint", f"is not offered by {cluster}")
        if asked is False and self.checkpoint_clause == CheckpointClause.REQUIRED:
            raise InvalidField("preempt_at_checkpoint", f"must be true, because {cluster} requires it")
        return bool(asked) or self.checkpoint_clause == CheckpointClause.REQUIRED

    def _per_day(self, asked: int | None, cluster: str) -> int | None:
        if asked is None:
            return self.max_per_day
        if self.min_per_day is None:
            raise InvalidField("preemptions_per_day", f"is not offered by {cluster}")
        _refuse_outside("preemptions_per_day", asked, self.min_per_day, self.max_per_day, cluster, str)
        return asked


NO_CONTRACTS = ContractLimits()


def limit_errors(
    min_minutes: int, max_minutes: int, min_per_day: int | None, max_per_day: int | None
) -> dict[str, str]:
    """The limits of a cluster that contradict each other, by column, each as a sentence."""
    errors = {}
    if min_minutes > max_minutes:
        errors["min_exempt_minutes"] = f"{min_minutes} is more than the maximum, {max_minutes}."
    if min_per_day is not None and max_per_day is not None and min_per_day > max_per_day:
        errors["min_preemptions_per_day"] = f"{min_per_day} is more than the maximum, {max_per_day}."
    return errors


def contract_text(contract: PreemptionContract, *, preemptible: bool) -> str:
    """The contract of a job, or that it is not preemptible."""
    return contract.text() if preemptible else "It is not preempted."


def duration_text(duration: timedelta) -> str:
    """A duration such as `30 min`, `1 h 30 min` or `2 d`."""
    minutes, seconds = divmod(round(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [
        f"{number} {unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")) if number
    ]
    return " ".join(parts) or "0 s"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _refuse_outside(name: str, asked: Any, low: Any, high: Any, cluster: str, text: Callable[[Any], str]) -> None:
    if asked < low:
        raise InvalidField(name, f"{text(asked)} is less than {text(low)}, the minimum of {cluster}")
    if high is not None and asked > high:
        raise InvalidField(name, f"{text(asked)} is more than {text(high)}, the maximum of {cluster}")
