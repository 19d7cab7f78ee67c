"""Training metrics of a job in the API: the series of all its attempts, as its charts show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_framework.response import Response

from jobs.api.progress_series import (
    DEFAULT_POINTS,
    MAX_POINTS,
    POINT_SHAPE,
    json_point,
    point_value_field,
    thinned_series,
)
from jobs.core.charts.training_series import TokenCount, repeated_from_steps, tokens_per_second
from jobs.core.lifecycle import State
from jobs.models import Attempt, Job, ProgressSource, TokenScope
from jobs.rest import query_params
from jobs.rest.endpoint import ApiEndpoint, find_job_or_404, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    datetime_field,
    integer_field,
    json_value,
    nested_list_field,
    text_field,
)

MAX_ATTEMPTS = 50

METRIC_POINT_SHAPE = ResourceShape(
    "MetricPoint",
    {
        **POINT_SHAPE.fields,
        "tokens_per_s": point_value_field("Mean throughput since the previous point, from its tokens; null: unknown."),
    },
)
ATTEMPT_METRICS_SHAPE = ResourceShape(
    "AttemptMetrics",
    {
        "attempt": integer_field("Attempt number."),
        "state": text_field(choices=[state.value for state in State]),
        "cause": text_field("Cause of the failure; empty: none is known."),
        "started_at": datetime_field("When the cluster started the attempt.", nullable=True),
        "ended_at": datetime_field(nullable=True),
        "source": text_field("Source of the steps; empty: reported by the job.", choices=ProgressSource.values),
        "repeated_from_step": integer_field(
            "The steps from here on were repeated by a later attempt; null: none was.", low=0, nullable=True
        ),
        "points": nested_list_field(METRIC_POINT_SHAPE, "Points in order of time, evenly distributed."),
    },
)
METRICS_SHAPE = ResourceShape(
    "JobMetrics",
    {
        "job": text_field(),
        "name": text_field(),
        "attempts": nested_list_field(ATTEMPT_METRICS_SHAPE, f"At most the newest {MAX_ATTEMPTS}, oldest first."),
    },
)


class JobMetrics(ApiEndpoint):
    """Get the training metrics of all attempts of a job."""

    tag = "Progress"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Get the training metrics of all attempts",
            answer=METRICS_SHAPE,
            team=True,
            query={
                "points": (
                    {"type": "integer", "minimum": 2, "maximum": MAX_POINTS},
                    f"Maximum number of points of all attempts together. Default: {DEFAULT_POINTS}.",
                ),
            },
        )
    }

    def get(self, request: Any, id: str) -> Response:
        reject_unknown_params(request, "points")
        points = query_params.integer_param(self.query, "points", 2, MAX_POINTS) or DEFAULT_POINTS
        job: Job = find_job_or_404(self.caller.jobs().only("id", "public_id", "name"), id)
        newest = job.attempts.select_related("latest_progress").order_by("-number")[:MAX_ATTEMPTS]
        return Response(
            {"job": job.public_id, "name": job.name, "attempts": attempt_metrics(list(newest)[::-1], points)}
        )


def attempt_metrics(attempts: Sequence[Attempt], points: int) -> list[dict[str, Any]]:
    """The series of each attempt, in the order of the attempts."""
    series = thinned_series([attempt.pk for attempt in attempts], points)
    steps = [[row["step"] for row in series[attempt.pk] if row["step"] is not None] for attempt in attempts]
    return [
        {
            "attempt": attempt.number,
            "state": attempt.state,
            "cause": attempt.cause,
            "started_at": json_value(attempt.confirmed_at),
            "ended_at": json_value(attempt.ended_at),
            "source": attempt.latest_progress.source if hasattr(attempt, "latest_progress") else "",
            "repeated_from_step": repeated_from,
            "points": _metric_points(series[attempt.pk]),
        }
        for attempt, repeated_from in zip(attempts, repeated_from_steps(steps), strict=True)
    ]


def _metric_points(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rates = tokens_per_second([TokenCount(at=row["at"], tokens=row["tokens"]) for row in rows])
    return [
        {**json_point(row), "tokens_per_s": None if rate is None else float(f"{rate:.4g}")}
        for row, rate in zip(rows, rates, strict=True)
    ]
