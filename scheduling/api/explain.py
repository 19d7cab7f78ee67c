"""API of wait explanations: why a job waits, what would start it now, and when it will start."""

from __future__ import annotations

from typing import Any

from django.urls import path
from rest_framework.response import Response

from jobs.api.shapes import DEPENDENCY, JOB_ID_FIELD, STATES, job_title
from jobs.models import HoldKind, TokenScope
from jobs.rest.endpoint import ApiEndpoint, find_job_or_404, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    datetime_field,
    fraction_field,
    integer_field,
    json_value,
    nested_field,
    nested_list_field,
    number_field,
    object_field,
    seconds_field,
    text_field,
    text_list_field,
)
from scheduling.engine.blockers import BlockerKind
from scheduling.engine.changes import ChangeActor
from scheduling.models import EstimateLead
from scheduling.queries.wait_explanation import WaitExplanation, explain_job

HOLDER_SHAPE = ResourceShape(
    "Holder",
    {
        "job": text_field("Empty for several jobs together, or jobs of other teams."),
        "title": text_field("Name given by the job's owner."),
        "team": text_field("Empty for other teams."),
        "jobs": integer_field(low=1),
        "gpus": number_field(),
        "ends_at": datetime_field("When the time limit ends.", nullable=True),
        "expected_end_at": datetime_field("When the job ends according to its predicted run time.", nullable=True),
    },
)
BLOCKER_SHAPE = ResourceShape(
    "Blocker",
    {
        "kind": text_field(choices=BlockerKind),
        "reason": text_field("Reason in Slurm's terms."),
        "why": text_field("The reason as a sentence."),
        "gpus": number_field("GPUs that are missing, exceed the quota, or are requested by the jobs ahead."),
        "nodes": integer_field("Nodes without enough free resources.", low=0),
        "jobs": integer_field("Jobs ahead of it, or jobs it waits for.", low=0),
        "power_budgets": text_list_field("Names of the power budgets that leave too little."),
        "holders": nested_list_field(
            HOLDER_SHAPE, get=lambda row: [HOLDER_SHAPE.show(holder) for holder in row.holders]
        ),
    },
)
CHANGE_SHAPE = ResourceShape(
    "Change",
    {
        "kind": text_field(
            "gpus, nodes, model, limit, preemptible, quota, end …; two kinds are joined by a plus sign."
        ),
        "who": text_field("Who can make the change: the job's owner, an operator, or time.", choices=ChangeActor),
        "why": text_field(
            "The change as a sentence. A simulation of the current cluster confirmed that the job starts with it."
        ),
        "request": object_field(
            "The same change as fields of a job request. Empty if submitting the job again would not make it."
        ),
        "cost": fraction_field("0 means that nothing is given up. Changes are sorted by cost, the cheapest first."),
    },
)
START_ESTIMATE_SHAPE = ResourceShape(
    "StartEstimate",
    {
        "p50": datetime_field("Median estimate."),
        "p90": datetime_field("90% likely by this time."),
        "made_at": datetime_field("When the estimate was computed.", nullable=True),
    },
)
ESTIMATE_ERROR_SHAPE = ResourceShape(
    "EstimateError",
    {
        "lead": text_field("Time between the estimates and the estimated starts.", choices=EstimateLead.values),
        "jobs": integer_field("Number of jobs compared, over the last seven days.", low=1),
        "median_s": seconds_field(
            "Median absolute error of the first estimate of each job.",
            get=lambda error: round(error.median_s),
        ),
        "within_p90": fraction_field("Share of the jobs that had started by their P90."),
    },
)
EXPLANATION_SHAPE = ResourceShape(
    "Explanation",
    {
        "id": text_field(JOB_ID_FIELD.schema["description"]),
        "state": text_field(choices=STATES),
        "title": text_field(),
        "reason": text_field("Reason in Slurm's terms: Resources, Priority, Dependency, JobHeldUser …"),
        "why": text_field("The reason as a sentence, as of the last scheduling turn; empty if the job does not wait."),
        "hold": text_field("Kind of hold.", choices=HoldKind.values),
        "begin_at": datetime_field("Earliest start.", nullable=True),
        "waits_for": nested_list_field(DEPENDENCY, "Jobs that must end first."),
        "at": datetime_field("When the explanation was computed."),
        "blockers": nested_list_field(
            BLOCKER_SHAPE,
            "What blocks the job, the most important first. Empty: it starts in the next scheduling turn.",
        ),
        "smallest_change": nested_field(
            CHANGE_SHAPE, "The cheapest change that would start the job now.", nullable=True
        ),
        "other_changes": nested_list_field(
            CHANGE_SHAPE, "Other changes that would start the job now, at a higher cost."
        ),
        "estimate": nested_field(START_ESTIMATE_SHAPE, "Estimated start.", nullable=True),
        "past_error": nested_field(ESTIMATE_ERROR_SHAPE, "Past error of such estimates.", nullable=True),
    },
)


class JobExplanationEndpoint(ApiEndpoint):
    """Why a job waits, what would start it now, and when it will start."""

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
        job = find_job_or_404(rows, id)
        return Response(explanation_response(job, explain_job(job, self.caller.visible_team_names())))


def explanation_response(job: Any, answer: WaitExplanation) -> dict[str, Any]:
    estimate, judged = answer.estimate, answer.past_error
    return {
        "id": job.public_id,
        "state": job.state,
        "title": job_title(job),
        "reason": job.reason,
        "why": job.why,
        "hold": job.hold,
        "begin_at": json_value(job.begin_at),
        "waits_for": [DEPENDENCY.show(dependency) for dependency in job.dependencies.all()],
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
