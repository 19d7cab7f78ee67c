"""What might start a job that waits, by the state after a turn: what would fit, what the quota lacks, who ends next.

A guess need not be right; `counterfactual` tries it. It should be cheap to find: a look into the room, not a turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import islice

from jobs.notation import count, format_duration, format_memory
from scheduling.engine.blockers import Sees, named
from scheduling.engine.books import Owner
from scheduling.engine.changes import (
    OPERATOR,
    OTHER_MAKE,
    PREEMPTIBLE,
    PRIORITY,
    SHORTER_LIMIT,
    Change,
    Who,
    change,
    job_of,
    with_job,
    with_open,
    with_quotas,
    without,
)
from scheduling.engine.cluster import ClosedNode, Need, Picture, QuotaView, RunningJob
from scheduling.engine.live import Opened, decided
from scheduling.engine.room import Places
from scheduling.engine.rules import Rules

ENDS_TRIED = 3


class Guesses:
    """What might start it, by the room and the books after a turn."""

    def __init__(self, picture: Picture, rules: Rules, job_id: int, sees: Sees) -> None:
        self._picture = picture
        self._sees = sees
        self._job = job_of(picture, job_id)
        self._need = self._job.need
        self._opened: Opened = decided(picture, rules)
        self._engine = self._opened.engine
        self._room = self._engine.room
        self._number = {node.id: number for number, node in enumerate(self._room.nodes)}

    def all(self) -> Iterator[Change]:
        yield from self._asks_less()
        yield from self._asks_other()
        yield from self._goes_on_other_terms()
        yield from self._quota_raised()
        yield from self._nodes_open()
        yield from self._somebody_ends()

    def _fits(self, need: Need) -> bool:
        return self._engine.place(self._room, need, self._room.able(need)) is not None

    def _admitted(self, gpus: int) -> bool:
        books, obtainable = self._engine.books, self._engine.firm.free_gpus
        return books is None or books.refuse(Owner.of(self._job), gpus, obtainable=obtainable) is None

    def _alone(self, kind: str, cost: float, phrase: str, **fields: object) -> Change:
        return change(kind, Who.OWNER, cost, phrase, with_job(self._job.id, **fields))

    # What its owner can change

    def _asks_less(self) -> Iterator[Change]:
        need = self._need
        fewer_gpus = (replace(need, gpus=gpus) for gpus in range(need.gpus - 1, 0, -1))
        if less := next((one for one in fewer_gpus if self._would_do(one)), None):
            part = 1 - less.total_gpus / need.total_gpus
            a_node = " a node" if need.nodes > 1 else ""
            phrase = f"it asked for {count(less.gpus, 'GPU')}{a_node} instead of {need.gpus}"
            yield self._alone("gpus", part, phrase, need=less)
        fewer_nodes = (replace(need, nodes=nodes) for nodes in range(need.nodes - 1, 0, -1))
        if less := next((one for one in fewer_nodes if self._would_do(one)), None):
            phrase = f"it asked for {count(less.nodes, 'node')} instead of {need.nodes}"
            yield self._alone("nodes", 1 - less.nodes / need.nodes, phrase, need=less)
        yield from self._asks_less_beside()

    def _would_do(self, need: Need) -> bool:
        return self._admitted(need.total_gpus) and self._fits(need)

    def _asks_less_beside(self) -> Iterator[Change]:
        """Fewer CPUs or less memory, where the GPUs are there."""
        need = self._need
        if self._fits(need) or not self._fits(replace(need, cpus=min(1, need.cpus), memory_mb=0)):
            return
        if (cpus := self._most("cpus", replace(need, memory_mb=0))) < need.cpus:
            phrase = f"it asked for {count(cpus, 'CPU')} a node instead of {need.cpus}"
            yield self._alone("cpus", 0.5 * (1 - cpus / need.cpus), phrase, need=replace(need, cpus=cpus))
        if (memory := self._most("memory_mb", replace(need, cpus=min(1, need.cpus)))) < need.memory_mb:
            phrase = f"it asked for {format_memory(memory)} a node instead of {format_memory(need.memory_mb)}"
            less = replace(need, memory_mb=memory)
            yield self._alone("memory", 0.5 * (1 - memory / need.memory_mb), phrase, need=less)

    def _most(self, field: str, need: Need) -> int:
        """The largest value that fits, by halving."""
        low, high = 0, getattr(need, field)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._fits(replace(need, **{field: middle})) else (low, middle - 1)
        return int(low)

    def _asks_other(self) -> Iterator[Change]:
        need = self._need
        if need.gpu_model:
            for model in sorted({node.gpu_model for node in self._room.nodes} - {need.gpu_model, ""}):
                other = replace(need, gpu_model=model)
                if self._fits(other):
                    phrase = f"it took {model} GPUs instead of {need.gpu_model}"
                    yield self._alone("model", OTHER_MAKE, phrase, need=other)
        if need.nic_type and self._fits(replace(need, nic_type="")):
            other = replace(need, nic_type="")
            yield self._alone("nic", OTHER_MAKE, f"it did not ask for {need.nic_type} NICs", need=other)

    def _goes_on_other_terms(self) -> Iterator[Change]:
        job = self._job
        if not job.preemptible:
            yield self._alone("preemptible", PREEMPTIBLE, "it might be preempted", preemptible=True)
        ahead = [other.priority for other in self._picture.waiting if other.id != job.id and not other.hold]
        if ahead and (highest := max(ahead) + 1) > job.priority:
            raised = with_job(job.id, priority=highest)
            yield change("priority", Who.OPERATOR, PRIORITY, f"its priority were {highest}", raised)
        if self._would_do(self._need):
            yield from self._shorter()
            yield from self._over_before_a_maintenance()

    def _shorter(self) -> Iterator[Change]:
        """Short enough to be over before the first in the queue is to start."""
        promise = self._engine.promise
        slack = promise.at - self._picture.now.timestamp() if promise else math.inf
        yield from self._within(slack)

    def _over_before_a_maintenance(self) -> Iterator[Change]:
        now = self._picture.now
        yield from self._within(
            min(
                ((one.start - now).total_seconds() for one in self._picture.windows if one.start > now),
                default=math.inf,
            )
        )

    def _within(self, slack: float) -> Iterator[Change]:
        limit = self._job.time_limit
        if slack == math.inf or slack < 60 or (limit and limit.total_seconds() <= slack):
            return
        short = timedelta(minutes=int(slack // 60))
        cost = SHORTER_LIMIT * (1 - short / limit) if limit else SHORTER_LIMIT
        phrase = f"its time limit were {format_duration(short)} instead of {format_duration(limit)}"
        yield self._alone("limit", cost, phrase, time_limit=short)

    # What operators can change

    def _quota_raised(self) -> Iterator[Change]:
        short = [(quota, more) for quota in self._picture.quotas if (more := self._over(quota)) > 0]
        if not short or self._job.preemptible:
            return
        raised = [replace(quota, gpus=quota.gpus + more) for quota, more in short]
        cost = OPERATOR + 0.5 * max(more / (more + quota.gpus) for quota, more in short)
        phrases = [
            f"the quota of team {quota.team}{f' for {quota.kind}' if quota.kind else ''} were {more} GPUs higher"
            f" ({quota.gpus + more} instead of {quota.gpus})"
            for quota, more in short
        ]
        yield change("quota", Who.OPERATOR, cost, " and ".join(phrases), with_quotas(raised))

    def _over(self, quota: QuotaView) -> int:
        if quota.team != self._job.team or quota.kind not in (None, self._job.kind):
            return 0
        return self._held_under(quota) + self._need.total_gpus - quota.gpus

    def _held_under(self, quota: QuotaView) -> int:
        """By who runs, and by who was started in this turn."""
        held = [(Owner.of(asked), job.gpus) for job, asked in self._opened.jobs if job.places is not None]
        held += [(owner_of(job), job.gpus) for job in self._picture.running]
        theirs = [(owner, gpus) for owner, gpus in held if owner.team == quota.team and not owner.preemptible]
        return sum(gpus for owner, gpus in theirs if quota.kind in (None, owner.kind))

    def _nodes_open(self) -> Iterator[Change]:
        lacking = max(1, self._need.nodes - self._room.fitting(self._need, self._room.able(self._need)).bit_count())
        useful = [one for one in self._picture.closed if self._useful(one)]
        useful.sort(key=lambda one: (one.back != "resumed", one.node.name))
        if len(useful) < lacking:
            return
        chosen = useful[:lacking]
        names = ", ".join(one.node.name for one in chosen[:3]) + (f" and {lacking - 3} more" if lacking > 3 else "")
        many = "node" if lacking == 1 else "nodes"
        back = "resumed" if all(one.back == "resumed" for one in chosen) else "back"
        phrase = f"{many} {names} were {back}"
        yield change("nodes-open", Who.OPERATOR, OPERATOR + 0.1 * lacking, phrase, with_open(chosen))

    def _useful(self, one: ClosedNode) -> bool:
        node, need = one.node, self._need
        return (
            len(node.free_gpus) >= need.gpus
            and node.free_cpus >= need.cpus
            and node.free_memory_mb >= need.memory_mb
            and need.gpu_model in ("", node.gpu_model)
            and need.nic_type in ("", node.nic_type)
            and need.node in ("", node.name)
        )

    # What time will bring

    def _somebody_ends(self) -> Iterator[Change]:
        by_end = sorted(self._picture.running, key=self._left)
        alone = islice((job for job in by_end if self._ended_would_do([job])), ENDS_TRIED)
        found = False
        for job in alone:
            found = True
            who = named(job.name, job.team, self._sees)
            yield self._ends([job], f"{who} ({count(job.gpus, 'GPU')}{self._when(job)}) ended")
        if not found and (first := self._first_to_end(by_end)):
            last = self._when(first[-1]).replace(", at", ", the last at")
            yield self._ends(first, f"the {len(first)} jobs that end first had ended{last}")

    def _ends(self, jobs: list[RunningJob], phrase: str) -> Change:
        hours = max(self._left(job) for job in jobs) / 3600
        cost = 1.0 if hours == math.inf else hours / (1 + hours)
        return change("end", Who.TIME, cost, phrase, without(jobs))

    def _left(self, job: RunningJob) -> float:
        if not job.time_limit or not job.started_at:
            return math.inf
        return max(0.0, (job.started_at + job.time_limit - self._picture.now).total_seconds())

    def _when(self, job: RunningJob) -> str:
        left = self._left(job)
        return ", no limit" if left == math.inf else f", at its limit in {about(left)}"

    def _first_to_end(self, by_end: list[RunningJob]) -> list[RunningJob]:
        """The fewest, in the order of their limits, after whom it would fit."""
        low, high = 2, len([job for job in by_end if self._left(job) < math.inf])
        if high < low or not self._ended_would_do(by_end[:high]):
            return []
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._ended_would_do(by_end[:middle]) else (middle + 1, high)
        return by_end[:low]

    def _ended_would_do(self, jobs: list[RunningJob]) -> bool:
        """Give back in the room and the books, look, take again."""
        if len(jobs) == 1 and not self._admitted(self._need.total_gpus) and jobs[0].team != self._job.team:
            return False
        given = [self._give_back(job) for job in jobs]
        enough = self._would_do(self._need)
        for job, places in zip(jobs, given, strict=True):
            self._room.take(places, _held_by(job))
            if self._engine.books:
                self._engine.books.add(owner_of(job), job.gpus, 1)
        return enough

    def _give_back(self, job: RunningJob) -> Places:
        """No more comes back to a node than is missing there, whatever the record says."""
        room, number = self._room, self._number
        held = [(number[node], gpus) for node, gpus in job.places.items() if node in number]
        places = tuple((node, min(gpus, room.nodes[node].gpus - room.free[node])) for node, gpus in held)
        room.give(places, _held_by(job))
        if self._engine.books:
            self._engine.books.add(owner_of(job), job.gpus, -1)
        return places


def owner_of(job: RunningJob) -> Owner:
    return Owner(team=job.team, kind=job.kind, preemptible=job.preemptible, array=job.array)


def _held_by(job: RunningJob) -> Need:
    return Need(gpus=job.gpus, cpus=job.cpus, memory_mb=job.memory_mb)


def about(seconds: float) -> str:
    """`about 2 h`."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (size < 86_400 and seconds >= size):
            return f"about {round(seconds / size)} {unit}"
    return "a moment"
