"""Evaluation through the programs' door: suites, campaigns, and each dataset of each checkpoint."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.urls import path
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from jobs import clock, readers
from jobs.api.submitting import Places
from jobs.door import query, versions
from jobs.door.endpoint import Detail, Listing, Verb, found
from jobs.door.errors import Conflict
from jobs.door.rights import Rule
from jobs.door.shapes import Shape, anything, at, many, measure, moment, number, text, texts, truth
from jobs.models import Scope
from scheduling import evaluating
from scheduling import evaluation_actions as actions
from scheduling.evaluating import Standing
from scheduling.evaluation import asked as asking
from scheduling.evaluation.asked import MOST_PARTS
from scheduling.evaluation.frameworks import TEMPLATES
from scheduling.evaluation_actions import Gone
from scheduling.models import Campaign, CampaignState, Evaluation, Suite

DATASET = Shape(
    "SuiteDataset",
    {
        "name": text("As its framework knows it."),
        "samples": number("How many it has.", low=1, high=10**8),
        "parts": number("In how many pieces it may be cut; 1: it stays whole.", low=1, high=MOST_PARTS, required=False),
        "infer": text("Instead of the suite's command.", required=False),
        "metric": text("Instead of the suite's command.", required=False),
        "infer_s": measure("Seconds of all samples on a GPU, before any were measured.", nullable=True, required=False),
        "score_s": measure("Seconds of its metric, before any were measured.", nullable=True, required=False),
    },
)

SUITE = Shape(
    "Suite",
    {
        "id": number(get=at("pk"), needs=("pk",)),
        "team": text(get=at("team.name"), needs=("team__name",)),
        "user": text(get=at("user.username"), needs=("user__username",)),
        "name": text(),
        "version": number("A changed suite is a new version; results belong to one.", low=1),
        "title": text(),
        "framework": text(choices=TEMPLATES),
        "serve": text("Started once a trial; it listens at $ACME_PORT when it is ready.", listed=False),
        "infer": text("Answers one shard, into $ACME_OUTPUT.", listed=False),
        "metric": text("Scores it on CPUs, into $ACME_RESULT; empty: the inference does.", listed=False),
        "output_root": text(),
        "stage_root": text("Where nodes keep copies of models; empty: none are made."),
        "gpus": number("Of a trial; 0: it runs on CPUs.", low=0),
        "cpus": number("Of a trial.", low=1),
        "memory_mb": number("Of a trial.", low=0),
        "metric_jobs": number("CPU jobs that may score at once.", low=1),
        "created_at": moment(),
        "datasets": many(
            DATASET,
            get=lambda row: [DATASET.show(one) for one in row.datasets.all()],
            needs=(),
            joins=("datasets",),
            listed=False,
        ),
    },
)

SUITE_ASKED = Shape(
    "SuiteRequest",
    {
        "name": text("Small letters, digits and dashes."),
        "datasets": many(DATASET),
        "output_root": text("A directory that all nodes can write to."),
        "team": text("Needed by those who submit for several teams.", required=False),
        "title": text(required=False),
        "framework": text("What is run where no command is given.", choices=TEMPLATES, required=False),
        "serve": text("Started once a trial; it listens at $ACME_PORT when it is ready.", required=False),
        "infer": text("Answers one shard, into $ACME_OUTPUT.", required=False),
        "metric": text("Scores it on CPUs, into $ACME_RESULT.", required=False),
        "stage_root": text("Where nodes keep copies of models, as /dev/shm.", required=False),
        "gpus": number("Of a trial; 0: it runs on CPUs.", low=0, high=64, required=False),
        "cpus": number(low=1, high=1024, required=False),
        "memory": anything("MiB, or text as 64G.", required=False),
        "metric_jobs": number(low=1, high=1000, required=False),
    },
    example={
        "name": "core",
        "framework": "lm-eval",
        "output_root": "/shared/evaluations",
        "datasets": [{"name": "gsm8k", "samples": 1319}],
    },
)

STANDING = Shape(
    "Standing",
    {
        "evaluations": number(low=0),
        "done": number(low=0),
        "failed": number(low=0),
        "cancelled": number(low=0),
        "percent": measure("Of the samples: half when they are answered, half when they are scored."),
    },
)

PLAN = Shape(
    "Plan",
    {
        "nodes": number(low=1),
        "slots_per_node": number(low=1),
        "makespan_s": measure("What was foreseen before anything ran."),
        "lower_bound_s": measure("What no schedule can beat."),
        "gpu_hours": measure(),
        "trials": number(low=0),
        "meets_deadline": truth(nullable=True),
    },
)


def _plan(row: Campaign) -> dict[str, Any] | None:
    return {name: row.plan[name] for name in PLAN.fields} if row.plan else None


CAMPAIGN = Shape(
    "Campaign",
    {
        "id": text("Short public id that sorts by time.", get=at("public_id"), needs=("public_id",)),
        "cluster": text(get=at("cluster.name"), needs=("cluster__name",)),
        "team": text(get=at("team.name"), needs=("team__name",)),
        "user": text(get=at("user.username"), needs=("user__username",)),
        "suite": text(
            "NAME@VERSION.", get=lambda r: f"{r.suite.name}@{r.suite.version}", needs=("suite__name", "suite__version")
        ),
        "checkpoints": texts("What is evaluated."),
        "weights_gb": measure("Of a checkpoint."),
        "nodes": number("At most so many at once; null before it is planned.", low=1, nullable=True),
        "deadline_at": moment(nullable=True),
        "state": text(choices=CampaignState.values),
        "why": text("What went wrong, as a sentence."),
        "created_at": moment(),
        "started_at": moment(nullable=True),
        "ended_at": moment(nullable=True),
        "standing": anything("How far it is.", get=lambda row: STANDING.show(row.standing), needs=()),
        "plan": anything("Made before anything ran.", get=_plan, nullable=True, listed=False),
        "gpu_hours": measure("Held by its trials so far.", get=lambda row: row.gpu_hours, needs=("pk",), listed=False),
    },
)
CAMPAIGN.fields["standing"].schema.update(STANDING.schema())
CAMPAIGN.fields["plan"].schema.update(oneOf=[PLAN.schema(), {"type": "null"}])

CAMPAIGN_ASKED = Shape(
    "CampaignRequest",
    {
        "checkpoints": texts("Absolute paths, as the nodes see them."),
        "suite": text("NAME for its newest version, or NAME@2."),
        "team": text("Needed by those who submit for several teams.", required=False),
        "cluster": text("Needed where there are several.", required=False),
        "nodes": number("At most so many at once.", low=1, high=100_000, required=False),
        "deadline_at": moment("Instead of nodes: the fewest that are through by then.", required=False),
        "within": anything("The same as a time from now: seconds, or text as 2:00:00.", required=False),
        "weights_gb": measure("Of one checkpoint; 14 if not given.", required=False),
        "again": truth("Evaluate what is known already once more.", required=False),
    },
    example={"checkpoints": ["/checkpoints/run/step-1000"], "suite": "core", "nodes": 1},
)

EVALUATION = Shape(
    "Evaluation",
    {
        "id": number(get=at("pk"), needs=("pk",)),
        "checkpoint": text(),
        "dataset": text(get=at("dataset.name"), needs=("dataset__name",)),
        "samples": number(get=at("dataset.samples"), needs=("dataset__samples",)),
        "state": text(choices=CampaignState.values),
        "scores": anything("Names and numbers; null before the end.", nullable=True),
        "reused": truth("Known from before.", get=lambda row: row.reused_id is not None, needs=("reused",)),
        "why": text("Why it failed."),
        "ended_at": moment(nullable=True),
    },
)

# The campaign's own fields are read where forms and the command line are too (`evaluating.ask`)
ANY: dict[str, readers.Reader] = {name: lambda _, value: value for name in CAMPAIGN_ASKED.fields}


class Suites(Listing, Verb):
    """List suites, define one or its next version."""

    tag = "Evaluation"
    what = "suites"
    shape = SUITE
    filters = {
        "team": query.text("team__name"),
        "name": query.text("name"),
        "framework": query.choice("framework", tuple(TEMPLATES)),
        "created_at": query.moment("created_at"),
    }
    rules = {
        "GET": Rule(scope=Scope.READ, says="List the suites of your teams", answer=SUITE, many=True),
        "POST": Rule(
            scope=Scope.SUBMIT,
            says="Define a suite; one that is changed is a new version",
            body=SUITE_ASKED,
            answer=SUITE,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[Suite]:
        return evaluating.suites(self.caller)

    def work(self) -> Response:
        asked = dict(self.object())
        team = Places(self.caller).team_of(asked.pop("team", None))
        made = actions.define(asking.suite(asked), team=team, author=self.author)
        shown = SUITE.show(SUITE.load(evaluating.suites(self.caller), SUITE.fields).get(pk=made.pk))
        address = self.request.build_absolute_uri(f"{self.request.path}{made.pk}/")
        return Response(shown, status=201, headers={"Location": address})


class OneSuite(Detail):
    """A suite with its commands and datasets."""

    tag = "Evaluation"
    shape = SUITE
    rules = {"GET": Rule(scope=Scope.READ, says="One suite, with its datasets", answer=SUITE, team=True)}

    def row(self, id: int) -> Suite:
        row: Suite = found(SUITE.load(evaluating.suites(self.caller), SUITE.fields), "suite", pk=id)
        return row


class Campaigns(Listing, Verb):
    """List campaigns, ask for one."""

    tag = "Evaluation"
    what = "campaigns"
    shape = CAMPAIGN
    filters = {
        "id": query.text("public_id"),
        "team": query.text("team__name"),
        "user": query.text("user__username"),
        "cluster": query.text("cluster__name"),
        "suite": query.text("suite__name"),
        "state": query.choice("state", CampaignState.values),
        "created_at": query.moment("created_at"),
    }
    rules = {
        "GET": Rule(scope=Scope.READ, says="List the campaigns of your teams", answer=CAMPAIGN, many=True),
        "POST": Rule(
            scope=Scope.SUBMIT,
            says="Evaluate checkpoints with a suite; what is known already is not run again",
            body=CAMPAIGN_ASKED,
            answer=CAMPAIGN,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[Campaign]:
        return evaluating.campaigns(self.caller)

    def complete(self, rows: list[Any], names: list[str]) -> None:
        complete(rows, names)

    def work(self) -> Response:
        made = evaluating.ask(self.body(ANY, "a campaign"), Places(self.caller), self.author, clock.now())
        address = self.request.build_absolute_uri(f"{self.request.path}{made.public_id}/")
        return Response(shown(self.caller, made.public_id), status=201, headers={"Location": address})


def complete(rows: list[Any], names: Any) -> None:
    known = evaluating.standings(rows) if "standing" in names else {}
    for row in rows:
        row.standing = known.get(row.pk, Standing())
        row.gpu_hours = round(evaluating.gpu_hours(row, clock.now()), 4) if "gpu_hours" in names else None


def one_of(caller: Any, id: str) -> Campaign:
    rows = CAMPAIGN.load(evaluating.campaigns(caller), CAMPAIGN.fields)
    row: Campaign = found(rows, "campaign", public_id=id)
    complete([row], CAMPAIGN.fields)
    return row


def shown(caller: Any, id: str) -> dict[str, Any]:
    return CAMPAIGN.show(one_of(caller, id))


class OneCampaign(Detail):
    """How far it is, what it was to take and what it has cost."""

    tag = "Evaluation"
    shape = CAMPAIGN
    rules = {"GET": Rule(scope=Scope.READ, says="One campaign, with its plan", answer=CAMPAIGN, team=True)}

    def row(self, id: str) -> Campaign:
        return one_of(self.caller, id)


class CampaignEvaluations(Listing):
    """Its table of results, as they arrive."""

    tag = "Evaluation"
    what = "evaluations"
    shape = EVALUATION
    filters = {
        "checkpoint": query.text("checkpoint"),
        "dataset": query.text("dataset__name"),
        "state": query.choice("state", CampaignState.values),
    }
    ordering = "id"
    rules = {
        "GET": Rule(
            scope=Scope.READ,
            says="Each dataset of each checkpoint",
            answer=EVALUATION,
            many=True,
            team=True,
        )
    }

    def rows(self, id: str) -> QuerySet[Evaluation]:
        campaign = found(evaluating.campaigns(self.caller), "campaign", public_id=id)
        return Evaluation.objects.filter(campaign=campaign)


class _Change(Verb):
    tag = "Evaluation"

    def work(self, id: str) -> Response:
        self.body({}, "a change of a campaign")
        row = found(evaluating.campaigns(self.caller).select_related("suite"), "campaign", public_id=id)
        if not self.caller.may_change(row):
            raise PermissionDenied(self.caller.why_not(row, str(row)))
        versions.refuse_stale(self.request, shown(self.caller, id))
        try:
            self.change(row)
        except Gone as gone:
            raise Conflict(str(gone)) from None
        told = shown(self.caller, id)
        return Response(told, headers={"ETag": versions.etag(told)})

    def change(self, row: Campaign) -> None:
        raise NotImplementedError


def _changes(says: str) -> dict[str, Rule]:
    nothing = Shape("NothingMore", {})
    return {"POST": Rule(scope=Scope.SUBMIT, says=says, body=nothing, answer=CAMPAIGN, conflicts=True, team=True)}


class CancelCampaign(_Change):
    """Take it back; its jobs are stopped, its results stay."""

    rules = _changes("End a campaign before it is through")

    def change(self, row: Campaign) -> None:
        actions.cancel(row, author=self.author, now=clock.now())


class RetryCampaign(_Change):
    """What failed, and nothing else."""

    rules = _changes("Try again what failed of a campaign")

    def change(self, row: Campaign) -> None:
        actions.retry(row, author=self.author, now=clock.now())


urlpatterns = [
    path("suites/", Suites.as_view()),
    path("suites/<int:id>/", OneSuite.as_view()),
    path("campaigns/", Campaigns.as_view()),
    path("campaigns/<public_id:id>/", OneCampaign.as_view()),
    path("campaigns/<public_id:id>/evaluations/", CampaignEvaluations.as_view()),
    path("campaigns/<public_id:id>/cancel/", CancelCampaign.as_view()),
    path("campaigns/<public_id:id>/retry/", RetryCampaign.as_view()),
]
