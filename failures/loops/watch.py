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

from failures.actions import incidents as failure_actions
from failures.actions import stacks as stack_actions
from failures.actions.incidents import DETECTOR_ENGINE
from failures.detection import loss, step_cadence
from failures.detection.findings import DetectorFinding
from failures.detection.hang import MIN_PATIENCE_S, SectionInterval, detect_hang
from failures.detection.loss import LossPoint
from failures.models import Diagnosis
from failures.queries import log_progress
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.wake import request_turn
from jobs.core.attempt_end import RECOVERY_LABEL, TRAINING_KINDS
from jobs.core.lifecycle import State
from jobs.logs.job_log import LogReadError, LogStream
from jobs.models import Attempt, ClusterMode, Progress, ProgressSource

log = logging.getLogger(__name__)

MAX_POINTS = 300
MAX_ATTEMPTS = 2_000
MAX_LOGS = 500  # in a turn
MIN_COMMON_SILENCE = 3  # that fall silent in one turn
COMMON_SILENCE_PATIENCE_S = 900.0  # with those
FRESH_REPORT_AGE = timedelta(seconds=45)  # three turns: a loss that was looked at is not looked at again for ever
HANG_CAUSE, SPIKE_CAUSE = "Hang", "LossNaNOrSpike"


def watch_once(now: datetime) -> int:
    """How many symptoms were found or taken back."""
    done, hangs, watched = _withdraw_passed_hangs(now), list[tuple[Attempt, DetectorFinding]](), Counter[int]()
    judged, others = _attempts_without_reports()
    for attempts, look in ((attempts_with_reports(), _hang_by_reports), (judged, _hang_by_log)):
        for attempt in attempts:
            watched[attempt.job.cluster_id] += 1
            with skip_row_on_error(attempt):
                if finding := look(attempt, now):
                    hangs.append((attempt, finding))
                else:
                    done += _report_loss_spike(attempt, now)
    for attempt in (*others, *_ended_attempts()):
        with skip_row_on_error(attempt), suppress(LogReadError):
            log_progress.update_from_log(attempt, now)
    log_progress.mark_looked_at([*judged, *others], now)
    silent = Counter(attempt.job.cluster_id for attempt, _ in hangs)
    for attempt, finding in hangs:
        cluster = attempt.job.cluster_id
        if (
            _is_common_silence(silent[cluster], watched[cluster])
            and now.timestamp() - finding.since < COMMON_SILENCE_PATIENCE_S
        ):
            continue
        with skip_row_on_error(attempt):
            done += _report_symptom(attempt, HANG_CAUSE, finding, now)
    log_progress.forget_ended_cadences()
    return done


def _is_common_silence(silent: int, watched: int) -> bool:
    """Many that fall silent together do not hang, each for itself: their reports or logs do not reach us, or all wait
    for one service. Nobody is ended for that, as long as such a thing usually takes; a fabric that died stays dead."""
    return silent >= MIN_COMMON_SILENCE and silent > watched / 2


def attempts_with_reports() -> list[Attempt]:
    """Running attempts that recovery looks after, that report steps, and that have no verdict yet."""
    rows = (
        _recoverable_trainings()
        .filter(pulse__step__isnull=False, pulse__source=ProgressSource.REPORTS)
        .select_related("pulse")
    )
    return list(rows[:MAX_ATTEMPTS])


def _attempts_without_reports() -> tuple[list[Attempt], list[Attempt]]:
    """Those that report none, and whose log can be read: the ones that recovery looks after, and the others."""
    judged = list(_with_readable_log(_recoverable_trainings())[:MAX_LOGS])
    others = _with_readable_log(_running_trainings()).exclude(pk__in=[one.pk for one in judged])
    return judged, list(others[: MAX_LOGS - len(judged)])


def _with_readable_log(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    rows = attempts.filter(Q(pulse__step__isnull=True) | ~Q(pulse__source=ProgressSource.REPORTS))
    rows = rows.exclude(log_path="").exclude(job__cluster__log_root="")
    return rows.select_related("cadence", "pulse").order_by(F("cadence__looked_at").asc(nulls_first=True), "pk")


def _ended_attempts() -> list[Attempt]:
    """Whose log was heard while they ran: what they printed after that is heard once more."""
    rows = Attempt.objects.filter(ended_at__isnull=False, cadence__isnull=False).select_related("job__cluster")
    return list(_with_readable_log(rows.defer("job__command"))[:MAX_LOGS])


def _recoverable_trainings() -> QuerySet[Attempt]:
    rows = _running_trainings().filter(
        stop_as="", diagnosis=None, job__cluster__mode=ClusterMode.DRIVE, job__foreign_id=""
    )
    return rows.exclude(job__labels__contains={RECOVERY_LABEL: "off"}).filter(job__requeue_limit__gt=0)


def _running_trainings() -> QuerySet[Attempt]:
    """A job that its cluster has suspended completes no step, and does not hang."""
    training = Q(job__kind__in=[str(kind) for kind in TRAINING_KINDS]) | ~Q(job__checkpoint_dir="")
    wanted = training | Q(job__labels__contains={RECOVERY_LABEL: "on"})
    rows = Attempt.objects.filter(wanted, ended_at__isnull=True, confirmed_at__isnull=False, job__state=State.RUNNING)
    return rows.select_related("job__cluster").defer("job__command")


def _hang_by_log(attempt: Attempt, now: datetime) -> DetectorFinding | None:
    """By the lines of its log that count steps, where it has such lines."""
    try:
        found = step_cadence.detect_silence(log_progress.update_from_log(attempt, now), now.timestamp())
    except LogReadError:
        return None
    return replace(found, why=f"Its log counts no further. {found.why}") if found else None


def _hang_by_reports(attempt: Attempt, now: datetime) -> DetectorFinding | None:
    """By its reports; whoever has spoken within the shortest patience there is does not hang."""
    if now - attempt.pulse.heard_at <= timedelta(seconds=MIN_PATIENCE_S):
        return None
    return detect_hang(_step_times(_loss_points(attempt)), now.timestamp(), _declared_sections(attempt))


def _report_loss_spike(attempt: Attempt, now: datetime) -> bool:
    pulse = getattr(attempt, "pulse", None)
    if pulse is None or pulse.is_of_log or pulse.loss is None or now - pulse.heard_at >= FRESH_REPORT_AGE:
        return False
    finding = _ongoing_loss_spike(_loss_points(attempt))
    return finding is not None and _report_symptom(attempt, SPIKE_CAUSE, finding, now)


def _loss_points(attempt: Attempt) -> list[LossPoint]:
    rows = Progress.objects.filter(attempt_id=attempt.pk, step__isnull=False).order_by("-at")
    told = rows.values_list("step", "at", "loss", "grad_norm")[:MAX_POINTS]
    return [LossPoint(step=step, at=at.timestamp(), loss=value, grad_norm=norm) for step, at, value, norm in told][::-1]


def _declared_sections(attempt: Attempt) -> list[SectionInterval]:
    """What it declared: a save, an evaluation, a compilation. The newest ones tell how long each usually lasts."""
    rows = attempt.sections.order_by("-began_at")[:MAX_POINTS]
    return [
        SectionInterval(
            name=row.name, begin=row.began_at.timestamp(), end=row.ended_at.timestamp() if row.ended_at else None
        )
        for row in reversed(rows)
    ]


def _step_times(points: list[LossPoint]) -> list[float]:
    """When the furthest step rose: one that is told twice is no step."""
    moments, furthest = [], -1
    for point in points:
        if point.step > furthest:
            furthest = point.step
            moments.append(point.at)
    return moments


def _ongoing_loss_spike(points: list[LossPoint]) -> DetectorFinding | None:
    """Only one that has not come back."""
    watch, last = loss.LossDetector(), None
    for point in points:
        last = watch.see(point) or (last if watch.has_open_finding else None)
    return last


def _report_symptom(attempt: Attempt, label: str, finding: DetectorFinding, now: datetime) -> bool:
    """The ranks of a hang are asked where they stand, in the transaction that says it: nothing is decided before."""
    since, size = datetime.fromtimestamp(finding.since, UTC), _log_size(attempt) if label == HANG_CAUSE else 0
    with transaction.atomic():
        incident = failure_actions.diagnose_running_attempt(attempt, label, finding.why, since, now)
        asked = (
            incident is not None and label == HANG_CAUSE and stack_actions.request_stacks(attempt, incident, size, now)
        )
    if asked:
        request_turn(attempt.job.cluster_id)
    return incident is not None


def _log_size(attempt: Attempt) -> int:
    """What stands in the log by now is no answer to what is asked now."""
    try:
        return LogStream(attempt.job.cluster.log_root, attempt.log_path).size
    except LogReadError:
        return 0


def _withdraw_passed_hangs(now: datetime) -> int:
    """Hangs of attempts that have completed a step since they were said to hang."""
    rows = Diagnosis.objects.filter(
        engine=DETECTOR_ENGINE, root_cause=HANG_CAUSE, attempt__ended_at=None, attempt__stop_as=""
    )
    done = 0
    related = ("attempt__pulse", "attempt__cadence", "attempt__job__cluster", "incident__lead")
    for row in rows.select_related(*related)[:MAX_ATTEMPTS]:
        with skip_row_on_error(row):
            if row.judged_at and (goes_on := _last_step_time(row.attempt, now)) and goes_on > row.judged_at:
                done += failure_actions.withdraw_early_diagnosis(row, "It completes steps again.", now)
    return done


def _last_step_time(attempt: Attempt, now: datetime) -> datetime | None:
    """As it was judged: by what it reports, else by its log."""
    pulse = getattr(attempt, "pulse", None)
    if pulse is not None and pulse.step is not None and not pulse.is_of_log:
        return pulse.at
    with suppress(LogReadError):
        if moments := log_progress.update_from_log(attempt, now).moments:
            return datetime.fromtimestamp(moments[-1], UTC)
    return None
