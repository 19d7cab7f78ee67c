"""When a job should have ended: how a deadline is written, what an answer says about it, and how it turned out. Pure.

A deadline is not a limit: when it passes, the job continues. A job with the action `cancel` gets what --deadline of
Slurm does: it ends as DEADLINE when its deadline passes, or while it waits, as soon as its time limit no longer fits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from acmeweb.common.errors import InvalidField
from jobs.core.lifecycle import FINAL_STATES, State
from jobs.core.preemption_contract import duration_text
from jobs.core.slurm_notation import format_duration

RELATIVE_PATTERN = re.compile(r"now(?:\+(\d{1,9})(second|minute|hour|day|week)?s?)?", re.ASCII)
CLOCK_PATTERN = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


class DeadlineAction(StrEnum):
    """What happens to the job when its deadline passes."""

    CONTINUE = "continue"
    CANCEL = "cancel"


class UnlikelyDeadlines(StrEnum):
    """What a cluster does with a job that will probably miss its deadline."""

    IGNORE = "ignore"
    WARN = "warn"
    REFUSE = "refuse"


@dataclass(frozen=True, kw_only=True)
class DeadlineForecast:
    """The probability that a job meets its deadline, and what it results from. Without a probability, `why` says why
    there is none."""

    probability: float | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """Such as "92% likely: predicted run 3 h ± 40 min, predicted start 12:10 UTC."."""
        if self.probability is None:
            return self.why or "Not forecast yet. Forecasts are updated every 30 s."
        return f"{percent_text(self.probability)} likely: {self.why}"


@dataclass(frozen=True, kw_only=True)
class DeadlineAnswer:
    """The forecast that a submission is answered with. `warning` is a sentence if the deadline is unlikely."""

    forecast: DeadlineForecast
    warning: str = ""

    @property
    def text(self) -> str:
        return self.forecast.text


def absolute_time(text: str, now: datetime) -> str:
    """The text as an ISO time, if it is `now+6hours` or a time of day in UTC, which is the next one. Other texts are
    returned unchanged, for the parser to judge.
    """
    word = text.strip()
    if match := RELATIVE_PATTERN.fullmatch(word):
        seconds = int(match[1] or 0) * int(timedelta(**{f"{match[2] or 'second'}s": 1}).total_seconds())
        return text if seconds > 10**9 else (now + timedelta(seconds=seconds)).isoformat()
    if match := CLOCK_PATTERN.fullmatch(word):
        hour, minute, second = (int(part or 0) for part in match.groups())
        if hour < 24 and minute < 60 and second < 60:
            today = now.astimezone(UTC).replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (today if today > now else today + DAY).isoformat()
    return text


def refuse_impossible(deadline: datetime, action: DeadlineAction, limit: timedelta | None, now: datetime) -> None:
    """Reject a deadline that has passed, or that would end the job at once."""
    if deadline <= now:
        raise InvalidField("deadline_at", f"{deadline:%Y-%m-%dT%H:%M:%SZ} has passed")
    if action == DeadlineAction.CANCEL and limit and now + limit > deadline:
        raise InvalidField(
            "deadline_at",
            f"is earlier than now plus the time limit of {format_duration(limit)}; the job would be cancelled at once",
        )


def answer(forecast: DeadlineForecast, mode: UnlikelyDeadlines, percent: int) -> DeadlineAnswer:
    """What the cluster answers. Raises InvalidField if it refuses deadlines that are as unlikely as this one."""
    probability = forecast.probability
    if probability is None or mode == UnlikelyDeadlines.IGNORE or 100 * probability >= percent:
        return DeadlineAnswer(forecast=forecast)
    unlikely = f"will be met with {percent_text(probability)}, less than the {percent}% that the cluster expects"
    if mode == UnlikelyDeadlines.REFUSE:
        raise InvalidField("deadline_at", f"{unlikely}: {forecast.why}")
    return DeadlineAnswer(forecast=forecast, warning=f"The deadline {unlikely}.")


def percent_text(probability: float) -> str:
    """A whole percentage. Certainty is never claimed."""
    percent = round(100 * probability)
    return "under 1%" if percent < 1 else "over 99%" if percent > 99 else f"{percent}%"


@dataclass(frozen=True, kw_only=True)
class JobDeadline:
    """A deadline with the forecast or the outcome of its job."""

    at: datetime
    action: DeadlineAction
    forecast: DeadlineForecast
    state: State
    ended_at: datetime | None

    @property
    def cancels(self) -> bool:
        """Whether the job will be ended when it passes."""
        return self.action == DeadlineAction.CANCEL and self.state not in FINAL_STATES

    @property
    def short_text(self) -> str:
        """The present forecast in a word, for lists."""
        return "" if self.forecast.probability is None else percent_text(self.forecast.probability)

    @property
    def is_met(self) -> bool | None:
        """Whether the job completed in time; None while it has not ended."""
        if self.state not in FINAL_STATES or self.ended_at is None:
            return None
        return self.state == State.COMPLETED and self.ended_at <= self.at

    def text(self, now: datetime) -> str:
        """The outcome, or the present forecast, as a sentence."""
        if self.is_met is not None and self.ended_at is not None:
            return self._outcome_text(self.ended_at)
        if now > self.at:
            continues = "being ended" if self.action == DeadlineAction.CANCEL else "continuing"
            return f"Passed {_span_text(now - self.at)} ago. The job is {continues}."
        return self.forecast.text

    def _outcome_text(self, ended_at: datetime) -> str:
        if self.is_met:
            return f"Met, {_span_text(self.at - ended_at)} early."
        if ended_at <= self.at:
            return f"Missed: the job ended before it as {self.state}."
        return f"Missed by {_span_text(ended_at - self.at)}."


def _span_text(span: timedelta) -> str:
    """The duration in whole minutes; exact below a minute."""
    return duration_text(timedelta(minutes=span // MINUTE) if span >= MINUTE else span)
