"""How an attempt ended after its cluster has forgotten it. Pure: evidence in, one small value out.

A cluster forgets ended jobs (Slurm's MinJobAge), so "no longer known" never means "failed". The sources are checked in
this order: the cluster's accounting, the attempt record that the batch script leaves beside the log, and the cluster's
own messages at the end of the log. If none of them has the outcome, it is unknown and a user must decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.core.attempt_end import AttemptEnd
from jobs.core.backend_job import BackendJob
from jobs.core.lifecycle import FINAL_STATES, Flag, State
from scheduling.backends.attempt_record import STARTED_BEFORE, AttemptRecord

MISSING_GRACE = timedelta(seconds=30)  # a restarted controller may know the job again
SUBMISSION_GRACE = timedelta(seconds=10)  # a submission without an answer may still arrive
ACCOUNTING_LAG = timedelta(minutes=2)  # slurmdbd records ends late, and some never
SOURCE_TIMEOUT = timedelta(minutes=5)  # how long to wait for accounting or log storage that does not answer
CLOCK_SKEW = timedelta(minutes=10)
SIGNAL_EXIT_CODES = range(129, 160)  # exit codes of a command that was ended by a signal

STOPPED_BY_CLUSTER = frozenset(
    {State.CANCELLED, State.PREEMPTED, State.NODE_FAIL, State.BOOT_FAIL, State.OUT_OF_MEMORY}
)


@dataclass(frozen=True, kw_only=True)
class MissingAttempt:
    """What our record says about the attempt."""

    key: str  # as stored by the cluster; empty for jobs that Acme did not submit
    backend_id: str  # empty where the answer to its submission was lost
    confirmed: bool  # the cluster has reported it as running
    promised_at: datetime
    missing_since: datetime
    has_log: bool  # the job itself writes a log, and a record beside it


@dataclass(frozen=True, kw_only=True)
class OutcomeEvidence:
    """The evidence. None: the source does not exist or did not answer; `away` lists the latter."""

    accounted: Sequence[BackendJob] | None = None
    record: AttemptRecord | None = None
    log_exists: bool | None = None
    log_state: State | None = None  # the state in which the cluster ended the job, as it wrote to the log
    away: tuple[str, ...] = ()  # sources that exist but do not answer at the moment


class OutcomeFinding:
    """A conclusion from the evidence."""


@dataclass(frozen=True)
class KnownEnd(OutcomeFinding):
    ended: AttemptEnd
    started_at: datetime | None = None
    backend_id: str = ""


@dataclass(frozen=True)
class NeverStarted(OutcomeFinding):
    """The attempt left no trace where a started attempt must leave one."""


@dataclass(frozen=True)
class OutcomePending(OutcomeFinding):
    """Check again later."""


@dataclass(frozen=True)
class UnknownOutcome(OutcomeFinding):
    why: str


def find_outcome(attempt: MissingAttempt, evidence: OutcomeEvidence, now: datetime) -> OutcomeFinding:
    """The outcome of a missing attempt, as far as the evidence shows it."""
    missing_for = now - attempt.missing_since
    own_jobs = _own_accounting_jobs(attempt, evidence)
    if (
        outcome := _end_in_accounting(own_jobs, evidence)
        or _end_in_record(attempt, evidence)
        or _end_in_log(attempt, evidence)
    ):
        return outcome
    if evidence.away and missing_for < SOURCE_TIMEOUT:
        return OutcomePending()
    if any(job.state not in FINAL_STATES for job in own_jobs) and missing_for < ACCOUNTING_LAG:
        return OutcomePending()
    if missing_for < (MISSING_GRACE if attempt.backend_id else SUBMISSION_GRACE):
        return OutcomePending()
    if _left_no_trace(attempt, evidence, own_jobs):
        return NeverStarted()
    return UnknownOutcome(_why_unknown(attempt, evidence))


def _own_accounting_jobs(attempt: MissingAttempt, evidence: OutcomeEvidence) -> list[BackendJob]:
    """The accounting jobs that are this attempt. Clusters reuse ids and may not store comments."""
    since = attempt.promised_at - CLOCK_SKEW
    recent = [job for job in evidence.accounted or () if job.submitted_at is None or job.submitted_at >= since]
    by_key = [job for job in recent if job.key and job.key == attempt.key]
    by_id = [job for job in recent if not job.key and attempt.backend_id and job.backend_id == attempt.backend_id]
    return by_key or (by_id if len(by_id) == 1 else [])


def _end_in_accounting(own_jobs: Sequence[BackendJob], evidence: OutcomeEvidence) -> KnownEnd | None:
    ended_jobs = [job for job in own_jobs if job.state in FINAL_STATES and Flag.COMPLETING not in job.flags]
    ended_jobs = [job for job in ended_jobs if not was_refused(job.state, job.exit_code, evidence.record)]
    if evidence.record and evidence.record.exit_code == 0:
        ended_jobs = [job for job in ended_jobs if not may_have_succeeded(job.state, job.exit_code)]
    if not ended_jobs:
        return None
    # A completed job counts before all others with its key, because it must not run again
    job = min(
        ended_jobs,
        key=lambda candidate: (
            candidate.state != State.COMPLETED,
            candidate.submitted_at or datetime.max.replace(tzinfo=UTC),
        ),
    )
    at = job.ended_at or job.started_at or job.submitted_at
    if at is None:
        return None
    exit_fields = {"exit_code": job.exit_code, "signal": job.signal}
    ended = AttemptEnd(
        state=job.state,
        at=at,
        reason="The cluster no longer knew the job. Its accounting has the outcome.",
        **exit_fields,
    )
    return KnownEnd(ended, job.started_at, job.backend_id)


def was_refused(state: State, exit_code: int | None, record: AttemptRecord | None) -> bool:
    """Whether the job ran nothing because its attempt had started before (`attempt_record.STARTED_BEFORE`)."""
    refused = state == State.FAILED and exit_code == STARTED_BEFORE
    return refused and record is not None and record.started and record.exit_code != STARTED_BEFORE


def may_have_succeeded(state: State, exit_code: int | None) -> bool:
    """Whether a job with this end may have finished its command with exit code 0 before the cluster stopped it."""
    return state in STOPPED_BY_CLUSTER and not exit_code


def _end_in_record(attempt: MissingAttempt, evidence: OutcomeEvidence) -> KnownEnd | None:
    record = evidence.record
    if record is None or record.exit_code is None or record.ended_at is None:
        return None
    at = max(_node_clock_time(attempt, record.ended_at), attempt.promised_at)
    began = None if record.started_at is None else _node_clock_time(attempt, record.started_at)
    code = record.exit_code
    state = State.COMPLETED if code == 0 else State.FAILED
    if code in SIGNAL_EXIT_CODES:
        state = evidence.log_state or state
    why = "The cluster no longer knew the job. Its attempt record has the exit code."
    return KnownEnd(AttemptEnd(state=state, at=at, exit_code=code, reason=why), began)


def _node_clock_time(attempt: MissingAttempt, unix_s: float) -> datetime:
    """A time by the clock of a node, which may be wrong: the job had ended when it was found missing."""
    return min(datetime.fromtimestamp(unix_s, UTC), attempt.missing_since)


def _end_in_log(attempt: MissingAttempt, evidence: OutcomeEvidence) -> KnownEnd | None:
    if evidence.log_state is None:
        return None
    why = "The cluster no longer knew the job. According to its log, the cluster ended it."
    return KnownEnd(AttemptEnd(state=evidence.log_state, at=attempt.missing_since, reason=why))


def _left_no_trace(attempt: MissingAttempt, evidence: OutcomeEvidence, own_jobs: Sequence[BackendJob]) -> bool:
    """Whether the job cannot have started. A job opens its log first; without our log only accounting can
    prove this.
    """
    if attempt.confirmed or own_jobs:
        return False
    if attempt.has_log and evidence.log_exists is not None:
        return not evidence.log_exists and evidence.record is not None and not evidence.record.started
    # Accounting may not store comments, so any job without one may be this one
    return evidence.accounted is not None and all(job.key for job in evidence.accounted)


def _why_unknown(attempt: MissingAttempt, evidence: OutcomeEvidence) -> str:
    findings = [
        "accounting does not say how it ended" if evidence.accounted is not None else "no accounting is available",
        _record_text(attempt, evidence),
        "the log does not say how it ended",
    ]
    text = ", ".join(findings)
    return f"The cluster no longer knows this attempt: {text}. It may have succeeded, so it is not restarted."


def _record_text(attempt: MissingAttempt, evidence: OutcomeEvidence) -> str:
    if not attempt.has_log:
        return "there is no log directory to record the exit code in"
    if evidence.record is None:
        return "its attempt record cannot be read"
    return "it recorded its start but no exit code" if evidence.record.started else "it recorded no start"
