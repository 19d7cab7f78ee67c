"""Reported progress in the API: the series of an attempt, checkpoints, and advice on the checkpoint interval."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import QuerySet
from rest_framework.response import Response

from jobs.actions.progress import HEARTBEAT_COLUMNS
from jobs.api.jobs import JobRowsEndpoint
from jobs.api.progress import NON_FINITE_NUMBERS
from jobs.models import Checkpoint, CheckpointVerdict, LatestProgress, ProgressSource, TokenScope, clock
from jobs.queries import checkpoint_advice, keyset
from jobs.rest import query_params
from jobs.rest.endpoint import ApiEndpoint, ListEndpoint, find_job_or_404, find_or_404, reject_unknown_params
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
LOG_COLUMNS = ("steps_total", "saved_step", "saved_at")


def point_value_field(says: str = "") -> ShapeField:
    return one_of_field(
        {"type": "number"}, {"type": "string", "enum": list(NON_FINITE_NUMBERS)}, {"type": "null"}, says=says
    )


def _point_count_field() -> ShapeField:
    return integer_field(low=0, nullable=True)


POINT_SHAPE = ResourceShape(
    "Point",
    {
        "at": datetime_field(),
        "step": _point_count_field(),
        "tokens": _point_count_field(),
        **{
            name: point_value_field() for name in ("sum_sq", "loss", "grad_norm", "step_time_s", "learning_rate", "mfu")
        },
    },
)
SERIES_SHAPE = ResourceShape(
    "Series",
    {
        "attempt": integer_field("Attempt number."),
        "updated_at": datetime_field("Time of the last update; null: no update yet.", nullable=True),
        "source": text_field("Source of the steps; empty: reported by the job.", choices=ProgressSource.values),
        "latest": ShapeField(schema={"oneOf": [POINT_SHAPE.schema(), {"type": "null"}]}),
        "steps_total": integer_field("Planned number of steps, read from the log.", low=0, nullable=True),
        "saved_step": integer_field(
            "Step of the last checkpoint found in the log (unverified).",
            low=0,
            nullable=True,
        ),
        "saved_at": datetime_field("Earliest time at which that checkpoint was saved.", nullable=True),
        "points": nested_list_field(
            POINT_SHAPE, "Points in order of time. A long series has the last point of each of equal time intervals."
        ),
    },
)
CHECKPOINT_ROW = ResourceShape(
    "Checkpoint",
    {
        "job": text_field(get=attribute_path("job.public_id"), needs=("job__public_id",)),
        "attempt": integer_field(
            "Attempt number.", get=attribute_path("attempt.number"), needs=("attempt__number",), nullable=True
        ),
        "step": integer_field(low=0),
        "path": text_field(),
        "saved_at": datetime_field(),
        "durable_at": datetime_field("When it reached remote storage; null: not yet.", nullable=True),
        "stall_s": number_field("Seconds for which saving stalled the training; null: not reported.", nullable=True),
        "verdict": text_field(
            "Whether a job can resume from it; empty: not checked.", choices=CheckpointVerdict.values
        ),
        "verdict_why": text_field(),
    },
)

# Scans ranges of the primary key, so the cost depends only on the attempts' rows, not on the size of the table
THINNED_SERIES_SQL = f"""
SELECT DISTINCT ON (attempt_id, bucket) attempt_id, {", ".join(HEARTBEAT_COLUMNS)} FROM (
    SELECT p.attempt_id, {", ".join(f"p.{name}" for name in HEARTBEAT_COLUMNS)},
        floor(%s * extract(epoch FROM p.at - b.low) / greatest(extract(epoch FROM b.high - b.low), 1e-6)) AS bucket
    FROM jobs_progress p, (SELECT min(at) AS low, max(at) AS high FROM jobs_progress WHERE attempt_id = ANY(%s)) AS b
    WHERE p.attempt_id = ANY(%s)) AS cut
ORDER BY attempt_id, bucket, at DESC
"""  # noqa: S608 - the names are ours


class JobProgress(ApiEndpoint):
    """Get the progress of an attempt."""

    tag = "Progress"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Get the progress of an attempt as a series",
            answer=SERIES_SHAPE,
            team=True,
            query={
                "attempt": ({"type": "integer", "minimum": 1}, "Attempt number. Default: the newest."),
                "points": (
                    {"type": "integer", "minimum": 2, "maximum": MAX_POINTS},
                    f"Maximum number of points. Default: {DEFAULT_POINTS}.",
                ),
            },
        )
    }

    def get(self, request: Any, id: str) -> Response:
        reject_unknown_params(request, "attempt", "points")
        number = query_params.integer_param(self.query, "attempt", 1, 32_000)
        points = query_params.integer_param(self.query, "points", 2, MAX_POINTS) or DEFAULT_POINTS
        attempts = find_job_or_404(self.caller.jobs().only("id"), id).attempts.order_by("-number")
        attempt = find_or_404(attempts, "attempt", number=number) if number else attempts.first()
        if attempt is None:
            empty = dict.fromkeys(("updated_at", "latest", *LOG_COLUMNS))
            return Response({"attempt": 0, "source": "", "points": [], **empty})
        latest = LatestProgress.objects.filter(attempt=attempt).first()
        newest = {name: getattr(latest, name) for name in HEARTBEAT_COLUMNS} if latest else None
        payload = {
            "attempt": attempt.number,
            "updated_at": json_value(latest.updated_at) if latest else None,
            "source": latest.source if latest else "",
            "latest": json_point(newest) if newest else None,
            **{
                name: json_value(getattr(latest, name)) if latest and latest.is_of_log else None for name in LOG_COLUMNS
            },
            "points": [json_point(row) for row in thinned_series([attempt.pk], points)[attempt.pk]],
        }
        return Response(payload)


def thinned_series(attempts: list[int], points: int) -> defaultdict[int, list[dict[str, Any]]]:
    """Heartbeats by attempt, evenly distributed over the time of all of them: at most `points`, and one per attempt."""
    series = defaultdict[int, list[dict[str, Any]]](list)
    with connection.cursor() as cursor:
        cursor.execute(THINNED_SERIES_SQL, [points - 1, attempts, attempts])
        for attempt, *row in cursor.fetchall():
            series[attempt].append(dict(zip(HEARTBEAT_COLUMNS, row, strict=True)))
    return series


def json_point(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _json_number(value) for name, value in row.items()}


def _json_number(value: Any) -> Any:
    """The value for JSON, with NaN and infinities as text, because JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return json_value(value)


CHECKPOINT_ORDERINGS = {
    "id": keyset.SORT_BY_ID,
    "step": keyset.SortColumn(column="step", kind=int),
    "saved_at": keyset.SortColumn(column="saved_at", kind=datetime),
}
CHECKPOINT_FILTERS = {
    "step": query_params.integer_filter("step"),
    "saved_at": query_params.datetime_filter("saved_at"),
    "durable_at": query_params.datetime_filter("durable_at"),
    "verdict": query_params.choice_filter("verdict", CheckpointVerdict.values),
}


class Checkpoints(ListEndpoint):
    """List checkpoints of your teams."""

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
            scope=TokenScope.READ, says="List checkpoints of your teams' jobs", answer=CHECKPOINT_ROW, many=True
        )
    }

    def rows(self) -> QuerySet[Checkpoint]:
        return self.caller.rows_of_visible_jobs(Checkpoint.objects.all())


CHECKPOINT_ADVICE_SHAPE = ResourceShape(
    "CheckpointAdvice",
    {
        "interval_s": number_field(
            "Suggested checkpoint interval in seconds (Daly); null: not enough data.", nullable=True
        ),
        "why": text_field("The basis of the suggestion, or the data that is missing."),
        "mttf_s": number_field("Mean time between failures of the job, in seconds.", nullable=True),
        "failures": integer_field("Failed attempts.", low=0, nullable=True),
        "ran_s": number_field("Run time of all attempts, in seconds.", nullable=True),
        "stall_s": number_field("Median stall of the latest checkpoints, in seconds.", nullable=True),
        "lost_fraction": number_field(
            "Fraction of run time lost to saving and repeated work with the suggested interval.", nullable=True
        ),
        "current_interval_s": number_field("Current checkpoint interval, in seconds.", nullable=True),
        "current_lost_fraction": number_field("Fraction of run time lost with the current interval.", nullable=True),
    },
)


class JobCheckpointAdvice(ApiEndpoint):
    """Get the suggested checkpoint interval of a job."""

    tag = "Progress"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Get the suggested checkpoint interval",
            answer=CHECKPOINT_ADVICE_SHAPE,
            team=True,
        )
    }

    def get(self, request: Any, id: str) -> Response:
        reject_unknown_params(request)
        job = find_job_or_404(self.caller.jobs(), id)
        advice = checkpoint_advice.job_checkpoint_advice(job, list(job.attempts.all()), clock.now())
        values = {name: getattr(advice, name, None) for name in CHECKPOINT_ADVICE_SHAPE.fields if name != "why"}
        return Response(values | {"why": advice.why if advice else checkpoint_advice.NO_ADVICE_TEXT})


class JobCheckpoints(JobRowsEndpoint):
    """List the checkpoints of a job."""

    tag = "Progress"
    what = "checkpoints"
    shape = CHECKPOINT_ROW
    orderings = CHECKPOINT_ORDERINGS
    filters = CHECKPOINT_FILTERS
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="List the checkpoints of a job", answer=CHECKPOINT_ROW, many=True, team=True
        )
    }

    def rows(self, id: str) -> QuerySet[Checkpoint]:
        return Checkpoint.objects.filter(job=self.job(id))
