"""What recovery decided, through the programs' door: read, approve, decline, undo, replay; and how far it may go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from failures import decision_actions, rights
from failures import replay as replaying
from failures.actions import Moved
from failures.models import Course, Decision
from failures.recovery.remedies import Action, Mode
from failures.recovery.resizing import COMMAND, ENVIRONMENT, MEMORY
from jobs import clock, readers, recovery_actions
from jobs.api.shapes import WHY
from jobs.door import query, versions
from jobs.door.endpoint import Detail, Endpoint, Listing, Verb, found, refuse_unknown
from jobs.door.errors import BadField, Conflict
from jobs.door.rights import Rule
from jobs.door.shapes import Field, Shape, at, many, moment, number, text, texts, truth
from jobs.models import Cluster, RecoveryMode, Role, Scope, Team
from jobs.node_actions import NodeError
from jobs.wishes import want_turn

ACTIONS = [one.value for one in Action]
MODES = [one.value for one in Mode]

STEP = Shape(
    "RecoveryStep",
    {
        "kind": text("drained, tested, resumed, restarted, ended, undone."),
        "node": text(get=at("node.name"), needs=("node__name",), nullable=True),
        "at": moment(),
        "words": text(),
    },
)
LIMIT = Shape("RecoveryLimit", {"mode": text(choices=MODES), "why": text()})
CHANGE = Shape(
    "RequestChange",
    {
        "what": text("Of the job's request.", choices=[MEMORY, COMMAND, ENVIRONMENT]),
        "was": text("Empty: it asked for no amount."),
        "becomes": text(),
        "why": text(),
        "keeps_batch": truth("Whether the batch between two updates stays as it was."),
    },
)
DECISION = Shape(
    "Decision",
    {
        "id": number(),
        "incident": number(get=at("incident_id"), needs=("incident_id",)),
        "attempt": text("Null: a node alone.", get=at("attempt.key"), needs=("attempt__key",), nullable=True),
        "job": text(get=at("attempt.job.public_id"), needs=("attempt__job__public_id",), nullable=True),
        "team": text(get=at("attempt.job.team.name"), needs=("attempt__job__team__name",), nullable=True),
        "node": text(
            "That a sign names, where nobody has died.", get=at("sign.node.name"), needs=("sign__node__name",),
            nullable=True,
        ),
        "at": moment(),
        "action": text(choices=ACTIONS),
        "mode": text("How far it may go by itself.", choices=MODES),
        "why": text(),
        "pro": texts("What speaks for it."),
        "con": texts("What speaks against it."),
        "limits": many(
            LIMIT,
            "What took the mode down.",
            get=lambda row: [{"mode": mode, "why": why} for mode, why in row.limits],
            needs=("limits",),
        ),
        "drain": texts("Nodes that take no new work any more."),
        "test": texts("Nodes that are tested in pairs."),
        "checkpoint": text("Where the job goes on from.", get=at("checkpoint_path"), needs=("checkpoint_path",)),
        "checkpoint_step": number(nullable=True),
        "skip": Field(
            schema={"type": ["array", "null"], "items": {"type": "integer"}, "description": "Steps left out."}
        ),
        "change": many(CHANGE, "What the job asks for instead.", get=lambda row: row.change, needs=("change",)),
        "undo": text("What takes it back."),
        "not_before": moment(),
        "expires_at": moment("It is never carried out after that."),
        "course": text("What became of it.", choices=Course.values),
        "said_by": text("Who approved, declined or undid it."),
        "said_at": moment(nullable=True),
        "said_why": text(),
        "began_at": moment(nullable=True),
        "ended_at": moment(nullable=True),
        "outcome": text(),
        "steps": many(
            STEP, "What was really done.", get=lambda row: [STEP.show(one) for one in row.steps.all()], needs=(),
            joins=("steps__node",), listed=False,
        ),
    },
)  # fmt: skip
DIFFERENCE = Shape(
    "ReplayedField", {"what": text(), "then": text(), "today": text(), "same": truth(get=at("is_same"), needs=())}
)


class Decisions(Listing):
    """What recovery decided about the failures of an incident."""

    tag = "Recovery"
    what = "decisions"
    shape = DECISION
    filters = {
        "action": query.choice("action", ACTIONS),
        "mode": query.choice("mode", MODES),
        "course": query.choice("course", Course.values),
    }
    rules = {"GET": Rule(scope=Scope.READ, says="Decisions about an incident", answer=DECISION, many=True, team=True)}

    def rows(self, incident: int) -> QuerySet[Decision]:
        found(rights.incidents(self.caller), "incident", pk=incident)
        return rights.decisions(self.caller).filter(incident=incident)


def whole(caller: Any, incident: int, decision: int) -> Decision:
    rows = DECISION.load(rights.decisions(caller).filter(incident=incident), DECISION.fields)
    row: Decision = found(rows, "decision", pk=decision)
    return row


class OneDecision(Detail):
    """One decision, with what was done."""

    tag = "Recovery"
    shape = DECISION
    rules = {"GET": Rule(scope=Scope.READ, says="One decision", answer=DECISION, team=True)}

    def row(self, incident: int, decision: int) -> Any:
        return whole(self.caller, incident, decision)


class Replay(Endpoint):
    """What today's rules would do with the same inputs."""

    tag = "Recovery"
    rules = {"GET": Rule(scope=Scope.READ, says="A decision by today's rules", answer=DIFFERENCE, many=True, team=True)}

    def get(self, request: Any, incident: int, decision: int) -> Response:
        refuse_unknown(request)
        row = found(rights.decisions(self.caller).filter(incident=incident), "decision", pk=decision)
        shown = [DIFFERENCE.show(one) for one in replaying.compared(row)]
        return Response({"next": None, "previous": None, "results": shown})


def _verb(name: str, says: str, act: Callable[..., None]) -> type[Verb]:
    def work(self: Any, incident: int, decision: int) -> Response:
        asked = self.body({"reason": readers.text(1000, lines=True)}, f"the verb {name}")
        rows = rights.decisions(self.caller).select_related("attempt__job__team", "incident", "sign")
        row = found(rows.filter(incident=incident), "decision", pk=decision)
        if not rights.may_decide(self.caller, row):
            raise PermissionDenied("Operators do that, and whoever may change the job where no node is closed.")
        versions.refuse_stale(self.request, DECISION.show(whole(self.caller, incident, decision)))
        try:
            act(row, author=self.author, now=clock.now(), why=asked.get("reason", ""))
        except (Moved, NodeError) as moved:
            raise Conflict(str(moved)) from None
        want_turn(row.cluster_id)
        told = DECISION.show(whole(self.caller, incident, decision))
        return Response(told, headers={"ETag": versions.etag(told)})

    rule = Rule(scope=Scope.SUBMIT, says=says, body=WHY, answer=DECISION, conflicts=True, team=True)
    return type(f"{name.title()}Decision", (Verb,), {"tag": "Recovery", "rules": {"POST": rule}, "work": work})


ApproveDecision = _verb("approve", "Let a proposal be carried out", decision_actions.approve)
DeclineDecision = _verb("decline", "Say no to a proposal", decision_actions.decline)
UndoDecision = _verb("undo", "Take back what was done", decision_actions.undo)


# --- what a person decided


ORDER = Shape(
    "Order",
    {
        "id": number(),
        "subject": text("A job or a node.", get=at("subject"), needs=("job__public_id", "node__name")),
        "by": text(),
        "why": text(),
        "at": moment(),
    },
)


class Orders(Listing):
    """What people decided about jobs and nodes; recovery respects it until it is lifted."""

    tag = "Recovery"
    what = "orders"
    shape = ORDER
    rules = {"GET": Rule(scope=Scope.READ, says="Standing orders", answer=ORDER, many=True)}

    def rows(self) -> QuerySet[Any]:
        return rights.orders(self.caller)


class LiftOrder(Verb):
    """Let recovery decide again."""

    tag = "Recovery"
    rules = {
        "POST": Rule(scope=Scope.SUBMIT, says="Lift an order", body=Shape("Nothing", {}), answer=ORDER, conflicts=True,
                     team=True)
    }  # fmt: skip

    def work(self, order: int) -> Response:
        self.body({}, "the verb lift")
        row = found(rights.orders(self.caller).select_related("job__team", "node"), "order", pk=order)
        if not rights.may_lift(self.caller, row):
            raise PermissionDenied("Operators do that, and whoever may change the job.")
        versions.refuse_stale(self.request, ORDER.show(row))
        try:
            decision_actions.lift(row, author=self.author, now=clock.now())
        except Moved as moved:
            raise Conflict(str(moved)) from None
        return Response(ORDER.show(row))


# --- how far it may go


MODE = Shape(
    "RecoveryMode",
    {
        "id": number(),
        "team": text("Null: every team.", get=at("team.name"), needs=("team__name",), nullable=True),
        "cluster": text("Null: every cluster.", get=at("cluster.name"), needs=("cluster__name",), nullable=True),
        "action": text("Empty: every action."),
        "mode": text(choices=MODES),
        "changed_at": moment(),
        "changed_by": text(),
    },
)
WISH = Shape(
    "RecoveryModeRequest",
    {
        "mode": text("observe: only write down; propose: a person approves; act: carry out at once.", choices=MODES),
        "team": text("Left out: every team, which operators may say.", required=False),
        "cluster": text(required=False),
        "action": text("Left out: every action.", choices=ACTIONS, required=False),
    },
    example={"team": "pretraining", "action": "restart", "mode": "act"},
)


def _named(field: str, rows: QuerySet[Any], asked: dict[str, Any]) -> Any:
    if field not in asked:
        return None
    row = rows.filter(name=asked[field]).first()
    if row is None:
        raise BadField(field, f"you have no {field} {readers.short(asked[field])}")
    return row


class Modes(Verb, Listing):
    """How far recovery may go by itself. Nothing said: propose."""

    tag = "Recovery"
    what = "recovery modes"
    shape = MODE
    rules = {
        "GET": Rule(scope=Scope.READ, says="Modes of recovery", answer=MODE, many=True),
        "POST": Rule(scope=Scope.OPERATE, says="Set a mode", body=WISH, answer=MODE),
    }

    def rows(self) -> QuerySet[RecoveryMode]:
        return RecoveryMode.objects.all()

    def work(self) -> Response:
        asked = self.body(
            {
                "mode": readers.one_of(MODES),
                "team": readers.text(40),
                "cluster": readers.text(40),
                "action": readers.one_of(ACTIONS),
            },
            "a mode of recovery",
        )
        if "mode" not in asked:
            raise BadField("mode", f"is needed: {', '.join(MODES)}")
        team = _named("team", self.caller.teams(), asked)
        cluster = _named("cluster", Cluster.objects.all(), asked)
        self._refuse_stranger(team)
        row = recovery_actions.set_mode(
            asked["mode"], author=self.author, team_id=team.pk if team else None,
            cluster_id=cluster.pk if cluster else None, action=asked.get("action", ""),
        )  # fmt: skip
        return Response(MODE.show(row))

    def _refuse_stranger(self, team: Team | None) -> None:
        """A team's administrators say it for their team, operators for everybody."""
        allowed = self.caller.operates or self.caller.everywhere
        if not allowed and not (team and self.caller.has(Role.ADMIN, team.pk)):
            raise PermissionDenied("Operators of clusters do that, and administrators of a team for their own.")
