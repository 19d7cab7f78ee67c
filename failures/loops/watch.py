"""Watch: detects running training jobs that hang or whose loss spikes.

Eligible rows     Running attempts on clusters that Acme controls, of jobs that recovery may restart and that are not
                  being stopped. With reported steps; for hangs only those without a report for 30 s. Without reports,
                  those whose printed steps `follow` reads from the log.
What a turn does  Runs the pure detectors. A finding becomes a diagnosis of the running attempt and joins an incident,
                  from which recovery decides. The stacks of a hanging attempt are requested first, if its program
                  supports it (`stacks` reads them). A diagnosis is withdrawn if the symptom ends before recovery acts.
                  If most attempts of a cluster fall silent in one turn, none is diagnosed for 15 minutes.
Failure story     A diagnosis is one row per attempt, written in one transaction with the request for stacks and its
                  cluster command, so a kill or a second run repeats nothing. The detectors use only stored rows and
                  keep no state between turns, so a late turn finds the same. Hangs in logs are judged as of the time
                  at which the log was last read, so a log that nobody reads never counts as silent.

Hangs without reports are detected from the cadence of the log, with more patience than hangs of jobs that report.

A turn reads one row per running attempt (its latest progress or its cadence), and the newest 300 progress rows of
attempts that are silent or have a new loss: a few MB every 15 s with 1,000 training jobs.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from django.db import transaction

from failures.actions import incidents as failure_actions
from failures.actions import stacks as stack_actions
from failures.actions.incidents import DETECTOR_ENGINE
from failures.detection import loss, step_cadence
from failures.detection.findings import DetectorFinding
from failures.detection.hang import MIN_PATIENCE_S, SectionInterval, detect_hang
from failures.detection.loss import LossPoint
from failures.detection.step_cadence import cadence_from_json
from failures.models import Diagnosis, LogReadState
from failures.queries.monitored_attempts import recoverable_trainings, with_reports, without_reports
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.wake import request_turn
from jobs.logs.job_log import LogReadError, LogStream
from jobs.models import Attempt, Progress

log = logging.getLogger(__name__)

MAX_POINTS = 300
MAX_ATTEMPTS = 2_000
MIN_COMMON_SILENCE = 3  # attempts that fall silent in one turn
COMMON_SILENCE_PATIENCE_S = 900.0
FRESH_REPORT_AGE = timedelta(seconds=45)  # three turns; older losses were checked before
HANG_CAUSE, SPIKE_CAUSE = "Hang", "LossNaNOrSpike"


def watch_once(now: datetime) -> int:
    """Diagnoses hangs and loss spikes. Returns how many diagnoses were made or withdrawn."""
    done, hangs, watched = _withdraw_passed_hangs(now), list[tuple[Attempt, DetectorFinding]](), Counter[int]()
    for attempts, look in ((attempts_with_reports(), _hang_by_reports), (_attempts_with_cadence(), _hang_by_log)):
        for attempt in attempts:
            watched[attempt.job.cluster_id] += 1
            with skip_row_on_error(attempt):
                if finding := look(attempt, now):
                    hangs.append((attempt, finding))
                else:
                    done += _report_loss_spike(attempt, now)
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
    return done


def _is_common_silence(silent: int, watched: int) -> bool:
    """Whether most attempts of a cluster are silent.

    Then their reports or logs do not arrive, or all wait for one service. No job is ended for the usual duration of
    such an outage.
    """
    return silent >= MIN_COMMON_SILENCE and silent > watched / 2


def attempts_with_reports() -> list[Attempt]:
    """Running attempts that recovery may restart, that report steps, and that have no diagnosis yet."""
    return list(with_reports(recoverable_trainings())[:MAX_ATTEMPTS])


def _attempts_with_cadence() -> list[Attempt]:
    """Running attempts that recovery may restart, whose steps are read from their logs, and without a diagnosis."""
    rows = without_reports(recoverable_trainings()).filter(log_read_state__cadence__isnull=False)
    return list(rows.select_related("log_read_state", "latest_progress")[:MAX_ATTEMPTS])


def _hang_by_log(attempt: Attempt, now: datetime) -> DetectorFinding | None:
    """The hang found from the lines of the log that count steps, if there are any."""
    row: LogReadState = attempt.log_read_state
    if row.steps_read_at is None:
        return None
    finding = step_cadence.detect_silence(cadence_from_json(row.cadence), min(now, row.steps_read_at).timestamp())
    return replace(finding, why=f"The log shows no new steps. {finding.why}") if finding else None


def _hang_by_reports(attempt: Attempt, now: datetime) -> DetectorFinding | None:
    """The hang found from the reports. An attempt that reported within MIN_PATIENCE_S does not hang."""
    if now - attempt.latest_progress.updated_at <= timedelta(seconds=MIN_PATIENCE_S):
        return None
    return detect_hang(_step_times(_loss_points(attempt)), now.timestamp(), _declared_sections(attempt))


def _report_loss_spike(attempt: Attempt, now: datetime) -> bool:
    latest = getattr(attempt, "latest_progress", None)
    if latest is None or latest.is_of_log or latest.loss is None or now - latest.updated_at >= FRESH_REPORT_AGE:
        return False
    finding = _ongoing_loss_spike(_loss_points(attempt))
    return finding is not None and _report_symptom(attempt, SPIKE_CAUSE, finding, now)


def _loss_points(attempt: Attempt) -> list[LossPoint]:
    rows = Progress.objects.filter(attempt_id=attempt.pk, step__isnull=False).order_by("-at")
    samples = rows.values_list("step", "at", "loss", "grad_norm")[:MAX_POINTS]
    points = [LossPoint(step=step, at=at.timestamp(), loss=loss, grad_norm=norm) for step, at, loss, norm in samples]
    return points[::-1]


def _declared_sections(attempt: Attempt) -> list[SectionInterval]:
    """Declared sections, such as saves and evaluations. The newest ones show how long each kind usually lasts."""
    rows = attempt.sections.order_by("-began_at")[:MAX_POINTS]
    return [
        SectionInterval(
            name=row.name, begin=row.began_at.timestamp(), end=row.ended_at.timestamp() if row.ended_at else None
        )
        for row in reversed(rows)
    ]


def _step_times(points: list[LossPoint]) -> list[float]:
    """The times at which the highest step increased. Repeated steps do not count."""
    moments, furthest = [], -1
    for point in points:
        if point.step > furthest:
            furthest = point.step
            moments.append(point.at)
    return moments


def _ongoing_loss_spike(points: list[LossPoint]) -> DetectorFinding | None:
    """The last loss spike, if the loss has not recovered."""
    watch, last = loss.LossDetector(), None
    for point in points:
        last = watch.see(point) or (last if watch.has_open_finding else None)
    return last


def _report_symptom(attempt: Attempt, label: str, finding: DetectorFinding, now: datetime) -> bool:
    """Diagnose a running attempt. For a hang, requests the stacks in the same transaction, before recovery decides."""
    since, size = datetime.fromtimestamp(finding.since, UTC), _log_size(attempt) if label == HANG_CAUSE else 0
    with transaction.atomic():
        incident = failure_actions.diagnose_running_attempt(attempt, label, finding.why, since, now)
        is_stacks_requested = (
            incident is not None and label == HANG_CAUSE and stack_actions.request_stacks(attempt, incident, size, now)
        )
    if is_stacks_requested:
        request_turn(attempt.job.cluster_id)
    return incident is not None


def _log_size(attempt: Attempt) -> int:
    """The current size of the log. Stacks requested now appear after this position."""
    try:
        return LogStream(attempt.log_source).size
    except LogReadError:
        return 0


def _withdraw_passed_hangs(now: datetime) -> int:
    """Withdraw the diagnoses of hangs whose attempts have completed a step since. Returns how many."""
    rows = Diagnosis.objects.filter(
        engine=DETECTOR_ENGINE, root_cause=HANG_CAUSE, attempt__ended_at=None, attempt__stop_state=""
    )
    done = 0
    related = ("attempt__latest_progress", "attempt__log_read_state", "attempt__job__cluster", "incident__lead")
    for row in rows.select_related(*related)[:MAX_ATTEMPTS]:
        with skip_row_on_error(row):
            if row.judged_at and (goes_on := _last_step_time(row.attempt)) and goes_on > row.judged_at:
                done += failure_actions.withdraw_early_diagnosis(row, "The job completes steps again.", now)
    return done


def _last_step_time(attempt: Attempt) -> datetime | None:
    """The time of the last step, from the reports if there are any, else from the log."""
    latest = getattr(attempt, "latest_progress", None)
    if latest is not None and latest.step is not None and not latest.is_of_log:
        return latest.at
    row: LogReadState | None = getattr(attempt, "log_read_state", None)
    moments = cadence_from_json(row.cadence).moments if row else ()
    return datetime.fromtimestamp(moments[-1], UTC) if moments else None
