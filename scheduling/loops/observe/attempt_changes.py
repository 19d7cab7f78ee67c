"""Writes observed changes of an attempt to the database, each with one guarded action."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from jobs.actions import jobs as job_actions
from jobs.actions import outcomes as outcome_actions
from jobs.actions import stop
from jobs.actions.journal import SYNC
from jobs.core.attempt_end import AttemptEnd
from jobs.core.backend_job import BackendJob
from jobs.core.lifecycle import FINAL_STATES, Flag, State
from jobs.logs.job_log import LogReadError
from jobs.models import Attempt, ClusterMode
from scheduling.loops.observe import observations
from scheduling.loops.observe.attempt_records import read_attempt_files
from scheduling.loops.observe.observations import ATTEMPT_FACT_COLUMNS, AttemptFacts
from scheduling.loops.observe.outcome_evidence import may_have_succeeded


def apply_observations(attempt: Attempt, seen: BackendJob | None, sent: bool, now: datetime) -> bool:
    """Apply the changes that the cluster shows. Return whether the attempt's state changed."""
    # Foreign jobs have no attempt record
    has_record = bool(attempt.log_path) and not attempt.job.is_foreign
    columns = (getattr(attempt, column) for column in ATTEMPT_FACT_COLUMNS)
    known = AttemptFacts(*columns)._replace(sent=sent, has_record=has_record)
    moved = False
    for news in observations.observed_changes(known, seen, now):
        match news:
            case observations.BackendIdChange(backend_id):
                job_actions.record_backend_id(attempt, backend_id)
            case observations.MissingChange(since):
                job_actions.set_missing_since(attempt, since)
            case observations.RunStart(started_at):
                job_actions.confirm_start(attempt, started_at=started_at, author=SYNC)
                moved = True
            case observations.SuspensionChange(yes):
                job_actions.set_suspended(attempt, suspended=yes, author=SYNC)
                moved = True
            case observations.StrandedAttempt(reason) if attempt.job.cluster.mode == ClusterMode.DRIVE:
                stop.requeue_unplaced(attempt.job, author=SYNC, why=_stranded_reason(attempt, reason))
                moved = True
            case observations.ObservedEnd(state, at, exit_code, signal, reason):
                ended = AttemptEnd(state=state, at=at, exit_code=exit_code, signal=signal, reason=reason)
                if has_record and may_have_succeeded(state, exit_code) and attempt.stop_state != State.CANCELLED:
                    ended = _end_from_record(attempt, ended)
                job_actions.finish(attempt, ended, author=SYNC)
                moved = True
    return moved


def settle_reappeared(attempt: Attempt, seen: Sequence[BackendJob]) -> None:
    """Record the end of an attempt with unknown outcome, if the cluster shows the attempt again and it has ended."""
    over = [job for job in seen if job.state in FINAL_STATES and Flag.COMPLETING not in job.flags]
    for job in over:
        if not observations.refused_to_start(job):
            ended = AttemptEnd(
                state=job.state,
                at=job.ended_at or attempt.promised_at,
                exit_code=job.exit_code,
                signal=job.signal,
                reason="The cluster shows it again.",
            )
            outcome_actions.record_late_end(attempt, ended, author=SYNC)
            return


def _end_from_record(attempt: Attempt, ended: AttemptEnd) -> AttemptEnd:
    """Return COMPLETED if the attempt record shows that the command succeeded just before the cluster stopped it: then
    the job must not run again. If the log storage does not respond, the cluster's state counts."""
    with suppress(LogReadError):
        if read_attempt_files(attempt).record.exit_code == 0:
            why = f"The command ended with exit code 0 before the cluster reported {ended.state}."
            return AttemptEnd(state=State.COMPLETED, at=ended.at, exit_code=0, reason=why)
    return ended


def _stranded_reason(attempt: Attempt, reason: str) -> str:
    detail = f" ({reason})" if reason else ""
    waited = int(observations.patience(attempt.number).total_seconds())
    return (
        f"The cluster accepted the job but did not start it on these nodes for {waited} s{detail}; trying other nodes."
    )
