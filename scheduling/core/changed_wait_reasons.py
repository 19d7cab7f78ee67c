"""Which of a turn's answers are written into the rows. Pure.

One GPU that comes free changes the sentence of everybody who waits, and rewriting ten thousand rows takes a database
longer than the rest of the turn. So a turn writes a bounded number: first those whose word is new, in the order of the
queue; of those whose sentence alone has other numbers, a share that goes round with the seconds. In a queue of up to
`MOST` jobs all are written at once; in one of ten thousand, a sentence in a list may be some ten seconds old. Whoever
asks for one job gets an answer of that moment (`explaining`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from scheduling.engine.cluster import ClusterSnapshot, WaitDecision

MAX_CHANGED_ROWS = 1000


def changed_wait_reasons(
    picture: ClusterSnapshot, waits: Iterable[WaitDecision], most: int = MAX_CHANGED_ROWS
) -> list[WaitDecision]:
    told = {job.id: (job.reason, job.why) for job in picture.waiting}
    news = [wait for wait in waits if told[wait.job_id] != (wait.reason, wait.why)]
    if len(news) <= most:
        return news
    other_word = [wait for wait in news if told[wait.job_id][0] != wait.reason]
    reworded = [wait for wait in news if told[wait.job_id][0] == wait.reason]
    return other_word[:most] + _rotating_share(reworded, most, picture.now)


def _rotating_share(waits: list[WaitDecision], most: int, now: datetime) -> list[WaitDecision]:
    """Everybody's turn comes once in as many seconds as there are shares."""
    shares = -(-len(waits) // most)
    return [wait for wait in waits if (wait.job_id + int(now.timestamp())) % shares == 0] if shares else []
