"""Health in the API: which loops are late, and what waits."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from acmeweb.loops.health import Backlog, LoopHealth, backlogs, read_health
from jobs.models import TokenScope, clock
from jobs.rest.endpoint import ApiEndpoint, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    boolean_field,
    datetime_field,
    integer_field,
    nested_list_field,
    number_field,
    text_field,
    text_list_field,
)

LOOP_HEALTH = ResourceShape(
    "LoopHealth",
    {
        "loop": text_field("Name of the loop."),
        "cluster": text_field("Its cluster; empty: a loop of the installation."),
        "late": boolean_field("Whether `age_s` exceeds `bound_s`."),
        "age_s": number_field("Seconds since its last run without an error."),
        "bound_s": number_field("The loop is late if its age exceeds this."),
        "took_s": number_field("Duration of the last run.", nullable=True),
        "delay_s": number_field("How much later than due the last run began.", nullable=True),
        "fails": boolean_field("Whether its last run ended with an error."),
        "effect": text_field("What follows if the loop is late."),
    },
)
BACKLOG = ResourceShape(
    "Backlog",
    {
        "kind": text_field(),
        "count": integer_field("Rows that wait."),
        "oldest_s": number_field("Age of the oldest.", nullable=True),
    },
)
HEALTH = ResourceShape(
    "Health",
    {
        "at": datetime_field(),
        "status": text_field("late: some loops are late; down: no loop runs.", choices=["ok", "late", "down"]),
        "sentences": text_list_field("One sentence per loop that is late: what, since when, and what that means."),
        "loops": nested_list_field(LOOP_HEALTH),
        "backlogs": nested_list_field(BACKLOG, "What waits for a loop or a worker."),
    },
)


class HealthEndpoint(ApiEndpoint):
    """The health of Acme itself. Clusters and nodes have states of their own."""

    tag = "About"
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="Which loops of Acme are late, and what waits", answer=HEALTH)
    }

    def get(self, request: Any) -> Response:
        reject_unknown_params(request)
        health = read_health(clock.now())
        return Response(
            {
                "at": health.at,
                "status": health.status,
                "sentences": health.sentences(),
                "loops": [_loop(row) for row in health.loops],
                "backlogs": [_backlog(row) for row in backlogs(health.at)],
            }
        )


def _loop(row: LoopHealth) -> dict[str, Any]:
    return {
        "loop": row.loop.name,
        "cluster": row.cluster,
        "late": row.is_late,
        "age_s": row.age.total_seconds(),
        "bound_s": row.loop.bound.total_seconds(),
        "took_s": row.took.total_seconds() if row.took is not None else None,
        "delay_s": row.delay.total_seconds() if row.delay is not None else None,
        "fails": row.fails,
        "effect": row.loop.effect,
    }


def _backlog(row: Backlog) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "count": row.count,
        "oldest_s": row.oldest.total_seconds() if row.oldest is not None else None,
    }
