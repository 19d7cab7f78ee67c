"""API of simulations: start a replay, follow it, cancel it."""

from __future__ import annotations

import logging
from typing import Any

from django.db.models import QuerySet
from django.urls import path
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField
from jobs.actions.submissions import CallerTargets
from jobs.core import parsing
from jobs.core.lifecycle import JobKind
from jobs.models import TokenScope, clock
from jobs.models.permissions import Caller
from jobs.rest import etags, query_params
from jobs.rest.endpoint import ActionEndpoint, DetailEndpoint, ListEndpoint, find_or_404
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import (
    ResourceShape,
    attribute_path,
    boolean_field,
    datetime_field,
    integer_field,
    nested_list_field,
    number_field,
    object_field,
    text_field,
    text_list_field,
)
from scheduling.models import Simulation, SimulationState
from scheduling.whatif.actions import simulations as simulation_actions
from scheduling.whatif.reads.simulations import MAX_TRACE_JOBS, read_trace_name, replay_params, visible_simulations
from scheduling.whatif.replay import job_profiles, requests
from scheduling.whatif.replay.run import PREEMPTION_COSTS
from scheduling.whatif.tasks import wake_simulation_worker

log = logging.getLogger(__name__)

MAX_POLICIES = 17
TRACE_DESCRIPTION = (
    "history: past jobs of a cluster; acme:seren, acme:kalos: synthetic jobs sampled from AcmeTrace; upload:NUMBER: an"
    " uploaded trace file."
)
MAX_VIRTUAL_CLUSTERS = 1000

SIMULATION_SHAPE = ResourceShape(
    "Simulation",
    {
        "id": text_field("Short public id that sorts by time.", get=attribute_path("public_id"), needs=("public_id",)),
        "team": text_field(get=attribute_path("team.name"), needs=("team__name",)),
        "user": text_field(get=attribute_path("user.username"), needs=("user__username",)),
        "trace": text_field(TRACE_DESCRIPTION),
        "policies": text_list_field("In the order of the runs."),
        "request": object_field(
            "The other parameters of the request.", get=lambda row: _visible_params(row.params), needs=("params",)
        ),
        "state": text_field(choices=SimulationState.values),
        "progress": object_field(
            "Percent, over all policies.", get=lambda row: round(row.progress, 1), needs=("progress",)
        ),
        "error": text_field("The reason if the simulation failed."),
        "created_at": datetime_field(),
        "started_at": datetime_field(nullable=True),
        "ended_at": datetime_field(nullable=True),
        "result": object_field(
            "`runs` contains one run per policy, as in `manage.py simulate --json`. `recorded` has the same figures of"
            " the jobs as they really ran, if the trace contains that; else it is null. If the request asks for energy,"
            " `power` of each run has kWh, cost, peak power, the time above the budget, and in `sleep` what sleeping"
            " nodes would save. Null before the end.",
            nullable=True,
            in_lists=False,
        ),
    },
)
SIMULATION_SHAPE.fields["progress"].schema.update(type="number", minimum=0, maximum=100)

QUOTA_SHAPE = ResourceShape(
    "SimulatedQuota",
    {
        "team": text_field("A team of the trace. Omit it for jobs without a team.", required=False),
        "kind": text_field("Omit it for a quota over all kinds.", choices=JobKind, required=False),
        "gpus": integer_field(low=0, high=10**9 - 1),
    },
)
PROFILE_SHAPE = ResourceShape(
    "JobProfile",
    {
        "name": text_field("The name of the jobs; numbers in it do not matter."),
        "gpu_percent": number_field("Utilization of each GPU of a job that has it to itself.", low=0, high=100),
        "memory_mb": number_field("GPU memory that a job needs on each GPU.", low=0, high=job_profiles.MAX_MEMORY_MB),
        "score": integer_field(
            "How much it slows others down: 0 tiny, 1 medium, 2 jumbo. Default: by its speed in pairs.",
            low=0,
            high=2,
            required=False,
        ),
    },
)
PAIR_SHAPE = ResourceShape(
    "PairSpeeds",
    {
        "name1": text_field("A name in profiles."),
        "name2": text_field("A name in profiles, which may be the same."),
        **{
            name: number_field("Speed on shared GPUs, relative to that alone.", low=0, high=int(job_profiles.MAX_SPEED))
            for name in ("speed1", "speed2")
        },
    },
)
SIMULATION_REQUEST_SHAPE = ResourceShape(
    "SimulationRequest",
    {
        "trace": text_field(TRACE_DESCRIPTION),
        "policies": text_list_field(
            "Each policy is replayed separately. One or more of: " + ", ".join(requests.POLICIES_OF_EQUAL_GPUS)
        ),
        "team": text_field("Required if you can submit for several teams.", required=False),
        "cluster": text_field("For history. Required if there are several clusters.", required=False),
        "days": integer_field("For history: number of days. Default: 30.", low=1, high=366, required=False),
        "until": datetime_field("For history: end of the period. Default: now.", required=False),
        "jobs": integer_field("For acme: number of synthetic jobs.", low=1, high=MAX_TRACE_JOBS, required=False),
        "nodes": integer_field(
            "Default: the size of the cluster or published trace. Required for an uploaded trace.",
            low=1,
            high=requests.MAX_REPLAY_NODES,
            required=False,
        ),
        "gpus_per_node": integer_field(low=1, high=requests.MAX_GPUS_PER_NODE, required=False),
        "nodes_per_leaf": integer_field(
            "0: all nodes are on one switch.", low=0, high=requests.MAX_REPLAY_NODES, required=False
        ),
        "cpus_per_node": integer_field("0: CPUs are not counted.", low=0, high=10**6, required=False),
        "memory_per_node_mb": integer_field("0: memory is not counted.", low=0, high=10**8, required=False),
        "placement": text_field(choices=requests.PLACEMENT_NAMES, required=False),
        "preemption_cost": text_field(
            "helios: 7, 30 or 60 s, depending on job size.", choices=PREEMPTION_COSTS, required=False
        ),
        "vcs": object_field("Number of nodes by name of the virtual cluster.", required=False),
        "faults": text_field("Node failures: rates, or name=number pairs separated by commas.", required=False),
        "noise": text_field("Error of run time estimates: none, helios, or a log-normal's sigma.", required=False),
        "seed": integer_field(low=0, high=2**31 - 1, required=False),
        "checkpoint_s": integer_field(
            "Checkpoint interval of the jobs. Without it, jobs save a checkpoint when they are preempted.",
            low=0,
            high=10**9,
            required=False,
        ),
        "best_effort": text_field(
            "Kinds that are preemptible and may borrow under acme, separated by commas. Empty: none.", required=False
        ),
        "load": integer_field(
            "Arrival rate in percent of the trace's: 200 submits the same jobs in half the time. Default: 100.",
            low=requests.LOAD_RANGE[0],
            high=requests.LOAD_RANGE[1],
            required=False,
        ),
        "quota": nested_list_field(QUOTA_SHAPE, "Quotas of the teams in the trace.", required=False),
        "energy": boolean_field(
            "Whether results have energy and peak power, with simulated nodes of 8 A100.", required=False
        ),
        "power_budget_kw": number_field(
            "Jobs start only while the predicted power of all nodes stays below. Implies energy.",
            low=0,
            high=requests.MAX_POWER_NUMBER,
            required=False,
        ),
        "price_per_kwh": number_field(
            "Results have the cost of energy. Implies energy.", low=0, high=requests.MAX_POWER_NUMBER, required=False
        ),
        "sleep": boolean_field("Whether results have what sleeping nodes would save. Implies energy.", required=False),
        "profiles": nested_list_field(
            PROFILE_SHAPE, "How jobs use a GPU. Needed by policies that let jobs share GPUs.", required=False
        ),
        "pair_speeds": nested_list_field(
            PAIR_SHAPE,
            "How fast two jobs run on the same GPUs. Pairs without an entry: estimated from the utilization.",
            required=False,
        ),
        "draw_profiles": boolean_field(
            "Whether each job gets one of the profiles at random, instead of the one with its name.", required=False
        ),
        "policy_settings": object_field('Settings by policy: {"acme": {"order": "sjf"}}.', required=False),
    },
    example={"trace": "acme:seren", "policies": ["fifo", "easy"], "jobs": 10_000},
)
INTEGER_FIELDS = {
    name: shape_field
    for name, shape_field in SIMULATION_REQUEST_SHAPE.fields.items()
    if shape_field.schema.get("type") == "integer"
}
QUOTA_READERS: dict[str, parsing.FieldReader] = {
    "team": parsing.text_reader(80),
    "kind": parsing.choice_reader(list(JobKind)),
    "gpus": parsing.integer_reader(0, 10**9 - 1),
}
PROFILE_READERS: dict[str, parsing.FieldReader] = {
    "name": parsing.text_reader(200),
    "gpu_percent": parsing.number_reader(0, 100),
    "memory_mb": parsing.number_reader(0, job_profiles.MAX_MEMORY_MB),
    "score": parsing.integer_reader(0, 2),
}
PAIR_READERS: dict[str, parsing.FieldReader] = {
    **dict.fromkeys(("name1", "name2"), parsing.text_reader(200)),
    **dict.fromkeys(("speed1", "speed2"), parsing.number_reader(0, int(job_profiles.MAX_SPEED))),
}
SIMULATION_READERS: dict[str, parsing.FieldReader] = {
    **{
        name: parsing.integer_reader(shape_field.schema["minimum"], shape_field.schema["maximum"])
        for name, shape_field in INTEGER_FIELDS.items()
    },
    "trace": read_trace_name,
    "policies": parsing.list_reader(parsing.choice_reader(requests.POLICIES_OF_EQUAL_GPUS), MAX_POLICIES),
    "team": parsing.text_reader(40),
    "cluster": parsing.text_reader(40),
    "until": parsing.read_timestamp,
    "placement": parsing.choice_reader(requests.PLACEMENT_NAMES),
    "preemption_cost": parsing.choice_reader(PREEMPTION_COSTS),
    "faults": parsing.text_reader(200),
    "noise": parsing.text_reader(20),
    "best_effort": parsing.text_reader(200),
    "quota": parsing.list_reader(
        lambda name, value: parsing.read_fields(parsing.read_object(name, value), QUOTA_READERS, "a quota"),
        MAX_VIRTUAL_CLUSTERS,
    ),
    "profiles": parsing.list_reader(
        lambda name, value: parsing.read_fields(parsing.read_object(name, value), PROFILE_READERS, "a profile"),
        job_profiles.MAX_PROFILES,
    ),
    "pair_speeds": parsing.list_reader(
        lambda name, value: parsing.read_fields(parsing.read_object(name, value), PAIR_READERS, "a pair"),
        job_profiles.MAX_PAIRS,
    ),
    "policy_settings": parsing.read_object,
    "vcs": lambda name, value: _read_virtual_clusters(name, value),
    "energy": parsing.read_bool,
    "sleep": parsing.read_bool,
    "draw_profiles": parsing.read_bool,
    **dict.fromkeys(("power_budget_kw", "price_per_kwh"), parsing.number_reader(0, requests.MAX_POWER_NUMBER)),
}


def _read_virtual_clusters(name: str, value: Any) -> dict[str, int]:
    clusters = parsing.read_object(name, value)
    if len(clusters) > MAX_VIRTUAL_CLUSTERS:
        raise InvalidField(name, f"has {len(clusters)} entries; at most {MAX_VIRTUAL_CLUSTERS} are allowed")
    count, word = parsing.integer_reader(1, requests.MAX_REPLAY_NODES), parsing.text_reader(80)
    return {word(name, pool): count(name, nodes) for pool, nodes in clusters.items()}


def _visible_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters without `teams`: it lists internal ids of the teams whose jobs the history contains."""
    return {name: value for name, value in params.items() if name != "teams"}


def get_simulation(caller: Caller, id: str) -> Simulation:
    row: Simulation = find_or_404(
        SIMULATION_SHAPE.load(visible_simulations(caller), SIMULATION_SHAPE.fields), "simulation", public_id=id
    )
    return row


class SimulationListEndpoint(ListEndpoint, ActionEndpoint):
    """List simulations; start a simulation."""

    tag = "Simulations"
    what = "simulations"
    shape = SIMULATION_SHAPE
    filters = {
        "id": query_params.text_filter("public_id"),
        "team": query_params.text_filter("team__name"),
        "user": query_params.text_filter("user__username"),
        "trace": query_params.text_filter("trace"),
        "state": query_params.choice_filter("state", SimulationState.values),
        "created_at": query_params.datetime_filter("created_at"),
    }
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="List the simulations of your teams", answer=SIMULATION_SHAPE, many=True
        ),
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Replay a trace under other policies",
            body=SIMULATION_REQUEST_SHAPE,
            answer=SIMULATION_SHAPE,
            status=201,
            conflicts=True,
        ),
    }

    def rows(self) -> QuerySet[Simulation]:
        return visible_simulations(self.caller)

    def work(self) -> Response:
        values = self.body(SIMULATION_READERS, "a simulation")
        places = CallerTargets(self.caller)
        team = places.resolve_team(values.pop("team", None))
        for name in ("trace", "policies"):
            if name not in values:
                raise InvalidField(name, "is missing")
        trace, policies = values.pop("trace"), list(dict.fromkeys(values.pop("policies")))
        params = replay_params(trace, policies, values, places, self.caller)
        simulation = simulation_actions.create_simulation(
            trace=trace, policies=policies, params=params, team=team, author=self.author, now=clock.now()
        )
        wake_simulation_worker()
        shown = SIMULATION_SHAPE.show(get_simulation(self.caller, simulation.public_id))
        address = self.request.build_absolute_uri(f"{self.request.path}{simulation.public_id}/")
        return Response(shown, status=201, headers={"Location": address})


class SimulationDetailEndpoint(DetailEndpoint):
    """A simulation with its progress and result."""

    tag = "Simulations"
    shape = SIMULATION_SHAPE
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ, says="One simulation, with its result", answer=SIMULATION_SHAPE, team=True
        )
    }

    def row(self, id: str) -> Simulation:
        return get_simulation(self.caller, id)


class CancelSimulationEndpoint(ActionEndpoint):
    """Cancel a simulation. A running one stops within two seconds."""

    tag = "Simulations"
    rules = {
        "POST": EndpointRule(
            scope=TokenScope.SUBMIT,
            says="Cancel a simulation",
            body=ResourceShape("NothingMore", {}),
            answer=SIMULATION_SHAPE,
            conflicts=True,
            team=True,
        )
    }

    def work(self, id: str) -> Response:
        self.body({}, "cancel")
        row = find_or_404(visible_simulations(self.caller), "simulation", public_id=id)
        if not self.caller.may_change(row):
            raise PermissionDenied(self.caller.denial_reason(row, str(row)))
        etags.check_if_match(self.request, SIMULATION_SHAPE.show(get_simulation(self.caller, id)))
        simulation_actions.cancel(row, author=self.author, now=clock.now())
        document = SIMULATION_SHAPE.show(get_simulation(self.caller, id))
        return Response(document, headers={"ETag": etags.etag(document)})


urlpatterns = [
    path("simulations/", SimulationListEndpoint.as_view()),
    path("simulations/<public_id:id>/", SimulationDetailEndpoint.as_view()),
    path("simulations/<public_id:id>/cancel/", CancelSimulationEndpoint.as_view()),
]
