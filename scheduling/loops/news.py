"""News of an attempt, written into the record: each piece is one guarded verb."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from jobs import actions, outcome_actions, stop_actions
from jobs.ending import Ended
from jobs.journal import SYNC
from jobs.lifecycle import FINAL, Flag, State
from jobs.logs import NoLog
from jobs.models import Attempt, Mode
from scheduling import observing
from scheduling.backends.base import SeenJob
from scheduling.loops.attempt_records import left_behind
from scheduling.observing import AttemptFacts
from scheduling.outcomes import may_have_succeeded

# The columns that `facts` is made from, in its order
KNOWN = ("backend_id", "confirmed_at", "state", "missing_since", "promised_at", "stop_as", "number", "accepted_at")


def facts(
    backend_id: str,
    confirmed_at: datetime | None,
    state: str,
    missing_since: datetime | None,
    promised_at: datetime,
    stop_as: str,
    number: int,
    accepted_at: datetime | None,
    *,
    sent: bool,
    has_record: bool,
) -> AttemptFacts:
    return AttemptFacts(
        backend_id=backend_id,
        confirmed=confirmed_at is not None,
        suspended=state == State.SUSPENDED,
        sent=sent,
        missing_since=missing_since,
        promised_at=promised_at,
        stopping=bool(stop_as),
        number=number,
        accepted_at=accepted_at,
        has_record=has_record,
    )


def apply_news(attempt: Attempt, seen: SeenJob | None, sent: bool, now: datetime) -> bool:
    has_record = bool(attempt.log_path) and not attempt.job.is_foreign
    known = facts(*(getattr(attempt, column) for column in KNOWN), sent=sent, has_record=has_record)
    moved = False
    for news in observing.news_of(known, seen, now):
        match news:
            case observing.Known(backend_id):
                actions.accepted(attempt, backend_id)
            case observing.Missing(since):
                actions.missing(attempt, since)
            case observing.Runs(started_at):
                actions.confirm(attempt, started_at=started_at, author=SYNC)
                moved = True
            case observing.Suspended(yes):
                actions.suspend(attempt, suspended=yes, author=SYNC)
                moved = True
            case observing.Stranded(reason) if attempt.job.cluster.mode == Mode.DRIVE:
                stop_actions.take_back(attempt.job, author=SYNC, why=_stranded(attempt, reason))
                moved = True
            case observing.Over(state, at, exit_code, signal, reason):
                ended = Ended(state=state, at=at, exit_code=exit_code, signal=signal, reason=reason)
                if has_record and may_have_succeeded(state, exit_code) and attempt.stop_as != State.CANCELLED:
                    ended = _end_by_its_record(attempt, ended)
                actions.finish(attempt, ended, author=SYNC)
                moved = True
    return moved


def settle_reappeared(attempt: Attempt, seen: Sequence[SeenJob]) -> None:
    """The cluster shows an attempt again whose outcome is unknown: if it has ended, this is how."""
    over = [job for job in seen if job.state in FINAL and Flag.COMPLETING not in job.flags]
    for job in over:
        if not observing.refused_to_start(job):
            ended = Ended(
                state=job.state,
                at=job.ended_at or attempt.promised_at,
                exit_code=job.exit_code,
                signal=job.signal,
                reason="The cluster shows it again.",
            )
            outcome_actions.record_end(attempt, ended, author=SYNC)
            return


def _end_by_its_record(attempt: Attempt, ended: Ended) -> Ended:
    """Its command may have succeeded just before the cluster stopped it: then it must not run again. Where the log
    storage does not answer, the cluster's word counts."""
    with suppress(NoLog):
        if left_behind(attempt).record.exit_code == 0:
            why = f"Its command had ended with exit code 0 before the cluster reported {ended.state}."
            return Ended(state=State.COMPLETED, at=ended.at, exit_code=0, reason=why)
    return ended


def _stranded(attempt: Attempt, reason: str) -> str:
    said = f" ({reason})" if reason not in observing.SAYS_NOTHING else ""
    waited = int(observing.patience(attempt.number).total_seconds())
    return f"The cluster took it and did not begin it on these nodes for {waited} s{said}; others are looked for."
