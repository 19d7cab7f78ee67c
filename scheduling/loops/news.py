"""News of an attempt, written into the record: each piece is one guarded verb."""

from __future__ import annotations

from datetime import datetime

from jobs import actions
from jobs.ending import Ended
from jobs.journal import SYNC
from jobs.lifecycle import State
from jobs.models import Attempt
from scheduling import observing
from scheduling.backends.base import SeenJob
from scheduling.observing import AttemptFacts

# The columns that `facts` is made from, in its order
KNOWN = ("backend_id", "confirmed_at", "state", "missing_since")


def facts(
    backend_id: str, confirmed_at: datetime | None, state: str, missing_since: datetime | None, *, sent: bool
) -> AttemptFacts:
    return AttemptFacts(
        backend_id=backend_id,
        confirmed=confirmed_at is not None,
        suspended=state == State.SUSPENDED,
        sent=sent,
        missing_since=missing_since,
    )


def apply_news(attempt: Attempt, seen: SeenJob | None, sent: bool, now: datetime) -> bool:
    known = facts(attempt.backend_id, attempt.confirmed_at, attempt.state, attempt.missing_since, sent=sent)
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
            case observing.Over(state, at, exit_code, signal, reason):
                ended = Ended(state=state, at=at, exit_code=exit_code, signal=signal, reason=reason)
                actions.finish(attempt, ended, author=SYNC)
                moved = True
    return moved
