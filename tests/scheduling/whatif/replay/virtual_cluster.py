"""Rows of a virtual cluster: a trace's jobs as they would be on a live one. They are written to temporary tables or
rolled back, so no other process ever sees them.

The database's clock cannot be set, so times that it fills in are replaced by the virtual time at once.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model

from jobs.actions import jobs as job_actions
from jobs.actions.journal import Author
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import NodeState, State
from jobs.models import (
    Allocation,
    Attempt,
    Cluster,
    ClusterCommand,
    ClusterCommandKind,
    ClusterMode,
    HoldKind,
    Job,
    Node,
    Quota,
    Team,
)
from jobs.traces.trace import EncodedColumn, Trace
from scheduling.models import BudgetScope, GpuSpeed, LearnedPeaks, PowerBudget
from scheduling.power.rules.predictions import idle_node_w
from scheduling.whatif.replay.as_live import teams, time_limits
from scheduling.whatif.replay.power.profiles import draw_profiles
from scheduling.whatif.replay.power.setting import MAX_NAME_LENGTH, kind_or_other, learned_peaks
from scheduling.whatif.replay.run import ReplaySetting, job_resources, replay_nodes

AUTHOR = Author(by="virtual cluster")


def virtual_datetime(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


@dataclass(frozen=True, kw_only=True)
class StartedAttempt:
    """An attempt that a turn has started: the row of its job in the trace, and the numbers of its nodes."""

    pk: int
    row: int
    nodes: tuple[int, ...]
    slowdown: float


class VirtualCluster:
    """A cluster with the nodes of the setting and no jobs."""

    def __init__(
        self, trace: Trace, policy: str, setting: ReplaySetting, *, borrows: bool, all_agree: bool = False
    ) -> None:
        """`borrows`: whether jobs of the best-effort kinds are preemptible; `all_agree`: whether all jobs are."""
        self._all_agree = all_agree
        self._trace, self._borrows, self._setting = trace, borrows, setting
        # Unique names: with equal ones, a run in a transaction would wait for that of another run
        self._name = f"virtual-{secrets.token_hex(3)}"
        self.cluster = Cluster.objects.create(
            name=self._name,
            address="http://127.0.0.1:1",
            mode=ClusterMode.DRIVE,
            policy=policy,
            policy_settings=dict(setting.policy_settings),
            placement=setting.placement,
        )
        views = replay_nodes(setting, setting.nodes)
        # Names are sorted as texts, so the numbers get leading zeros
        nodes = [_node(self.cluster, number, view) for number, view in enumerate(views)]
        self._node_numbers = {node.pk: number for number, node in enumerate(Node.objects.bulk_create(nodes))}
        self._teams = _teams(accounts := teams(trace, by_pool=bool(setting.quotas)), self._name)
        self._team_codes = accounts.codes.tolist()
        self._users = _users(trace.users, self._name)
        self._limits_s: list[float] = time_limits(trace).tolist()
        self._job_rows: dict[int, int] = {}  # by job id
        by_name = dict(zip(accounts.words, self._teams, strict=True))
        Quota.objects.bulk_create(
            Quota(
                cluster=self.cluster,
                team=by_name[quota.team],
                kind=quota.kind or "",
                gpu_model=quota.gpu_model,
                gpus=quota.gpus,
            )
            for quota in setting.quotas
            if quota.team in by_name
        )
        if setting.gpu_types:
            GpuSpeed.objects.bulk_create(
                GpuSpeed(cluster=self.cluster, pattern=row.pattern, gpu_model=row.gpu_model, speed=row.speed)
                for row in setting.gpu_types.speeds
            )
        if budget := setting.power_budget:
            self._add_power_budget(budget.watts)

    def _add_power_budget(self, watts: int) -> None:
        """Add the budget of a setting, and what the cluster has learned about the power of its jobs."""
        setting = self._setting
        idle_w = len(self._node_numbers) * idle_node_w(setting.gpus_per_node, "")
        PowerBudget.objects.create(cluster=self.cluster, scope=BudgetScope.CLUSTER, limit_w=watts + idle_w)
        profiles = draw_profiles(list(self._trace.kinds), self._trace.runtime_s, setting.seed)
        peaks = learned_peaks(self._trace, profiles, self._users)
        LearnedPeaks.objects.bulk_create(
            LearnedPeaks(cluster=self.cluster, scope=scope, counts=counts) for scope, counts in peaks.counts().items()
        )

    def submit(self, rows: Sequence[int], at_s: float) -> None:
        """Create the waiting jobs of these rows of the trace."""
        jobs = Job.objects.bulk_create([self._job(row, at_s) for row in rows])
        self._job_rows |= {job.pk: row for job, row in zip(jobs, rows, strict=True)}

    def _job(self, row: int, at_s: float) -> Job:
        trace, kind = self._trace, self._trace.kinds[row]
        need = job_resources(trace, row, self._setting)
        limit_s = self._limits_s[row]
        return Job(
            public_id=f"{self._name}-{row}",
            cluster=self.cluster,
            team=self._teams[self._team_codes[row]],
            user_id=self._users[int(trace.users.codes[row])],
            name=trace.names[row][:MAX_NAME_LENGTH],
            kind=kind_or_other(kind),
            command="true",
            nodes=need.nodes,
            gpus_per_node=need.gpus,
            gpu_milli=need.gpu_milli,
            cpus_per_node=need.cpus,
            memory_per_node_mb=need.memory_mb,
            gpu_model=need.gpu_model,
            time_limit=timedelta(seconds=limit_s) if limit_s < float("inf") else None,
            deadline_at=virtual_datetime(float(trace.deadline_s[row]))
            if math.isfinite(trace.deadline_s[row])
            else None,
            preemptible=self._all_agree or (self._borrows and kind in self._setting.best_effort),
            submitted_at=virtual_datetime(at_s),
        )

    def confirm_starts(self, at_s: float) -> list[StartedAttempt]:
        """Confirm the attempts that the last turn has allocated, in the order of their allocation, and the commands
        that would have started them."""
        now = virtual_datetime(at_s)
        rows = list(Attempt.objects.filter(job__cluster=self.cluster, confirmed_at=None, ended_at=None).order_by("pk"))
        attempts = [attempt.pk for attempt in rows]
        places: dict[int, set[int]] = {attempt: set() for attempt in attempts}
        for attempt, node in Allocation.objects.filter(attempt__in=attempts).values_list("attempt", "node"):
            places[attempt].add(self._node_numbers[node])
        Attempt.objects.filter(pk__in=attempts).update(promised_at=now, confirmed_at=now, seen_running_at=now)
        Allocation.objects.filter(attempt__in=attempts).update(held_at=now)
        ClusterCommand.objects.filter(attempt__in=attempts, kind=ClusterCommandKind.SUBMIT).update(done_at=now)
        Job.objects.filter(pk__in=[attempt.job_id for attempt in rows]).update(started_at=now, flags=[])
        return [
            StartedAttempt(
                pk=one.pk,
                row=self._job_rows[one.job_id],
                nodes=tuple(sorted(places[one.pk])),
                slowdown=one.slowdown,
            )
            for one in rows
        ]

    def end(self, attempt: int, at_s: float) -> None:
        """Complete the job of this attempt."""
        ended = AttemptEnd(state=State.COMPLETED, at=virtual_datetime(at_s), exit_code=0)
        job_actions.finish(Attempt.objects.get(pk=attempt), ended, author=AUTHOR)

    def stop_preempted(self, at_s: float) -> list[int]:
        """End the attempts whose stop was requested, so that their jobs wait again. Return the attempts."""
        rows = Attempt.objects.filter(job__cluster=self.cluster, ended_at=None).exclude(stop_state="").order_by("pk")
        stopped = list(rows)
        for attempt in stopped:
            ended = AttemptEnd(state=State.PREEMPTED, at=virtual_datetime(at_s))
            job_actions.finish(attempt, ended, author=AUTHOR)
        Job.objects.filter(attempts__in=[one.pk for one in stopped]).update(hold=HoldKind.NONE, flags=[])
        return [attempt.pk for attempt in stopped]


def _node(cluster: Cluster, number: int, view: Any) -> Node:
    return Node(
        cluster=cluster,
        name=f"n{number:05}",
        gpus=view.gpus,
        cpus=view.free_cpus,
        memory_mb=view.free_memory_mb,
        shards_per_gpu=view.shards_per_gpu,
        gpu_model=view.gpu_model,
        leaf=view.leaf,
        state=NodeState.IDLE,
    )


def _teams(accounts: EncodedColumn, prefix: str) -> list[Team]:
    names = [Team(name=f"{prefix}-team-{code}") for code in range(len(accounts.words))]
    return Team.objects.bulk_create(names)


def _users(users: EncodedColumn, prefix: str) -> list[int]:
    people = get_user_model().objects
    # Not `create_user`: hashing a password takes a quarter of a second, and nobody logs in
    rows = people.bulk_create([people.model(username=f"{prefix}-user-{code}") for code in range(len(users.words))])
    return [row.pk for row in rows]
