"""Rules by which new checkpoints are evaluated, through the programs' door."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.urls import path
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from jobs.api.submitting import Places
from jobs.door import query, versions
from jobs.door.endpoint import Detail, Listing, Verb, found, refuse_unknown
from jobs.door.errors import Conflict
from jobs.door.rights import Rule
from jobs.door.shapes import Shape, anything, at, measure, moment, number, text, truth
from jobs.models import Scope
from scheduling import evaluating
from scheduling import evaluation_rule_actions as actions
from scheduling.evaluation import rules as asking
from scheduling.evaluation.rules import MOST_A_DAY
from scheduling.evaluation_actions import Gone
from scheduling.models import EvaluationRule, Which

TAG = "Evaluation"

RULE = Shape(
    "EvaluationRule",
    {
        "id": number(get=at("pk"), needs=("pk",)),
        "team": text(get=at("team.name"), needs=("team__name",)),
        "user": text("In whose name campaigns are asked for.", get=at("user.username"), needs=("user__username",)),
        "cluster": text(get=at("cluster.name"), needs=("cluster__name",)),
        "directory": text("Where checkpoints appear."),
        "suite": text("NAME for its newest version at the time, or NAME@2."),
        "pattern": text("Of names beneath the directory; * is anything; empty: all."),
        "which": text(choices=Which.values),
        "interval_s": measure(
            "The least time between two campaigns.", get=lambda row: row.interval.total_seconds(), needs=("interval",)
        ),
        "per_day": number("At most so many campaigns in 24 hours.", low=1),
        "nodes": number("Of each campaign.", low=1, nullable=True),
        "weights_gb": measure("Of a checkpoint."),
        "is_on": truth(),
        "started": number("Campaigns that it has asked for.", low=0, observed=True),
        "looked_at": moment(nullable=True, observed=True),
        "why": text("What it waits for, or what is wrong.", observed=True),
        "created_at": moment(),
    },
)

CHANGED = {
    "suite": text("NAME for its newest version at the time, or NAME@2.", required=False),
    "pattern": text("Of names beneath the directory; * is anything.", required=False),
    "which": text(choices=Which.values, required=False),
    "interval": anything("The least time between two campaigns: seconds, or text as 2:00:00.", required=False),
    "per_day": number(low=1, high=MOST_A_DAY, required=False),
    "nodes": number("Of each campaign; null: no limit.", low=1, high=100_000, required=False, nullable=True),
    "weights_gb": measure("Of one checkpoint; 14 if not given.", required=False),
    "is_on": truth(required=False),
}
RULE_CHANGE = Shape("EvaluationRuleChange", CHANGED, example={"is_on": False})
RULE_ASKED = Shape(
    "EvaluationRuleRequest",
    {
        **CHANGED,
        "directory": text("An absolute path, as the nodes see it."),
        "suite": text("NAME for its newest version at the time, or NAME@2."),
        "team": text("Needed by those who submit for several teams.", required=False),
        "cluster": text("Needed where there are several.", required=False),
    },
    example={"directory": "/checkpoints/run", "suite": "core", "which": "newest", "interval": "1:00:00"},
)


class EvaluationRules(Listing, Verb):
    """List rules, make one."""

    tag = TAG
    what = "rules of evaluation"
    shape = RULE
    filters = {
        "team": query.text("team__name"),
        "user": query.text("user__username"),
        "cluster": query.text("cluster__name"),
        "directory": query.text("directory"),
    }
    rules = {
        "GET": Rule(scope=Scope.READ, says="List the rules of your teams", answer=RULE, many=True),
        "POST": Rule(
            scope=Scope.SUBMIT,
            says="Evaluate each new checkpoint that appears in a directory",
            body=RULE_ASKED,
            answer=RULE,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[EvaluationRule]:
        return evaluating.rules(self.caller)

    def work(self) -> Response:
        made = evaluating.make_rule(self.object(), Places(self.caller), self.author)
        address = self.request.build_absolute_uri(f"{self.request.path}{made.pk}/")
        return Response(shown(self.caller, made.pk), status=201, headers={"Location": address})


def one_of(caller: Any, rule: int) -> EvaluationRule:
    row: EvaluationRule = found(evaluating.rules(caller).select_related("team", "user", "cluster"), "rule", pk=rule)
    return row


def shown(caller: Any, rule: int) -> dict[str, Any]:
    return RULE.show(one_of(caller, rule))


def changeable(caller: Any, rule: int) -> EvaluationRule:
    row = one_of(caller, rule)
    if not caller.may_change(row):
        raise PermissionDenied(caller.why_not(row, f"The {row}"))
    return row


def locked(request: Any, caller: Any, rule: int) -> EvaluationRule:
    """As it stays until the commit; If-Match is held against it."""
    row = changeable(caller, rule)
    list(EvaluationRule.objects.select_for_update().filter(pk=row.pk).values("pk"))
    row = changeable(caller, rule)
    versions.refuse_stale(request, RULE.show(row), RULE.observed)
    return row


class OneEvaluationRule(Detail):
    """What it looks for and how it goes; switch it off, or change how often it may."""

    tag = TAG
    shape = RULE
    rules = {
        "GET": Rule(scope=Scope.READ, says="One rule", answer=RULE, team=True),
        "PATCH": Rule(
            scope=Scope.SUBMIT,
            says="Change a rule, or switch it off or on",
            body=RULE_CHANGE,
            answer=RULE,
            team=True,
            conflicts=True,
        ),
    }

    def row(self, rule: int) -> EvaluationRule:
        return one_of(self.caller, rule)

    def patch(self, request: Any, rule: int) -> Response:
        refuse_unknown(request)
        fields = asking.changes(self.object())
        with transaction.atomic():
            row = locked(request, self.caller, rule)
            try:
                actions.change(row, fields, author=self.author)
            except Gone as gone:
                raise Conflict(str(gone)) from None
        told = shown(self.caller, rule)
        return Response(told, headers={"ETag": versions.etag(told, RULE.observed)})


class RemoveEvaluationRule(Verb):
    """It starts nothing any more; its campaigns stay."""

    tag = TAG
    rules = {
        "POST": Rule(
            scope=Scope.SUBMIT,
            says="Remove a rule",
            body=Shape("NothingMore", {}),
            answer=RULE,
            team=True,
            conflicts=True,
        )
    }

    def work(self, rule: int) -> Response:
        self.body({}, "the verb remove")
        row = locked(self.request, self.caller, rule)
        told = RULE.show(row)
        try:
            actions.remove(row, author=self.author)
        except Gone as gone:
            raise Conflict(str(gone)) from None
        return Response(told)


urlpatterns = [
    path("evaluation-rules/", EvaluationRules.as_view()),
    path("evaluation-rules/<int:rule>/", OneEvaluationRule.as_view()),
    path("evaluation-rules/<int:rule>/remove/", RemoveEvaluationRule.as_view()),
]
