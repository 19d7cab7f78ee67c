"""The REST API of learned rules and of similar failures."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from failures.actions import rules as rule_actions
from failures.api.shapes import float_field
from failures.diagnosis.labels import LABELS
from failures.models import LearnedRule, RuleKind, RuleOrigin, RuleState
from failures.models import permissions as failure_permissions
from failures.queries import similar_failures
from jobs.api.shapes import REASON_BODY
from jobs.core import parsing
from jobs.models import TokenScope, clock
from jobs.rest import etags, query_params
from jobs.rest.endpoint import (
    ActionEndpoint,
    ApiEndpoint,
    DetailEndpoint,
    ListEndpoint,
    find_or_404,
    reject_unknown_params,
)
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import ResourceShape, attribute_path, datetime_field, integer_field, text_field

RULE_SHAPE = ResourceShape(
    "LearnedRule",
    {
        "id": text_field(get=attribute_path("name"), needs=("name",)),
        "kind": text_field(choices=RuleKind.values),
        "label": text_field("Root cause that the rule names. Empty for a filter."),
        "pattern": text_field(),
        "origin": text_field(choices=RuleOrigin.values),
        "owner": text_field(get=lambda row: row.owner.username if row.owner else "", needs=("owner__username",)),
        "state": text_field(
            "shadow: hits are counted only; adopted: used in every diagnosis.", choices=RuleState.values
        ),
        "hits": integer_field(
            "Number of diagnoses whose bundle the rule matches.", get=attribute_path("hit_count"), needs=()
        ),
        "right": integer_field("Number of hits reviewed with the same cause.", needs=()),
        "wrong": integer_field("Number of hits reviewed with another cause.", needs=()),
        "precision": float_field(
            "Fraction of reviewed hits that were right. Null if none was reviewed.",
            get=attribute_path("precision"),
            needs=(),
            nullable=True,
        ),
        "proposed_at": datetime_field(),
        "adopted_at": datetime_field(nullable=True),
        "adopted_by": text_field(),
        "retired_at": datetime_field(nullable=True),
        "retired_by": text_field(),
        "retired_why": text_field(),
    },
)
SIMILAR_FAILURE_SHAPE = ResourceShape(
    "SimilarFailure",
    {
        "id": text_field(
            "Attempt id.", get=attribute_path("diagnosis.attempt.key"), needs=("diagnosis__attempt__key",)
        ),
        "root_cause": text_field(get=attribute_path("diagnosis.root_cause"), needs=("diagnosis__root_cause",)),
        "similarity": float_field(
            "Similarity of the logs, 1 for the same text.", get=attribute_path("similarity"), needs=()
        ),
        "cured_by": text_field("Review note or resolution of that failure.", get=attribute_path("cured_by"), needs=()),
        "failed_at": datetime_field(get=attribute_path("diagnosis.failed_at"), needs=("diagnosis__failed_at",)),
    },
)


class Rules(ListEndpoint):
    """Rules learned from confirmed diagnoses."""

    tag = "Failures"
    what = "rules"
    shape = RULE_SHAPE
    filters = {
        "id": query_params.text_filter("name"),
        "kind": query_params.choice_filter("kind", RuleKind.values),
        "label": query_params.choice_filter("label", list(LABELS)),
        "origin": query_params.choice_filter("origin", RuleOrigin.values),
        "state": query_params.choice_filter("state", RuleState.values),
    }
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="List the learned rules with hits and precision", answer=RULE_SHAPE, many=True
        )
    }

    def rows(self) -> QuerySet[LearnedRule]:
        return failure_permissions.visible_rules(self.caller).with_hit_counts()


def get_rule_row(caller: Any, rule: str) -> Any:
    rows = failure_permissions.visible_rules(caller).with_hit_counts()
    return find_or_404(RULE_SHAPE.load(rows, RULE_SHAPE.fields), "rule", name=rule)


class OneRule(DetailEndpoint):
    """One rule."""

    tag = "Failures"
    shape = RULE_SHAPE
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="Show one learned rule", answer=RULE_SHAPE, team=True)}

    def row(self, rule: str) -> Any:
        return get_rule_row(self.caller, rule)


def _rule_verb(name: str, says: str, act: Any) -> type[ActionEndpoint]:
    def work(self: Any, rule: str) -> Response:
        values = self.body({"reason": parsing.text_reader(1000, lines=True)}, f"the verb {name}")
        row = find_or_404(
            failure_permissions.visible_rules(self.caller).select_related("source__attempt__job"), "rule", name=rule
        )
        if not failure_permissions.may_manage_rules(self.caller):
            raise PermissionDenied("Only operators can manage learned rules.")
        etags.check_if_match(self.request, RULE_SHAPE.show(get_rule_row(self.caller, rule)))
        act(row, author=self.author, now=clock.now(), why=values.get("reason", ""))
        body = RULE_SHAPE.show(get_rule_row(self.caller, rule))
        return Response(body, headers={"ETag": etags.etag(body)})

    rule = EndpointRule(
        scope=TokenScope.SUBMIT, says=says, body=REASON_BODY, answer=RULE_SHAPE, conflicts=True, team=True
    )
    return type(f"{name.title()}Rule", (ActionEndpoint,), {"tag": "Failures", "rules": {"POST": rule}, "work": work})


AdoptRule = _rule_verb("adopt", "Adopt a rule", rule_actions.adopt)
RetireRule = _rule_verb("retire", "Retire a rule", rule_actions.retire)


class Similar(ApiEndpoint):
    """Confirmed past failures with similar logs."""

    tag = "Failures"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List similar confirmed failures with their resolutions",
            answer=SIMILAR_FAILURE_SHAPE,
            many=True,
            team=True,
        ),
    }

    def get(self, request: Any, attempt: str) -> Response:
        reject_unknown_params(request)
        row = find_or_404(failure_permissions.visible_diagnoses(self.caller), "diagnosis", attempt__key=attempt)
        rows = similar_failures.similar_confirmed_cases(row, self.caller)
        return Response(
            {"next": None, "previous": None, "results": [SIMILAR_FAILURE_SHAPE.show(case) for case in rows]}
        )
