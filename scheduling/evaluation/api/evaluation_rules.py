"""API of evaluation rules, which evaluate new checkpoints automatically."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.urls import path
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from jobs.actions.submissions import CallerTargets
from jobs.models import TokenScope
from jobs.rest import etags, query_params
from jobs.rest.endpoint import (
    ActionEndpoint,
    DetailEndpoint,
    ListEndpoint,
    find_or_404,
    lock_unchanged_row,
    reject_unknown_params,
)
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    attribute_path,
    boolean_field,
    datetime_field,
    duration_field,
    integer_field,
    number_field,
    text_field,
)
from scheduling.evaluation.actions import evaluation_rules as rule_actions
from scheduling.evaluation.reads import campaigns as campaign_reads
from scheduling.evaluation.rules import evaluation_rules as rule_requests
from scheduling.evaluation.rules.evaluation_rules import MAX_CAMPAIGNS_PER_DAY
from scheduling.models import EvaluationRule, RuleSelection

EVALUATION_TAG = "Evaluation"

RULE_SHAPE = ResourceShape(
    "EvaluationRule",
    {
        "id": integer_field(get=attribute_path("pk"), needs=("pk",)),
        "team": text_field(get=attribute_path("team.name"), needs=("team__name",)),
        "user": text_field(
            "Campaigns are started on behalf of this user.",
            get=attribute_path("user.username"),
            needs=("user__username",),
        ),
        "cluster": text_field(get=attribute_path("cluster.name"), needs=("cluster__name",)),
        "directory": text_field("Directory that is checked for new checkpoints."),
        "suite": text_field("NAME for the newest version at the start of each campaign, or NAME@2."),
        "pattern": text_field(
            "Pattern of checkpoint names within the directory; * matches anything. Empty: all names."
        ),
        "which": text_field(choices=RuleSelection.values),
        "interval_s": number_field(
            "Minimum time between two campaigns.", get=lambda row: row.interval.total_seconds(), needs=("interval",)
        ),
        "per_day": integer_field("Maximum number of campaigns in 24 hours.", low=1),
        "nodes": integer_field("Node limit of each campaign.", low=1, nullable=True),
        "checkpoint_gb": number_field("Size of one checkpoint, in GB."),
        "is_enabled": boolean_field(),
        "started": integer_field("Number of campaigns started.", low=0, observed=True),
        "looked_at": datetime_field(nullable=True, observed=True),
        "why": text_field("What the rule waits for, or what is wrong.", observed=True),
        "created_at": datetime_field(),
    },
)

RULE_CHANGE_FIELDS = {
    "suite": text_field("NAME for the newest version at the start of each campaign, or NAME@2.", required=False),
    "pattern": text_field("Pattern of checkpoint names within the directory; * matches anything.", required=False),
    "which": text_field(choices=RuleSelection.values, required=False),
    "interval": duration_field(
        "Minimum time between two campaigns: seconds, or a string such as 2:00:00.", required=False
    ),
    "per_day": integer_field(low=1, high=MAX_CAMPAIGNS_PER_DAY, required=False),
    "nodes": integer_field(
        "Node limit of each campaign; null: no limit.", low=1, high=100_000, required=False, nullable=True
    ),
    "checkpoint_gb": number_field("Size of one checkpoint, in GB. Default: 14.", required=False),
    "is_enabled": boolean_field(required=False),
}
RULE_CHANGE_SHAPE = ResourceShape("EvaluationRuleChange", RULE_CHANGE_FIELDS, example={"is_enabled": False})
RULE_REQUEST_SHAPE = ResourceShape(
    "EvaluationRuleRequest",
    {
        **RULE_CHANGE_FIELDS,
        "directory": text_field("Absolute path on the nodes."),
        "suite": text_field("NAME for the newest version at the start of each campaign, or NAME@2."),
        "team": text_field("Required if you can submit for several teams.", required=False),
        "cluster": text_field("Required if there are several clusters.", required=False),
    },
    example={"directory": "/checkpoints/run", "suite": "core", "which": "newest", "interval": "1:00:00"},
)


class EvaluationRuleListEndpoint(ListEndpoint, ActionEndpoint):
    """List evaluation rules; add a rule."""

    tag = EVALUATION_TAG
    what = "evaluation rules"
    shape = RULE_SHAPE
    filters = {
        "team": query_params.text_filter("team__name"),
        "user": query_params.text_filter("user__username"),
        "cluster": query_params.text_filter("cluster__name"),
        "directory": query_params.text_filter("directory"),
    }
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="List the evaluation rules of your teams", answer=RULE_SHAPE, many=True
        ),
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Add a rule that evaluates each new checkpoint in a directory",
            body=RULE_REQUEST_SHAPE,
            answer=RULE_SHAPE,
            status=201,
        ),
    }

    def rows(self) -> QuerySet[EvaluationRule]:
        return campaign_reads.rules(self.caller)

    def work(self) -> Response:
        created = rule_actions.create_rule_from_request(self.object(), CallerTargets(self.caller), self.author)
        address = self.request.build_absolute_uri(f"{self.request.path}{created.pk}/")
        return Response(rule_response(self.caller, created.pk), status=201, headers={"Location": address})


def get_rule(caller: Any, rule: int) -> EvaluationRule:
    row: EvaluationRule = find_or_404(
        campaign_reads.rules(caller).select_related("team", "user", "cluster"), "rule", pk=rule
    )
    return row


def rule_response(caller: Any, rule: int) -> dict[str, Any]:
    return RULE_SHAPE.show(get_rule(caller, rule))


def get_changeable_rule(caller: Any, rule: int) -> EvaluationRule:
    row = get_rule(caller, rule)
    if not caller.may_change(row):
        raise PermissionDenied(caller.denial_reason(row, f"The {row}"))
    return row


def get_locked_rule(request: Any, caller: Any, rule: int) -> EvaluationRule:
    """Return the rule, locked until the commit, after comparing it with If-Match."""
    row: EvaluationRule = lock_unchanged_row(request, RULE_SHAPE, lambda: get_changeable_rule(caller, rule))
    return row


class EvaluationRuleDetailEndpoint(DetailEndpoint):
    """One rule with its settings and state; change it, or enable or disable it."""

    tag = EVALUATION_TAG
    shape = RULE_SHAPE
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="One evaluation rule", answer=RULE_SHAPE, team=True),
        "PATCH": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Change, enable or disable a rule",
            body=RULE_CHANGE_SHAPE,
            answer=RULE_SHAPE,
            team=True,
            conflicts=True,
        ),
    }

    def row(self, rule: int) -> EvaluationRule:
        return get_rule(self.caller, rule)

    def patch(self, request: Any, rule: int) -> Response:
        reject_unknown_params(request)
        fields = rule_requests.parse_rule_changes(self.object())
        with transaction.atomic():
            row = get_locked_rule(request, self.caller, rule)
            rule_actions.change(row, fields, author=self.author)
        document = rule_response(self.caller, rule)
        return Response(document, headers={"ETag": etags.etag(document, RULE_SHAPE.observed)})


class RemoveEvaluationRuleEndpoint(ActionEndpoint):
    """Remove a rule. It starts no more campaigns; existing campaigns are kept."""

    tag = EVALUATION_TAG
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Remove an evaluation rule",
            body=ResourceShape("NothingMore", {}),
            answer=RULE_SHAPE,
            team=True,
            conflicts=True,
        )
    }

    def work(self, rule: int) -> Response:
        self.body({}, "the verb remove")
        row = get_locked_rule(self.request, self.caller, rule)
        document = RULE_SHAPE.show(row)
        rule_actions.remove(row, author=self.author)
        return Response(document)


urlpatterns = [
    path("evaluation-rules/", EvaluationRuleListEndpoint.as_view()),
    path("evaluation-rules/<int:rule>/", EvaluationRuleDetailEndpoint.as_view()),
    path("evaluation-rules/<int:rule>/remove/", RemoveEvaluationRuleEndpoint.as_view()),
]
