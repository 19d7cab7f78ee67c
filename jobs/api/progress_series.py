"""What jobs said of themselves, read back: the series of an attempt, and checkpoints."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import QuerySet
from rest_framework.response import Response

from jobs.actions.progress import HEARTBEAT_COLUMNS
from jobs.api.jobs import JobRowsEndpoint
from jobs.api.progress import NON_FINITE_NUMBERS
from jobs.models import Checkpoint, CheckpointVerdict, ProgressSource, Pulse, TokenScope, clock
from jobs.queries import checkpoint_advice
from jobs.rest import pagination, query_params
from jobs.rest.endpoint import ApiEndpoint, ListEndpoint, find_or_404, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    ShapeField,
    attribute_path,
    datetime_field,
    integer_field,
    json_value,
    nested_list_field,
    number_field,
    one_of_field,
    text_field,
)

MAX_POINTS, DEFAULT_POINTS = 5000, 500
SERIES_COLUMNS = tuple(name for name in HEARTBEAT_COLUMNS if name != "at")
LOG_COLUMNS = ("steps_total", "saved_step", "saved_at")


def _point_value_field() -> ShapeField:
    return one_of_field({"type": "number"}, {"type": "string", "enum": list(NON_FINITE_NUMBERS)}, {"type": "null"})


def _point_count_field() -> ShapeField:
    return integer_field(low=0, nullable=True)


POINT_SHAPE = ResourceShape(
    "Point",
    {
        "at": datetime_field(),
        "step": _point_count_field(),
        "tokens": _point_count_field(),
        **{name: _point_value_field() for name in ("sum_sq", "loss", "grad_norm", "step_time_s", "learning_rate")},
    },
)
SERIES_SHAPE = ResourceShape(
    "Series",
    {
        "attempt": integer_field("Its number."),
        "heard_at": datetime_field("The last time it said anything; null: never.", nullable=True),
        "source": text_field("Who told its steps; empty: it reported them itself.", choices=ProgressSource.values),
        "newest": ShapeField(schema={"oneOf": [POINT_SHAPE.schema(), {"type": "null"}]}),
        "steps_total": integer_field("Where it is to end, as its log says.", low=0, nullable=True),
        "saved_step": integer_field(
            "Of the last checkpoint that its log says is saved; nobody has looked whether it is whole.",
            low=0,
            nullable=True,
        ),
        "saved_at": datetime_field("When that one was saved, at the earliest.", nullable=True),
        "points": nested_list_field(
            POINT_SHAPE, "In order; of a long series the last of each of so many equal stretches of time."
        ),
    },
)
CHECKPOINT_ROW = ResourceShape(
    "Checkpoint",
    {
        "job": text_field(get=attribute_path("job.public_id"), needs=("job__public_id",)),
        "attempt": integer_field(
            "Its number.", get=attribute_path("attempt.number"), needs=("attempt__number",), nullable=True
        ),
        "step": integer_field(low=0),
        "path": text_field(),
        "saved_at": datetime_field(),
        "durable_at": datetime_field("When it had reached remote storage; null: not yet.", nullable=True),
        "stall_s": number_field("Seconds for which saving it held training up; null: not told.", nullable=True),
        "verdict": text_field("Whether it can be started from; empty: not judged.", choices=CheckpointVerdict.values),
        "verdict_why": text_field(),
    },
)

# A range of the table's own key, read once; so the cost is that of the attempt's rows, whatever else there is
THINNED_SERIES_SQL = f"""
SELECT DISTINCT ON (bucket) {", ".join(HEARTBEAT_COLUMNS)} FROM (
    SELECT {", ".join(f"p.{name}" for name in HEARTBEAT_COLUMNS)},
        floor(%s * extract(epoch FROM p.at - b.low) / greatest(extract(epoch FROM b.high - b.low), 1e-6)) AS bucket
    FROM jobs_progress p, (SELECT min(at) AS low, max(at) AS high FROM jobs_progress WHERE attempt_id = %s) AS b
    WHERE p.attempt_id = %s) AS cut
ORDER BY bucket, at DESC
"""  # noqa: S608 - the names are ours


class JobProgress(ApiEndpoint):
    """How far a job is and how it goes."""

    tag = "Progress"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="How far an attempt is and how it goes, as a series",
            answer=SERIES_SHAPE,
            team=True,
            query={
                "attempt": ({"type": "integer", "minimum": 1}, "Its number; the newest, if it is left out."),
                "points": (
                    {"type": "integer", "minimum": 2, "maximum": MAX_POINTS},
                    f"At most; else {DEFAULT_POINTS}.",
                ),
            },
        )
    }

    def get(self, request: Any, id: str) -> Response:
        reject_unknown_params(request, "attempt", "points")
        wanted = query_params.integer_param(self.query, "attempt", 1, 32_000)
        points = query_params.integer_param(self.query, "points", 2, MAX_POINTS) or DEFAULT_POINTS
        attempts = find_or_404(self.caller.jobs().only("id"), "job", public_id=id).attempts.order_by("-number")
        attempt = find_or_404(attempts, "attempt", number=wanted) if wanted else attempts.first()
        if attempt is None:
            nothing = dict.fromkeys(("heard_at", "newest", *LOG_COLUMNS))
            return Response({"attempt": 0, "source": "", "points": [], **nothing})
        pulse = Pulse.objects.filter(attempt=attempt).first()
        newest = {name: getattr(pulse, name) for name in HEARTBEAT_COLUMNS} if pulse else None
        answer = {
            "attempt": attempt.number,
            "heard_at": json_value(pulse.heard_at) if pulse else None,
            "source": pulse.source if pulse else "",
            "newest": _json_point(newest) if newest else None,
            **{name: json_value(getattr(pulse, name)) if pulse and pulse.is_of_log else None for name in LOG_COLUMNS},
            "points": [_json_point(row) for row in thinned_series(attempt.pk, points)],
        }
        return Response(answer)


def thinned_series(attempt_id: int, points: int) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(THINNED_SERIES_SQL, [points - 1, attempt_id, attempt_id])
        return [dict(zip(HEARTBEAT_COLUMNS, row, strict=True)) for row in cursor.fetchall()]


def _json_point(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _json_number(value) for name, value in row.items()}


def _json_number(value: Any) -> Any:
    """JSON has no word for what is no number; what a trainer must know of all things is that its loss is one."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return json_value(value)


CHECKPOINT_ORDERINGS = {
    "id": pagination.SORT_BY_ID,
    "step": pagination.SortColumn(column="step", kind=int),
    "saved_at": pagination.SortColumn(column="saved_at", kind=datetime),
}
CHECKPOINT_FILTERS = {
    "step": query_params.integer_filter("step"),
    "saved_at": query_params.datetime_filter("saved_at"),
    "durable_at": query_params.datetime_filter("durable_at"),
    "verdict": query_params.choice_filter("verdict", CheckpointVerdict.values),
}


class Checkpoints(ListEndpoint):
    """Checkpoints of your teams."""

    tag = "Progress"
    what = "checkpoints"
    shape = CHECKPOINT_ROW
    orderings = CHECKPOINT_ORDERINGS
    filters = {
        "job": query_params.text_filter("job__public_id"),
        "team": query_params.text_filter("job__team__name"),
        "cluster": query_params.text_filter("job__cluster__name"),
        **CHECKPOINT_FILTERS,
    }
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="Checkpoints of your teams' jobs", answer=CHECKPOINT_ROW, many=True
        )
    }

    def rows(self) -> QuerySet[Checkpoint]:
        return self.caller.rows_of_visible_jobs(Checkpoint.objects.all())


SAVING_ADVICE = ResourceShape(
    "SavingAdvice",
    {
        "every_s": number_field(
            "How often it should save, by Daly's estimate; null: too little is known.", nullable=True
        ),
        "why": text_field("What it is reckoned from, or what is not known."),
        "mttf_s": number_field("Its mean time between failures.", nullable=True),
        "failures": integer_field("Attempts that failed.", low=0, nullable=True),
        "ran_s": number_field("How long it ran, over all its attempts.", nullable=True),
        "stall_s": number_field("How long a save holds it up: the median of the last ones.", nullable=True),
        "waste": number_field("The part of its time that saving and doing again would cost then.", nullable=True),
        "usual_s": number_field("How often it saves now.", nullable=True),
        "usual_waste": number_field("What that costs.", nullable=True),
    },
)


class JobSaving(ApiEndpoint):
    """How often it should save."""

    tag = "Progress"
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="How often a job should save", answer=SAVING_ADVICE, team=True)
    }

    def get(self, request: Any, id: str) -> Response:
        reject_unknown_params(request)
        job = find_or_404(self.caller.jobs(), "job", public_id=id)
        advice = checkpoint_advice.job_checkpoint_advice(job, list(job.attempts.all()), clock.now())
        said = {name: getattr(advice, name, None) for name in SAVING_ADVICE.fields if name != "why"}
        return Response(said | {"why": advice.why if advice else checkpoint_advice.NO_ADVICE_TEXT})


class JobCheckpoints(JobRowsEndpoint):
    """What it saved."""

    tag = "Progress"
    what = "checkpoints"
    shape = CHECKPOINT_ROW
    orderings = CHECKPOINT_ORDERINGS
    filters = CHECKPOINT_FILTERS
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="The checkpoints of a job", answer=CHECKPOINT_ROW, many=True, team=True
        )
    }

    def rows(self, id: str) -> QuerySet[Checkpoint]:
        return Checkpoint.objects.filter(job=self.job(id))
