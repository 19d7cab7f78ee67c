"""What was learned, through the programs' door: rules with their hits, and past failures that looked alike."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from failures import alike, rights, rule_actions
from failures.actions import Moved
from failures.api.shapes import real
from failures.diagnosis.labels import LABELS
from failures.models import LearnedRule, Origin, RuleKind, RuleState
from jobs import clock, readers
from jobs.api.shapes import WHY
from jobs.door import query, versions
from jobs.door.endpoint import Detail, Endpoint, Listing, Verb, found, refuse_unknown
from jobs.door.errors import Conflict
from jobs.door.rights import Rule
from jobs.door.shapes import Shape, at, moment, number, text
from jobs.models import Scope

RULE = Shape(
    "LearnedRule",
    {
        "id": text(get=at("name"), needs=("name",)),
        "kind": text(choices=RuleKind.values),
        "label": text("The root cause it names; a filter has none."),
        "pattern": text(),
        "origin": text(choices=Origin.values),
        "owner": text(get=lambda row: row.owner.username if row.owner else "", needs=("owner__username",)),
        "state": text("A shadow is counted and changes nothing.", choices=RuleState.values),
        "hits": number("Diagnoses in whose bundle it found something.", get=at("hit_count"), needs=()),
        "right": number("Of these, judged by people and of this cause.", needs=()),
        "wrong": number("Of these, judged by people and of another cause.", needs=()),
        "precision": real(
            "Right among those judged; null before any was.", get=at("precision"), needs=(), nullable=True
        ),
        "proposed_at": moment(),
        "adopted_at": moment(nullable=True),
        "adopted_by": text(),
        "retired_at": moment(nullable=True),
        "retired_by": text(),
        "retired_why": text(),
    },
)
ALIKE = Shape(
    "SimilarFailure",
    {
        "id": text("The attempt.", get=at("diagnosis.attempt.key"), needs=("diagnosis__attempt__key",)),
        "root_cause": text(get=at("diagnosis.root_cause"), needs=("diagnosis__root_cause",)),
        "likeness": real("1: the same words.", get=at("likeness"), needs=()),
        "cured_by": text("What people wrote when it was over.", get=at("cured_by"), needs=()),
        "failed_at": moment(get=at("diagnosis.failed_at"), needs=("diagnosis__failed_at",)),
    },
)


class Rules(Listing):
    """What was learned from confirmed diagnoses."""

    tag = "Failures"
    what = "rules"
    shape = RULE
    filters = {
        "id": query.text("name"),
        "kind": query.choice("kind", RuleKind.values),
        "label": query.choice("label", list(LABELS)),
        "origin": query.choice("origin", Origin.values),
        "state": query.choice("state", RuleState.values),
    }
    rules = {"GET": Rule(scope=Scope.READ, says="Learned rules, with hits and precision", answer=RULE, many=True)}

    def rows(self) -> QuerySet[LearnedRule]:
        return rights.rules(self.caller).counted()


def whole(caller: Any, rule: str) -> Any:
    return found(RULE.load(rights.rules(caller).counted(), RULE.fields), "rule", name=rule)


class OneRule(Detail):
    """One rule."""

    tag = "Failures"
    shape = RULE
    rules = {"GET": Rule(scope=Scope.READ, says="One learned rule", answer=RULE, team=True)}

    def row(self, rule: str) -> Any:
        return whole(self.caller, rule)


def _verb(name: str, says: str, act: Any) -> type[Verb]:
    def work(self: Any, rule: str) -> Response:
        asked = self.body({"reason": readers.text(1000, lines=True)}, f"the verb {name}")
        row = found(rights.rules(self.caller).select_related("source__attempt__job"), "rule", name=rule)
        if not rights.may_keep_rules(self.caller):
            raise PermissionDenied("Operators keep the rulebook.")
        versions.refuse_stale(self.request, RULE.show(whole(self.caller, rule)))
        try:
            act(row, author=self.author, now=clock.now(), why=asked.get("reason", ""))
        except Moved as moved:
            raise Conflict(str(moved)) from None
        told = RULE.show(whole(self.caller, rule))
        return Response(told, headers={"ETag": versions.etag(told)})

    rule = Rule(scope=Scope.SUBMIT, says=says, body=WHY, answer=RULE, conflicts=True, team=True)
    return type(f"{name.title()}Rule", (Verb,), {"tag": "Failures", "rules": {"POST": rule}, "work": work})


AdoptRule = _verb("adopt", "Let a rule count in every verdict", rule_actions.adopt)
RetireRule = _verb("retire", "Let a rule count no more", rule_actions.retire)


class Similar(Endpoint):
    """Confirmed failures of the past whose logs said nearly the same."""

    tag = "Failures"
    rules = {
        "GET": Rule(scope=Scope.READ, says="Seen before, and cured by what", answer=ALIKE, many=True, team=True),
    }

    def get(self, request: Any, attempt: str) -> Response:
        refuse_unknown(request)
        row = found(rights.diagnoses(self.caller), "diagnosis", attempt__key=attempt)
        rows = alike.seen_before(row, self.caller)
        return Response({"next": None, "previous": None, "results": [ALIKE.show(one) for one in rows]})
