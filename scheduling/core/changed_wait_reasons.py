"""Which wait decisions of a turn are written to the database. Pure.

When one GPU comes free, the sentence of every waiting job changes, and rewriting ten thousand rows takes longer than
the rest of the turn. So a turn writes a limited number: first the rows whose reason changed, in queue order; of those
with other numbers in the sentence only, a rotating share. Up to `MAX_CHANGED_ROWS` all changes are written at once. In
a queue of ten thousand, a sentence in a list may be about ten seconds old. The page of a single job computes its answer
on request.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from scheduling.engine.cluster import ClusterSnapshot, WaitDecision

MAX_CHANGED_ROWS = 1000


def changed_wait_reasons(
    picture: ClusterSnapshot, waits: Iterable[WaitDecision], most: int = MAX_CHANGED_ROWS
) -> list[WaitDecision]:
    """The decisions to write: those that differ from the stored rows, at most about twice `most`."""
    stored = {job.id: (job.reason, job.why, job.power_budgets) for job in picture.waiting}
    changed = [wait for wait in waits if stored[wait.job_id] != (wait.reason, wait.why, wait.power_budgets)]
    if len(changed) <= most:
        return changed
    new_reasons = [wait for wait in changed if stored[wait.job_id][0] != wait.reason]
    new_sentences = [wait for wait in changed if stored[wait.job_id][0] == wait.reason]
    return new_reasons[:most] + _rotating_share(new_sentences, most, picture.now)


def _rotating_share(waits: list[WaitDecision], most: int, now: datetime) -> list[WaitDecision]:
    """The part to write in this second. Each decision is selected once in as many seconds as there are shares."""
    shares = -(-len(waits) // most)
    return [wait for wait in waits if (wait.job_id + int(now.timestamp())) % shares == 0] if shares else []
