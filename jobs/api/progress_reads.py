"""What jobs said of themselves, read back: the series of an attempt, and checkpoints."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import QuerySet
from rest_framework.response import Response

from jobs import clock, saving
from jobs.api.jobs import OfJob
from jobs.api.progress import NOT_NUMBERS
from jobs.door import pages, query
from jobs.door.endpoint import Endpoint, Listing, found, refuse_unknown
from jobs.door.rights import Rule
from jobs.door.shapes import Field, Shape, at, either, many, measure, moment, number, plain, text
from jobs.models import Checkpoint, Pulse, Scope, Source, Verdict
from jobs.progress import COLUMNS

MOST_POINTS, POINTS = 5000, 500
VALUES = tuple(name for name in COLUMNS if name != "at")
OF_LOG = ("steps_total", "saved_step", "saved_at")


def _measure() -> Field:
    return either({"type": "number"}, {"type": "string", "enum": list(NOT_NUMBERS)}, {"type": "null"})


def _count() -> Field:
    return number(low=0, nullable=True)


POINT = Shape(
    "Point",
    {
        "at": moment(),
        "step": _count(),
        "tokens": _count(),
        **{name: _measure() for name in ("sum_sq", "loss", "grad_norm", "step_time_s", "learning_rate")},
    },
)
SERIES = Shape(
    "Series",
    {
        "attempt": number("Its number."),
        "heard_at": moment("The last time it said anything; null: never.", nullable=True),
        "source": text("Who told its steps; empty: it reported them itself.", choices=Source.values),
        "newest": Field(schema={"oneOf": [POINT.schema(), {"type": "null"}]}),
        "steps_total": number("Where it is to end, as its log says.", low=0, nullable=True),
        "saved_step": number(
            "Of the last checkpoint that its log says is saved; nobody has looked whether it is whole.",
            low=0,
            nullable=True,
        ),
        "saved_at": moment("When that one was saved, at the earliest.", nullable=True),
        "points": many(POINT, "In order; of a long series the last of each of so many equal stretches of time."),
    },
)
CHECKPOINT = Shape(
    "Checkpoint",
    {
        "job": text(get=at("job.public_id"), needs=("job__public_id",)),
        "attempt": number("Its number.", get=at("attempt.number"), needs=("attempt__number",), nullable=True),
        "step": number(low=0),
        "path": text(),
        "saved_at": moment(),
        "durable_at": moment("When it had reached remote storage; null: not yet.", nullable=True),
        "stall_s": measure("Seconds for which saving it held training up; null: not told.", nullable=True),
        "verdict": text("Whether it can be started from; empty: not judged.", choices=Verdict.values),
        "verdict_why": text(),
    },
)

# A range of the table's own key, read once; so the cost is that of the attempt's rows, whatever else there is
THINNED = f"""
SELECT DISTINCT ON (bucket) {", ".join(COLUMNS)} FROM (
    SELECT {", ".join(f"p.{name}" for name in COLUMNS)},
        floor(%s * extract(epoch FROM p.at - b.low) / greatest(extract(epoch FROM b.high - b.low), 1e-6)) AS bucket
    FROM jobs_progress p, (SELECT min(at) AS low, max(at) AS high FROM jobs_progress WHERE attempt_id = %s) AS b
    WHERE p.attempt_id = %s) AS cut
ORDER BY bucket, at DESC
"""  # noqa: S608 - the names are ours


class JobProgress(Endpoint):
    """How far a job is and how it goes."""

    tag = "Progress"
    rules = {
        "GET": Rule(
            scope=Scope.READ,
            says="How far an attempt is and how it goes, as a series",
            answer=SERIES,
            team=True,
            query={
                "attempt": ({"type": "integer", "minimum": 1}, "Its number; the newest, if it is left out."),
                "points": ({"type": "integer", "minimum": 2, "maximum": MOST_POINTS}, f"At most; else {POINTS}."),
            },
        )
    }

    def get(self, request: Any, id: str) -> Response:
        refuse_unknown(request, "attempt", "points")
        wanted = query.whole(self.query, "attempt", 1, 32_000)
        points = query.whole(self.query, "points", 2, MOST_POINTS) or POINTS
        attempts = found(self.caller.jobs().only("id"), "job", public_id=id).attempts.order_by("-number")
        attempt = found(attempts, "attempt", number=wanted) if wanted else attempts.first()
        if attempt is None:
            nothing = dict.fromkeys(("heard_at", "newest", *OF_LOG))
            return Response({"attempt": 0, "source": "", "points": [], **nothing})
        pulse = Pulse.objects.filter(attempt=attempt).first()
        newest = {name: getattr(pulse, name) for name in COLUMNS} if pulse else None
        answer = {
            "attempt": attempt.number,
            "heard_at": plain(pulse.heard_at) if pulse else None,
            "source": pulse.source if pulse else "",
            "newest": _shown(newest) if newest else None,
            **{name: plain(getattr(pulse, name)) if pulse and pulse.is_of_log else None for name in OF_LOG},
            "points": [_shown(row) for row in series(attempt.pk, points)],
        }
        return Response(answer)


def series(attempt_id: int, points: int) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(THINNED, [points - 1, attempt_id, attempt_id])
        return [dict(zip(COLUMNS, row, strict=True)) for row in cursor.fetchall()]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _written(value) for name, value in row.items()}


def _written(value: Any) -> Any:
    """JSON has no word for what is no number; what a trainer must know of all things is that its loss is one."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return plain(value)


ORDERINGS = {
    "id": pages.ID,
    "step": pages.Sort(column="step", kind=int),
    "saved_at": pages.Sort(column="saved_at", kind=datetime),
}
FILTERS = {
    "step": query.number("step"),
    "saved_at": query.moment("saved_at"),
    "durable_at": query.moment("durable_at"),
    "verdict": query.choice("verdict", Verdict.values),
}


class Checkpoints(Listing):
    """Checkpoints of your teams."""

    tag = "Progress"
    what = "checkpoints"
    shape = CHECKPOINT
    orderings = ORDERINGS
    filters = {
        "job": query.text("job__public_id"),
        "team": query.text("job__team__name"),
        "cluster": query.text("job__cluster__name"),
        **FILTERS,
    }
    rules = {"GET": Rule(scope=Scope.READ, says="Checkpoints of your teams' jobs", answer=CHECKPOINT, many=True)}

    def rows(self) -> QuerySet[Checkpoint]:
        return self.caller.of_jobs(Checkpoint.objects.all())


SAVING = Shape(
    "SavingAdvice",
    {
        "every_s": measure("How often it should save, by Daly's estimate; null: too little is known.", nullable=True),
        "why": text("What it is reckoned from, or what is not known."),
        "mttf_s": measure("Its mean time between failures.", nullable=True),
        "failures": number("Attempts that failed.", low=0, nullable=True),
        "ran_s": measure("How long it ran, over all its attempts.", nullable=True),
        "stall_s": measure("How long a save holds it up: the median of the last ones.", nullable=True),
        "waste": measure("The part of its time that saving and doing again would cost then.", nullable=True),
        "usual_s": measure("How often it saves now.", nullable=True),
        "usual_waste": measure("What that costs.", nullable=True),
    },
)


class JobSaving(Endpoint):
    """How often it should save."""

    tag = "Progress"
    rules = {"GET": Rule(scope=Scope.READ, says="How often a job should save", answer=SAVING, team=True)}

    def get(self, request: Any, id: str) -> Response:
        refuse_unknown(request)
        job = found(self.caller.jobs(), "job", public_id=id)
        advice = saving.advice_of(job, list(job.attempts.all()), clock.now())
        said = {name: getattr(advice, name, None) for name in SAVING.fields if name != "why"}
        return Response(said | {"why": advice.why if advice else saving.UNKNOWN})


class JobCheckpoints(OfJob):
    """What it saved."""

    tag = "Progress"
    what = "checkpoints"
    shape = CHECKPOINT
    orderings = ORDERINGS
    filters = FILTERS
    rules = {"GET": Rule(scope=Scope.READ, says="The checkpoints of a job", answer=CHECKPOINT, many=True, team=True)}

    def rows(self, id: str) -> QuerySet[Checkpoint]:
        return Checkpoint.objects.filter(job=self.job(id))
