"""Explain the decisions of a turn: why a job starts, or which blockers keep it waiting, ranked by weight.

The result is computed once for all jobs with the same request and account, so each further job costs one lookup. The
sentences are written for the team of the job: the job ahead of it is named only if it belongs to that team.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from jobs.core.gpu_models import gpu_models, models_text
from jobs.core.gpu_shares import WHOLE_GPU, charged_milli, format_gpus, gpu_number
from jobs.core.lifecycle import POWER
from jobs.core.slurm_notation import format_count, format_duration
from scheduling.engine.blockers import Blocker, BlockerKind, approximate_duration, capitalize_first, job_label
from scheduling.engine.cluster import PowerBudget, ResourceRequest, StartDecision, WaitDecision, WaitingJob
from scheduling.engine.engine import Engine
from scheduling.engine.gpu_accounts import QUOTA_REASON, QuotaRefusal
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.resources import GpuIndices, NodeResources, NodeSet, PowerAreas, members, watts_per_node
from scheduling.engine.state.model_choice import ModelWait
from scheduling.engine.windows import UNKNOWN_RUN_S, NodeWindow

BlockerTuple = tuple[Blocker, ...]
WaitText = tuple[str, str, BlockerTuple]  # reason and sentence of the first blocker, then all of them
MAX_NAMED_BUDGETS = 3
QUOTA_KINDS = {"JobArrayTaskLimit": BlockerKind.ARRAY, "ReqNodeNotAvail": BlockerKind.RESERVATION}


class WaitExplainer:
    """Start and wait decisions of one turn, with their sentences."""

    def __init__(
        self, engine: Engine, jobs: list[tuple[EngineJob, WaitingJob]], order: Sequence[EngineJob], now: datetime
    ) -> None:
        """`order` holds all submitted jobs in queue order."""
        self._engine = engine
        self._now = now.timestamp()
        self._unbarred: NodeResources | None = None
        self._jobs = jobs
        self._behind: dict[RequestGroup, WaitText] = {}
        self._refusals: dict[RequestGroup, QuotaRefusal | None] = {}
        self._lacking: dict[int, Blocker | None] = {}  # by shape: the account does not change what fits
        started = set(engine.started_jobs)
        self.waiting = [job for job in order if job not in started]
        self.head = next((job for job in self.waiting if not self._quota_refusal(job.group)), None)

    def starts(self) -> Iterator[StartDecision]:
        """Start decisions with GPU indices, in the order in which the engine started the jobs."""
        indices = GpuIndices(self._engine.resources.nodes)
        for job in self._engine.started_jobs:
            request = self._jobs[job.number][1]
            need = request.need
            behind = self.head and _queue_position(self.head) < _queue_position(job)
            note = f"; {self._head_label(job.group)} is ahead in the queue but does not fit." if behind else "."
            yield StartDecision(
                job_id=request.id,
                places=indices.take(job.places or (), need),
                why=f"{_free_resources_text(need)} free{note}",
                gpu_milli=0 if need.mig_profile else need.gpu_milli,
                slowdown=job.slowdown,
            )

    def waits(self) -> list[WaitDecision]:
        """One decision per waiting job, in queue order."""
        waits = []
        for job in self.waiting:
            reason, why, blockers = self._wait_text(job)
            waits.append(_wait_decision(self._jobs[job.number][1].id, reason, why, blockers))
        return waits

    def ranked_blockers(self, job: EngineJob) -> BlockerTuple:
        """The blockers of a waiting job, ranked. Jobs with the same explanation share one tuple."""
        return self._wait_text(job)[2]

    def _wait_text(self, job: EngineJob) -> WaitText:
        text = self._shared_wait_text(job)
        model_wait = self._engine.model_waits.get(job)
        return _with_model_wait(text, model_wait) if model_wait else text

    def _shared_wait_text(self, job: EngineJob) -> WaitText:
        """The text that jobs with the same request and account share."""
        group = job.group
        if job is self.head:
            return _text_of_blockers(self._find_blockers(group, is_head=True))
        if (text := self._behind.get(group)) is None:
            text = self._behind[group] = _text_of_blockers(self._find_blockers(group, is_head=False))
        return text

    def _find_blockers(self, group: RequestGroup, *, is_head: bool) -> Iterator[Blocker]:
        """Yield the blockers, the most important first. The first one is the sentence that lists show."""
        priority = self._priority_blocker(group) if self.head and not is_head else None
        resources = self._resource_blocker(group)
        maintenance = self._maintenance_blocker(group) if resources and self._engine.maintenance.periods else None
        resources = maintenance or resources
        if refusal := self._quota_refusal(group):
            yield Blocker(
                kind=QUOTA_KINDS.get(refusal.reason, BlockerKind.QUOTA), reason=refusal.reason, why=refusal.why
            )
            if resources:
                yield resources
            return
        if priority and self._engine.rules.single_queue:
            yield priority
            if resources:
                yield resources
            return
        if resources and (full := self._engine.full_model_texts(group)):
            yield from (Blocker(kind=BlockerKind.QUOTA, reason=QUOTA_REASON, why=why) for why in full)
            yield resources
            if priority:
                yield priority
            return
        resources = resources or self._policy_blocker(group)
        if not priority or maintenance:
            yield resources
            if priority:
                yield priority
            return
        first = f"{resources.why} {capitalize_first(self._head_label(group))} is ahead of it."
        yield replace(resources, why=first)
        yield priority

    def _priority_blocker(self, group: RequestGroup) -> Blocker:
        why = f"{capitalize_first(self._head_label(group))} is ahead of it in the queue."
        return Blocker(kind=BlockerKind.PRIORITY, reason="Priority", why=why)

    def _head_label(self, group: RequestGroup) -> str:
        """The job at the head of the queue, named only if the team of this request may see it."""
        assert self.head is not None
        head = self._jobs[self.head.number][1]
        return job_label(head.name, head.team, lambda team: team == group.owner.team)

    def _quota_refusal(self, group: RequestGroup) -> QuotaRefusal | None:
        if group not in self._refusals:
            self._refusals[group] = self._engine.quota_refusal(group)
        return self._refusals[group]

    def _resource_blocker(self, group: RequestGroup) -> Blocker | None:
        """The missing resources, or None if the request would fit. The result is the same for every account."""
        if group.shape not in self._lacking:
            engine = self._engine
            fits = engine.place(engine.resources, group.need, group.eligible_nodes) is not None
            self._lacking[group.shape] = None if fits else missing_resources(engine.resources, group)
        return self._lacking[group.shape]

    def _maintenance_blocker(self, group: RequestGroup) -> Blocker | None:
        """A blocker if maintenance is the only reason why the request does not start; otherwise None."""
        engine = self._engine
        if self._unbarred is None:
            self._unbarred = engine.resources.copy()
            engine.maintenance.reopen_nodes(self._unbarred, math.inf)
        runs_s = group.need.runs_s
        periods = [period for period in engine.maintenance.periods if period.stops(runs_s, self._now)]
        if not periods:
            return None
        usable = (group.eligible_nodes & engine.resources.usable).bit_count()
        too_few = usable < group.need.nodes + bool(
            group.need.rest
        )  # maintenance blocks the other nodes even if they become free
        if not too_few and engine.place(self._unbarred, group.need, group.matching_nodes) is None:
            return None
        why = maintenance_text([period.window for period in periods], self._now, runs_s)
        return Blocker(kind=BlockerKind.MAINTENANCE, reason="ReqNodeNotAvail", why=why, nodes=group.need.nodes)

    def _policy_blocker(self, group: RequestGroup) -> Blocker:
        """The request fits, but the policy keeps its place free for another job."""
        reservation = self._engine.reservation.current
        if reservation is None:
            why = "It fits now, but the policy starts other jobs first."
            return Blocker(kind=BlockerKind.PRIORITY, reason="Priority", why=why)
        at = (
            "that time"
            if reservation.at == math.inf
            else f"{datetime.fromtimestamp(reservation.at, UTC):%d %b %H:%M} UTC"
        )
        why = f"It fits now, but might still be running at {at}, when the first job in the queue is due to start."
        return Blocker(kind=BlockerKind.RESERVATION, reason="Priority", why=why, gpus=reservation.job.group.gpus)


def maintenance_text(windows: Sequence[NodeWindow], now: float, runs_s: float) -> str:
    """The sentence for a job that fits now but would still run when the maintenance starts."""
    periods = [
        f"{window.name} from {window.start:%d %b %H:%M} until {window.end:%d %b %H:%M} UTC" for window in windows[:2]
    ]
    more = f" and {len(windows) - 2} more" if len(windows) > 2 else ""
    why = f"The nodes it would fit on are reserved for maintenance {' and '.join(periods)}{more}"
    if all(window.start.timestamp() <= now for window in windows):
        return f"{why}."
    if runs_s != UNKNOWN_RUN_S:
        return f"{why}, and it might still be running then."
    lead = max(window.lead for window in windows)
    return f"{why}. It has no time limit, so it does not start there in the {format_duration(lead)} before that."


def _wait_decision(job_id: int, reason: str, why: str, blockers: BlockerTuple) -> WaitDecision:
    """`WaitDecision(...)` in half the time: a NamedTuple's constructor is a Python function that does only this."""
    return tuple.__new__(WaitDecision, (job_id, reason, why, blockers))


def _queue_position(job: EngineJob) -> tuple[int, float, int]:
    return job.band, job.key, job.number


def _text_of_blockers(ranked: Iterator[Blocker]) -> WaitText:
    blockers = tuple(ranked)
    return blockers[0].reason, blockers[0].why, blockers


def _with_model_wait(text: WaitText, wait: ModelWait) -> WaitText:
    """The text of a job that could start on another model, but ends earlier if it waits for one that it prefers."""
    reason, why, blockers = text
    if blockers[0].reason != "Resources":
        return text
    if wait.sooner_s < math.inf:
        sooner = approximate_duration(wait.sooner_s)
        why = (
            f"{why} It waits for {wait.model}, where it is predicted to end {sooner} earlier than on {wait.other} now."
        )
    else:
        why = f"{why} It waits for {wait.model}, because it is predicted to reach its time limit on {wait.other}."
    return reason, why, (replace(blockers[0], why=why), *blockers[1:])


def missing_resources(resources: NodeResources, group: RequestGroup) -> Blocker:
    """The blocker of a request that does not fit: too little power, too few free GPUs, or enough of them but not on
    suitable nodes.
    """
    need = group.need
    if resources.power and need.watts > resources.watts_left:
        return _power_blocker(resources.power, resources.watts_left, need)
    if resources.areas and need.watts and (blocker := _area_blocker(resources, resources.areas, group)):
        return blocker
    only_gpus = ResourceRequest(gpus=need.gpus, gpu_milli=need.gpu_milli, mig_profile=need.mig_profile)
    with_gpus = resources.fitting_nodes(only_gpus, group.eligible_nodes).bit_count()
    fitting = resources.fitting_nodes(need, group.eligible_nodes).bit_count()
    if not need.charged_milli:
        requested = f"{need.node or format_count(need.nodes, 'node')} with {format_count(need.cpus, 'CPU')}"
        why = f"It needs {requested}; {_nodes_have_text(fitting)} that free."
        return Blocker(
            kind=BlockerKind.CAPACITY, reason="Resources", why=why, nodes=max(0, need.nodes + bool(need.rest) - fitting)
        )
    if need.mig_profile:
        return _slice_blocker(resources, group, lacks_others=with_gpus > fitting)
    alternatives = _models_of_group(resources, group)
    free = max(resources.free_gpus_among(nodes) for _, nodes in alternatives)
    suitable = max(resources.fitting_nodes(need, nodes).bit_count() for _, nodes in alternatives)
    model = f"{models_text(need.gpu_model)} GPU".strip()
    gpus = charged_milli(need.gpus, need.gpu_milli)  # on each node
    requested = format_gpus(gpus, model) if need.nodes == 1 else f"{need.nodes} × {format_gpus(gpus, model)}"
    requested += f" on {need.node}" if need.node else ""
    beside = _cpu_memory_text(resources, need) if with_gpus > fitting else ""
    found = ", ".join(_free_text(resources, need, name, nodes) for name, nodes in alternatives)
    in_all = format_count(resources.free_gpus_among(group.eligible_nodes), "GPU")
    on_one = " on one GPU" if need.gpu_milli else ""
    why = f"It needs {requested}; {found} free{on_one}{beside} ({in_all} free in total)."
    scattered = WHOLE_GPU * free >= need.charged_milli
    return Blocker(
        kind=BlockerKind.TOPOLOGY if scattered else BlockerKind.CAPACITY,
        reason="Resources",
        why=why,
        gpus=max(0, need.total_gpus + bool(need.gpu_milli) - free),
        nodes=max(0, need.nodes - suitable),
    )


def _slice_blocker(resources: NodeResources, group: RequestGroup, *, lacks_others: bool) -> Blocker:
    need, eligible = group.need, group.eligible_nodes & resources.usable
    model = f"{models_text(need.gpu_model)} " if need.gpu_model else ""
    requested = f"a MIG slice {need.mig_profile}" + (f" on {need.node}" if need.node else "")
    beside = _cpu_memory_text(resources, need) if lacks_others else ""
    profiles = [profile for number in members(eligible) for profile in resources.nodes[number].mig_profiles]
    free = sum(resources.count_free_slices(number, need) for number in members(eligible))
    why = (
        f"It needs {requested}; {_nodes_have_text(resources.fitting_nodes(need, group.eligible_nodes).bit_count())} one"
        f" free{beside} ({free} of {profiles.count(need.mig_profile)} {model}slices {need.mig_profile} free in total)."
    )
    return Blocker(kind=BlockerKind.CAPACITY, reason="Resources", why=why, nodes=1)


def _power_blocker(budget: PowerBudget, left: int, need: ResourceRequest) -> Blocker:
    why = (
        f"It is predicted to need {need.watts / 1000:,.1f} kW; of power budget {budget.name}, "
        f"{max(0, left) / 1000:,.1f} of {budget.watts / 1000:,.1f} kW for jobs are left."
    )
    if need.watts > budget.watts:
        why += " The whole budget is too small for it."
    return Blocker(kind=BlockerKind.CAPACITY, reason=POWER, why=why, power_budgets=(budget.name,))


def _area_blocker(resources: NodeResources, areas: PowerAreas, group: RequestGroup) -> Blocker | None:
    """The blocker of a request for which only budgets of parts of the cluster have too little left."""
    need, count = group.need, group.need.nodes + bool(group.need.rest)
    without_power = resources.fitting_nodes(replace(need, watts=0), group.eligible_nodes)
    fitting = areas.fitting(need, without_power).bit_count()
    if without_power.bit_count() < count or fitting >= count:
        return None
    names = areas.short_budgets(need, without_power)
    more = f" and {len(names) - MAX_NAMED_BUDGETS} more" if len(names) > MAX_NAMED_BUDGETS else ""
    each = f"{watts_per_node(need) / 1000:,.1f} kW" + (f" on each of {count} nodes" if count > 1 else "")
    why = (
        f"It is predicted to need {each}; the power budgets of {', '.join(names[:MAX_NAMED_BUDGETS])}{more} leave that"
        f" on {fitting or 'none'} of {format_count(without_power.bit_count(), 'node')} where it would fit."
    )
    return Blocker(kind=BlockerKind.CAPACITY, reason=POWER, why=why, nodes=count - fitting, power_budgets=tuple(names))


def _models_of_group(resources: NodeResources, group: RequestGroup) -> list[tuple[str, NodeSet]]:
    """The sets of nodes between which the request chooses: one for each GPU model, if it names several."""
    models = gpu_models(group.need.gpu_model)
    if len(models) < 2:
        return [("", group.eligible_nodes)]
    requests = [(model, replace(group.need, gpu_model=model)) for model in models]
    found = [(model, resources.matching_nodes(request) & group.eligible_nodes) for model, request in requests]
    return [entry for entry in found if entry[1]] or found if group.barred_nodes else found


def _free_text(resources: NodeResources, need: ResourceRequest, model: str, among: NodeSet) -> str:
    """Like "2 nodes have 8", and of which GPU model if the request chooses between several."""
    fitting = _nodes_have_text(resources.fitting_nodes(need, among).bit_count())
    return f"{fitting} {gpu_number(charged_milli(need.gpus, need.gpu_milli))} {model}".rstrip()


def _cpu_memory_text(resources: NodeResources, need: ResourceRequest) -> str:
    """The CPUs and memory needed per node, for requests that these keep from fitting."""
    amounts = [format_count(need.cpus, "CPU")] if need.cpus else []
    if need.memory_mb:
        amounts.append(f"{need.memory_mb} MiB")
    return f" with {' and '.join(amounts)}"


def _free_resources_text(need: ResourceRequest) -> str:
    """Like "1 node was" or "8 GPUs were"."""
    if need.mig_profile:
        return f"A MIG slice {need.mig_profile} was"
    if need.charged_milli:
        return f"{format_gpus(need.charged_milli)} {'was' if need.charged_milli == WHOLE_GPU else 'were'}"
    return f"{format_count(need.nodes, 'node')} {'was' if need.nodes == 1 else 'were'}"


def _nodes_have_text(nodes: int) -> str:
    return "no node has" if nodes == 0 else f"{format_count(nodes, 'node')} {'has' if nodes == 1 else 'have'}"
