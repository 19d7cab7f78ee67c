"""Adds the jobs of a trace to what scheduling remembers, so that a new installation starts with a memory.

Only jobs that ended before the cluster was added count, because Acme has recorded the later ones itself, and only those
that ended after the last import, so the same file can be imported twice without harm.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.db import transaction

from acmeweb.common.errors import InvalidInput
from jobs.core.lifecycle import JobKind
from jobs.models import Cluster, Job, Team
from jobs.traces.trace import Trace
from scheduling.core.run_time_scopes import JobTraits, learn_run_time
from scheduling.models import AccountUsage, LearnedRunTime, RunTimeModel
from scheduling.models.history import decay_rate

MAX_NAME_LENGTH = Job._meta.get_field("name").max_length


@dataclass(frozen=True, kw_only=True)
class ImportedHistory:
    """What was imported, and how many jobs count for everybody because their user or team is unknown here."""

    jobs: int
    skipped: int
    unknown_users: int
    unknown_teams: int


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """A job of the trace. The user of its traits is empty and `team` is None if they are unknown here."""

    traits: JobTraits
    team: int | None
    ran_s: float
    ended: datetime

    def decayed_gpu_seconds(self, rate: float, now: datetime) -> float:
        age_s = (now - self.ended).total_seconds()
        return self.traits.gpus / rate * math.exp(-rate * age_s) * -math.expm1(-rate * self.ran_s)


@transaction.atomic
def import_history(cluster: Cluster, trace: Trace, now: datetime) -> ImportedHistory:
    """Add the run times and the usage of the trace's jobs. Run times that are already known are newer and stay."""
    if not trace.began_s:
        raise InvalidInput("the trace has no dates, so its jobs cannot be placed in time")
    RunTimeModel.objects.get_or_create(cluster=cluster, defaults={"updated_at": now})
    model = RunTimeModel.objects.select_for_update().get(cluster=cluster)
    runs = [run for run in _past_runs(trace) if _is_new(run, model, cluster)]
    if runs:
        _add_run_times(model, runs)
        _add_usage(cluster, runs, now)
        model.version, model.jobs, model.updated_at = model.version + 1, model.jobs + len(runs), now
        model.imported_until = runs[-1].ended
        model.save(update_fields=["version", "jobs", "updated_at", "imported_until"])
    return ImportedHistory(
        jobs=len(runs),
        skipped=len(trace) - len(runs),
        unknown_users=sum(not run.traits.user for run in runs),
        unknown_teams=sum(run.team is None for run in runs),
    )


def _is_new(run: PastRun, model: RunTimeModel, cluster: Cluster) -> bool:
    is_imported = model.imported_until is not None and run.ended <= model.imported_until
    return run.ended < cluster.created_at and not is_imported


def _past_runs(trace: Trace) -> list[PastRun]:
    """Return the jobs of the trace in the order of their ends. A job that never waited ends after its run time."""
    people: Any = get_user_model().objects
    users: Mapping[str, int] = dict(people.filter(username__in=trace.users.words).values_list("username", "pk"))
    teams = dict(Team.objects.filter(name__in=trace.pools.words).values_list("name", "pk"))
    return sorted(_runs(trace, users, teams), key=lambda run: run.ended)


def _runs(trace: Trace, users: Mapping[str, int], teams: Mapping[str, int]) -> Iterator[PastRun]:
    for row in range(len(trace)):
        waited_s = float(trace.queue_s[row])
        started_s = trace.began_s + float(trace.submit_s[row]) + (waited_s if math.isfinite(waited_s) else 0.0)
        ran_s = float(trace.runtime_s[row])
        yield PastRun(
            traits=_job_traits(trace, row, users),
            team=teams.get(trace.pools[row]),
            ran_s=ran_s,
            ended=datetime.fromtimestamp(started_s + ran_s, UTC),
        )


def _job_traits(trace: Trace, row: int, users: Mapping[str, int]) -> JobTraits:
    kind = trace.kinds[row]
    return JobTraits(
        str(users.get(trace.users[row], "")),
        trace.names[row][:MAX_NAME_LENGTH],
        int(trace.gpus[row]),
        kind if kind in list(JobKind) else JobKind.OTHER,
    )


def _add_run_times(model: RunTimeModel, runs: list[PastRun]) -> None:
    means: dict[str, float] = {}
    for run in runs:
        learn_run_time(means, run.traits, run.ran_s)
    rows = [
        LearnedRunTime(cluster_id=model.cluster_id, scope=scope, mean_s=mean, version=model.version + 1)
        for scope, mean in sorted(means.items())
    ]
    LearnedRunTime.objects.bulk_create(rows, ignore_conflicts=True, batch_size=5_000)


def _add_usage(cluster: Cluster, runs: list[PastRun], now: datetime) -> None:
    rate = decay_rate(cluster)
    used: dict[int, float] = defaultdict(float)
    for run in runs:
        if run.team is not None:
            used[run.team] += run.decayed_gpu_seconds(rate, now)
    for team, gpu_seconds in sorted(used.items()):
        AccountUsage.objects.get_or_create(cluster=cluster, team_id=team, defaults={"gpu_seconds": 0.0, "at": now})
        row = AccountUsage.objects.select_for_update().get(cluster=cluster, team=team)
        row.gpu_seconds = row.gpu_seconds * math.exp(-rate * (now - row.at).total_seconds()) + gpu_seconds
        row.at = now
        row.save()
