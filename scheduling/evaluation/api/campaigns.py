"""API of evaluations: suites, campaigns, and the result of each dataset for each checkpoint."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.urls import path
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from jobs.actions.submissions import CallerTargets
from jobs.core import parsing
from jobs.models import TokenScope, clock
from jobs.rest import etags, query_params
from jobs.rest.endpoint import ActionEndpoint, DetailEndpoint, ListEndpoint, find_or_404
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    attribute_path,
    boolean_field,
    datetime_field,
    duration_field,
    integer_field,
    nested_list_field,
    number_field,
    object_field,
    one_of_field,
    text_field,
    text_list_field,
)
from scheduling.evaluation.actions import campaigns as campaign_actions
from scheduling.evaluation.reads import campaigns as campaign_reads
from scheduling.evaluation.reads.campaigns import CampaignProgress, campaign_probability
from scheduling.evaluation.rules import campaign_requests
from scheduling.evaluation.rules.campaign_requests import MAX_DATASET_PARTS
from scheduling.evaluation.rules.frameworks import TEMPLATES
from scheduling.models import Campaign, CampaignState, Evaluation, Suite

DATASET_SHAPE = ResourceShape(
    "SuiteDataset",
    {
        "name": text_field("Name of the dataset in its framework."),
        "samples": integer_field("Number of samples.", low=1, high=10**8),
        "parts": integer_field(
            "Maximum number of shards; 1: the dataset is not split.", low=1, high=MAX_DATASET_PARTS, required=False
        ),
        "infer": text_field("Overrides the suite's command.", required=False),
        "metric": text_field("Overrides the suite's command.", required=False),
        "infer_s": number_field(
            "Estimated seconds for all samples on one GPU, used until there are measurements.",
            nullable=True,
            required=False,
        ),
        "score_s": number_field(
            "Estimated seconds of the metric, used until there are measurements.", nullable=True, required=False
        ),
    },
)

SUITE_SHAPE = ResourceShape(
    "Suite",
    {
        "id": integer_field(get=attribute_path("pk"), needs=("pk",)),
        "team": text_field(get=attribute_path("team.name"), needs=("team__name",)),
        "user": text_field(get=attribute_path("user.username"), needs=("user__username",)),
        "name": text_field(),
        "version": integer_field("Each change to a suite creates a new version; results belong to one version.", low=1),
        "title": text_field(),
        "framework": text_field(choices=TEMPLATES),
        "serve": text_field(
            "Server command, started once per trial. It is ready when it listens on $ACME_PORT.", in_lists=False
        ),
        "infer": text_field(
            "Inference command: runs the samples of one shard and writes $ACME_OUTPUT.", in_lists=False
        ),
        "metric": text_field(
            "Metric command: scores a shard on CPUs and writes $ACME_RESULT. Empty: the inference command scores.",
            in_lists=False,
        ),
        "output_root": text_field(),
        "stage_root": text_field("Node-local directory for copies of checkpoints. Empty: checkpoints are not copied."),
        "gpus": integer_field("GPUs per trial; 0: trials run on CPUs.", low=0),
        "cpus": integer_field("CPUs per trial.", low=1),
        "memory_mb": integer_field("Memory per trial, in MiB.", low=0),
        "metric_jobs": integer_field("Maximum number of concurrent scoring jobs.", low=1),
        "created_at": datetime_field(),
        "datasets": nested_list_field(
            DATASET_SHAPE,
            get=lambda row: [DATASET_SHAPE.show(dataset) for dataset in row.datasets.all()],
            needs=(),
            joins=("datasets",),
            in_lists=False,
        ),
    },
)

SUITE_REQUEST_SHAPE = ResourceShape(
    "SuiteRequest",
    {
        "name": text_field("Lowercase letters, digits and dashes."),
        "datasets": nested_list_field(DATASET_SHAPE),
        "output_root": text_field("Shared directory that all nodes can write to."),
        "team": text_field("Required if you can submit for several teams.", required=False),
        "title": text_field(required=False),
        "framework": text_field("Supplies the commands that are not given.", choices=TEMPLATES, required=False),
        "serve": text_field(
            "Server command, started once per trial. It is ready when it listens on $ACME_PORT.", required=False
        ),
        "infer": text_field(
            "Inference command: runs the samples of one shard and writes $ACME_OUTPUT.", required=False
        ),
        "metric": text_field("Metric command: scores a shard on CPUs and writes $ACME_RESULT.", required=False),
        "stage_root": text_field(
            "Node-local directory for copies of checkpoints, for example /dev/shm.", required=False
        ),
        "gpus": integer_field("GPUs per trial; 0: trials run on CPUs.", low=0, high=64, required=False),
        "cpus": integer_field(low=1, high=1024, required=False),
        "memory": one_of_field(
            {"type": "integer"}, {"type": "string"}, says="In MiB, or a text such as 64G.", required=False
        ),
        "metric_jobs": integer_field(low=1, high=1000, required=False),
    },
    example={
        "name": "core",
        "framework": "lm-eval",
        "output_root": "/shared/evaluations",
        "datasets": [{"name": "gsm8k", "samples": 1319}],
    },
)

CAMPAIGN_PROGRESS_SHAPE = ResourceShape(
    "Standing",
    {
        "evaluations": integer_field(low=0),
        "done": integer_field(low=0),
        "failed": integer_field(low=0),
        "cancelled": integer_field(low=0),
        "percent": number_field(
            "Percent of the samples. A sample counts half after inference and fully after scoring."
        ),
    },
)

CAMPAIGN_PLAN_SHAPE = ResourceShape(
    "Plan",
    {
        "nodes": integer_field(low=1),
        "slots_per_node": integer_field(low=1),
        "makespan_s": number_field("Planned duration."),
        "lower_bound_s": number_field("Lower bound of the duration for any schedule."),
        "gpu_hours": number_field(),
        "trials": integer_field(low=0),
        "meets_deadline": boolean_field(nullable=True),
    },
)


def _campaign_plan(row: Campaign) -> dict[str, Any] | None:
    return {name: row.plan[name] for name in CAMPAIGN_PLAN_SHAPE.fields} if row.plan else None


CAMPAIGN_SHAPE = ResourceShape(
    "Campaign",
    {
        "id": text_field("Short public id that sorts by time.", get=attribute_path("public_id"), needs=("public_id",)),
        "name": text_field(),
        "cluster": text_field(get=attribute_path("cluster.name"), needs=("cluster__name",)),
        "team": text_field(get=attribute_path("team.name"), needs=("team__name",)),
        "user": text_field(get=attribute_path("user.username"), needs=("user__username",)),
        "suite": text_field(
            "NAME@VERSION.", get=lambda r: f"{r.suite.name}@{r.suite.version}", needs=("suite__name", "suite__version")
        ),
        "checkpoints": text_list_field("Paths of the checkpoints."),
        "checkpoint_gb": number_field("Size of one checkpoint, in GB."),
        "nodes": integer_field(
            "Maximum number of nodes in use; null until the campaign is planned.", low=1, nullable=True
        ),
        "deadline_at": datetime_field(nullable=True),
        "deadline_probability": number_field(
            "That it meets its deadline, from 0 to 1; null: it has none, is not planned yet, or has ended.",
            get=lambda row: campaign_probability(row, row.progress.percent, clock.now()),
            needs=("deadline_at", "plan", "cluster"),
            nullable=True,
            observed=True,
            in_lists=False,
        ),
        "state": text_field(choices=CampaignState.values),
        "why": text_field("The reason if the campaign waits or failed."),
        "created_at": datetime_field(),
        "started_at": datetime_field(nullable=True),
        "ended_at": datetime_field(nullable=True),
        "progress": object_field("Progress.", get=lambda row: CAMPAIGN_PROGRESS_SHAPE.show(row.progress), needs=()),
        "plan": object_field("The initial plan.", get=_campaign_plan, nullable=True, in_lists=False),
        "gpu_hours": number_field(
            "GPU-hours used by its trials.", get=lambda row: row.gpu_hours, needs=("pk",), in_lists=False
        ),
    },
)
CAMPAIGN_SHAPE.fields["progress"].schema.update(CAMPAIGN_PROGRESS_SHAPE.schema())
CAMPAIGN_SHAPE.fields["plan"].schema.update(oneOf=[CAMPAIGN_PLAN_SHAPE.schema(), {"type": "null"}])

CAMPAIGN_REQUEST_SHAPE = ResourceShape(
    "CampaignRequest",
    {
        "checkpoints": text_list_field("Absolute paths on the nodes."),
        "suite": text_field("NAME for its newest version, or NAME@2."),
        "name": text_field("Default: the run, its steps and the suite.", required=False),
        "team": text_field("Required if you can submit for several teams.", required=False),
        "cluster": text_field("Required if there are several clusters.", required=False),
        "nodes": integer_field("Maximum number of nodes in use.", low=1, high=100_000, required=False),
        "deadline_at": datetime_field(
            "Use it instead of nodes: Acme uses the fewest nodes that meet the deadline.", required=False
        ),
        "within": duration_field("The deadline relative to now: seconds, or a string such as 2:00:00.", required=False),
        "checkpoint_gb": number_field("Size of one checkpoint, in GB. Default: 14.", required=False),
        "rerun": boolean_field("Repeat evaluations that already have a result.", required=False),
    },
    example={"checkpoints": ["/checkpoints/run/step-1000"], "suite": "core", "nodes": 1},
)

EVALUATION_SHAPE = ResourceShape(
    "Evaluation",
    {
        "id": integer_field(get=attribute_path("pk"), needs=("pk",)),
        "checkpoint": text_field(),
        "dataset": text_field(get=attribute_path("dataset.name"), needs=("dataset__name",)),
        "samples": integer_field(get=attribute_path("dataset.samples"), needs=("dataset__samples",)),
        "state": text_field(choices=CampaignState.values),
        "scores": object_field("Scores by metric name; null until the evaluation has ended.", nullable=True),
        "reused": boolean_field(
            "Whether the result comes from an earlier campaign.",
            get=lambda row: row.reused_id is not None,
            needs=("reused",),
        ),
        "why": text_field("The reason if the evaluation failed."),
        "ended_at": datetime_field(nullable=True),
    },
)

# The campaign's own fields are parsed by `campaign_requests`, which forms and the command line use too
UNPARSED_READERS: dict[str, parsing.FieldReader] = {
    name: lambda _, value: value for name in CAMPAIGN_REQUEST_SHAPE.fields
}


class SuiteListEndpoint(ListEndpoint, ActionEndpoint):
    """List suites; define a suite or its next version."""

    tag = "Evaluation"
    what = "suites"
    shape = SUITE_SHAPE
    filters = {
        "team": query_params.text_filter("team__name"),
        "name": query_params.text_filter("name"),
        "framework": query_params.choice_filter("framework", tuple(TEMPLATES)),
        "created_at": query_params.datetime_filter("created_at"),
    }
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="List the suites of your teams", answer=SUITE_SHAPE, many=True),
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Define a suite, or a new version of it",
            body=SUITE_REQUEST_SHAPE,
            answer=SUITE_SHAPE,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[Suite]:
        return campaign_reads.suites(self.caller)

    def work(self) -> Response:
        values = dict(self.object())
        team = CallerTargets(self.caller).resolve_team(values.pop("team", None))
        suite = campaign_actions.define_suite(campaign_requests.parse_suite(values), team=team, author=self.author)
        shown = SUITE_SHAPE.show(
            SUITE_SHAPE.load(campaign_reads.suites(self.caller), SUITE_SHAPE.fields).get(pk=suite.pk)
        )
        address = self.request.build_absolute_uri(f"{self.request.path}{suite.pk}/")
        return Response(shown, status=201, headers={"Location": address})


class SuiteDetailEndpoint(DetailEndpoint):
    """A suite with its commands and datasets."""

    tag = "Evaluation"
    shape = SUITE_SHAPE
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="One suite, with its datasets", answer=SUITE_SHAPE, team=True)
    }

    def row(self, id: int) -> Suite:
        row: Suite = find_or_404(
            SUITE_SHAPE.load(campaign_reads.suites(self.caller), SUITE_SHAPE.fields), "suite", pk=id
        )
        return row


class CampaignListEndpoint(ListEndpoint, ActionEndpoint):
    """List campaigns; start a campaign."""

    tag = "Evaluation"
    what = "campaigns"
    shape = CAMPAIGN_SHAPE
    filters = {
        "id": query_params.text_filter("public_id"),
        "name": query_params.text_filter("name", "contains"),
        "team": query_params.text_filter("team__name"),
        "user": query_params.text_filter("user__username"),
        "cluster": query_params.text_filter("cluster__name"),
        "suite": query_params.text_filter("suite__name"),
        "state": query_params.choice_filter("state", CampaignState.values),
        "created_at": query_params.datetime_filter("created_at"),
    }
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="List the campaigns of your teams", answer=CAMPAIGN_SHAPE, many=True
        ),
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Evaluate checkpoints with a suite. Existing results are reused",
            body=CAMPAIGN_REQUEST_SHAPE,
            answer=CAMPAIGN_SHAPE,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[Campaign]:
        return campaign_reads.campaigns(self.caller)

    def attach_computed_values(self, rows: list[Any], names: list[str]) -> None:
        add_computed_fields(rows, names)

    def work(self) -> Response:
        created = campaign_actions.create_campaign_from_request(
            self.body(UNPARSED_READERS, "a campaign"), CallerTargets(self.caller), self.author, clock.now()
        )
        address = self.request.build_absolute_uri(f"{self.request.path}{created.public_id}/")
        return Response(campaign_response(self.caller, created.public_id), status=201, headers={"Location": address})


def add_computed_fields(rows: list[Any], names: Any) -> None:
    progress = campaign_reads.campaign_progress(rows) if "progress" in names else {}
    for row in rows:
        row.progress = progress.get(row.pk, CampaignProgress())
        row.gpu_hours = round(campaign_reads.gpu_hours(row, clock.now()), 4) if "gpu_hours" in names else None


def get_campaign(caller: Any, id: str) -> Campaign:
    rows = CAMPAIGN_SHAPE.load(campaign_reads.campaigns(caller), CAMPAIGN_SHAPE.fields)
    row: Campaign = find_or_404(rows, "campaign", public_id=id)
    add_computed_fields([row], CAMPAIGN_SHAPE.fields)
    return row


def campaign_response(caller: Any, id: str) -> dict[str, Any]:
    return CAMPAIGN_SHAPE.show(get_campaign(caller, id))


class CampaignDetailEndpoint(DetailEndpoint):
    """A campaign with its progress, its plan and the GPU-hours used."""

    tag = "Evaluation"
    shape = CAMPAIGN_SHAPE
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="One campaign, with its plan", answer=CAMPAIGN_SHAPE, team=True)
    }

    def row(self, id: str) -> Campaign:
        return get_campaign(self.caller, id)


class CampaignEvaluationsEndpoint(ListEndpoint):
    """The results of a campaign, listed as they arrive."""

    tag = "Evaluation"
    what = "evaluations"
    shape = EVALUATION_SHAPE
    filters = {
        "checkpoint": query_params.text_filter("checkpoint"),
        "dataset": query_params.text_filter("dataset__name"),
        "state": query_params.choice_filter("state", CampaignState.values),
    }
    ordering = "id"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List the evaluations of a campaign: one per dataset and checkpoint",
            answer=EVALUATION_SHAPE,
            many=True,
            team=True,
        )
    }

    def rows(self, id: str) -> QuerySet[Evaluation]:
        campaign = find_or_404(campaign_reads.campaigns(self.caller), "campaign", public_id=id)
        return Evaluation.objects.filter(campaign=campaign)


class _CampaignVerb(ActionEndpoint):
    tag = "Evaluation"

    def work(self, id: str) -> Response:
        self.body({}, "a campaign action")
        row = find_or_404(campaign_reads.campaigns(self.caller).select_related("suite"), "campaign", public_id=id)
        if not self.caller.may_change(row):
            raise PermissionDenied(self.caller.denial_reason(row, str(row)))
        etags.check_if_match(self.request, campaign_response(self.caller, id), CAMPAIGN_SHAPE.observed)
        self.change(row)
        document = campaign_response(self.caller, id)
        return Response(document, headers={"ETag": etags.etag(document, CAMPAIGN_SHAPE.observed)})

    def change(self, row: Campaign) -> None:
        raise NotImplementedError


def _campaign_verb_rules(says: str) -> dict[str, EndpointRule]:
    nothing = ResourceShape("NothingMore", {})
    return {
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT, says=says, body=nothing, answer=CAMPAIGN_SHAPE, conflicts=True, team=True
        )
    }


class CancelCampaignEndpoint(_CampaignVerb):
    """Cancel a campaign. Its jobs are stopped; existing results are kept."""

    rules = _campaign_verb_rules("Cancel a campaign")

    def change(self, row: Campaign) -> None:
        campaign_actions.cancel(row, author=self.author, now=clock.now())


class RetryCampaignEndpoint(_CampaignVerb):
    """Retry the failed evaluations of a campaign."""

    rules = _campaign_verb_rules("Retry the failed evaluations of a campaign")

    def change(self, row: Campaign) -> None:
        campaign_actions.retry(row, author=self.author, now=clock.now())


urlpatterns = [
    path("suites/", SuiteListEndpoint.as_view()),
    path("suites/<int:id>/", SuiteDetailEndpoint.as_view()),
    path("campaigns/", CampaignListEndpoint.as_view()),
    path("campaigns/<public_id:id>/", CampaignDetailEndpoint.as_view()),
    path("campaigns/<public_id:id>/evaluations/", CampaignEvaluationsEndpoint.as_view()),
    path("campaigns/<public_id:id>/cancel/", CancelCampaignEndpoint.as_view()),
    path("campaigns/<public_id:id>/retry/", RetryCampaignEndpoint.as_view()),
]
