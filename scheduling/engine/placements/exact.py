"""A solver behind the greedy placement ("Priority Matters", arXiv 2511.08373): CP-SAT, used only if a job does not fit.

Decisions of the current turn are not carried out yet, so jobs it started may still be moved. If the next job does not
fit beside the greedy placements, CP-SAT looks for places for all of them together, with gangs on few leaf switches. All
jobs that were started stay started, so the result is never worse. Differences: jobs from earlier turns are not moved or
preempted, shares of GPUs are placed greedily and never moved, and only clusters of at most `MAX_NODES` are solved.
The budget is in the solver's deterministic time instead of seconds, so equal inputs give equal results.

OR-Tools is optional (`acme[exact]`) and takes a second to import, so it is imported at the first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from jobs.core.gpu_models import SEPARATOR
from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.placement import consolidate
from scheduling.engine.resources import GpuPlacement, NodeResources, NodeSet, members
from scheduling.engine.settings import MissingLibrary

MAX_NODES = 64
MAX_MOVABLE_JOBS = 64
SOLVER_BUDGET = 0.2  # in the solver's deterministic time; about a quarter of a second

PlacementRequest = tuple[ResourceRequest, NodeSet]  # a request and the nodes that it may use


class ExactPlacement:
    """`asked` and `helped` count solver calls and those that found a solution."""

    def __init__(self, budget: float = SOLVER_BUDGET) -> None:
        if find_spec("ortools") is None:
            raise MissingLibrary("The placement exact needs OR-Tools: install acme[exact].")
        self._budget = budget
        self.asked = self.helped = 0

    def __call__(self, resources: NodeResources, need: ResourceRequest, among: NodeSet) -> GpuPlacement | None:
        places = consolidate(resources, need, among)
        movable = [job for job in resources.unsettled if not job.group.need.gpu_milli]
        if places is not None or not movable or need.gpu_milli or need.total_gpus > resources.free_gpus:
            return places
        if len(resources.nodes) > MAX_NODES or len(movable) > MAX_MOVABLE_JOBS:
            return None
        return self._solve_with_movable(resources, need, among, movable)

    def _solve_with_movable(
        self, resources: NodeResources, need: ResourceRequest, among: NodeSet, jobs: Sequence[Any]
    ) -> GpuPlacement | None:
        emptied = resources.copy()
        for job in jobs:
            emptied.give(job.places, job.group.need)
        requests = [(job.group.need, _nodes_to_move_to(resources, job)) for job in jobs] + [(need, among)]
        self.asked += 1
        solution = solve_placements(emptied, requests, hints=[job.places for job in jobs], budget=self._budget)
        if solution is None:
            return None
        self.helped += 1
        for job in jobs:
            resources.give(job.places, job.group.need)
        for job, places in zip(jobs, solution, strict=False):
            assert places is not None
            resources.take(places, job.group.need)
            job.places = places
        return solution[-1]


def _nodes_to_move_to(resources: NodeResources, job: Any) -> NodeSet:
    """The nodes on which a started job may run instead; none of another model, if it accepts several."""
    need, eligible = job.group.need, job.group.eligible_nodes
    if SEPARATOR not in need.gpu_model:
        return eligible  # type: ignore[no-any-return]
    model = resources.nodes[job.places[0][0]].gpu_model
    return eligible & resources.matching_nodes(replace(need, gpu_model=model))  # type: ignore[no-any-return]


def solve_placements(
    resources: NodeResources,
    requests: Sequence[PlacementRequest],
    *,
    hints: Sequence[GpuPlacement] = (),
    budget: float = SOLVER_BUDGET,
    all_of_them: bool = True,
) -> list[GpuPlacement | None] | None:
    """Places for all requests, or None. With `all_of_them` False, places for those that fill the most GPUs."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    items = [_JobVariables(model, resources, need, able, f"{number}") for number, (need, able) in enumerate(requests)]
    for number in members(resources.usable):
        _limit_node(model, resources, number, items)
    for item in items:
        if all_of_them:
            model.add(item.placed == 1)
    if not all_of_them:
        model.maximize(sum(item.need.total_gpus * item.placed for item in items))
    elif len(resources.leaves) > 1:
        model.minimize(sum(leaf for item in items for leaf in item.leaf_variables(model, resources)))
    for item, places in zip(items, hints, strict=False):
        item.add_hints(model, dict(places))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = budget
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [item.places(solver) for item in items]


class _JobVariables:
    """The solver variables of a job: whether it is placed, which nodes hold a share, which one the remainder."""

    def __init__(self, model: Any, resources: NodeResources, need: ResourceRequest, able: NodeSet, name: str) -> None:
        self.need = need
        self.placed = model.new_bool_var(f"placed{name}")
        nodes = list(members(able & resources.usable))
        self.share = {n: model.new_bool_var(f"share{name}on{n}") for n in nodes}
        self.rest = {n: model.new_bool_var(f"rest{name}on{n}") for n in nodes} if need.rest else {}
        model.add(sum(self.share.values()) == need.nodes * self.placed)
        if need.rest:
            model.add(sum(self.rest.values()) == self.placed)
            for n in nodes:
                model.add(self.share[n] + self.rest[n] <= 1)

    def leaf_variables(self, model: Any, resources: NodeResources) -> list[Any]:
        """One variable per leaf switch, true if the job uses it. None for a job on a single node."""
        if self.need.nodes == 1 and not self.need.rest:
            return []
        leaves_used = []
        for leaf in resources.leaves:
            touched = model.new_bool_var("")
            for shares in (self.share, self.rest):
                for number, share in shares.items():
                    if leaf >> number & 1:
                        model.add_implication(share, touched)
            leaves_used.append(touched)
        return leaves_used

    def add_hints(self, model: Any, places: dict[int, int]) -> None:
        for shares, gpus in ((self.share, self.need.gpus), (self.rest, self.need.rest)):
            for number, share in shares.items():
                model.add_hint(share, places.get(number) == gpus)

    def places(self, solver: Any) -> GpuPlacement | None:
        if not solver.value(self.placed):
            return None
        shares = [(n, self.need.gpus) for n, share in self.share.items() if solver.value(share)]
        return (*shares, *((n, self.need.rest) for n, rest in self.rest.items() if solver.value(rest)))


def _limit_node(model: Any, resources: NodeResources, number: int, items: Sequence[_JobVariables]) -> None:
    """Require that the shares on a node do not exceed its free resources."""
    shares = [(item.need, item.share[number]) for item in items if number in item.share]
    rests = [(item.need, item.rest[number]) for item in items if number in item.rest]
    gpus = [need.gpus * share for need, share in shares] + [need.rest * rest for need, rest in rests]
    model.add(sum(gpus) <= resources.free[number])
    for free, each in ((resources.cpus, "cpus"), (resources.memory_mb, "memory_mb")):
        if terms := [getattr(need, each) * var for need, var in (*shares, *rests) if getattr(need, each)]:
            model.add(sum(terms) <= max(0, free[number]))
