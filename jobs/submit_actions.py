"""The verb that takes new jobs: the wishes of one person, or of many at once, by a handful of statements.

Whatever it raises has kept nothing: who calls `submit_within` must give up the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from django.db import connection, transaction
from django.db.models import Q

from acmeweb import live
from jobs import copying, journal
from jobs.journal import Author
from jobs.lifecycle import State
from jobs.models import Cluster, Dependency, Hold, Job, Mode, Team
from jobs.publicid import public_id, task_id
from jobs.spec import BadSpec, DependsOn, JobSpec

MOST_DEPENDENCY_ROWS = 100_000
NOT_LOOKED_YET = "The scheduler has not looked at it yet."

# What the row keeps of a JobSpec under the same name.
KEPT_FIELDS = (
    *("name", "kind", "command", "workdir", "environment", "nodes", "gpus_per_node", "cpus_per_node"),
    *("memory_per_node_mb", "gpu_model", "nic_type", "on_node", "time_limit", "priority", "preemptible"),
    *("requeue_limit", "begin_at", "array_limit", "checkpoint_dir", "checkpoint_interval", "checkpoint_signal"),
    *("labels", "comment"),
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What one request wants in one place. Its jobs may name each other by `key`."""

    specs: Sequence[JobSpec]
    cluster: Cluster
    team: Team
    author: Author


def submit(specs: Sequence[JobSpec], *, cluster: Cluster, team: Team, author: Author, now: datetime) -> list[Job]:
    """All of them or none. An array becomes one row a task; the rows come back in the order asked."""
    with transaction.atomic():
        return submit_within([Wanted(specs=specs, cluster=cluster, team=team, author=author)], now)[0]


def submit_within(wanted: Sequence[Wanted], now: datetime) -> list[list[Job]]:
    """The same for many, in the caller's transaction, which must not outlive what this raises."""
    for one in wanted:
        refuse_observed(one.cluster)
    specs = [spec for one in wanted for spec in one.specs]
    names, keys = _numbers(len(specs), sum(len(spec.array) or 1 for spec in specs))
    groups = [[_rows(spec, public_id(now, next(names)), keys, one, now) for spec in one.specs] for one in wanted]
    submitted = [[job for rows in group for job in rows] for group in groups]
    copying.insert([job for jobs in submitted for job in jobs])
    for one, group in zip(wanted, groups, strict=True):
        _depend(list(zip(one.specs, group, strict=True)), one.team)
    authors = [(one.author, job) for one, jobs in zip(wanted, submitted, strict=True) for job in jobs]
    journal.write_of_jobs("job.submitted", authors, to_state=State.PENDING)
    live.changed("queue")
    return submitted


def refuse_observed(cluster: Cluster) -> None:
    if cluster.mode == Mode.OBSERVE:
        raise BadSpec("cluster", f"{cluster} is only observed: Acme starts nothing there")


def _numbers(jobs: int, rows: int) -> tuple[Iterator[int], Iterator[int]]:
    """For the public ids and for the keys, by one question."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT CASE WHEN n <= %s THEN nextval('jobs_public_id') END, nextval('jobs_job_id_seq')"
            " FROM generate_series(1, %s) AS n",
            [jobs, rows],
        )
        found = cursor.fetchall()
    return iter([name for name, _ in found[:jobs]]), iter([key for _, key in found])


@cache
def _blank() -> tuple[dict[str, Any], list[tuple[str, Callable[[], Any]]]]:
    """What a column holds that nobody named; what is an object of its own in each row is made anew."""
    fields = Job._meta.concrete_fields
    made = [(field.attname, field.default) for field in fields if field.has_default() and callable(field.default)]
    return {field.attname: field.get_default() for field in fields}, made


def _rows(spec: JobSpec, name: str, keys: Iterator[int], wanted: Wanted, now: datetime) -> list[Job]:
    common = {field: getattr(spec, field) for field in KEPT_FIELDS} | {
        "cluster_id": wanted.cluster.pk,
        "team_id": wanted.team.pk,
        "user_id": wanted.author.user_id,
        "submitted_at": now,
        "hold": Hold.USER if spec.hold else Hold.NONE,
        "reason": "JobHeldUser" if spec.hold else "None",
        "why": "Its owner holds it." if spec.hold else NOT_LOOKED_YET,
    }
    if not spec.array:
        return [_row(common, id=next(keys), public_id=name)]
    return [
        _row(common, id=next(keys), public_id=task_id(name, index), array_id=name, array_index=index)
        for index in spec.array
    ]


def _row(common: dict[str, Any], **own: Any) -> Job:
    """By place: a model made of thousands of keywords is most of what a large request costs."""
    blank, made = _blank()
    return Job(*(blank | {name: make() for name, make in made} | common | own).values())


def _depend(asked: list[tuple[JobSpec, list[Job]]], team: Team) -> None:
    """Turn `afterok:ID` into rows; every task of an array that is named must have ended that way."""
    if not any(spec.dependencies for spec, _ in asked):
        return
    by_key = {f"@{spec.key}": group for spec, group in asked if spec.key}
    outside = {d.on for spec, _ in asked for d in spec.dependencies if d.on not in by_key}
    known = _named_jobs(outside, team)
    # Every task of one array waits for every task of the other: two large arrays would be millions of rows
    count = sum(
        len(group) * len(by_key.get(wish.on) or known.get(wish.on) or _unknown(wish))
        for spec, group in asked
        for wish in spec.dependencies
    )
    if count > MOST_DEPENDENCY_ROWS:
        raise BadSpec("dependencies", f"come to {count} pairs of jobs, more than the {MOST_DEPENDENCY_ROWS} allowed")
    after: dict[tuple[int, int], str] = {}
    for spec, group in asked:
        for wish in spec.dependencies:
            for on in by_key.get(wish.on) or known.get(wish.on) or _unknown(wish):
                for job in group:
                    if after.setdefault((job.pk, on.pk), wish.after) != wish.after:
                        raise BadSpec("dependencies", f"asks two different ends of {on}")
    copying.insert([Dependency(job_id=job, on_id=on, after=wish) for (job, on), wish in after.items()])


def _named_jobs(names: set[str], team: Team) -> dict[str, list[Job]]:
    """Each name with its jobs: one job, or every task of an array; a task may be meant by both of its names."""
    found: dict[str, list[Job]] = {}
    wanted = Q(public_id__in=names) | Q(array_id__in=names)
    for job in Job.objects.filter(wanted, team=team).only("public_id", "array_id") if names else ():
        for name in {job.public_id, job.array_id} & names:
            found.setdefault(name, []).append(job)
    return found


def known_ids(names: set[str], team: Team) -> set[str]:
    """Which of these ids, of jobs or of arrays, the team has."""
    wanted = Q(public_id__in=names) | Q(array_id__in=names)
    rows = Job.objects.filter(wanted, team=team).values_list("public_id", "array_id") if names else ()
    return names.intersection(name for row in rows for name in row)


def _unknown(wish: DependsOn) -> list[Job]:
    raise BadSpec("dependencies", f"the team has no job {wish.on!r}")
