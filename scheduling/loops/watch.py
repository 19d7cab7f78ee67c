"""Watch: look at what running training jobs report, and say when one hangs or its loss went bad.

Who is eligible   attempts that run on a cluster Acme drives, that nobody stops, of jobs which recovery looks after
                  and that have reported steps; for hangs only those who have been silent for half a minute. Of those
                  that report no step the log is heard, who was looked at longest ago first.
What a turn does  asks the pure detectors; what they find becomes a verdict of the running attempt and joins an
                  incident, from which recovery decides. The ranks of one that hangs are asked for their stacks first,
                  where the program can be asked (`stacks` reads them). A symptom that passes before anything was done
                  is taken back.
Failure story     A verdict is one row for each attempt, written together with the request for stacks and its deed, so
                  killed anywhere or run twice nothing is said or asked twice. The
                  detectors see the rows alone and keep nothing between turns; a late turn finds the same.

A turn reads one row of each running attempt (its pulse), and the newest 300 of those that are looked at closely: who
has been silent, and whose newest loss is new. With a thousand training jobs that is some megabytes every 15 seconds.
Of a log it reads what came since the last look, a megabyte at most; a log that has not grown costs a look at its size.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import F, Q, QuerySet

from failures import actions as failure_actions
from failures import listening, stack_actions
from failures.actions import DETECTOR
from failures.detect import cadence, loss
from failures.detect.findings import Finding
from failures.detect.hang import FLOOR_S, Section, hang
from failures.detect.loss import Point
from failures.models import Diagnosis
from jobs.ending import RECOVERY_LABEL, TRAINING
from jobs.logs import NoLog, Stream
from jobs.models import Attempt, Mode, Progress
from jobs.wishes import want_turn
from scheduling.loops.rows import one_row

log = logging.getLogger(__name__)

NEWEST = 300
MOST_AT_ONCE = 2_000
MOST_LOGS = 500  # in a turn
FRESH = timedelta(seconds=45)  # three turns: a loss that was looked at is not looked at again for ever
HANG, SPIKE = "Hang", "LossNaNOrSpike"


def watch_once(now: datetime) -> int:
    """How many symptoms were found or taken back."""
    found = _passed(now)
    for attempt in followed():
        with one_row(attempt):
            found += _looked_at(attempt, now)
    for attempt in _silent_ones():
        with one_row(attempt):
            found += _heard(attempt, now)
    listening.forget_ended()
    return found


def followed() -> list[Attempt]:
    """Running attempts that recovery looks after, that report steps, and that have no verdict yet."""
    rows = _looked_after().filter(pulse__step__isnull=False).select_related("pulse")
    return list(rows[:MOST_AT_ONCE])


def _silent_ones() -> list[Attempt]:
    """The same of those that report none, and whose log can be read; who was looked at longest ago comes first."""
    rows = _looked_after().filter(pulse__step__isnull=True).exclude(log_path="").exclude(job__cluster__log_root="")
    return list(rows.select_related("cadence").order_by(F("cadence__looked_at").asc(nulls_first=True))[:MOST_LOGS])


def _looked_after() -> QuerySet[Attempt]:
    looked_after = Q(job__kind__in=[str(kind) for kind in TRAINING]) | ~Q(job__checkpoint_dir="")
    wanted = looked_after | Q(job__labels__contains={RECOVERY_LABEL: "on"})
    rows = Attempt.objects.filter(wanted, ended_at__isnull=True, confirmed_at__isnull=False, stop_as="", diagnosis=None)
    rows = rows.filter(job__cluster__mode=Mode.DRIVE, job__foreign_id="")
    rows = rows.exclude(job__labels__contains={RECOVERY_LABEL: "off"}).filter(job__requeue_limit__gt=0)
    return rows.select_related("job__cluster").defer("job__command")


def _heard(attempt: Attempt, now: datetime) -> bool:
    """By the lines of its log that count steps, where it has such lines."""
    try:
        found = cadence.silence(listening.listen(attempt, now), now.timestamp())
    except NoLog:
        return False
    if found is None:
        return False
    return _say(attempt, HANG, replace(found, why=f"Its log counts no further. {found.why}"), now)


def _looked_at(attempt: Attempt, now: datetime) -> bool:
    heard = attempt.pulse.heard_at
    silent, spoke = now - heard > timedelta(seconds=FLOOR_S), now - heard < FRESH and attempt.pulse.loss is not None
    if not (silent or spoke):
        return False
    points = _points(attempt)
    if silent and (finding := hang(_steps(points), now.timestamp(), _sections(attempt))):
        return _say(attempt, HANG, finding, now)
    if spoke and (finding := _spike(points)):
        return _say(attempt, SPIKE, finding, now)
    return False


def _points(attempt: Attempt) -> list[Point]:
    rows = Progress.objects.filter(attempt_id=attempt.pk, step__isnull=False).order_by("-at")
    told = rows.values_list("step", "at", "loss", "grad_norm")[:NEWEST]
    return [Point(step=step, at=at.timestamp(), loss=value, grad_norm=norm) for step, at, value, norm in told][::-1]


def _sections(attempt: Attempt) -> list[Section]:
    """What it declared: a save, an evaluation, a compilation. The newest ones tell how long each usually lasts."""
    rows = attempt.sections.order_by("-began_at")[:NEWEST]
    return [
        Section(name=row.name, begin=row.began_at.timestamp(), end=row.ended_at.timestamp() if row.ended_at else None)
        for row in reversed(rows)
    ]


def _steps(points: list[Point]) -> list[float]:
    """When the furthest step rose: one that is told twice is no step."""
    moments, furthest = [], -1
    for point in points:
        if point.step > furthest:
            furthest = point.step
            moments.append(point.at)
    return moments


def _spike(points: list[Point]) -> Finding | None:
    """Only one that has not come back."""
    watch, last = loss.Watch(), None
    for point in points:
        last = watch.see(point) or (last if watch.is_in_trouble else None)
    return last


def _say(attempt: Attempt, label: str, finding: Finding, now: datetime) -> bool:
    """The ranks of a hang are asked where they stand, in the transaction that says it: nothing is decided before."""
    since, size = datetime.fromtimestamp(finding.since, UTC), _log_size(attempt) if label == HANG else 0
    with transaction.atomic():
        incident = failure_actions.suspect(attempt, label, finding.why, since, now)
        asked = incident is not None and label == HANG and stack_actions.ask(attempt, incident, size, now)
    if asked:
        want_turn(attempt.job.cluster_id)
    return incident is not None


def _log_size(attempt: Attempt) -> int:
    """What stands in the log by now is no answer to what is asked now."""
    try:
        with closing(Stream(attempt.job.cluster.log_root, attempt.log_path)) as log:
            return log.size
    except NoLog:
        return 0


def _passed(now: datetime) -> int:
    """Hangs of attempts that have completed a step since they were said to hang."""
    rows = Diagnosis.objects.filter(engine=DETECTOR, root_cause=HANG, attempt__ended_at=None, attempt__stop_as="")
    done = 0
    related = ("attempt__pulse", "attempt__cadence", "attempt__job__cluster", "incident__lead")
    for row in rows.select_related(*related)[:MOST_AT_ONCE]:
        with one_row(row):
            if row.judged_at and (goes_on := _last_step(row.attempt, now)) and goes_on > row.judged_at:
                done += failure_actions.acquit(row, "It completes steps again.", now)
    return done


def _last_step(attempt: Attempt, now: datetime) -> datetime | None:
    """As it was judged: by what it reports, else by its log."""
    pulse = getattr(attempt, "pulse", None)
    if pulse is not None and pulse.step is not None:
        return pulse.at
    with suppress(NoLog):
        if moments := listening.listen(attempt, now).moments:
            return datetime.fromtimestamp(moments[-1], UTC)
    return None
