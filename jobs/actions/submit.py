"""Creates jobs, of one user or of many at once, with a fixed number of statements.

An error leaves the transaction incomplete: a caller of `submit_in_transaction` must roll it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any

from django.db import connection, transaction
from django.db.models import Q

from acmeweb.common import live
from acmeweb.common.errors import InvalidField
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.lifecycle import State
from jobs.core.public_id import public_id, task_id
from jobs.core.request_fields import REQUEST_FIELDS
from jobs.core.spec import DependencySpec, JobSpec
from jobs.models import Cluster, ClusterMode, Dependency, HoldKind, Job, Team, bulk_copy

MAX_DEPENDENCY_ROWS = 100_000
WAITING_FOR_FIRST_TURN = "Waiting for the next scheduling turn."

# Fields of JobSpec that become something else than the column of the same name
OWN_RULES = {"hold", *(name for name, field in REQUEST_FIELDS.items() if not field.stored)}
COPIED_SPEC_FIELDS = tuple(one.name for one in fields(JobSpec) if one.name not in OWN_RULES)


@dataclass(frozen=True, kw_only=True)
class SubmissionGroup:
    """The jobs of one request for one team and cluster. They may refer to each other by `key`."""

    specs: Sequence[JobSpec]
    cluster: Cluster
    team: Team
    author: Author


def submit(specs: Sequence[JobSpec], *, cluster: Cluster, team: Team, author: Author, now: datetime) -> list[Job]:
    """Create all jobs or none. An array becomes one row per task. Rows are returned in the order of the request."""
    with transaction.atomic():
        return submit_in_transaction([SubmissionGroup(specs=specs, cluster=cluster, team=team, author=author)], now)[0]


def submit_in_transaction(submissions: Sequence[SubmissionGroup], now: datetime) -> list[list[Job]]:
    """Create the jobs of several groups in the caller's transaction, which must be rolled back on an error."""
    for group in submissions:
        refuse_observe_mode(group.cluster)
    specs = [spec for group in submissions for spec in group.specs]
    names, keys = _reserve_numbers(len(specs), sum(len(spec.array) or 1 for spec in specs))
    groups = [
        [_build_job_rows(spec, public_id(now, next(names)), keys, group, now) for spec in group.specs]
        for group in submissions
    ]
    submitted = [[job for rows in group for job in rows] for group in groups]
    bulk_copy.insert([job for jobs in submitted for job in jobs])
    for group, rows in zip(submissions, groups, strict=True):
        _create_dependencies(list(zip(group.specs, rows, strict=True)), group.team)
    authors = [(group.author, job) for group, jobs in zip(submissions, submitted, strict=True) for job in jobs]
    journal.insert_job_events("job.submitted", authors, to_state=State.PENDING)
    live.publish_on_commit("queue")
    return submitted


def refuse_observe_mode(cluster: Cluster) -> None:
    """Reject submissions to a cluster in mode observe."""
    if cluster.mode == ClusterMode.OBSERVE:
        raise InvalidField("cluster", f"{cluster} is in mode observe; Acme does not start jobs there")


def _reserve_numbers(jobs: int, rows: int) -> tuple[Iterator[int], Iterator[int]]:
    """Return numbers for the public ids and primary keys for the rows, with one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            # One public id per spec, but one primary key per row: array tasks share the id of their array
            "SELECT CASE WHEN n <= %s THEN nextval('jobs_public_id') END, nextval('jobs_job_id_seq')"
            " FROM generate_series(1, %s) AS n",
            [jobs, rows],
        )
        numbers = cursor.fetchall()
    return iter([name for name, _ in numbers[:jobs]]), iter([key for _, key in numbers])


@cache
def _column_defaults() -> tuple[dict[str, Any], list[tuple[str, Callable[[], Any]]]]:
    """Return the default of each column, and the factories of mutable defaults, which each row needs separately."""
    fields = Job._meta.concrete_fields
    factories = [(field.attname, field.default) for field in fields if field.has_default() and callable(field.default)]
    return {field.attname: field.get_default() for field in fields}, factories


def _build_job_rows(spec: JobSpec, name: str, keys: Iterator[int], group: SubmissionGroup, now: datetime) -> list[Job]:
    common = {field: getattr(spec, field) for field in COPIED_SPEC_FIELDS} | {
        "cluster_id": group.cluster.pk,
        "team_id": group.team.pk,
        "user_id": group.author.user_id,
        "submitted_at": now,
        "hold": HoldKind.USER if spec.hold else HoldKind.NONE,
        "reason": "JobHeldUser" if spec.hold else "None",
        # A held job shows its hold at once, without waiting for a scheduling turn
        "why": "Held by its owner." if spec.hold else WAITING_FOR_FIRST_TURN,
    }
    if not spec.array:
        return [_build_job_row(common, id=next(keys), public_id=name)]
    return [
        _build_job_row(common, id=next(keys), public_id=task_id(name, index), array_id=name, array_index=index)
        for index in spec.array
    ]


def _build_job_row(common: dict[str, Any], **own: Any) -> Job:
    """Build a row from positional arguments. Keyword arguments would dominate the cost of a large request."""
    blank, factories = _column_defaults()
    return Job(*(blank | {name: make() for name, make in factories} | common | own).values())


def _create_dependencies(submitted: list[tuple[JobSpec, list[Job]]], team: Team) -> None:
    """Convert `afterok:ID` to rows. A dependency on an array means a dependency on each of its tasks."""
    if not any(spec.dependencies for spec, _ in submitted):
        return
    # Keys refer to jobs of this request; other names must exist in the database
    by_key = {f"@{spec.key}": group for spec, group in submitted if spec.key}
    outside = {d.on for spec, _ in submitted for d in spec.dependencies if d.on not in by_key}
    existing = _jobs_by_name(outside, team)
    # Every task of one array depends on every task of the other: two large arrays would need millions of rows
    count = sum(
        len(group) * len(by_key.get(dependency.on) or existing.get(dependency.on) or _raise_unknown_job(dependency))
        for spec, group in submitted
        for dependency in spec.dependencies
    )
    if count > MAX_DEPENDENCY_ROWS:
        raise InvalidField(
            "dependencies", f"result in {count} pairs of jobs, more than the {MAX_DEPENDENCY_ROWS} allowed"
        )
    after: dict[tuple[int, int], str] = {}
    for spec, group in submitted:
        for dependency in spec.dependencies:
            for on in by_key.get(dependency.on) or existing.get(dependency.on) or _raise_unknown_job(dependency):
                for job in group:
                    # Both ids of a task may be given; a duplicate is fine unless the conditions differ
                    if after.setdefault((job.pk, on.pk), dependency.after) != dependency.after:
                        raise InvalidField("dependencies", f"requires two different outcomes of {on}")
    bulk_copy.insert([Dependency(job_id=job, on_id=on, after=dependency) for (job, on), dependency in after.items()])


def _jobs_by_name(names: set[str], team: Team) -> dict[str, list[Job]]:
    """Return the jobs of each name: one job, or every task of an array. A task can be named by both of its ids."""
    jobs: dict[str, list[Job]] = {}
    match = Q(public_id__in=names) | Q(array_id__in=names)
    for job in Job.objects.filter(match, team=team).only("public_id", "array_id") if names else ():
        for name in {job.public_id, job.array_id} & names:
            jobs.setdefault(name, []).append(job)
    return jobs


def existing_job_ids(names: set[str], team: Team) -> set[str]:
    """Return which of these ids, of jobs or of arrays, belong to the team."""
    match = Q(public_id__in=names) | Q(array_id__in=names)
    rows = Job.objects.filter(match, team=team).values_list("public_id", "array_id") if names else ()
    return names.intersection(name for row in rows for name in row)


def refuse_unknown_dependencies(spec: JobSpec, team: Team) -> None:
    """Reject a job that depends on jobs that its team does not have. One query, if it has dependencies."""
    names = {dependency.on for dependency in spec.dependencies}
    if unknown := names - existing_job_ids(names, team):
        raise InvalidField("dependencies", f"the team has no job {min(unknown)!r}")


def _raise_unknown_job(dependency: DependencySpec) -> list[Job]:
    raise InvalidField("dependencies", f"the team has no job {dependency.on!r}")
