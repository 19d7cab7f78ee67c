"""Watch: look at what running training jobs report, and say when one hangs or its loss went bad.

Who is eligible   attempts that run on a cluster Acme drives, that nobody stops, of jobs which recovery looks after
                  and that have reported steps; for hangs only those who have been silent for half a minute. Of all
                  trainings that report no step the log is heard, wherever they run, who was looked at longest ago
                  first, but those that recovery looks after before all others: what it prints of steps is noted for
                  people, and they are judged by how it counts. Of one that has ended the rest is heard once more.
What a turn does  asks the pure detectors; what they find becomes a verdict of the running attempt and joins an
                  incident, from which recovery decides. The ranks of one that hangs are asked for their stacks first,
                  where the program can be asked (`stacks` reads them). A symptom that passes before anything was done
                  is taken back. Where most of a cluster falls silent in one turn, nothing is said of anybody for a
                  quarter of an hour.
Failure story     A verdict is one row for each attempt, written together with the request for stacks and its deed, so
                  killed anywhere or run twice nothing is said or asked twice. The
                  detectors see the rows alone and keep nothing between turns; a late turn finds the same.

Steps read from a log are shown, and date the first one; nobody is judged by the figures beside them. A hang is judged
by the cadence of the log, which knows blocks and sections and has the longer patience; a step time that includes what
else the program did between two lines makes nobody slow, and a loss picked out of a line ends no job.

A turn reads one row of each running attempt (its pulse), and the newest 300 of those that are looked at closely: who
has been silent, and whose newest loss is new. With a thousand training jobs that is some megabytes every 15 seconds.
Of a log it reads what came since the last look, a megabyte at most; a log that has not grown costs a look at its size.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
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
from jobs.lifecycle import State
from jobs.logs import NoLog, Stream
from jobs.models import Attempt, Mode, Progress, Source
from jobs.wishes import want_turn
from scheduling.loops.rows import one_row

log = logging.getLogger(__name__)

NEWEST = 300
MOST_AT_ONCE = 2_000
MOST_LOGS = 500  # in a turn
TOGETHER = 3  # that fall silent in one turn
PATIENCE_S = 900.0  # with those
FRESH = timedelta(seconds=45)  # three turns: a loss that was looked at is not looked at again for ever
HANG, SPIKE = "Hang", "LossNaNOrSpike"


def watch_once(now: datetime) -> int:
    """How many symptoms were found or taken back."""
    done, hangs, watched = _passed(now), list[tuple[Attempt, Finding]](), Counter[int]()
    judged, others = _silent_ones()
    for attempts, look in ((followed(), _hang_of), (judged, _heard)):
        for attempt in attempts:
            watched[attempt.job.cluster_id] += 1
            with one_row(attempt):
                if finding := look(attempt, now):
                    hangs.append((attempt, finding))
                else:
                    done += _spiked(attempt, now)
    for attempt in (*others, *_ended()):
        with one_row(attempt), suppress(NoLog):
            listening.listen(attempt, now)
    listening.looked([*judged, *others], now)
    silent = Counter(attempt.job.cluster_id for attempt, _ in hangs)
    for attempt, finding in hangs:
        cluster = attempt.job.cluster_id
        if _is_the_way_here(silent[cluster], watched[cluster]) and now.timestamp() - finding.since < PATIENCE_S:
            continue
        with one_row(attempt):
            done += _say(attempt, HANG, finding, now)
    listening.forget_ended()
    return done


def _is_the_way_here(silent: int, watched: int) -> bool:
    """Many that fall silent together do not hang, each for itself: their reports or logs do not reach us, or all wait
    for one service. Nobody is ended for that, as long as such a thing usually takes; a fabric that died stays dead."""
    return silent >= TOGETHER and silent > watched / 2


def followed() -> list[Attempt]:
    """Running attempts that recovery looks after, that report steps, and that have no verdict yet."""
    rows = _looked_after().filter(pulse__step__isnull=False, pulse__source=Source.REPORTS).select_related("pulse")
    return list(rows[:MOST_AT_ONCE])


def _silent_ones() -> tuple[list[Attempt], list[Attempt]]:
    """Those that report none, and whose log can be read: the ones that recovery looks after, and the others."""
    judged = list(_by_log(_looked_after())[:MOST_LOGS])
    others = _by_log(_trainings()).exclude(pk__in=[one.pk for one in judged])
    return judged, list(others[: MOST_LOGS - len(judged)])


def _by_log(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    rows = attempts.filter(Q(pulse__step__isnull=True) | ~Q(pulse__source=Source.REPORTS))
    rows = rows.exclude(log_path="").exclude(job__cluster__log_root="")
    return rows.select_related("cadence", "pulse").order_by(F("cadence__looked_at").asc(nulls_first=True), "pk")


def _ended() -> list[Attempt]:
    """Whose log was heard while they ran: what they printed after that is heard once more."""
    rows = Attempt.objects.filter(ended_at__isnull=False, cadence__isnull=False).select_related("job__cluster")
    return list(_by_log(rows.defer("job__command"))[:MOST_LOGS])


def _looked_after() -> QuerySet[Attempt]:
    rows = _trainings().filter(stop_as="", diagnosis=None, job__cluster__mode=Mode.DRIVE, job__foreign_id="")
    return rows.exclude(job__labels__contains={RECOVERY_LABEL: "off"}).filter(job__requeue_limit__gt=0)


def _trainings() -> QuerySet[Attempt]:
    """A job that its cluster has suspended completes no step, and does not hang."""
    training = Q(job__kind__in=[str(kind) for kind in TRAINING]) | ~Q(job__checkpoint_dir="")
    wanted = training | Q(job__labels__contains={RECOVERY_LABEL: "on"})
    rows = Attempt.objects.filter(wanted, ended_at__isnull=True, confirmed_at__isnull=False, job__state=State.RUNNING)
    return rows.select_related("job__cluster").defer("job__command")


def _heard(attempt: Attempt, now: datetime) -> Finding | None:
    """By the lines of its log that count steps, where it has such lines."""
    try:
        found = cadence.silence(listening.listen(attempt, now), now.timestamp())
    except NoLog:
        return None
    return replace(found, why=f"Its log counts no further. {found.why}") if found else None


def _hang_of(attempt: Attempt, now: datetime) -> Finding | None:
    """By its reports; whoever has spoken within the shortest patience there is does not hang."""
    if now - attempt.pulse.heard_at <= timedelta(seconds=FLOOR_S):
        return None
    return hang(_steps(_points(attempt)), now.timestamp(), _sections(attempt))


def _spiked(attempt: Attempt, now: datetime) -> bool:
    pulse = getattr(attempt, "pulse", None)
    if pulse is None or pulse.is_of_log or pulse.loss is None or now - pulse.heard_at >= FRESH:
        return False
    finding = _spike(_points(attempt))
    return finding is not None and _say(attempt, SPIKE, finding, now)


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
        return Stream(attempt.job.cluster.log_root, attempt.log_path).size
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
    if pulse is not None and pulse.step is not None and not pulse.is_of_log:
        return pulse.at
    with suppress(NoLog):
        if moments := listening.listen(attempt, now).moments:
            return datetime.fromtimestamp(moments[-1], UTC)
    return None
