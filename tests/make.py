"""Creates rows with sensible defaults. The users are always the same: ada and ben cannot see each other's jobs; the
cluster is seren, with four nodes of eight GPUs each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Permission
from django.test import Client

from jobs.actions import jobs as job_actions
from jobs.actions.jobs import AttemptEnd
from jobs.actions.journal import Author
from jobs.core import spec
from jobs.core.lifecycle import NodeState, State
from jobs.models import Attempt, Cluster, Job, Membership, Node, Team, TeamRole, clock

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PASSWORD = "correct horse battery staple"
LOOP = Author(by="test")


@cache
def hashed_password() -> str:
    """Hash a password once for all users, because hashing takes a quarter of a second."""
    return make_password(PASSWORD)


def user(name: str = "ada", **fields: Any) -> Any:
    people = get_user_model().objects
    return people.filter(username=name).first() or people.create(username=name, password=hashed_password(), **fields)


def browser(name: str = "ada", *permissions: str, **fields: Any) -> Client:
    """Log a user in who has these permissions."""
    person = user(name, **fields)
    if permissions:
        person.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(person)
    return client


def team(name: str = "pretraining", **members: str) -> Team:
    """`make.team("pretraining", ada="admin", ben="viewer")`"""
    row, _ = _find_or_create(Team, {}, name=name)
    for person, role in members.items():
        member, new = _find_or_create(Membership, {"role": role}, team=row, user=user(person))
        if not new:
            _with(member, {"role": role})
    return row


def cluster(name: str = "seren", *, nodes: int = 4, **fields: Any) -> Cluster:
    """Create or update a cluster with its nodes, last seen a moment ago."""
    first = {"address": "http://127.0.0.1:1", "log_root": "/nonexistent", "mode": "drive"}
    first["last_contact_at"] = datetime.now(UTC)
    row, new = _find_or_create(Cluster, first | fields, name=name)
    if not new:
        return _with(row, fields)
    names = (f"{name}-{number:03d}" for number in range(1, nodes + 1))
    Node.objects.bulk_create([Node(cluster=row, name=one, **NODE_FIELDS) for one in names])
    return row


NODE_FIELDS: dict[str, Any] = {
    "gpus": 8,
    "gpu_model": "a100",
    "cpus": 128,
    "memory_mb": 1024 * 1024,
    "state": NodeState.IDLE,
    "rack": "r01",
    "leaf": "l01",
}


def node(name: str = "seren-001", *, cluster: Cluster | None = None, **fields: Any) -> Node:
    """Create or update a node."""
    home = cluster or globals()["cluster"]()
    row, new = _find_or_create(Node, NODE_FIELDS | fields, cluster=home, name=name)
    return row if new else _with(row, fields)


def _find_or_create(model: Any, fields: dict[str, Any], **key: Any) -> tuple[Any, bool]:
    """Like get_or_create, without its savepoint: no other process creates the row, and half the queries are saved."""
    row = model.objects.filter(**key).first()
    return (row, False) if row else (model.objects.create(**key, **fields), True)


def _with(row: Any, fields: dict[str, Any]) -> Any:
    for name, value in fields.items():
        setattr(row, name, value)
    if fields:
        row.save(update_fields=list(fields))
    return row


def author(name: str = "ada") -> Author:
    person = user(name)
    return Author(by=person.get_username(), user_id=person.pk, request_id="req-1")


def jobs(*asked: dict[str, Any], by: str = "ada", cluster: Cluster | None = None, **common: Any) -> list[Job]:
    """Submit jobs through the regular action."""
    home = cluster or globals()["cluster"]()
    group = Team.objects.filter(memberships__user=user(by)).first() or team(**{by: TeamRole.RESEARCHER})
    shape = Node.objects.shape(home)
    return job_actions.submit(
        [spec.parse({"command": "python train.py", **common, **one}, shape) for one in asked],
        cluster=home,
        team=group,
        author=author(by),
        now=clock.now(),
    )


def job(*, by: str = "ada", cluster: Cluster | None = None, **asked: Any) -> Job:
    return jobs(asked, by=by, cluster=cluster)[0]


def attempt(
    job: Job | None = None,
    *,
    nodes: int | None = None,
    gpus: tuple[int, ...] | None = None,
    on: Iterable[str] = (),
    log_path: str = "",
) -> Attempt:
    """Promise GPUs to a job, on the given nodes or the first ones: the attempt is CONFIGURING."""
    job = job or globals()["job"](gpus_per_node=1)
    there = Node.objects.filter(cluster=job.cluster).order_by("name")
    wide = list(there.filter(name__in=on) if on else there[: nodes or job.nodes])
    indices = gpus if gpus is not None else tuple(range(job.gpus_per_node or bool(job.gpu_milli)))
    places = [job_actions.NodeGpus(node_id=n.pk, name=n.name, gpus=indices, gpu_milli=job.gpu_milli) for n in wide]
    made = job_actions.allocate_job(job, places, author=author(), why="GPUs were free.")
    if log_path:
        Attempt.objects.filter(pk=made.pk).update(log_path=log_path)
        made.log_path = log_path
    job.refresh_from_db()
    return made


def running(job: Job | None = None, **where: Any) -> Attempt:
    """Create a job that runs on the cluster."""
    made = attempt(job, **where)
    job_actions.record_backend_id(made, f"{made.pk + 1000}")
    job_actions.confirm_start(made, started_at=clock.now() - timedelta(minutes=5), author=author())
    made.refresh_from_db()
    made.job.refresh_from_db()
    return made


def ended(job: Job | None = None, state: str = State.COMPLETED, **how: Any) -> Attempt:
    """End the attempt of a job; a platform failure requeues the job."""
    job = job or globals()["job"](gpus_per_node=1)
    made = running(job)
    job_actions.finish(
        made, AttemptEnd(**{"state": State(state), "at": clock.now(), "exit_code": 0, **how}), author=LOOP
    )
    job.refresh_from_db()
    made.refresh_from_db()
    return made
