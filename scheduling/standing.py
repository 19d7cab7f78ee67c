"""Who waits in which order, for one reader: the order is the engine's, the names are those he may know.

Asking the engine costs a turn, so its answer is kept with the Picture it was asked about: many open pages share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.models import Cluster, Job, Mode
from scheduling.engine.blockers import gates
from scheduling.engine.cluster import Picture
from scheduling.engine.live import decide
from scheduling.engine.policies import POLICIES, BadSettings, rules_of
from scheduling.explaining import pictures
from scheduling.models import Estimate

MOST_PLACES = 100
MOST_APART = 50


@dataclass(frozen=True, kw_only=True)
class Order:
    """Ids of jobs: the line, and those who are in none yet (held, not due, dependent). `trouble`: no order is known."""

    line: tuple[int, ...]
    apart: tuple[int, ...]
    trouble: str = ""


def order_of(picture: Picture, policy: str, settings: dict[str, object]) -> Order:
    shut = {asked.id for asked in picture.waiting if any(gates(asked, picture.now))}
    apart = tuple(asked.id for asked in picture.waiting if asked.id in shut)
    try:
        if policy not in POLICIES:
            raise BadSettings(f"policy: {policy!r} is none of {', '.join(POLICIES)}")
        told = decide(picture, rules_of(policy, settings)())
    except BadSettings as bad:
        return Order(line=_as_given(picture, shut), apart=apart, trouble=f"Nothing is decided: {bad}.")
    starts = tuple(start.job_id for start in told.starts)
    return Order(line=starts + tuple(wait.job_id for wait in told.waits if wait.job_id not in shut), apart=apart)


def _as_given(picture: Picture, shut: set[int]) -> tuple[int, ...]:
    rows = sorted(picture.waiting, key=lambda asked: (-asked.priority, asked.submitted_at, asked.id))
    return tuple(asked.id for asked in rows if asked.id not in shut)


@dataclass(frozen=True, kw_only=True)
class Place:
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
class Line:
    at: datetime
    places: Sequence[Place]
    waiting: int
    gpus: int
    more: int
    apart: Sequence[Job]
    apart_in_all: int
    trouble: str


class Orders:
    """The last order of each cluster, as long as its Picture and its policy are the same."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Picture, str, Order]] = {}

    def of(self, cluster: Cluster, picture: Picture) -> Order:
        by = f"{cluster.mode} {cluster.policy} {cluster.policy_settings}"
        kept = self._kept.get(cluster.pk)
        if kept and kept[0] is picture and kept[1] == by:
            return kept[2]
        order = _watched(picture) if cluster.mode == Mode.OBSERVE else _decided(cluster, picture)
        self._kept[cluster.pk] = picture, by, order
        return order


def _decided(cluster: Cluster, picture: Picture) -> Order:
    return order_of(picture, cluster.policy, cluster.policy_settings)


def _watched(picture: Picture) -> Order:
    line = _as_given(picture, set())
    return Order(line=line, apart=(), trouble="Acme only watches this cluster: by priority and time of submission.")


orders = Orders()


def line_of(cluster: Cluster, user: Any, now: datetime) -> Line:
    picture = pictures.of(cluster, now)
    order = orders.of(cluster, picture)
    gpus = {asked.id: asked.need.total_gpus for asked in picture.waiting}
    mine = Job.objects.visible_to(user).waiting().filter(cluster=cluster)
    known = set(mine.order_by().values_list("pk", flat=True))
    folded = list(_folded(order.line, known, gpus))
    shown = folded[:MOST_PLACES]
    apart = [pk for pk in order.apart if pk in known][:MOST_APART]
    ids = [pk for pk, *_ in shown if pk] + apart
    rows = {job.pk: job for job in Job.objects.filter(pk__in=ids).in_rows()}
    estimates = {one.job_id: one for one in Estimate.objects.filter(job__in=ids)}
    places = [
        Place(rank=rank, job=rows.get(pk), estimate=estimates.get(pk), jobs=jobs, gpus=width)
        for pk, rank, jobs, width in shown
        if not pk or pk in rows  # it was deleted since
    ]
    return Line(
        at=picture.now,
        places=places,
        waiting=len(order.line),
        gpus=sum(gpus[pk] for pk in order.line),
        more=sum(jobs for _, _, jobs, _ in folded[MOST_PLACES:]),
        apart=[rows[pk] for pk in apart if pk in rows],
        apart_in_all=len(order.apart),
        trouble=order.trouble,
    )


def _folded(line: Sequence[int], known: set[int], gpus: dict[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """Job (0: several unknown ones), rank of the first, how many, their GPUs."""
    unknown: list[int] = []
    for rank, pk in enumerate(line, 1):
        if pk not in known:
            unknown.append(pk)
            continue
        if unknown:
            yield 0, rank - len(unknown), len(unknown), sum(gpus[one] for one in unknown)
            unknown = []
        yield pk, rank, 1, gpus[pk]
    if unknown:
        yield 0, len(line) + 1 - len(unknown), len(unknown), sum(gpus[one] for one in unknown)
