"""The REST API of recovery decisions, overrides and modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from failures.models import Decision, DecisionState
from failures.models import permissions as failure_permissions
from failures.recovery import decisions, reads, steps
from failures.recovery.rules.remedies import AutomationMode, RecoveryAction
from failures.recovery.rules.resizing import COMMAND, ENVIRONMENT, MEMORY
from jobs.actions import recovery as recovery_actions
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
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    NOTHING_SHAPE,
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
        "kind": text_field("drained, tested, resumed, restarted, ended or undone."),
        "node": text_field(get=attribute_path("node.name"), needs=("node__name",), nullable=True),
        "at": datetime_field(),
        "text": text_field(),
    },
)
LIMIT_SHAPE = ResourceShape("RecoveryLimit", {"mode": text_field(choices=MODE_VALUES), "why": text_field()})
CHANGE_SHAPE = ResourceShape(
    "RequestChange",
    {
        "field": text_field("The changed part of the request.", choices=[MEMORY, COMMAND, ENVIRONMENT]),
        "before": text_field("Previous value. Empty: the default of the cluster."),
        "after": text_field("New value."),
        "why": text_field(),
        "keeps_batch": boolean_field("Whether the global batch stays the same."),
    },
)
DECISION_SHAPE = ResourceShape(
    "Decision",
    {
        "id": integer_field(),
        "incident": integer_field(get=attribute_path("incident_id"), needs=("incident_id",)),
        "attempt": text_field(
            "Null for a decision about a node without a job.",
            get=attribute_path("attempt.key"), needs=("attempt__key",), nullable=True,
        ),
        "job": text_field(
            get=attribute_path("attempt.job.public_id"), needs=("attempt__job__public_id",), nullable=True,
        ),
        "team": text_field(
            get=attribute_path("attempt.job.team.name"), needs=("attempt__job__team__name",), nullable=True,
        ),
        "node": text_field(
            "The node of the anomaly, for decisions without a failed attempt.", get=attribute_path("anomaly.node.name"),
            needs=("anomaly__node__name",), nullable=True,
        ),
        "at": datetime_field(),
        "action": text_field(choices=ACTION_VALUES),
        "mode": text_field(
            "observe: only recorded; propose: needs approval; act: carried out automatically.", choices=MODE_VALUES
        ),
        "why": text_field(),
        "pro": text_list_field("Arguments for the action."),
        "con": text_list_field("Arguments against the action."),
        "limits": nested_list_field(
            LIMIT_SHAPE,
            "Reasons why the mode was lowered.",
            get=lambda row: [{"mode": mode, "why": why} for mode, why in row.limits],
            needs=("limits",),
        ),
        "drain": text_list_field("Nodes that are drained."),
        "test": text_list_field("Nodes that are tested in pairs before jobs start on them again."),
        "checkpoint": text_field(
            "The checkpoint from which the job resumes.",
            get=attribute_path("checkpoint_path"), needs=("checkpoint_path",),
        ),
        "checkpoint_step": integer_field(nullable=True),
        "skip": ShapeField(
            schema={
                "type": ["array", "null"],
                "items": {"type": "integer"},
                "description": "First and last step whose data are skipped.",
            }
        ),
        "change": nested_list_field(
            CHANGE_SHAPE, "Changes to the request of the job.", get=lambda row: row.change, needs=("change",),
        ),
        "undo": text_field("How to undo the action."),
        "not_before": datetime_field(),
        "expires_at": datetime_field("The decision is not carried out after this time."),
        "state": text_field("State of the decision.", choices=DecisionState.values),
        "answered_by": text_field("User who approved, declined or undid the decision."),
        "answered_at": datetime_field(nullable=True),
        "answer_reason": text_field(),
        "began_at": datetime_field(nullable=True),
        "ended_at": datetime_field(nullable=True),
        "outcome": text_field(),
        "steps": nested_list_field(
            STEP_SHAPE, "Steps that were carried out.",
            get=lambda row: [STEP_SHAPE.show(one) for one in row.steps.all()],
            needs=(), joins=("steps__node",), in_lists=False,
        ),
    },
)  # fmt: skip
DIFFERENCE_SHAPE = ResourceShape(
    "ReplayedField",
    {
        "field": text_field(),
        "recorded": text_field(),
        "current": text_field(),
        "equal": boolean_field(get=attribute_path("is_same"), needs=()),
    },
)


class Decisions(ListEndpoint):
    """The recovery decisions of an incident."""

    tag = "Recovery"
    what = "decisions"
    shape = DECISION_SHAPE
    filters = {
        "action": query_params.choice_filter("action", ACTION_VALUES),
        "mode": query_params.choice_filter("mode", MODE_VALUES),
        "state": query_params.choice_filter("state", DecisionState.values),
    }
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List the recovery decisions of an incident",
            answer=DECISION_SHAPE,
            many=True,
            team=True,
        )
    }

    def rows(self, incident: int) -> QuerySet[Decision]:
        find_or_404(failure_permissions.visible_incidents(self.caller), "incident", pk=incident)
        return failure_permissions.visible_decisions(self.caller).filter(incident=incident)


def get_decision_row(caller: Any, incident: int, decision: int) -> Decision:
    rows = failure_permissions.visible_decisions(caller).filter(incident=incident)
    row: Decision = find_or_404(DECISION_SHAPE.load(rows, DECISION_SHAPE.fields), "decision", pk=decision)
    return row


class OneDecision(DetailEndpoint):
    """One decision, with the steps that were carried out."""

    tag = "Recovery"
    shape = DECISION_SHAPE
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="Show one decision with its steps", answer=DECISION_SHAPE, team=True
        )
    }

    def row(self, incident: int, decision: int) -> Any:
        return get_decision_row(self.caller, incident, decision)


class Replay(ApiEndpoint):
    """Compares a decision with the one that the current rules make from the same inputs."""

    tag = "Recovery"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="Compare a decision with the current rules",
            answer=DIFFERENCE_SHAPE,
            many=True,
            team=True,
        )
    }

    def get(self, request: Any, incident: int, decision: int) -> Response:
        reject_unknown_params(request)
        row = find_or_404(
            failure_permissions.visible_decisions(self.caller).filter(incident=incident), "decision", pk=decision
        )
        shown = [DIFFERENCE_SHAPE.show(difference) for difference in reads.compare_with_replay(row)]
        return Response({"next": None, "previous": None, "results": shown})


def _decision_verb(name: str, says: str, act: Callable[..., None]) -> type[ActionEndpoint]:
    def work(self: Any, incident: int, decision: int) -> Response:
        values = self.body({"reason": parsing.text_reader(1000, lines=True)}, f"the verb {name}")
        rows = failure_permissions.visible_decisions(self.caller).select_related(
            "attempt__job__team", "incident", "anomaly"
        )
        row = find_or_404(rows.filter(incident=incident), "decision", pk=decision)
        if not failure_permissions.may_decide_on(self.caller, row):
            raise PermissionDenied(
                "Only operators can do this. If no node is drained, users who can change the job can do this too."
            )
        etags.check_if_match(self.request, DECISION_SHAPE.show(get_decision_row(self.caller, incident, decision)))
        act(row, author=self.author, now=clock.now(), why=values.get("reason", ""))
        request_turn(row.cluster_id)
        body = DECISION_SHAPE.show(get_decision_row(self.caller, incident, decision))
        return Response(body, headers={"ETag": etags.etag(body)})

    rule = EndpointRule(
        scope=TokenScope.SUBMIT, says=says, body=REASON_BODY, answer=DECISION_SHAPE, conflicts=True, team=True
    )
    return type(
        f"{name.title()}Decision", (ActionEndpoint,), {"tag": "Recovery", "rules": {"POST": rule}, "work": work}
    )


ApproveDecision = _decision_verb("approve", "Approve a proposed decision", decisions.approve)
DeclineDecision = _decision_verb("decline", "Decline a proposed decision", decisions.decline)
UndoDecision = _decision_verb("undo", "Undo a decision", steps.undo)


# --- overrides by users


OVERRIDE_SHAPE = ResourceShape(
    "ManualOverride",
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


class ManualOverrideList(ListEndpoint):
    """Overrides by users: recovery does not act on these jobs and nodes until the override is lifted."""

    tag = "Recovery"
    what = "overrides"
    shape = OVERRIDE_SHAPE
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="List the overrides that exclude jobs and nodes from recovery",
            answer=OVERRIDE_SHAPE,
            many=True,
        )
    }

    def rows(self) -> QuerySet[Any]:
        return failure_permissions.visible_overrides(self.caller)


class LiftManualOverride(ActionEndpoint):
    """Lifts an override: recovery can act on its job or node again."""

    tag = "Recovery"
    rules = {
        "POST": EndpointRule(scope=TokenScope.SUBMIT, says="Lift an override", body=NOTHING_SHAPE,
                             answer=OVERRIDE_SHAPE, conflicts=True, team=True)
    }  # fmt: skip

    def work(self, override: int) -> Response:
        self.body({}, "the verb lift")
        row = find_or_404(
            failure_permissions.visible_overrides(self.caller).select_related("job__team", "node"),
            "override",
            pk=override,
        )
        if not failure_permissions.may_lift_override(self.caller, row):
            raise PermissionDenied("Only operators and users who can change the job can lift this override.")
        etags.check_if_match(self.request, OVERRIDE_SHAPE.show(row))
        decisions.lift_override(row, author=self.author, now=clock.now())
        return Response(OVERRIDE_SHAPE.show(row))


# --- modes


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
            "observe: only recorded; propose: needs approval; act: carried out automatically.", choices=MODE_VALUES
        ),
        "team": text_field("Default: every team, for operators only.", required=False),
        "cluster": text_field(required=False),
        "action": text_field("Default: every action.", choices=ACTION_VALUES, required=False),
    },
    example={"team": "pretraining", "action": "restart", "mode": "act"},
)


def _find_by_name(field: str, rows: QuerySet[Any], values: dict[str, Any]) -> Any:
    if field not in values:
        return None
    row = rows.filter(name=values[field]).first()
    if row is None:
        raise InvalidField(field, f"there is no {field} {parsing.short_repr(values[field])} that you can use")
    return row


class Modes(ActionEndpoint, ListEndpoint):
    """Recovery modes by team, cluster and action. The default mode is propose."""

    tag = "Recovery"
    what = "recovery modes"
    shape = MODE_SHAPE
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="List the recovery modes", answer=MODE_SHAPE, many=True),
        "POST": EndpointRule(
            scope=TokenScope.OPERATE, says="Set a recovery mode", body=MODE_REQUEST_SHAPE, answer=MODE_SHAPE
        ),
    }

    def rows(self) -> QuerySet[RecoveryMode]:
        return RecoveryMode.objects.all()

    def work(self) -> Response:
        values = self.body(
            {
                "mode": parsing.choice_reader(MODE_VALUES),
                "team": parsing.text_reader(40),
                "cluster": parsing.text_reader(40),
                "action": parsing.choice_reader(ACTION_VALUES),
            },
            "a mode of recovery",
        )
        if "mode" not in values:
            raise InvalidField("mode", f"is required: {', '.join(MODE_VALUES)}")
        team = _find_by_name("team", self.caller.teams(), values)
        cluster = _find_by_name("cluster", Cluster.objects.all(), values)
        self._require_mode_admin(team)
        row = recovery_actions.set_recovery_mode(
            values["mode"], author=self.author, team_id=team.pk if team else None,
            cluster_id=cluster.pk if cluster else None, action=values.get("action", ""),
        )  # fmt: skip
        return Response(MODE_SHAPE.show(row))

    def _require_mode_admin(self, team: Team | None) -> None:
        """Raise PermissionDenied unless the caller is an operator, or an administrator of this team."""
        allowed = self.caller.acts_for_all_teams
        if not allowed and not (team and self.caller.has(TeamRole.ADMIN, team.pk)):
            raise PermissionDenied("Only operators, and team administrators for their team, can set recovery modes.")
