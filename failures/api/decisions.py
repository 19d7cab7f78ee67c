"""What recovery decided, through the programs' door: read, approve, decline, undo, replay; and how far it may go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from failures.actions import decisions as decision_actions
from failures.actions.incidents import FailureStateConflict
from failures.models import Decision, DecisionState
from failures.models import permissions as failure_permissions
from failures.queries import decision_replay as replaying
from failures.recovery.remedies import AutomationMode, RecoveryAction
from failures.recovery.resizing import COMMAND, ENVIRONMENT, MEMORY
from jobs.actions import recovery as recovery_actions
from jobs.actions.nodes import NodeError
from jobs.actions.wake import request_turn
from jobs.api.shapes import REASON_BODY
from jobs.core import parsing
from jobs.models import Cluster, RecoveryMode, Team, TeamRole, TokenScope, clock
from jobs.rest import etags, query_params
from jobs.rest.endpoint import (
    ActionEndpoint,
    ApiEndpoint,
    DetailEndpoint,
    ListEndpoint,
    find_or_404,
    reject_unknown_params,
)
from jobs.rest.errors import Conflict, InvalidRequestField
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    ShapeField,
    attribute_path,
    boolean_field,
    datetime_field,
    integer_field,
    nested_list_field,
    text_field,
    text_list_field,
)

ACTION_VALUES = [one.value for one in RecoveryAction]
MODE_VALUES = [one.value for one in AutomationMode]

STEP_SHAPE = ResourceShape(
    "RecoveryStep",
    {
        "kind": text_field("drained, tested, resumed, restarted, ended, undone."),
        "node": text_field(get=attribute_path("node.name"), needs=("node__name",), nullable=True),
        "at": datetime_field(),
        "words": text_field(),
    },
)
LIMIT_SHAPE = ResourceShape("RecoveryLimit", {"mode": text_field(choices=MODE_VALUES), "why": text_field()})
CHANGE_SHAPE = ResourceShape(
    "RequestChange",
    {
        "what": text_field("Of the job's request.", choices=[MEMORY, COMMAND, ENVIRONMENT]),
        "was": text_field("Empty: it asked for no amount."),
        "becomes": text_field(),
        "why": text_field(),
        "keeps_batch": boolean_field("Whether the batch between two updates stays as it was."),
    },
)
DECISION_SHAPE = ResourceShape(
    "Decision",
    {
        "id": integer_field(),
        "incident": integer_field(get=attribute_path("incident_id"), needs=("incident_id",)),
        "attempt": text_field(
            "Null: a node alone.", get=attribute_path("attempt.key"), needs=("attempt__key",), nullable=True,
        ),
        "job": text_field(
            get=attribute_path("attempt.job.public_id"), needs=("attempt__job__public_id",), nullable=True,
        ),
        "team": text_field(
            get=attribute_path("attempt.job.team.name"), needs=("attempt__job__team__name",), nullable=True,
        ),
        "node": text_field(
            "That a sign names, where nobody has died.", get=attribute_path("sign.node.name"),
            needs=("sign__node__name",), nullable=True,
        ),
        "at": datetime_field(),
        "action": text_field(choices=ACTION_VALUES),
        "mode": text_field("How far it may go by itself.", choices=MODE_VALUES),
        "why": text_field(),
        "pro": text_list_field("What speaks for it."),
        "con": text_list_field("What speaks against it."),
        "limits": nested_list_field(
            LIMIT_SHAPE,
            "What took the mode down.",
            get=lambda row: [{"mode": mode, "why": why} for mode, why in row.limits],
            needs=("limits",),
        ),
        "drain": text_list_field("Nodes that take no new work any more."),
        "test": text_list_field("Nodes that are tested in pairs."),
        "checkpoint": text_field(
            "Where the job goes on from.", get=attribute_path("checkpoint_path"), needs=("checkpoint_path",),
        ),
        "checkpoint_step": integer_field(nullable=True),
        "skip": ShapeField(
            schema={"type": ["array", "null"], "items": {"type": "integer"}, "description": "Steps left out."}
        ),
        "change": nested_list_field(
            CHANGE_SHAPE, "What the job asks for instead.", get=lambda row: row.change, needs=("change",),
        ),
        "undo": text_field("What takes it back."),
        "not_before": datetime_field(),
        "expires_at": datetime_field("It is never carried out after that."),
        "course": text_field("What became of it.", choices=DecisionState.values),
        "said_by": text_field("Who approved, declined or undid it."),
        "said_at": datetime_field(nullable=True),
        "said_why": text_field(),
        "began_at": datetime_field(nullable=True),
        "ended_at": datetime_field(nullable=True),
        "outcome": text_field(),
        "steps": nested_list_field(
            STEP_SHAPE, "What was really done.", get=lambda row: [STEP_SHAPE.show(one) for one in row.steps.all()],
            needs=(), joins=("steps__node",), in_lists=False,
        ),
    },
)  # fmt: skip
DIFFERENCE_SHAPE = ResourceShape(
    "ReplayedField",
    {
        "what": text_field(),
        "then": text_field(),
        "today": text_field(),
        "same": boolean_field(get=attribute_path("is_same"), needs=()),
    },
)


class Decisions(ListEndpoint):
    """What recovery decided about the failures of an incident."""

    tag = "Recovery"
    what = "decisions"
    shape = DECISION_SHAPE
    filters = {
        "action": query_params.choice_filter("action", ACTION_VALUES),
        "mode": query_params.choice_filter("mode", MODE_VALUES),
        "course": query_params.choice_filter("course", DecisionState.values),
    }
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="Decisions about an incident", answer=DECISION_SHAPE, many=True, team=True
        )
    }

    def rows(self, incident: int) -> QuerySet[Decision]:
        find_or_404(failure_permissions.visible_incidents(self.caller), "incident", pk=incident)
        return failure_permissions.visible_decisions(self.caller).filter(incident=incident)


def get_decision_row(caller: Any, incident: int, decision: int) -> Decision:
    rows = DECISION_SHAPE.load(
        failure_permissions.visible_decisions(caller).filter(incident=incident), DECISION_SHAPE.fields
    )
    row: Decision = find_or_404(rows, "decision", pk=decision)
    return row


class OneDecision(DetailEndpoint):
    """One decision, with what was done."""

    tag = "Recovery"
    shape = DECISION_SHAPE
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="One decision", answer=DECISION_SHAPE, team=True)}

    def row(self, incident: int, decision: int) -> Any:
        return get_decision_row(self.caller, incident, decision)


class Replay(ApiEndpoint):
    """What today's rules would do with the same inputs."""

    tag = "Recovery"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="A decision by today's rules", answer=DIFFERENCE_SHAPE, many=True, team=True
        )
    }

    def get(self, request: Any, incident: int, decision: int) -> Response:
        reject_unknown_params(request)
        row = find_or_404(
            failure_permissions.visible_decisions(self.caller).filter(incident=incident), "decision", pk=decision
        )
        shown = [DIFFERENCE_SHAPE.show(one) for one in replaying.compare_with_replay(row)]
        return Response({"next": None, "previous": None, "results": shown})


def _decision_verb(name: str, says: str, act: Callable[..., None]) -> type[ActionEndpoint]:
    def work(self: Any, incident: int, decision: int) -> Response:
        asked = self.body({"reason": parsing.text_reader(1000, lines=True)}, f"the verb {name}")
        rows = failure_permissions.visible_decisions(self.caller).select_related(
            "attempt__job__team", "incident", "sign"
        )
        row = find_or_404(rows.filter(incident=incident), "decision", pk=decision)
        if not failure_permissions.may_decide_on(self.caller, row):
            raise PermissionDenied("Operators do that, and whoever may change the job where no node is closed.")
        etags.check_if_match(self.request, DECISION_SHAPE.show(get_decision_row(self.caller, incident, decision)))
        try:
            act(row, author=self.author, now=clock.now(), why=asked.get("reason", ""))
        except (FailureStateConflict, NodeError) as moved:
            raise Conflict(str(moved)) from None
        request_turn(row.cluster_id)
        told = DECISION_SHAPE.show(get_decision_row(self.caller, incident, decision))
        return Response(told, headers={"ETag": etags.etag(told)})

    rule = EndpointRule(
        scope=TokenScope.SUBMIT, says=says, body=REASON_BODY, answer=DECISION_SHAPE, conflicts=True, team=True
    )
    return type(
        f"{name.title()}Decision", (ActionEndpoint,), {"tag": "Recovery", "rules": {"POST": rule}, "work": work}
    )


ApproveDecision = _decision_verb("approve", "Let a proposal be carried out", decision_actions.approve)
DeclineDecision = _decision_verb("decline", "Say no to a proposal", decision_actions.decline)
UndoDecision = _decision_verb("undo", "Take back what was done", decision_actions.undo)


# --- what a person decided


ORDER_SHAPE = ResourceShape(
    "Order",
    {
        "id": integer_field(),
        "subject": text_field(
            "A job or a node.", get=attribute_path("subject"), needs=("job__public_id", "node__name")
        ),
        "by": text_field(),
        "why": text_field(),
        "at": datetime_field(),
    },
)


class Orders(ListEndpoint):
    """What people decided about jobs and nodes; recovery respects it until it is lifted."""

    tag = "Recovery"
    what = "orders"
    shape = ORDER_SHAPE
    rules = {"GET": EndpointRule(scope=TokenScope.READ, says="Standing orders", answer=ORDER_SHAPE, many=True)}

    def rows(self) -> QuerySet[Any]:
        return failure_permissions.visible_orders(self.caller)


class LiftOrder(ActionEndpoint):
    """Let recovery decide again."""

    tag = "Recovery"
    rules = {
        "POST": EndpointRule(scope=TokenScope.SUBMIT, says="Lift an order", body=ResourceShape("Nothing", {}),
                             answer=ORDER_SHAPE, conflicts=True, team=True)
    }  # fmt: skip

    def work(self, order: int) -> Response:
        self.body({}, "the verb lift")
        row = find_or_404(
            failure_permissions.visible_orders(self.caller).select_related("job__team", "node"), "order", pk=order
        )
        if not failure_permissions.may_lift_order(self.caller, row):
            raise PermissionDenied("Operators do that, and whoever may change the job.")
        etags.check_if_match(self.request, ORDER_SHAPE.show(row))
        try:
            decision_actions.lift_order(row, author=self.author, now=clock.now())
        except FailureStateConflict as moved:
            raise Conflict(str(moved)) from None
        return Response(ORDER_SHAPE.show(row))


# --- how far it may go


MODE_SHAPE = ResourceShape(
    "RecoveryMode",
    {
        "id": integer_field(),
        "team": text_field("Null: every team.", get=attribute_path("team.name"), needs=("team__name",), nullable=True),
        "cluster": text_field(
            "Null: every cluster.", get=attribute_path("cluster.name"), needs=("cluster__name",), nullable=True
        ),
        "action": text_field("Empty: every action."),
        "mode": text_field(choices=MODE_VALUES),
        "changed_at": datetime_field(),
        "changed_by": text_field(),
    },
)
MODE_REQUEST_SHAPE = ResourceShape(
    "RecoveryModeRequest",
    {
        "mode": text_field(
            "observe: only write down; propose: a person approves; act: carry out at once.", choices=MODE_VALUES
        ),
        "team": text_field("Left out: every team, which operators may say.", required=False),
        "cluster": text_field(required=False),
        "action": text_field("Left out: every action.", choices=ACTION_VALUES, required=False),
    },
    example={"team": "pretraining", "action": "restart", "mode": "act"},
)


def _named_row(field: str, rows: QuerySet[Any], asked: dict[str, Any]) -> Any:
    if field not in asked:
        return None
    row = rows.filter(name=asked[field]).first()
    if row is None:
        raise InvalidRequestField(field, f"you have no {field} {parsing.short_repr(asked[field])}")
    return row


class Modes(ActionEndpoint, ListEndpoint):
    """How far recovery may go by itself. Nothing said: propose."""

    tag = "Recovery"
    what = "recovery modes"
    shape = MODE_SHAPE
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="Modes of recovery", answer=MODE_SHAPE, many=True),
        "POST": EndpointRule(scope=TokenScope.OPERATE, says="Set a mode", body=MODE_REQUEST_SHAPE, answer=MODE_SHAPE),
    }

    def rows(self) -> QuerySet[RecoveryMode]:
        return RecoveryMode.objects.all()

    def work(self) -> Response:
        asked = self.body(
            {
                "mode": parsing.choice_reader(MODE_VALUES),
                "team": parsing.text_reader(40),
                "cluster": parsing.text_reader(40),
                "action": parsing.choice_reader(ACTION_VALUES),
            },
            "a mode of recovery",
        )
        if "mode" not in asked:
            raise InvalidRequestField("mode", f"is needed: {', '.join(MODE_VALUES)}")
        team = _named_row("team", self.caller.teams(), asked)
        cluster = _named_row("cluster", Cluster.objects.all(), asked)
        self._require_mode_admin(team)
        row = recovery_actions.set_recovery_mode(
            asked["mode"], author=self.author, team_id=team.pk if team else None,
            cluster_id=cluster.pk if cluster else None, action=asked.get("action", ""),
        )  # fmt: skip
        return Response(MODE_SHAPE.show(row))

    def _require_mode_admin(self, team: Team | None) -> None:
        """A team's administrators say it for their team, operators for everybody."""
        allowed = self.caller.may_operate_clusters or self.caller.is_site_admin
        if not allowed and not (team and self.caller.has(TeamRole.ADMIN, team.pk)):
            raise PermissionDenied("Operators of clusters do that, and administrators of a team for their own.")
