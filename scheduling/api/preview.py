"""API of the submission preview: what would happen to a job, without creating it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.urls import path
from rest_framework.response import Response

from jobs.actions.submissions import CallerTargets, deadline_response, parse_submission
from jobs.actions.submit import refuse_unknown_dependencies
from jobs.api import shapes
from jobs.core.deadlines import refuse_impossible
from jobs.core.lifecycle import JobKind
from jobs.models import Cluster, TokenScope, clock
from jobs.rest.endpoint import ActionEndpoint
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    boolean_field,
    datetime_field,
    integer_field,
    json_value,
    nested_field,
    nested_list_field,
    number_field,
    text_field,
)
from jobs.rest.throttle import PerUserThrottle
from scheduling.api.explain import BLOCKER_SHAPE, ESTIMATE_ERROR_SHAPE, START_ESTIMATE_SHAPE
from scheduling.queries.submission_preview import PreviewThrottle, SubmissionPreview, preview_submission

QUOTA_PREVIEW_SHAPE = ResourceShape(
    "QuotaPreview",
    {
        "kind": text_field("Kind of job to which the quota applies; null: all.", choices=JobKind, nullable=True),
        "gpu_model": text_field("GPU model that the quota limits; empty: all."),
        "quota_gpus": integer_field("The quota; null: none.", nullable=True),
        "allocated_gpus": number_field("GPUs that count against it now."),
        "left_gpus": number_field("GPUs left; null: there is no quota.", nullable=True),
    },
)
PREVIEW_SHAPE = ResourceShape(
    "JobPreview",
    {
        "cluster": text_field(),
        "team": text_field(),
        "at": datetime_field("Time of the state of the cluster that was used."),
        "warning": text_field("Why Acme could not start the job on this cluster now; empty if it could."),
        "starts_now": boolean_field("Whether it would start in the next scheduling turn."),
        "tasks": integer_field("Number of array tasks, or 1.", low=1),
        "gpus": number_field("GPUs of one task."),
        "estimate": nested_field(START_ESTIMATE_SHAPE, "Estimated start of the first task.", nullable=True),
        "why_no_estimate": text_field("A sentence if there is no estimate."),
        "past_error": nested_field(ESTIMATE_ERROR_SHAPE, "Past error of such estimates.", nullable=True),
        "blockers": nested_list_field(
            BLOCKER_SHAPE, "What would block the job, the most important first. Empty: it starts at once."
        ),
        "quotas": nested_list_field(QUOTA_PREVIEW_SHAPE, "Quotas of the team that apply to the job."),
        "matching_nodes": integer_field("Nodes with the requested hardware that accept jobs.", low=0),
        "fitting_nodes": integer_field("Matching nodes with enough free resources.", low=0),
        "matching_gpus": integer_field("GPUs of the matching nodes.", low=0),
        "free_gpus": integer_field("Free GPUs of the matching nodes.", low=0),
        "deadline": nested_field(
            shapes.DEADLINE_ANSWER, "Whether the job would meet its deadline; null: it has none.", nullable=True
        ),
        "preemption": text_field("When the job could be preempted, as sentences."),
        "most_gpu_hours": number_field("GPU-hours at the time limit, of all tasks; null: no limit.", nullable=True),
        "most_cost": number_field("Cost at the time limit; null: no limit or no price.", nullable=True),
        "usual_gpu_hours": number_field("What 9 of 10 similar jobs did not exceed; null: too few.", nullable=True),
        "currency": text_field("Currency of `most_cost`."),
    },
)


class PreviewJob(ActionEndpoint):
    """Preview a submission."""

    tag = "Jobs"
    throttle_classes = [PerUserThrottle, PreviewThrottle]
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Preview one job without submitting it: likely start, blockers, quota, free GPUs and cost",
            body=shapes.JOB_REQUEST,
            answer=PREVIEW_SHAPE,
        )
    }

    def work(self) -> Response:
        team, target, spec = parse_submission(self.object(), {}, CallerTargets(self.caller))
        refuse_unknown_dependencies(spec, team)
        if spec.deadline_at:
            refuse_impossible(spec.deadline_at, spec.deadline_action, spec.time_limit, clock.now())
        cluster = Cluster.objects.get(pk=target.pk)
        sees = self.caller.visible_team_names()
        preview = preview_submission(spec, team=team, cluster=cluster, user_id=self.caller.user.pk, sees=sees)
        return Response({"cluster": cluster.name, "team": team.name, **preview_response(preview)})


def preview_response(preview: SubmissionPreview) -> dict[str, Any]:
    estimate, error = preview.start.estimate, preview.past_error
    return {
        "at": json_value(preview.at),
        "warning": preview.warning,
        "starts_now": preview.starts_now,
        "tasks": preview.tasks,
        "gpus": preview.gpus,
        "estimate": {
            "p50": json_value(estimate.p50),
            "p90": json_value(estimate.p90),
            "made_at": json_value(preview.at),
        }
        if estimate
        else None,
        "why_no_estimate": preview.start.why_no_estimate,
        "past_error": ESTIMATE_ERROR_SHAPE.show(error) if error else None,
        "blockers": [BLOCKER_SHAPE.show(blocker) for blocker in preview.start.blockers],
        "quotas": [
            {
                "kind": quota.kind,
                "gpu_model": quota.gpu_model,
                "quota_gpus": quota.owned,
                "allocated_gpus": quota.use.held,
                "left_gpus": None if quota.owned is None else quota.left,
            }
            for quota in preview.quotas
        ],
        "matching_nodes": preview.capacity.nodes,
        "fitting_nodes": preview.capacity.fitting,
        "matching_gpus": preview.capacity.gpus,
        "free_gpus": preview.capacity.free_gpus,
        "deadline": deadline_response(preview.spec.deadline_at, preview.deadline),
        "preemption": preview.preemption_text,
        "most_gpu_hours": preview.most_gpu_hours,
        "most_cost": preview.most_cost,
        "usual_gpu_hours": preview.usual_gpu_hours,
        "currency": settings.CURRENCY,
    }


urlpatterns = [path("jobs/preview/", PreviewJob.as_view())]
