"""API of the policy preview: how the queue of a cluster would change under other settings, without changing them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

from django.urls import path
from rest_framework.response import Response

from jobs.api.clusters import find_cluster
from jobs.core import parsing
from jobs.core.gpu_shares import gpu_number
from jobs.models import Cluster, TokenScope
from jobs.rest.endpoint import ActionEndpoint
from jobs.rest.idempotency import run_once_outside_transaction
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    datetime_field,
    integer_field,
    json_value,
    nested_list_field,
    number_field,
    object_field,
    seconds_field,
    text_field,
)
from jobs.rest.throttle import PerUserThrottle
from scheduling.core.policy_choice import PolicyChoice
from scheduling.engine.cluster import WaitingJob
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.queries.policy_choices import current_policy_choice
from scheduling.queries.submission_preview import PreviewThrottle
from scheduling.whatif.comparison.queue_changes import JobChange
from scheduling.whatif.reads.policy_preview import PolicyPreview, preview_policy

MAX_JOBS_LISTED = 500

POLICY_CHOICE_SHAPE = ResourceShape(
    "PolicyChoice",
    {
        "policy": text_field("Default: the current policy.", choices=LIVE_POLICIES, required=False),
        "placement": text_field("Default: the current placement.", choices=PLACEMENTS, required=False),
        "settings": object_field(
            "Settings of the policy; only acme has some: order, backfill, aging_s, class_s, reserve. Default: the"
            " current settings if the policy stays, else none.",
            required=False,
        ),
    },
    example={"policy": "acme", "settings": {"order": "fair"}},
)
POLICY_DIFFERENCE_SHAPE = ResourceShape(
    "PolicyDifference", {"setting": text_field(), "before": text_field(), "after": text_field()}
)
QUEUE_CHANGE_SHAPE = ResourceShape(
    "QueueChange",
    {
        "job": text_field("Empty for jobs of other teams."),
        "title": text_field("Name given by the job's owner. Empty for jobs of other teams."),
        "team": text_field("Empty for jobs of other teams."),
        "gpus": number_field("GPUs of the job."),
        "place_before": integer_field("Place in the queue now, from 1.", low=1),
        "place_after": integer_field("Place with the proposed settings.", low=1),
        "start_before": datetime_field("Median estimate now; null if unknown.", nullable=True),
        "start_after": datetime_field("Median estimate with the proposed settings; null if unknown.", nullable=True),
    },
)
POLICY_PREVIEW_SHAPE = ResourceShape(
    "PolicyPreview",
    {
        "cluster": text_field(),
        "at": datetime_field("Time of the state of the cluster that was used."),
        "differences": nested_list_field(POLICY_DIFFERENCE_SHAPE, "Settings that would change."),
        "warning": text_field("Why the order is not in effect now; empty if it is."),
        "waiting_jobs": integer_field("Jobs in the queue.", low=0),
        "up": integer_field("Jobs that move towards the head of the queue.", low=0),
        "down": integer_field("Jobs that move back.", low=0),
        "starts_before": integer_field("Jobs that start in the next turn now.", low=0),
        "starts_after": integer_field("Jobs that would start in the next turn.", low=0),
        "earlier": integer_field("Jobs that are likely to start earlier, by a minute or more.", low=0),
        "later": integer_field("Jobs that are likely to start later, by a minute or more.", low=0),
        "median_wait_before": seconds_field("Median likely wait from now, in seconds.", nullable=True),
        "median_wait_after": seconds_field("The same with the proposed settings.", nullable=True),
        "why_no_estimates": text_field("A sentence if start estimates are missing."),
        "changes": nested_list_field(
            QUEUE_CHANGE_SHAPE, f"Jobs that change, in the proposed order; at most {MAX_JOBS_LISTED}."
        ),
        "changed_jobs": integer_field("Number of jobs that change.", low=0),
    },
)
CHOICE_READERS: dict[str, parsing.FieldReader] = {
    "policy": parsing.text_reader(40),
    "placement": parsing.text_reader(40),
    "settings": parsing.read_object,
}


class PreviewPolicy(ActionEndpoint):
    """Preview a change of the scheduling policy."""

    tag = "Clusters and teams"
    throttle_classes = [PerUserThrottle, PreviewThrottle]
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.OPERATE,
            operator=True,
            says="Preview a change of the scheduling policy without making it: how the queue and likely starts change",
            body=POLICY_CHOICE_SHAPE,
            answer=POLICY_PREVIEW_SHAPE,
        )
    }

    def run_idempotent(self, work: Callable[[], Response]) -> Response:
        return run_once_outside_transaction(self.request, work)  # no transaction stays open while a policy computes

    def work(self, name: str) -> Response:
        values = self.body(CHOICE_READERS, "a policy")
        cluster = find_cluster(name)
        preview = preview_policy(cluster, _proposed_choice(cluster, values))
        return Response(policy_preview_response(preview, self.caller.visible_team_names()))


def _proposed_choice(cluster: Cluster, values: dict[str, Any]) -> PolicyChoice:
    current = current_policy_choice(cluster)
    policy = values.get("policy", current.policy)
    return PolicyChoice(
        policy=policy,
        placement=values.get("placement", current.placement),
        settings=values.get("settings", current.settings if policy == current.policy else {}),
    )


def policy_preview_response(preview: PolicyPreview, teams: Collection[str] | None) -> dict[str, Any]:
    queue, jobs = preview.queue, {job.id: job for job in preview.picture.waiting}
    changed = queue.changed
    return {
        "cluster": preview.cluster.name,
        "at": json_value(preview.at),
        "differences": [{"setting": one.name, "before": one.before, "after": one.after} for one in preview.differences],
        "warning": preview.warning,
        "waiting_jobs": len(queue.jobs),
        "up": queue.up,
        "down": queue.down,
        "starts_before": queue.starts_before,
        "starts_after": queue.starts_after,
        "earlier": queue.start_trends["earlier"],
        "later": queue.start_trends["later"],
        "median_wait_before": _seconds(queue.median_wait_before),
        "median_wait_after": _seconds(queue.median_wait_after),
        "why_no_estimates": preview.why_no_estimates,
        "changes": [_change_row(change, jobs[change.job_id], teams) for change in changed[:MAX_JOBS_LISTED]],
        "changed_jobs": len(changed),
    }


def _change_row(change: JobChange, job: WaitingJob, teams: Collection[str] | None) -> dict[str, Any]:
    is_visible = teams is None or job.team in teams
    return {
        "job": job.name if is_visible else "",
        "title": job.title if is_visible else "",
        "team": job.team if is_visible else "",
        "gpus": gpu_number(job.need.charged_milli),
        "place_before": change.place_before,
        "place_after": change.place_after,
        "start_before": json_value(change.start_before),
        "start_after": json_value(change.start_after),
    }


def _seconds(wait: timedelta | None) -> int | None:
    return None if wait is None else round(wait.total_seconds())


urlpatterns = [path("clusters/<slug:name>/policy-preview/", PreviewPolicy.as_view())]
