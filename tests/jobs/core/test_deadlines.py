"""Deadlines of jobs: how they are written, what a cluster answers, and how they turn out."""

from datetime import timedelta

import pytest

from acmeweb.common.errors import InvalidField
from jobs.core.deadlines import (
    DeadlineAction,
    DeadlineForecast,
    JobDeadline,
    UnlikelyDeadlines,
    absolute_time,
    answer,
    percent_text,
    refuse_impossible,
)
from jobs.core.lifecycle import State
from tests.make import NOON

HOUR = timedelta(hours=1)
LIKELY = DeadlineForecast(probability=0.92, why="predicted run 3 h ± 40 min, predicted start 12:10 UTC.")
UNLIKELY = DeadlineForecast(probability=0.3, why="predicted run 9 h ± 1 h, predicted start 12:10 UTC.")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("now", "2026-11-21T12:00:00+00:00"),
        ("now+6hours", "2026-11-21T18:00:00+00:00"),
        ("now+90", "2026-11-21T12:01:30+00:00"),
        ("now+1week", "2026-11-28T12:00:00+00:00"),
        (" 18:00 ", "2026-11-21T18:00:00+00:00"),
        ("12:00", "2026-11-22T12:00:00+00:00"),
        ("06:30:15", "2026-11-22T06:30:15+00:00"),
    ],
)
def test_relative_times_and_times_of_day_become_absolute(text, at):
    assert absolute_time(text, NOON) == at


@pytest.mark.parametrize("text", ["24:00", "12:61", "now+999999999weeks", "now-1hour", "2026-01-31T08:00:00Z", "", "6"])
def test_other_texts_are_left_to_the_parser(text):
    assert absolute_time(text, NOON) == text


@pytest.mark.parametrize(
    ("ahead", "action", "limit", "why"),
    [
        (timedelta(0), DeadlineAction.CONTINUE, None, "has passed"),
        (HOUR, DeadlineAction.CANCEL, 2 * HOUR, "is earlier than now plus the time limit of 02:00:00"),
    ],
    ids=["past", "too short for the limit"],
)
def test_impossible_deadline_is_refused(ahead, action, limit, why):
    with pytest.raises(InvalidField, match=why) as refused:
        refuse_impossible(NOON + ahead, action, limit, NOON)

    assert refused.value.field == "deadline_at"


@pytest.mark.parametrize(
    ("action", "limit"),
    [(DeadlineAction.CONTINUE, 2 * HOUR), (DeadlineAction.CANCEL, HOUR), (DeadlineAction.CANCEL, None)],
)
def test_possible_deadline_is_accepted(action, limit):
    refuse_impossible(NOON + HOUR, action, limit, NOON)


@pytest.mark.parametrize(
    ("forecast", "mode", "warning"),
    [
        (LIKELY, UnlikelyDeadlines.WARN, ""),
        (LIKELY, UnlikelyDeadlines.REFUSE, ""),
        (UNLIKELY, UnlikelyDeadlines.IGNORE, ""),
        (
            UNLIKELY,
            UnlikelyDeadlines.WARN,
            "The deadline will be met with 30%, less than the 50% that the cluster expects.",
        ),
        (DeadlineForecast(), UnlikelyDeadlines.REFUSE, ""),
    ],
    ids=["likely", "likely, refuse", "ignore", "warn", "unknown"],
)
def test_answer_warns_of_an_unlikely_deadline(forecast, mode, warning):
    assert answer(forecast, mode, 50).warning == warning


def test_cluster_refuses_an_unlikely_deadline_with_the_reason():
    with pytest.raises(InvalidField, match=r"will be met with 30%, less than the 50% .* predicted run 9 h"):
        answer(UNLIKELY, UnlikelyDeadlines.REFUSE, 50)


@pytest.mark.parametrize(("share", "text"), [(0.0, "under 1%"), (0.5, "50%"), (0.994, "99%"), (1.0, "over 99%")])
def test_percentage_never_claims_certainty(share, text):
    assert percent_text(share) == text


def deadline(state=State.RUNNING, ended=None, forecast=LIKELY, action=DeadlineAction.CONTINUE):
    ended_at = None if ended is None else NOON + ended
    return JobDeadline(at=NOON, action=action, forecast=forecast, state=state, ended_at=ended_at)


@pytest.mark.parametrize(
    ("job", "now", "text"),
    [
        (deadline(), -HOUR, "92% likely: predicted run 3 h ± 40 min, predicted start 12:10 UTC."),
        (deadline(forecast=DeadlineForecast()), -HOUR, "Not forecast yet. Forecasts are updated every 30 s."),
        (deadline(), HOUR, "Passed 1 h ago. The job is continuing."),
        (deadline(action=DeadlineAction.CANCEL), HOUR, "Passed 1 h ago. The job is being ended."),
        (deadline(State.COMPLETED, -HOUR), HOUR, "Met, 1 h early."),
        (deadline(State.COMPLETED, 2 * HOUR), 3 * HOUR, "Missed by 2 h."),
        (deadline(State.FAILED, -HOUR), HOUR, "Missed: the job ended before it as FAILED."),
    ],
    ids=["ahead", "unknown", "passed", "cancelled", "met", "late", "failed"],
)
def test_text_says_how_a_deadline_stands(job, now, text):
    assert job.text(NOON + now) == text
