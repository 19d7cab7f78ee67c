"""The waiting jobs in the engine's order, with the names that one user may see.

Computing the order takes as long as a scheduling turn, so it is cached with its ClusterSnapshot and shared by all open
pages, with everything else that is the same for all users. The remaining cost of a page grows with the rows shown, not
with the length of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import groupby, islice
from typing import Any

from acmeweb.common.errors import InvalidField
from jobs.core.gpu_shares import gpu_number
from jobs.models import Cluster, ClusterMode, Job
from jobs.models.permissions import Caller
from scheduling.core.ordering_figures import OrderingFigures, order_name, ordering_figures
from scheduling.core.quotas import QuotaUse, TeamKind, TeamModel, model_quota_uses, quota_uses
from scheduling.engine.cluster import ClusterSnapshot, WaitingJob
from scheduling.engine.live import turn_decisions
from scheduling.engine.policies import LIVE_POLICIES, rules_factory
from scheduling.models import Estimate
from scheduling.queries.wait_explanation import snapshot_cache

MAX_ENTRIES_SHOWN = 100
MAX_INELIGIBLE_SHOWN = 50


@dataclass(frozen=True, kw_only=True)
class QueueOrder:
    """Job ids in queue order, and those that are not eligible yet (held, not due, dependent). `warning` says why the
    order is not the policy's."""

    line: tuple[int, ...]
    apart: tuple[int, ...]
    starts: int = 0  # the first jobs of the line, which start in the next turn
    warning: str = ""


def queue_order(picture: ClusterSnapshot, policy: str, settings: dict[str, object]) -> QueueOrder:
    ineligible = {job.id for job in picture.waiting if job.has_gate(picture.now)}
    apart = tuple(job.id for job in picture.waiting if job.id in ineligible)
    try:
        if policy not in LIVE_POLICIES:
            raise InvalidField("policy", f"{policy!r} is not one of {', '.join(LIVE_POLICIES)}")
        rules = rules_factory(policy, settings)()
    except InvalidField as error:
        warning = f"No jobs are started, because the policy settings are invalid: {error}."
        return QueueOrder(line=_priority_order(picture, ineligible), apart=apart, warning=warning)
    decisions = turn_decisions(picture, rules)
    starts = tuple(start.job_id for start in decisions.starts)
    waits = tuple(wait.job_id for wait in decisions.waits if wait.job_id not in ineligible)
    return QueueOrder(line=starts + waits, apart=apart, starts=len(starts))


def _priority_order(picture: ClusterSnapshot, excluded: set[int]) -> tuple[int, ...]:
    rows = sorted(picture.waiting, key=lambda job: (-job.priority, job.submitted_at, job.id))
    return tuple(job.id for job in rows if job.id not in excluded)


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """A job, or several consecutive jobs that the user may not see."""

    rank: int
    job: Job | None = None
    estimate: Estimate | None = None
    figure: str = ""  # by which the policy orders the job
    jobs: int = 1
    gpus: float = 0

    @property
    def last_rank(self) -> int:
        return self.rank + self.jobs - 1

    @property
    def ranks(self) -> str:
        return str(self.rank) if self.jobs == 1 else f"{self.rank}–{self.last_rank}"


@dataclass(frozen=True, kw_only=True)
class QueueView:
    at: datetime
    places: Sequence[QueueEntry]
    waiting: int
    gpus: float
    more: int
    apart: Sequence[Job]
    apart_in_all: int
    warning: str
    figure_label: str
    figure_help: str

    @property
    def has_deadlines(self) -> bool:
        return any(place.job and place.job.deadline_at for place in self.places)

    @property
    def columns_after_gpus(self) -> int:
        """The number of columns to the right of the GPUs: some are shown only if a job needs them."""
        return 4 + bool(self.figure_label) + self.has_deadlines

    @property
    def apart_text(self) -> str:
        text = f"{self.apart_in_all} held, not yet due, or waiting for other jobs"
        return text if self.apart else f"{text}; none in your teams"


class QueueState:
    """The parts of the queue page that are the same for all users, computed when first used."""

    def __init__(self, cluster: Cluster, picture: ClusterSnapshot) -> None:
        self.picture = picture
        self._cluster = cluster

    @cached_property
    def order(self) -> QueueOrder:
        is_observed = self._cluster.mode == ClusterMode.OBSERVE
        return _observed_order(self.picture) if is_observed else _policy_order(self._cluster, self.picture)

    @cached_property
    def waiting_jobs(self) -> Mapping[int, WaitingJob]:
        return {job.id: job for job in self.picture.waiting}

    @cached_property
    def gpus(self) -> float:
        """GPUs requested by the jobs in the queue."""
        return gpu_number(sum(self.waiting_jobs[pk].need.charged_milli for pk in self.order.line))

    @cached_property
    def figures(self) -> OrderingFigures:
        """The figure by which the policy orders each job; none if Acme's order is not in effect."""
        order = "" if self.order.warning else order_name(self._cluster.policy, self._cluster.policy_settings)
        return ordering_figures(order, self.picture.waiting, self.picture.history)

    @cached_property
    def quota_uses(self) -> Mapping[TeamKind, QuotaUse]:
        return quota_uses(self.picture)

    @cached_property
    def model_quota_uses(self) -> Mapping[TeamModel, QuotaUse]:
        return model_quota_uses(self.picture)


class QueueStateCache:
    """Caches the last QueueState of each cluster until its snapshot or its policy changes."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[str, QueueState]] = {}

    def of(self, cluster: Cluster, now: datetime) -> QueueState:
        picture = snapshot_cache.of(cluster, now)
        policy = f"{cluster.mode} {cluster.policy} {cluster.policy_settings}"
        cached = self._states.get(cluster.pk)
        if cached and cached[1].picture is picture and cached[0] == policy:
            return cached[1]
        state = QueueState(cluster, picture)
        self._states[cluster.pk] = policy, state
        return state


def _policy_order(cluster: Cluster, picture: ClusterSnapshot) -> QueueOrder:
    return queue_order(picture, cluster.policy, cluster.policy_settings)


def _observed_order(picture: ClusterSnapshot) -> QueueOrder:
    line = _priority_order(picture, set())
    return QueueOrder(
        line=line, apart=(), warning="Acme only observes this cluster. Jobs are shown by priority and submission time."
    )


queue_states = QueueStateCache()


def queue_view(state: QueueState, user: Any) -> QueueView:
    order, waiting_jobs = state.order, state.waiting_jobs
    sees = _team_visibility(user)
    shown = list(islice(_group_hidden_jobs(map(waiting_jobs.__getitem__, order.line), sees), MAX_ENTRIES_SHOWN))
    apart = list(islice((pk for pk in order.apart if sees(waiting_jobs[pk].team)), MAX_INELIGIBLE_SHOWN))
    ids = [pk for pk, *_ in shown if pk] + apart
    rows = {job.pk: job for job in Job.objects.visible_to(user).waiting().filter(pk__in=ids).with_list_columns()}
    estimates = {estimate.job_id: estimate for estimate in Estimate.objects.filter(job__in=ids)}
    places = [
        QueueEntry(
            rank=rank,
            job=rows.get(pk),
            estimate=estimates.get(pk),
            figure=state.figures.texts.get(pk, ""),
            jobs=jobs,
            gpus=width,
        )
        for pk, rank, jobs, width in shown
        if not pk or pk in rows  # a missing job was started or deleted since
    ]
    return QueueView(
        at=state.picture.now,
        places=places,
        waiting=len(order.line),
        gpus=state.gpus,
        more=len(order.line) - sum(jobs for _, _, jobs, _ in shown),
        apart=[rows[pk] for pk in apart if pk in rows],
        apart_in_all=len(order.apart),
        warning=order.warning,
        figure_label=state.figures.label,
        figure_help=state.figures.help,
    )


def _team_visibility(user: Any) -> Callable[[str], bool]:
    """Return a function that says whether the user may see a team's jobs. Checking teams avoids a database query over
    all waiting jobs."""
    teams = Caller(user=user).visible_team_names()
    return (lambda team: True) if teams is None else teams.__contains__


def _group_hidden_jobs(
    line: Iterable[WaitingJob], sees: Callable[[str], bool]
) -> Iterator[tuple[int, int, int, float]]:
    """Yield (job id, rank, number of jobs, GPUs) per entry. The id is 0 for a group of hidden jobs."""
    first = 1
    for is_visible, group in groupby(line, lambda job: sees(job.team)):
        if is_visible:
            for job in group:
                yield job.id, first, 1, gpu_number(job.need.charged_milli)
                first += 1
        else:
            hidden = [job.need.charged_milli for job in group]
            yield 0, first, len(hidden), gpu_number(sum(hidden))
            first += len(hidden)
