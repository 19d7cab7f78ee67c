"""What was learned, through the programs' door: rules with their hits, and past failures that looked alike."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from failures.actions import rules as rule_actions
from failures.actions.incidents import FailureStateConflict
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
from jobs.rest.errors import Conflict
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import ResourceShape, attribute_path, datetime_field, integer_field, text_field

RULE_SHAPE = ResourceShape(
    "LearnedRule",
    {
        "id": text_field(get=attribute_path("name"), needs=("name",)),
        "kind": text_field(choices=RuleKind.values),
        "label": text_field("The root cause it names; a filter has none."),
        "pattern": text_field(),
        "origin": text_field(choices=RuleOrigin.values),
        "owner": text_field(get=lambda row: row.owner.username if row.owner else "", needs=("owner__username",)),
        "state": text_field("A shadow is counted and changes nothing.", choices=RuleState.values),
        "hits": integer_field(
            "Diagnoses in whose bundle it found something.", get=attribute_path("hit_count"), needs=()
        ),
        "right": integer_field("Of these, judged by people and of this cause.", needs=()),
        "wrong": integer_field("Of these, judged by people and of another cause.", needs=()),
        "precision": float_field(
            "Right among those judged; null before any was.", get=attribute_path("precision"), needs=(), nullable=True
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
            "The attempt.", get=attribute_path("diagnosis.attempt.key"), needs=("diagnosis__attempt__key",)
        ),
        "root_cause": text_field(get=attribute_path("diagnosis.root_cause"), needs=("diagnosis__root_cause",)),
        "likeness": float_field("1: the same words.", get=attribute_path("likeness"), needs=()),
        "cured_by": text_field("What people wrote when it was over.", get=attribute_path("cured_by"), needs=()),
        "failed_at": datetime_field(get=attribute_path("diagnosis.failed_at"), needs=("diagnosis__failed_at",)),
    },
)


class Rules(ListEndpoint):
    """What was learned from confirmed diagnoses."""

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
            scope=TokenScope.READ, says="Learned rules, with hits and precision", answer=RULE_SHAPE, many=True
        )
    }

    def rows(self) -> QuerySet[LearnedRule]:
        return failure_permissions.visible_rules(self.caller).counted()


def get_rule_row(caller: Any, rule: str) -> Any:
    return find_or_404(
        RULE_SHAPE.load(failure_permissions.visible_rules(caller).counted(), RULE_SHAPE.fields), "rule", name=rule
    )


class OneRule(DetailEndpoint):
    """One rule."""

    tag = "Failures"
    shape = RULE_SHAPE
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="One learned rule", answer=RULE_SHAPE, team=True)}

    def row(self, rule: str) -> Any:
        return get_rule_row(self.caller, rule)


def _rule_verb(name: str, says: str, act: Any) -> type[ActionEndpoint]:
    def work(self: Any, rule: str) -> Response:
        asked = self.body({"reason": parsing.text_reader(1000, lines=True)}, f"the verb {name}")
        row = find_or_404(
            failure_permissions.visible_rules(self.caller).select_related("source__attempt__job"), "rule", name=rule
        )
        if not failure_permissions.may_manage_rules(self.caller):
            raise PermissionDenied("Operators keep the rulebook.")
        etags.check_if_match(self.request, RULE_SHAPE.show(get_rule_row(self.caller, rule)))
        try:
            act(row, author=self.author, now=clock.now(), why=asked.get("reason", ""))
        except FailureStateConflict as moved:
            raise Conflict(str(moved)) from None
        told = RULE_SHAPE.show(get_rule_row(self.caller, rule))
        return Response(told, headers={"ETag": etags.etag(told)})

    rule = EndpointRule(
        scope=TokenScope.SUBMIT, says=says, body=REASON_BODY, answer=RULE_SHAPE, conflicts=True, team=True
    )
    return type(f"{name.title()}Rule", (ActionEndpoint,), {"tag": "Failures", "rules": {"POST": rule}, "work": work})


AdoptRule = _rule_verb("adopt", "Let a rule count in every verdict", rule_actions.adopt)
RetireRule = _rule_verb("retire", "Let a rule count no more", rule_actions.retire)


class Similar(ApiEndpoint):
    """Confirmed failures of the past whose logs said nearly the same."""

    tag = "Failures"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Seen before, and cured by what",
            answer=SIMILAR_FAILURE_SHAPE,
            many=True,
            team=True,
        ),
    }

    def get(self, request: Any, attempt: str) -> Response:
        reject_unknown_params(request)
        row = find_or_404(failure_permissions.visible_diagnoses(self.caller), "diagnosis", attempt__key=attempt)
        rows = similar_failures.similar_confirmed_cases(row, self.caller)
        return Response({"next": None, "previous": None, "results": [SIMILAR_FAILURE_SHAPE.show(one) for one in rows]})
