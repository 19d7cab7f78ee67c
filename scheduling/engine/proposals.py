"""Propose changes that might start a waiting job, from the state after a turn: what would fit, quotas, earliest ends.

A proposal may be wrong; `counterfactual` tries each one. Proposals must be cheap: a lookup in the free resources, not a
turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import islice

from jobs.core.gpu_models import accepts_model, gpu_models, models_text
from jobs.core.gpu_shares import WHOLE_GPU, format_gpus
from jobs.core.slurm_notation import format_count, format_duration, format_memory
from scheduling.engine.blockers import CanSeeTeam, approximate_duration, job_label
from scheduling.engine.changes import (
    HARDWARE_COST,
    OPERATOR_COST,
    PREEMPTIBLE_COST,
    PRIORITY_COST,
    SHORTER_LIMIT_COST,
    ChangeActor,
    SuggestedChange,
    find_waiting_job,
    make_change,
    with_job_fields,
    with_open_nodes,
    with_quotas,
    without_running_jobs,
)
from scheduling.engine.cluster import ClosedNode, ClusterSnapshot, QuotaView, ResourceRequest, RunningJob
from scheduling.engine.engine import PolicyRules
from scheduling.engine.gpu_accounts import QuotaOwner
from scheduling.engine.live import SnapshotEngine, engine_after_turn
from scheduling.engine.resources import GpuPlacement, free_slices, shared_position
from scheduling.engine.run_time_estimates import expected_end

MAX_SINGLE_ENDS = 3


class ChangeProposals:
    """Changes that might start one job, based on free resources and quota usage after a turn."""

    def __init__(self, snapshot: ClusterSnapshot, rules: PolicyRules, job_id: int, sees: CanSeeTeam) -> None:
        self._snapshot = snapshot
        self._sees = sees
        self._job = find_waiting_job(snapshot, job_id)
        self._need = self._job.need
        self._snapshot_engine: SnapshotEngine = engine_after_turn(snapshot, rules)
        self._engine = self._snapshot_engine.engine
        self._resources = self._engine.resources
        self._number = {node.id: number for number, node in enumerate(self._resources.nodes)}

    def all(self) -> Iterator[SuggestedChange]:
        """All proposals, unsorted."""
        yield from self._smaller_requests()
        yield from self._other_hardware()
        yield from self._other_terms()
        yield from self._higher_quotas()
        yield from self._node_openings()
        yield from self._job_ends()

    def _has_placement(self, need: ResourceRequest) -> bool:
        nodes = self._resources.matching_nodes(need)
        if barred := self._engine.barred_nodes(QuotaOwner.of(self._job), need.charged_milli):
            nodes &= self._resources.usable & ~barred
        return self._engine.place(self._resources, need, nodes) is not None

    def _quota_admits(self, milli: int) -> bool:
        quota_usage, obtainable = self._engine.quota_usage, self._engine.owner_resources.free_gpus
        return quota_usage is None or quota_usage.refuse(QuotaOwner.of(self._job), milli, obtainable=obtainable) is None

    def _owner_change(
        self, kind: str, cost: float, phrase: str, request: Mapping[str, object], **fields: object
    ) -> SuggestedChange:
        return make_change(kind, ChangeActor.OWNER, cost, phrase, with_job_fields(self._job.id, **fields), request)

    # Changes that the owner can make

    def _smaller_requests(self) -> Iterator[SuggestedChange]:
        """Propose fewer nodes or GPUs, and fewer CPUs or less memory.

        A program divides its work evenly, so a job of several nodes keeps the GPUs per node, and a job of one node gets
        a divisor of its GPUs.
        """
        need = self._need
        divisors = [gpus for gpus in range(need.gpus - 1, 0, -1) if need.nodes == 1 and need.gpus % gpus == 0]
        fewer_gpus = (_resized(need, gpus=gpus) for gpus in divisors)
        if fitting := next((smaller for smaller in fewer_gpus if self._would_start(smaller)), None):
            phrase = f"it requested {format_count(fitting.gpus, 'GPU')} instead of {need.gpus}"
            request = {"gpus_per_node": fitting.gpus}
            yield self._owner_change("gpus", 1 - fitting.gpus / need.gpus, phrase, request, need=fitting)
        fewer_nodes = (_resized(need, nodes=nodes) for nodes in range(need.nodes - 1, 0, -1))
        if fitting := next((smaller for smaller in fewer_nodes if self._would_start(smaller)), None):
            phrase = f"it requested {format_count(fitting.nodes, 'node')} instead of {need.nodes}"
            yield self._owner_change(
                "nodes", 1 - fitting.nodes / need.nodes, phrase, {"nodes": fitting.nodes}, need=fitting
            )
        yield from self._less_cpu_memory()

    def _would_start(self, need: ResourceRequest) -> bool:
        return self._quota_admits(need.charged_milli) and self._has_placement(need)

    def _less_cpu_memory(self) -> Iterator[SuggestedChange]:
        """Propose fewer CPUs or less memory, if only these keep the request from fitting."""
        need = self._need
        if self._has_placement(need) or not self._has_placement(replace(need, cpus=min(1, need.cpus), memory_mb=0)):
            return
        if (cpus := self._largest_fitting("cpus", replace(need, memory_mb=0))) < need.cpus:
            phrase = f"it requested {format_count(cpus, 'CPU')} per node instead of {need.cpus}"
            cost, request = 0.5 * (1 - cpus / need.cpus), {"cpus_per_node": cpus}
            yield self._owner_change("cpus", cost, phrase, request, need=replace(need, cpus=cpus))
        if (memory := self._largest_fitting("memory_mb", replace(need, cpus=min(1, need.cpus)))) < need.memory_mb:
            phrase = f"it requested {format_memory(memory)} per node instead of {format_memory(need.memory_mb)}"
            cost, less = 0.5 * (1 - memory / need.memory_mb), replace(need, memory_mb=memory)
            yield self._owner_change("memory", cost, phrase, {"memory_per_node": f"{memory}M"}, need=less)

    def _largest_fitting(self, field: str, need: ResourceRequest) -> int:
        """The largest value of this field that fits, found by bisection."""
        low, high = 0, getattr(need, field)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._has_placement(replace(need, **{field: middle})) else (low, middle - 1)
        return int(low)

    def _other_hardware(self) -> Iterator[SuggestedChange]:
        need = self._need
        if need.gpu_model:
            others = {node.gpu_model for node in self._resources.nodes} - {*gpu_models(need.gpu_model), ""}
            for model in sorted(others):
                other = replace(need, gpu_model=model)
                if self._has_placement(other):
                    phrase = f"it used {model} GPUs instead of {models_text(need.gpu_model)}"
                    yield self._owner_change("model", HARDWARE_COST, phrase, {"gpu_model": model}, need=other)
        if need.nic_type and self._has_placement(replace(need, nic_type="")):
            other = replace(need, nic_type="")
            phrase = f"it did not require {need.nic_type} NICs"
            yield self._owner_change("nic", HARDWARE_COST, phrase, {"nic_type": ""}, need=other)

    def _other_terms(self) -> Iterator[SuggestedChange]:
        job = self._job
        if not job.preemptible and not self._need.gpu_milli:
            request = {"preemptible": True}
            yield self._owner_change("preemptible", PREEMPTIBLE_COST, "it were preemptible", request, preemptible=True)
        ahead = [other.priority for other in self._snapshot.waiting if other.id != job.id and not other.hold]
        if ahead and (highest := max(ahead) + 1) > job.priority:
            raised = with_job_fields(job.id, priority=highest)
            yield make_change("priority", ChangeActor.OPERATOR, PRIORITY_COST, f"its priority were {highest}", raised)
        if self._would_start(self._need):
            yield from self._limit_before_reservation()
            yield from self._limit_before_maintenance()

    def _limit_before_reservation(self) -> Iterator[SuggestedChange]:
        """Propose a time limit short enough to end before the first job in the queue is due to start."""
        reservation = self._engine.reservation.current
        slack = reservation.at - self._snapshot.now.timestamp() if reservation else math.inf
        yield from self._limit_within(slack)

    def _limit_before_maintenance(self) -> Iterator[SuggestedChange]:
        """Propose a time limit short enough to end before the next maintenance."""
        now = self._snapshot.now
        yield from self._limit_within(
            min(
                ((window.start - now).total_seconds() for window in self._snapshot.windows if window.start > now),
                default=math.inf,
            )
        )

    def _limit_within(self, slack: float) -> Iterator[SuggestedChange]:
        limit = self._job.time_limit
        if slack == math.inf or slack < 60 or (limit and limit.total_seconds() <= slack):
            return
        short = timedelta(minutes=int(slack // 60))
        cost = SHORTER_LIMIT_COST * (1 - short / limit) if limit else SHORTER_LIMIT_COST
        phrase = f"its time limit were {format_duration(short)} instead of {format_duration(limit)}"
        yield self._owner_change("limit", cost, phrase, {"time_limit": format_duration(short)}, time_limit=short)

    # Changes that need an operator

    def _higher_quotas(self) -> Iterator[SuggestedChange]:
        short = [(quota, more) for quota in self._snapshot.quotas if (more := self._quota_excess(quota)) > 0]
        if not short or self._job.preemptible:
            return
        raised = [replace(quota, gpus=quota.gpus + more) for quota, more in short]
        cost = OPERATOR_COST + 0.5 * max(more / (more + quota.gpus) for quota, more in short)
        phrases = [
            f"the quota of team {quota.team}{_quota_scope(quota)} were {more} GPUs higher"
            f" ({quota.gpus + more} instead of {quota.gpus})"
            for quota, more in short
        ]
        yield make_change("quota", ChangeActor.OPERATOR, cost, " and ".join(phrases), with_quotas(raised))

    def _quota_excess(self, quota: QuotaView) -> int:
        """GPUs by which the job would exceed the quota, rounded up, because quotas are whole GPUs."""
        if not quota.applies_to(self._job):
            return 0
        return -(-(self._milli_under_quota(quota) + self._need.charged_milli) // WHOLE_GPU) - quota.gpus

    def _milli_under_quota(self, quota: QuotaView) -> int:
        """What counts against the quota: running jobs and jobs started in this turn."""
        usage = [
            (QuotaOwner.of(waiting), job.group.charged_milli, self._resources.nodes[job.places[0][0]].gpu_model)
            for job, waiting in self._snapshot_engine.jobs
            if job.places
        ]
        models = self._snapshot.gpu_model
        usage += [(running_job_owner(job), job.charged_milli, models(job)) for job in self._snapshot.running]
        counted = [entry for entry in usage if entry[0].team == quota.team and not entry[0].preemptible]
        of_model = [entry for entry in counted if quota.gpu_model in ("", entry[2])]
        return sum(milli for owner, milli, _ in of_model if quota.kind in (None, owner.kind))

    def _node_openings(self) -> Iterator[SuggestedChange]:
        """Propose to open as many closed nodes as the request lacks."""
        lacking = max(
            1,
            self._need.nodes
            - self._resources.fitting_nodes(self._need, self._resources.matching_nodes(self._need)).bit_count(),
        )
        useful = [closed for closed in self._snapshot.closed if self._is_useful_node(closed)]
        useful.sort(key=lambda closed: (closed.back != "resumed", closed.node.name))
        if len(useful) < lacking:
            return
        chosen = useful[:lacking]
        names = ", ".join(closed.node.name for closed in chosen[:3]) + (
            f" and {lacking - 3} more" if lacking > 3 else ""
        )
        many = "node" if lacking == 1 else "nodes"
        back = "resumed" if all(closed.back == "resumed" for closed in chosen) else "back"
        phrase = f"{many} {names} were {back}"
        yield make_change(
            "nodes-open", ChangeActor.OPERATOR, OPERATOR_COST + 0.1 * lacking, phrase, with_open_nodes(chosen)
        )

    def _is_useful_node(self, closed: ClosedNode) -> bool:
        node, need = closed.node, self._need
        return (
            len(node.free_gpus) >= need.most_gpus
            and (not need.mig_profile or free_slices(node, need.mig_profile) > 0)
            and node.free_cpus >= need.cpus
            and node.free_memory_mb >= need.memory_mb
            and accepts_model(need.gpu_model, node.gpu_model)
            and need.nic_type in ("", node.nic_type)
            and need.node in ("", node.name)
        )

    # Changes that only time brings

    def _job_ends(self) -> Iterator[SuggestedChange]:
        """Propose single jobs whose end would be enough, or else the shortest series of next ends that would be."""
        by_end = sorted(self._snapshot.running, key=self._seconds_left)
        alone = islice((job for job in by_end if self._would_start_after([job])), MAX_SINGLE_ENDS)
        any_alone = False
        for job in alone:
            any_alone = True
            label = job_label(job.name, job.team, self._sees)
            yield self._end_change(
                [job], f"{label} ({format_gpus(job.charged_milli)}{self._time_left_text(job)}) ended"
            )
        if not any_alone and (earliest := self._earliest_ends(by_end)):
            last = self._time_left_text(earliest[-1]).replace(", ", ", the last ", 1)
            yield self._end_change(earliest, f"the {len(earliest)} jobs that end first had ended{last}")

    def _end_change(self, jobs: list[RunningJob], phrase: str) -> SuggestedChange:
        hours = max(self._seconds_left(job) for job in jobs) / 3600
        cost = 1.0 if hours == math.inf else hours / (1 + hours)
        return make_change("end", ChangeActor.TIME, cost, phrase, without_running_jobs(jobs))

    def _seconds_left(self, job: RunningJob) -> float:
        """Until its expected end; without a prediction until its limit."""
        limit = job.started_at + job.time_limit if job.time_limit and job.started_at else None
        end = expected_end(self._snapshot, job) or limit
        return max(0.0, (end - self._snapshot.now).total_seconds()) if end else math.inf

    def _time_left_text(self, job: RunningJob) -> str:
        seconds = self._seconds_left(job)
        if seconds == math.inf:
            return ", no limit"
        how = "at its limit" if expected_end(self._snapshot, job) is None else "expected to end"
        return f", {how} in {approximate_duration(seconds)}"

    def _earliest_ends(self, by_end: list[RunningJob]) -> list[RunningJob]:
        """The fewest jobs, in order of their expected ends, whose end would let this job start. Found by bisection."""
        low, high = 2, len([job for job in by_end if self._seconds_left(job) < math.inf])
        if high < low or not self._would_start_after(by_end[:high]):
            return []
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._would_start_after(by_end[:middle]) else (middle + 1, high)
        return by_end[:low]

    def _would_start_after(self, jobs: list[RunningJob]) -> bool:
        """Whether the job would start after these have ended. Releases their resources, checks and takes them again."""
        if len(jobs) == 1 and not self._quota_admits(self._need.charged_milli) and jobs[0].team != self._job.team:
            return False
        released = [self._release_job(job) for job in jobs]
        enough = self._would_start(self._need)
        for job, places in zip(jobs, released, strict=True):
            self._resources.take(places, _held_resources(job))
            if self._engine.quota_usage:
                self._count_for_quota(job, 1)
        return enough

    def _release_job(self, job: RunningJob) -> GpuPlacement:
        """Release the job's resources: per node at most the GPUs missing there, because records may be wrong."""
        resources, number = self._resources, self._number
        held = [(number[node], gpus) for node, gpus in job.places.items() if node in number]
        if job.gpu_milli:
            places = tuple((node, shared_position(resources.nodes[node], job.shared_gpu)) for node, _ in held)
        else:
            places = tuple((node, min(gpus, resources.nodes[node].gpus - resources.free[node])) for node, gpus in held)
        resources.give(places, _held_resources(job))
        if self._engine.quota_usage:
            self._count_for_quota(job, -1)
        return places

    def _count_for_quota(self, job: RunningJob, sign: int) -> None:
        usage, owner = self._engine.quota_usage, running_job_owner(job)
        assert usage is not None
        model = self._snapshot.gpu_model(job) if usage.limits_models(owner) else ""
        usage.add(owner, job.charged_milli, sign, model)


def _quota_scope(quota: QuotaView) -> str:
    """Like " for sft" or " on h100"; empty for a quota on everything."""
    kind = f" for {quota.kind}" if quota.kind else ""
    return f"{kind} on {quota.gpu_model}" if quota.gpu_model else kind


def running_job_owner(job: RunningJob) -> QuotaOwner:
    return QuotaOwner(team=job.team, kind=job.kind, preemptible=job.preemptible, array=job.array)


def _held_resources(job: RunningJob) -> ResourceRequest:
    return ResourceRequest(
        gpus=job.gpus, gpu_milli=job.gpu_milli, cpus=job.cpus, memory_mb=job.memory_mb, watts=job.watts
    )


def _resized(need: ResourceRequest, **size: int) -> ResourceRequest:
    """The request with fewer nodes or GPUs, and with as much less power."""
    smaller = replace(need, **size)  # type: ignore[arg-type]
    return replace(smaller, watts=-(-need.watts * smaller.total_gpus // max(1, need.total_gpus)))
