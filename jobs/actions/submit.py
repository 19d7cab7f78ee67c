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

from acmeweb.common import live
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.lifecycle import State
from jobs.core.public_id import public_id, task_id
from jobs.core.spec import DependencySpec, InvalidField, JobSpec
from jobs.models import Cluster, ClusterMode, Dependency, HoldKind, Job, Team, bulk_copy

MAX_DEPENDENCY_ROWS = 100_000
WAITING_FOR_FIRST_TURN = "The scheduler has not looked at it yet."

# What the row keeps of a JobSpec under the same name.
COPIED_SPEC_FIELDS = (
    *("name", "kind", "command", "workdir", "environment", "nodes", "gpus_per_node", "cpus_per_node"),
    *("memory_per_node_mb", "gpu_model", "nic_type", "on_node", "time_limit", "priority", "preemptible"),
    *("requeue_limit", "begin_at", "array_limit", "checkpoint_dir", "checkpoint_interval", "checkpoint_signal"),
    *("labels", "comment"),
)


@dataclass(frozen=True, kw_only=True)
class SubmissionGroup:
    """What one request wants in one place. Its jobs may name each other by `key`."""

    specs: Sequence[JobSpec]
    cluster: Cluster
    team: Team
    author: Author


def submit(specs: Sequence[JobSpec], *, cluster: Cluster, team: Team, author: Author, now: datetime) -> list[Job]:
    """All of them or none. An array becomes one row a task; the rows come back in the order asked."""
    with transaction.atomic():
        return submit_in_transaction([SubmissionGroup(specs=specs, cluster=cluster, team=team, author=author)], now)[0]


def submit_in_transaction(wanted: Sequence[SubmissionGroup], now: datetime) -> list[list[Job]]:
    """The same for many, in the caller's transaction, which must not outlive what this raises."""
    for one in wanted:
        refuse_observe_mode(one.cluster)
    specs = [spec for one in wanted for spec in one.specs]
    names, keys = _reserve_numbers(len(specs), sum(len(spec.array) or 1 for spec in specs))
    groups = [
        [_build_job_rows(spec, public_id(now, next(names)), keys, one, now) for spec in one.specs] for one in wanted
    ]
    submitted = [[job for rows in group for job in rows] for group in groups]
    bulk_copy.insert([job for jobs in submitted for job in jobs])
    for one, group in zip(wanted, groups, strict=True):
        _create_dependencies(list(zip(one.specs, group, strict=True)), one.team)
    authors = [(one.author, job) for one, jobs in zip(wanted, submitted, strict=True) for job in jobs]
    journal.insert_job_events("job.submitted", authors, to_state=State.PENDING)
    live.publish_on_commit("queue")
    return submitted


def refuse_observe_mode(cluster: Cluster) -> None:
    if cluster.mode == ClusterMode.OBSERVE:
        raise InvalidField("cluster", f"{cluster} is only observed: Acme starts nothing there")


def _reserve_numbers(jobs: int, rows: int) -> tuple[Iterator[int], Iterator[int]]:
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
def _column_defaults() -> tuple[dict[str, Any], list[tuple[str, Callable[[], Any]]]]:
    """What a column holds that nobody named; what is an object of its own in each row is made anew."""
    fields = Job._meta.concrete_fields
    made = [(field.attname, field.default) for field in fields if field.has_default() and callable(field.default)]
    return {field.attname: field.get_default() for field in fields}, made


def _build_job_rows(spec: JobSpec, name: str, keys: Iterator[int], wanted: SubmissionGroup, now: datetime) -> list[Job]:
    common = {field: getattr(spec, field) for field in COPIED_SPEC_FIELDS} | {
        "cluster_id": wanted.cluster.pk,
        "team_id": wanted.team.pk,
        "user_id": wanted.author.user_id,
        "submitted_at": now,
        "hold": HoldKind.USER if spec.hold else HoldKind.NONE,
        "reason": "JobHeldUser" if spec.hold else "None",
        "why": "Its owner holds it." if spec.hold else WAITING_FOR_FIRST_TURN,
    }
    if not spec.array:
        return [_build_job_row(common, id=next(keys), public_id=name)]
    return [
        _build_job_row(common, id=next(keys), public_id=task_id(name, index), array_id=name, array_index=index)
        for index in spec.array
    ]


def _build_job_row(common: dict[str, Any], **own: Any) -> Job:
    """By place: a model made of thousands of keywords is most of what a large request costs."""
    blank, made = _column_defaults()
    return Job(*(blank | {name: make() for name, make in made} | common | own).values())


def _create_dependencies(asked: list[tuple[JobSpec, list[Job]]], team: Team) -> None:
    """Turn `afterok:ID` into rows; every task of an array that is named must have ended that way."""
    if not any(spec.dependencies for spec, _ in asked):
        return
    by_key = {f"@{spec.key}": group for spec, group in asked if spec.key}
    outside = {d.on for spec, _ in asked for d in spec.dependencies if d.on not in by_key}
    known = _jobs_by_name(outside, team)
    # Every task of one array waits for every task of the other: two large arrays would be millions of rows
    count = sum(
        len(group) * len(by_key.get(wish.on) or known.get(wish.on) or _raise_unknown_job(wish))
        for spec, group in asked
        for wish in spec.dependencies
    )
    if count > MAX_DEPENDENCY_ROWS:
        raise InvalidField(
            "dependencies", f"come to {count} pairs of jobs, more than the {MAX_DEPENDENCY_ROWS} allowed"
        )
    after: dict[tuple[int, int], str] = {}
    for spec, group in asked:
        for wish in spec.dependencies:
            for on in by_key.get(wish.on) or known.get(wish.on) or _raise_unknown_job(wish):
                for job in group:
                    if after.setdefault((job.pk, on.pk), wish.after) != wish.after:
                        raise InvalidField("dependencies", f"asks two different ends of {on}")
    bulk_copy.insert([Dependency(job_id=job, on_id=on, after=wish) for (job, on), wish in after.items()])


def _jobs_by_name(names: set[str], team: Team) -> dict[str, list[Job]]:
    """Each name with its jobs: one job, or every task of an array; a task may be meant by both of its names."""
    found: dict[str, list[Job]] = {}
    wanted = Q(public_id__in=names) | Q(array_id__in=names)
    for job in Job.objects.filter(wanted, team=team).only("public_id", "array_id") if names else ():
        for name in {job.public_id, job.array_id} & names:
            found.setdefault(name, []).append(job)
    return found


def existing_job_ids(names: set[str], team: Team) -> set[str]:
    """Which of these ids, of jobs or of arrays, the team has."""
    wanted = Q(public_id__in=names) | Q(array_id__in=names)
    rows = Job.objects.filter(wanted, team=team).values_list("public_id", "array_id") if names else ()
    return names.intersection(name for row in rows for name in row)


def _raise_unknown_job(wish: DependencySpec) -> list[Job]:
    raise InvalidField("dependencies", f"the team has no job {wish.on!r}")
