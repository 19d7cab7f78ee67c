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


def apply_news(attempt: Attempt, seen: SeenJob | None, sent: bool, now: datetime) -> bool:
    facts = observing.AttemptFacts(
        backend_id=attempt.backend_id,
        confirmed=attempt.confirmed_at is not None,
        suspended=attempt.state == State.SUSPENDED,
        sent=sent,
        missing_since=attempt.missing_since,
    )
    moved = False
    for news in observing.news_of(facts, seen, now):
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
