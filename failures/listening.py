"""The log of a running attempt → how it counts its steps, a little further. The only code that changes a Cadence.

Nothing of it is history, so nothing of it is an Event.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime

from failures.detect.cadence import Heard, hear
from failures.detect.hang import Section
from failures.models import Cadence
from jobs.logs import Stream, clean
from jobs.models import Attempt

MOST_READ = 1 << 20  # at one look; of what came beyond that the newest
FIRST_READ = 64 << 10  # of a log that nobody has looked at yet


def looked(attempts: Sequence[Attempt], now: datetime) -> None:
    """They go to the end of the line, though there was nothing new, or nothing that could be read."""
    rows = [Cadence(attempt=attempt, looked_at=now) for attempt in attempts]
    Cadence.objects.bulk_create(rows, update_conflicts=True, unique_fields=["attempt"], update_fields=["looked_at"])


def listen(attempt: Attempt, now: datetime) -> Heard:
    """Raises NoLog. A log that was cut off or written anew is heard from its end on."""
    row: Cadence | None = getattr(attempt, "cadence", None)
    with closing(Stream(attempt.job.cluster.log_root, attempt.log_path)) as log:
        if row is not None and row.read == log.size:
            return _known(row)
        fresh = row is None or row.read > log.size
        known = Heard() if row is None or fresh else _known(row)
        begin = max(0 if row is None or fresh else row.read, log.size - (FIRST_READ if fresh else MOST_READ))
        raw = log.bytes_of(begin, log.size)
    whole = raw[: raw.rfind(b"\n") + 1]
    heard = hear(known, clean(whole).splitlines(), now.timestamp())
    _keep(attempt, heard, begin + len(whole), now)
    return heard


def _known(row: Cadence) -> Heard:
    sections = tuple(Section(**one) for one in row.sections)
    return Heard(furthest=row.furthest, moments=tuple(row.moments), sections=sections, steps=tuple(row.steps))


def _keep(attempt: Attempt, heard: Heard, read: int, now: datetime) -> None:
    fields = {
        "read": read,
        "furthest": dict(heard.furthest),
        "moments": list(heard.moments),
        "steps": list(heard.steps),
        "sections": [asdict(one) for one in heard.sections],
        "looked_at": now,
    }
    attempt.cadence, _ = Cadence.objects.update_or_create(attempt=attempt, defaults=fields)


def forget_ended() -> int:
    return Cadence.objects.filter(attempt__ended_at__isnull=False).delete()[0]
