"""Factories of rows for the admin tests. Tests pass only the values that matter; all others have defaults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from django.contrib.auth.models import Permission, User
from django.utils import timezone

from jobs.actions import jobs as job_actions
from jobs.actions.jobs import NodeGpus
from jobs.actions.journal import SCHEDULER, Author
from jobs.actions.maintenance import MaintenanceRequest, schedule_maintenance
from jobs.core.lifecycle import NodeState, State
from jobs.models import (
    Attempt,
    BulkAction,
    Checkpoint,
    Cluster,
    ClusterCommand,
    ClusterCommandKind,
    ClusterMinute,
    Dependency,
    DependencyCondition,
    EnergyClock,
    EnergyHour,
    EnergyPrice,
    Event,
    IdempotencyKey,
    Identity,
    Installation,
    Job,
    LatestProgress,
    LoginAttempts,
    Loop,
    LoopFailure,
    Maintenance,
    Membership,
    Node,
    NodeClock,
    Quota,
    RankTimes,
    RecoveryMode,
    Sample,
    SavedView,
    Section,
    Team,
    TeamRole,
    Token,
)

NUMBERS = count(1)


def make_user(name: str = "ada", *permissions: str, **fields: Any) -> User:
    user, _ = User.objects.get_or_create(username=name, defaults=fields)
    codes = [code.removeprefix("jobs.") for code in permissions]
    user.user_permissions.add(*Permission.objects.filter(codename__in=codes))
    return user


def make_superuser(name: str = "root") -> User:
    return make_user(name, is_staff=True, is_superuser=True)


def make_staff(name: str = "op", *permissions: str) -> User:
    return make_user(name, *permissions, is_staff=True)


def make_team(name: str = "language", **fields: Any) -> Team:
    return Team.objects.get_or_create(name=name, defaults=fields)[0]


def make_member(user: User, role: TeamRole, team: Team | None = None) -> Membership:
    return Membership.objects.create(user=user, team=team or make_team(), role=role)


def make_cluster(name: str = "seren", **fields: Any) -> Cluster:
    return Cluster.objects.get_or_create(
        name=name, defaults={"address": "http://localhost:6820", "mode": "drive"} | fields
    )[0]


def make_node(name: str = "gpu001", **fields: Any) -> Node:
    shape = {"gpus": 8, "cpus": 128, "memory_mb": 1024 * 1024, "gpu_model": "a100", "state": NodeState.IDLE}
    cluster = fields.pop("cluster", None) or make_cluster()
    return Node.objects.get_or_create(cluster=cluster, name=name, defaults=shape | fields)[0]


def make_job(**fields: Any) -> Job:
    number = next(NUMBERS)
    asked: dict[str, Any] = {
        "name": f"run-{number}",
        "command": "train.sh",
        "gpus_per_node": 8,
        "public_id": f"0j{number:09d}",
    }
    places = {"cluster": make_cluster, "team": make_team, "user": make_user}
    asked |= {name: make() for name, make in places.items() if name not in fields}
    return Job.objects.create(**asked | fields)


def make_running(node: Node | None = None, *, confirmed: bool = True, **fields: Any) -> Job:
    """A running job, made by the real actions, so that its attempt, allocations, command and events exist."""
    node = node or make_node()
    job = make_job(cluster=node.cluster, **fields)
    place = NodeGpus(node_id=node.pk, name=node.name, gpus=tuple(range(job.gpus_per_node)))
    attempt = job_actions.allocate_job(
        job, [place], author=SCHEDULER, why="It fits.", new_log_path="/logs/{}.log".format
    )
    if confirmed:
        job_actions.record_backend_id(attempt, str(next(NUMBERS)))
        job_actions.confirm_start(attempt, started_at=timezone.now() - timedelta(hours=1), author=SCHEDULER)
    job.refresh_from_db()
    return job


def make_finished(state: State = State.COMPLETED, **fields: Any) -> Job:
    job = make_running(**fields)
    ended = job_actions.AttemptEnd(state=state, at=timezone.now(), exit_code=0 if state == State.COMPLETED else 1)
    job_actions.finish(Attempt.objects.get(job=job), ended, author=SCHEDULER)
    job.refresh_from_db()
    return job


def make_token(**fields: Any) -> Token:
    token, _ = Token.make(**{"user": make_user(), "name": "ci"} | fields)
    token.save()
    return token


def make_maintenance(node: Node, **fields: Any) -> Maintenance:
    now = timezone.now()
    times = {"start_at": now + timedelta(hours=2), "end_at": now + timedelta(hours=4)}
    asked = {"name": "cooling", "reason": "new pumps", "nodes": node.name, **times}
    return schedule_maintenance(node.cluster, MaintenanceRequest(**asked | fields), author=Author(by="op"), now=now)


def make_everything() -> None:
    """At least one row of every model in the admin."""
    node, user = make_node(), make_user()
    make_member(user, TeamRole.RESEARCHER)
    Quota.objects.create(team=make_team(), cluster=node.cluster, gpus=64)
    RecoveryMode.objects.create(cluster=node.cluster, mode="act")
    make_maintenance(node)
    make_token(user=user)
    job = make_running(node, environment={"WANDB_API_KEY": "hush", "RANKS": "8"})
    waiting = make_job(reason="Dependency", why="It waits for another job.")
    Dependency.objects.create(job=waiting, on=job, after=DependencyCondition.OK)
    Checkpoint.objects.create(job=job, attempt=job.attempts.get(), step=1000, path="/ckpt/1000")
    ClusterCommand.objects.create(cluster=node.cluster, node=node, kind=ClusterCommandKind.DRAIN)
    Installation.current_id()
    Loop.request("turn", node.cluster_id)
    LoopFailure.count_one(Loop.objects.get().pk, "KeyError in turn.py:run", "'node'")
    LoginAttempts.objects.create(key="0" * 64, since=timezone.now(), count=1)
    IdempotencyKey.objects.create(user=user, key="retry-1", digest="0" * 64, status=201, body="{}")
    BulkAction.objects.create(user=user, action="cancel", job_keys=[], matched=0)
    Identity.objects.create(user=user, issuer="https://id.example.org", subject="u-1")
    LatestProgress.objects.create(attempt=Attempt.objects.first(), at=timezone.now(), step=7, loss=float("nan"))
    Section.objects.create(attempt=Attempt.objects.first(), name="evaluation", began_at=timezone.now())
    RankTimes.objects.create(attempt=Attempt.objects.first(), seconds=[1.0, 1.4], nodes=["gpu001"] * 2)
    attempt, hour = Attempt.objects.select_related("job__cluster").first(), datetime(2026, 11, 21, 12, tzinfo=UTC)
    EnergyHour.objects.create(cluster=attempt.job.cluster, start=hour, attempt=attempt, counter_j=3.6e6)
    EnergyClock.objects.create(cluster=attempt.job.cluster, counted_until=hour)
    EnergyPrice.objects.create(cluster=attempt.job.cluster, start=hour, kwh_price=0.2)
    NodeClock.objects.create(node=Node.objects.first(), mhz=1110, began_at=hour)
    ClusterMinute.objects.create(
        cluster=node.cluster, at=timezone.now(), gpus=8, allocated=4, closed=0, running=1, waiting=0, requested=0
    )
    SavedView.objects.create(owner=user, name="mine", query="mine=1")
    Sample.objects.create(node=node, at=timezone.now(), gpu_util=[90.0, None], gpu_temperature_c=[61.0], xid=[0, 79])
    author = Author(by=user.username, user_id=user.pk)
    Event.objects.create(type="node.drained", by=author.by, user=user, node=node, cluster=node.cluster, detail={"a": 1})
