"""Simulations through the programs' door: ask for a replay, follow it, take it back."""

from __future__ import annotations

import logging
from typing import Any

from django.db.models import QuerySet
from django.urls import path
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from jobs import clock, readers
from jobs.api.submitting import Places
from jobs.door import query, versions
from jobs.door.endpoint import Detail, Listing, Verb, found
from jobs.door.errors import BadField, Conflict
from jobs.door.rights import Rule
from jobs.door.shapes import Shape, anything, at, many, moment, number, text, texts
from jobs.lifecycle import Kind
from jobs.models import Scope
from jobs.rights import Caller
from scheduling import simulation_actions as actions
from scheduling.engine.policies import RULES
from scheduling.loops import simulate
from scheduling.models import Simulation, SimulationState
from scheduling.replays import checked, theirs, trace_named, wake
from scheduling.simulation_actions import Gone, TooMany
from scheduling.simulator import asking
from scheduling.simulator.run import COSTS

log = logging.getLogger(__name__)

MOST_POLICIES = 13
TRACE_SAYS = (
    "history: past jobs of a cluster; acme:seren, acme:kalos: jobs drawn like those of Acme; upload:NUMBER: a file that"
    " was brought to traces/ or the page What if."
)
MOST_POOLS = 1000

SIMULATION = Shape(
    "Simulation",
    {
        "id": text("Short public id that sorts by time.", get=at("public_id"), needs=("public_id",)),
        "team": text(get=at("team.name"), needs=("team__name",)),
        "user": text(get=at("user.username"), needs=("user__username",)),
        "trace": text(TRACE_SAYS),
        "policies": texts("In the order of the runs."),
        "asked": anything("The rest of what was asked.", get=lambda row: _shown(row.params), needs=("params",)),
        "state": text(choices=SimulationState.values),
        "progress": anything(
            "Percent, over all policies.", get=lambda row: round(row.progress, 1), needs=("progress",)
        ),
        "error": text("Why it failed."),
        "created_at": moment(),
        "started_at": moment(nullable=True),
        "ended_at": moment(nullable=True),
        "result": anything(
            "`runs` as of `manage.py simulate --json`, one a policy; null before the end.", nullable=True, listed=False
        ),
    },
)
SIMULATION.fields["progress"].schema.update(type="number", minimum=0, maximum=100)

QUOTA = Shape(
    "SimulatedQuota",
    {
        "team": text("One of the trace; without it those who are in none.", required=False),
        "kind": text("Without it the quota is for all work of the team.", choices=Kind, required=False),
        "gpus": number(low=0, high=10**9 - 1),
    },
)
ASKED = Shape(
    "SimulationRequest",
    {
        "trace": text(TRACE_SAYS),
        "policies": texts("Each is replayed by itself: " + ", ".join(RULES)),
        "team": text("Needed by those who submit for several teams.", required=False),
        "cluster": text("For history; needed where there are several.", required=False),
        "days": number("For history: how far it goes back; 30 if not given.", low=1, high=366, required=False),
        "until": moment("For history: where it ends; now if not given.", required=False),
        "jobs": number("For acme: how many are drawn.", low=1, high=simulate.MOST_JOBS, required=False),
        "nodes": number("Otherwise as many as there are.", low=1, high=asking.MOST_NODES, required=False),
        "gpus_per_node": number(low=1, high=asking.MOST_GPUS_PER_NODE, required=False),
        "nodes_per_leaf": number("0: all on one switch.", low=0, high=asking.MOST_NODES, required=False),
        "cpus_per_node": number("0: CPUs are not counted.", low=0, high=10**6, required=False),
        "memory_per_node_mb": number("0: memory is not counted.", low=0, high=10**8, required=False),
        "placement": text(choices=asking.PLACEMENT_NAMES, required=False),
        "preemption_cost": text("helios: 7, 30 or 60 s by width.", choices=COSTS, required=False),
        "vcs": anything("Virtual cluster → its nodes.", required=False),
        "faults": text("rates, or name=number by commas: nodes break.", required=False),
        "noise": text("Errors of expected run times: none, helios, or a log-normal's sigma.", required=False),
        "seed": number(low=0, high=2**31 - 1, required=False),
        "checkpoint_s": number(
            "Jobs save so often; without it who is stopped saves first.", low=0, high=10**9, required=False
        ),
        "best_effort": text("Kinds of work that borrow under acme, by commas; empty: none.", required=False),
        "quota": many(QUOTA, "What teams may hold; a team is one of the trace.", required=False),
        "policy_settings": anything('An object for each policy: {"acme": {"order": "sjf"}}.', required=False),
    },
    example={"trace": "acme:seren", "policies": ["fifo", "easy"], "jobs": 10_000},
)
NUMBERS = {name: one for name, one in ASKED.fields.items() if one.schema.get("type") == "integer"}
QUOTAS: dict[str, readers.Reader] = {
    "team": readers.text(80),
    "kind": readers.one_of(list(Kind)),
    "gpus": readers.whole(0, 10**9 - 1),
}
READERS: dict[str, readers.Reader] = {
    **{name: readers.whole(one.schema["minimum"], one.schema["maximum"]) for name, one in NUMBERS.items()},
    "trace": trace_named,
    "policies": readers.list_of(readers.one_of(tuple(RULES)), MOST_POLICIES),
    "team": readers.text(40),
    "cluster": readers.text(40),
    "until": readers.moment,
    "placement": readers.one_of(asking.PLACEMENT_NAMES),
    "preemption_cost": readers.one_of(COSTS),
    "faults": readers.text(200),
    "noise": readers.text(20),
    "best_effort": readers.text(200),
    "quota": readers.list_of(
        lambda name, value: readers.read_all(readers.an_object(name, value), QUOTAS, "a quota"), MOST_POOLS
    ),
    "policy_settings": readers.an_object,
    "vcs": lambda name, value: _pools(name, value),
}


def _pools(name: str, value: Any) -> dict[str, int]:
    asked = readers.an_object(name, value)
    if len(asked) > MOST_POOLS:
        raise BadField(name, f"has {len(asked)} entries; at most {MOST_POOLS} are allowed")
    count, word = readers.whole(1, asking.MOST_NODES), readers.text(80)
    return {word(name, pool): count(name, nodes) for pool, nodes in asked.items()}


def _quota(asked: dict[str, Any]) -> dict[str, Any]:
    return readers.read_all(asked, QUOTAS, "a quota")


def _shown(params: dict[str, Any]) -> dict[str, Any]:
    """Which teams a history holds is said to nobody: it names teams by their numbers."""
    return {name: value for name, value in params.items() if name != "teams"}


def one_of(caller: Caller, id: str) -> Simulation:
    row: Simulation = found(SIMULATION.load(theirs(caller), SIMULATION.fields), "simulation", public_id=id)
    return row


class Simulations(Listing, Verb):
    """List simulations, ask for one."""

    tag = "Simulations"
    what = "simulations"
    shape = SIMULATION
    filters = {
        "id": query.text("public_id"),
        "team": query.text("team__name"),
        "user": query.text("user__username"),
        "trace": query.text("trace"),
        "state": query.choice("state", SimulationState.values),
        "created_at": query.moment("created_at"),
    }
    rules = {
        "GET": Rule(scope=Scope.READ, says="List the simulations of your teams", answer=SIMULATION, many=True),
        "POST": Rule(
            scope=Scope.SUBMIT,
            says="Replay a trace under other policies",
            body=ASKED,
            answer=SIMULATION,
            status=201,
            conflicts=True,
        ),
    }

    def rows(self) -> QuerySet[Simulation]:
        return theirs(self.caller)

    def work(self) -> Response:
        asked = self.body(READERS, "a simulation")
        places = Places(self.caller)
        team = places.team_of(asked.pop("team", None))
        for name in ("trace", "policies"):
            if name not in asked:
                raise BadField(name, "is missing")
        trace, policies = asked.pop("trace"), list(dict.fromkeys(asked.pop("policies")))
        params = checked(trace, policies, asked, places, self.caller)
        try:
            made = actions.ask(
                trace=trace, policies=policies, params=params, team=team, author=self.author, now=clock.now()
            )
        except TooMany as many:
            raise Conflict(str(many)) from None
        wake()
        shown = SIMULATION.show(one_of(self.caller, made.public_id))
        address = self.request.build_absolute_uri(f"{self.request.path}{made.public_id}/")
        return Response(shown, status=201, headers={"Location": address})


class OneSimulation(Detail):
    """How far it is, and what came out."""

    tag = "Simulations"
    shape = SIMULATION
    rules = {"GET": Rule(scope=Scope.READ, says="One simulation, with its result", answer=SIMULATION, team=True)}

    def row(self, id: str) -> Simulation:
        return one_of(self.caller, id)


class CancelSimulation(Verb):
    """Take it back; a running one stops within a second or two."""

    tag = "Simulations"
    rules = {
        "POST": Rule(
            scope=Scope.SUBMIT,
            says="End a simulation before it is through",
            body=Shape("NothingMore", {}),
            answer=SIMULATION,
            conflicts=True,
            team=True,
        )
    }

    def work(self, id: str) -> Response:
        self.body({}, "cancel")
        row = found(theirs(self.caller), "simulation", public_id=id)
        if not self.caller.may_change(row):
            raise PermissionDenied(self.caller.why_not(row, str(row)))
        versions.refuse_stale(self.request, SIMULATION.show(one_of(self.caller, id)))
        try:
            actions.cancel(row, author=self.author, now=clock.now())
        except Gone as gone:
            raise Conflict(str(gone)) from None
        told = SIMULATION.show(one_of(self.caller, id))
        return Response(told, headers={"ETag": versions.etag(told)})


urlpatterns = [
    path("simulations/", Simulations.as_view()),
    path("simulations/<public_id:id>/", OneSimulation.as_view()),
    path("simulations/<public_id:id>/cancel/", CancelSimulation.as_view()),
]
