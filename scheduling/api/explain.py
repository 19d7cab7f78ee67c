"""Why a job waits, through the programs' door."""

from __future__ import annotations

from typing import Any

from django.urls import path
from rest_framework.response import Response

from jobs.api.shapes import DEPENDENCY, JOB_ID_FIELD, STATES, job_title
from jobs.models import HoldKind, TokenScope
from jobs.rest.endpoint import ApiEndpoint, find_or_404, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    datetime_field,
    fraction_field,
    integer_field,
    json_value,
    nested_field,
    nested_list_field,
    seconds_field,
    text_field,
)
from scheduling.engine.blockers import BlockerKind
from scheduling.engine.changes import ChangeActor
from scheduling.models import EstimateLead
from scheduling.queries.wait_explanation import WaitExplanation, explain_job

HOLDER_SHAPE = ResourceShape(
    "Holder",
    {
        "job": text_field("Empty: several jobs together, or jobs of teams that are not yours."),
        "title": text_field("What its owner calls it."),
        "team": text_field("Empty: teams that are not yours."),
        "jobs": integer_field(low=1),
        "gpus": integer_field(low=0),
        "ends_at": datetime_field("At its time limit.", nullable=True),
    },
)
BLOCKER_SHAPE = ResourceShape(
    "Blocker",
    {
        "kind": text_field(choices=BlockerKind),
        "reason": text_field("Slurm's word."),
        "why": text_field("The same as a sentence."),
        "gpus": integer_field("Missing, over the quota, or asked for by those ahead.", low=0),
        "nodes": integer_field("That lack room for its share.", low=0),
        "jobs": integer_field("Ahead of it, or waited for.", low=0),
        "holders": nested_list_field(
            HOLDER_SHAPE, get=lambda row: [HOLDER_SHAPE.show(holder) for holder in row.holders]
        ),
    },
)
CHANGE_SHAPE = ResourceShape(
    "Change",
    {
        "kind": text_field("gpus, nodes, model, limit, preemptible, quota, end …; two of them joined by a plus."),
        "who": text_field("Who could do it: its owner, an operator, or time.", choices=ChangeActor),
        "why": text_field("A sentence. It was tried on the cluster as it is: with this change, the job starts."),
        "cost": fraction_field("0 gives nothing up. The changes come the cheapest first."),
    },
)
START_ESTIMATE_SHAPE = ResourceShape(
    "StartEstimate",
    {
        "p50": datetime_field("As likely before as after."),
        "p90": datetime_field("Nine of ten times before."),
        "made_at": datetime_field("Of the forecast.", nullable=True),
    },
)
ESTIMATE_ERROR_SHAPE = ResourceShape(
    "EstimateError",
    {
        "lead": text_field("How far ahead those estimates looked.", choices=EstimateLead.values),
        "jobs": integer_field("That were judged, over the last seven days.", low=1),
        "median_s": seconds_field(
            "Half of the jobs started nearer to the first estimate that they got.",
            get=lambda error: round(error.median_s),
        ),
        "within_p90": fraction_field("Part of them that had started by their P90."),
    },
)
EXPLANATION_SHAPE = ResourceShape(
    "Explanation",
    {
        "id": text_field(JOB_ID_FIELD.schema["description"]),
        "state": text_field(choices=STATES),
        "title": text_field(),
        "reason": text_field("Slurm's word: Resources, Priority, Dependency, JobHeldUser …"),
        "why": text_field("The same as a sentence, as the last turn left it; empty for a job that does not wait."),
        "hold": text_field("Who holds it.", choices=HoldKind.values),
        "begin_at": datetime_field("Not before.", nullable=True),
        "waits_for": nested_list_field(DEPENDENCY, "Jobs that must end first."),
        "at": datetime_field("When the rest was worked out."),
        "blockers": nested_list_field(
            BLOCKER_SHAPE, "What keeps it back, the weightiest first; empty: it starts with the next turn."
        ),
        "smallest_change": nested_field(CHANGE_SHAPE, "What would start it now, at the least cost.", nullable=True),
        "other_changes": nested_list_field(CHANGE_SHAPE, "What would do as well, at more."),
        "estimate": nested_field(START_ESTIMATE_SHAPE, "When it will start.", nullable=True),
        "past_error": nested_field(ESTIMATE_ERROR_SHAPE, "How far off such estimates were.", nullable=True),
    },
)


class JobExplanationEndpoint(ApiEndpoint):
    """Why it waits, what would start it now, and when it will start."""

    tag = "Jobs"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Why a job waits, what would start it now, and when it will start",
            answer=EXPLANATION_SHAPE,
            team=True,
        )
    }

    def get(self, request: Any, id: str) -> Response:
        reject_unknown_params(request)
        rows = self.caller.jobs().select_related("cluster").prefetch_related("dependencies__on")
        job = find_or_404(rows, "job", public_id=id)
        teams = None if self.caller.is_site_admin else set(self.caller.teams().values_list("name", flat=True))
        return Response(explanation_response(job, explain_job(job, teams)))


def explanation_response(job: Any, answer: WaitExplanation) -> dict[str, Any]:
    estimate, judged = answer.estimate, answer.judged
    return {
        "id": job.public_id,
        "state": job.state,
        "title": job_title(job),
        "reason": job.reason,
        "why": job.why,
        "hold": job.hold,
        "begin_at": json_value(job.begin_at),
        "waits_for": [DEPENDENCY.show(one) for one in job.dependencies.all()],
        "at": json_value(answer.at),
        "blockers": [BLOCKER_SHAPE.show(blocker) for blocker in answer.blockers],
        "smallest_change": CHANGE_SHAPE.show(answer.smallest) if answer.smallest else None,
        "other_changes": [CHANGE_SHAPE.show(change) for change in answer.others],
        "estimate": {
            "p50": json_value(estimate.p50),
            "p90": json_value(estimate.p90),
            "made_at": json_value(answer.estimated_at),
        }
        if estimate
        else None,
        "past_error": ESTIMATE_ERROR_SHAPE.show(judged) if judged else None,
    }


urlpatterns = [path("jobs/<public_id:id>/explain/", JobExplanationEndpoint.as_view())]
