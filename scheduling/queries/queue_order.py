"""Who waits in which order, for one reader: the order is the engine's, the names are those he may know.

Asking the engine costs a turn, so its answer is kept with the Picture it was asked about: many open pages share it, and
with it all that is the same for every reader. What a page costs itself grows with what it shows, not with who waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import groupby, islice
from typing import Any

from jobs.models import Cluster, ClusterMode, Job, Team
from scheduling.core.quotas import QuotaUse, TeamKind, quota_uses
from scheduling.engine.blockers import gate_blockers
from scheduling.engine.cluster import ClusterSnapshot, WaitingJob
from scheduling.engine.live import turn_decisions
from scheduling.engine.policies import LIVE_POLICIES, InvalidPolicySettings, rules_factory
from scheduling.models import Estimate
from scheduling.queries.wait_explanation import snapshot_cache

MAX_ENTRIES_SHOWN = 100
MAX_INELIGIBLE_SHOWN = 50


@dataclass(frozen=True, kw_only=True)
class QueueOrder:
    """Ids of jobs: the line, and those who are in none yet (held, not due, dependent). `trouble`: no order is known."""

    line: tuple[int, ...]
    apart: tuple[int, ...]
    trouble: str = ""


def queue_order(picture: ClusterSnapshot, policy: str, settings: dict[str, object]) -> QueueOrder:
    shut = {asked.id for asked in picture.waiting if any(gate_blockers(asked, picture.now))}
    apart = tuple(asked.id for asked in picture.waiting if asked.id in shut)
    try:
        if policy not in LIVE_POLICIES:
            raise InvalidPolicySettings(f"policy: {policy!r} is none of {', '.join(LIVE_POLICIES)}")
        told = turn_decisions(picture, rules_factory(policy, settings)())
    except InvalidPolicySettings as bad:
        return QueueOrder(line=_priority_order(picture, shut), apart=apart, trouble=f"Nothing is decided: {bad}.")
    starts = tuple(start.job_id for start in told.starts)
    return QueueOrder(line=starts + tuple(wait.job_id for wait in told.waits if wait.job_id not in shut), apart=apart)


def _priority_order(picture: ClusterSnapshot, shut: set[int]) -> tuple[int, ...]:
    rows = sorted(picture.waiting, key=lambda asked: (-asked.priority, asked.submitted_at, asked.id))
    return tuple(asked.id for asked in rows if asked.id not in shut)


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """A job, or some neighbours whose names the reader may not know."""

    rank: int
    job: Job | None = None
    estimate: Estimate | None = None
    jobs: int = 1
    gpus: int = 0

    @property
    def last_rank(self) -> int:
        return self.rank + self.jobs - 1


@dataclass(frozen=True, kw_only=True)
class QueueView:
    at: datetime
    places: Sequence[QueueEntry]
    waiting: int
    gpus: int
    more: int
    apart: Sequence[Job]
    apart_in_all: int
    trouble: str


class QueueState:
    """What is the same for every reader of a Picture, each part made when it is first asked for."""

    def __init__(self, cluster: Cluster, picture: ClusterSnapshot) -> None:
        self.picture = picture
        self._cluster = cluster

    @cached_property
    def order(self) -> QueueOrder:
        is_watched = self._cluster.mode == ClusterMode.OBSERVE
        return _observed_order(self.picture) if is_watched else _policy_order(self._cluster, self.picture)

    @cached_property
    def asked(self) -> Mapping[int, WaitingJob]:
        return {asked.id: asked for asked in self.picture.waiting}

    @cached_property
    def gpus(self) -> int:
        """Those in line ask for so many."""
        return sum(self.asked[pk].need.total_gpus for pk in self.order.line)

    @cached_property
    def quota_uses(self) -> Mapping[TeamKind, QuotaUse]:
        return quota_uses(self.picture)


class QueueStateCache:
    """The last of each cluster, as long as its Picture and its policy are the same."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[str, QueueState]] = {}

    def of(self, cluster: Cluster, now: datetime) -> QueueState:
        picture = snapshot_cache.of(cluster, now)
        by = f"{cluster.mode} {cluster.policy} {cluster.policy_settings}"
        kept = self._kept.get(cluster.pk)
        if kept and kept[1].picture is picture and kept[0] == by:
            return kept[1]
        standing = QueueState(cluster, picture)
        self._kept[cluster.pk] = by, standing
        return standing


def _policy_order(cluster: Cluster, picture: ClusterSnapshot) -> QueueOrder:
    return queue_order(picture, cluster.policy, cluster.policy_settings)


def _observed_order(picture: ClusterSnapshot) -> QueueOrder:
    line = _priority_order(picture, set())
    return QueueOrder(
        line=line, apart=(), trouble="Acme only watches this cluster: by priority and time of submission."
    )


queue_states = QueueStateCache()


def queue_view(standing: QueueState, user: Any) -> QueueView:
    order, asked = standing.order, standing.asked
    sees = _team_visibility(user)
    shown = list(islice(_group_hidden_jobs(map(asked.__getitem__, order.line), sees), MAX_ENTRIES_SHOWN))
    apart = list(islice((pk for pk in order.apart if sees(asked[pk].team)), MAX_INELIGIBLE_SHOWN))
    ids = [pk for pk, *_ in shown if pk] + apart
    rows = {job.pk: job for job in Job.objects.visible_to(user).waiting().filter(pk__in=ids).with_list_columns()}
    estimates = {one.job_id: one for one in Estimate.objects.filter(job__in=ids)}
    places = [
        QueueEntry(rank=rank, job=rows.get(pk), estimate=estimates.get(pk), jobs=jobs, gpus=width)
        for pk, rank, jobs, width in shown
        if not pk or pk in rows  # it was started or deleted since
    ]
    return QueueView(
        at=standing.picture.now,
        places=places,
        waiting=len(order.line),
        gpus=standing.gpus,
        more=len(order.line) - sum(jobs for _, _, jobs, _ in shown),
        apart=[rows[pk] for pk in apart if pk in rows],
        apart_in_all=len(order.apart),
        trouble=order.trouble,
    )


def _team_visibility(user: Any) -> Callable[[str], bool]:
    """Whether its jobs may be named. All of them may wait, so it is asked by team, and not of the database by job."""
    if user.is_superuser:
        return lambda team: True
    return set(Team.objects.where(user).values_list("name", flat=True)).__contains__


def _group_hidden_jobs(line: Iterable[WaitingJob], sees: Callable[[str], bool]) -> Iterator[tuple[int, int, int, int]]:
    """Job (0: several unknown ones), rank of the first, how many, their GPUs."""
    first = 1
    for is_known, run in groupby(line, lambda asked: sees(asked.team)):
        if is_known:
            for asked in run:
                yield asked.id, first, 1, asked.need.total_gpus
                first += 1
        else:
            unknown = [asked.need.total_gpus for asked in run]
            yield 0, first, len(unknown), sum(unknown)
            first += len(unknown)
