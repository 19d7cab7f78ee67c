"""News of an attempt, written into the record: each piece is one guarded verb."""

from __future__ import annotations

from datetime import datetime

from jobs import actions, stop_actions
from jobs.ending import Ended
from jobs.journal import SYNC
from jobs.lifecycle import State
from jobs.models import Attempt, Mode
from scheduling import observing
from scheduling.backends.base import SeenJob
from scheduling.observing import AttemptFacts

# The columns that `facts` is made from, in its order
KNOWN = ("backend_id", "confirmed_at", "state", "missing_since", "promised_at", "stop_as", "number")


def facts(
    backend_id: str,
    confirmed_at: datetime | None,
    state: str,
    missing_since: datetime | None,
    promised_at: datetime,
    stop_as: str,
    number: int,
    *,
    sent: bool,
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
    )


def apply_news(attempt: Attempt, seen: SeenJob | None, sent: bool, now: datetime) -> bool:
    known = facts(*(getattr(attempt, column) for column in KNOWN), sent=sent)
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
                actions.finish(attempt, ended, author=SYNC)
                moved = True
    return moved


def _stranded(attempt: Attempt, reason: str) -> str:
    said = f" ({reason})" if reason not in observing.SAYS_NOTHING else ""
    waited = int(observing.patience(attempt.number).total_seconds())
    return f"The cluster took it and did not begin it on these nodes for {waited} s{said}; others are looked for."
