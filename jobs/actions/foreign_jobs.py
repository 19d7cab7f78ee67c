"""Jobs that others submitted to a cluster: taken into the record, followed, never changed.

They are rows like ours, so lists, statistics and diagnoses know them. Their place is kept as what a node holds without
GPU indices, because the GPUs of a foreign job may be ones that we had promised: which GPUs they hold is said by
`Node.foreign_gpus`, which the scheduler respects. Operators of the cluster may cancel or adopt those that another Acme
installation submitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection, transaction

from acmeweb.common import live
from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.stop import JobStateChanged, publish_job_change, state_changed_error
from jobs.core.display_text import single_line
from jobs.core.hostlist import compress
from jobs.core.lifecycle import FINAL_STATES, LIVE_STATES, State
from jobs.core.public_id import public_id
from jobs.models import (
    Allocation,
    Attempt,
    Cluster,
    ClusterCommandKind,
    ClusterMode,
    Deed,
    Installation,
    Job,
    Node,
    Team,
    bulk_copy,
)

FOREIGN_OWNER = "outside-acme"  # the team and the user of whom neither account nor name is known here


@dataclass(frozen=True, kw_only=True)
class ForeignJob:
    """A job as its cluster reports it."""

    id: str
    backend_id: str
    name: str
    user: str
    account: str
    state: State
    reason: str
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    nodes: tuple[str, ...]
    gpus_per_node: int
    cpus_per_node: int
    memory_per_node_mb: int
    time_limit: timedelta | None
    exit_code: int | None
    signal: int | None
    log_path: str
    key: str = ""  # installation and attempt key, where another Acme submitted it

    @property
    def has_run(self) -> bool:
        return self.started_at is not None and bool(self.nodes)


@transaction.atomic
def import_foreign_jobs(cluster: Cluster, strangers: Sequence[ForeignJob], *, now: datetime, author: Author) -> int:
    """Rows for all of them, as they stand. Twice is refused by the database, with nothing written."""
    people, teams = (
        _existing_users({one.user for one in strangers}),
        _existing_teams({one.account for one in strangers}),
    )
    jobs = [
        _build_foreign_job(
            one,
            cluster,
            people.get(one.user) or people[FOREIGN_OWNER],
            teams.get(one.account) or teams[FOREIGN_OWNER],
            key,
            now,
        )
        for one, key in zip(strangers, _new_public_ids(len(strangers), now), strict=True)
    ]
    bulk_copy.insert(jobs)
    pairs = list(zip(strangers, jobs, strict=True))
    attempts = [_build_foreign_attempt(one, job, 1) for one, job in pairs if one.has_run]
    bulk_copy.insert(attempts)
    names = dict(Node.objects.filter(cluster=cluster).values_list("name", "pk"))
    placed = zip((one for one in strangers if one.has_run), attempts, strict=True)
    bulk_copy.insert([held for one, attempt in placed for held in _build_foreign_allocations(one, attempt, names)])
    bulk_copy.insert([journal.job_event("job.seen", author, job, to_state=job.state) for job in jobs])
    live.publish_on_commit("queue")
    return len(jobs)


def _new_public_ids(count: int, now: datetime) -> Iterable[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('jobs_public_id') FROM generate_series(1, %s)", [count])
        return [public_id(now, number) for (number,) in cursor.fetchall()]


def _existing_users(names: set[str]) -> dict[str, Any]:
    """Accounts that are here. Nobody gets one because a cluster has heard his name."""
    users = get_user_model().objects
    nobody, new = users.get_or_create(username=FOREIGN_OWNER, defaults={"is_active": False})
    if new:
        nobody.set_unusable_password()
        nobody.save()
    return {FOREIGN_OWNER: nobody} | {user.get_username(): user for user in users.filter(username__in=names)}


def _existing_teams(names: set[str]) -> dict[str, Team]:
    nobodys, _ = Team.objects.get_or_create(name=FOREIGN_OWNER)
    return {FOREIGN_OWNER: nobodys} | {team.name: team for team in Team.objects.filter(name__in=names)}


def _build_foreign_job(one: ForeignJob, cluster: Cluster, user: Any, team: Team, name: str, now: datetime) -> Job:
    over = one.state in FINAL_STATES
    return Job(
        public_id=name,
        cluster=cluster,
        team=team,
        user=user,
        foreign_id=one.id,
        foreign_user=single_line(one.user)[:64] or "unknown",
        foreign_key=single_line(one.key)[:48],
        name=single_line(one.name)[:120] or "job",
        command="",
        nodes=max(len(one.nodes), 1),
        gpus_per_node=one.gpus_per_node,
        cpus_per_node=one.cpus_per_node,
        memory_per_node_mb=one.memory_per_node_mb,
        time_limit=one.time_limit,
        state=one.state,
        flags=[],
        reason="" if one.state != State.PENDING else one.reason[:40],
        why="" if one.state != State.PENDING else "Waiting in the cluster's own queue.",
        submitted_at=one.submitted_at or now,
        started_at=one.started_at if one.has_run else None,
        ended_at=(one.ended_at or now) if over else None,
        exit_code=one.exit_code,
        signal=one.signal,
    )


def _build_foreign_attempt(one: ForeignJob, job: Job, number: int) -> Attempt:
    return Attempt(
        job=job,
        number=number,
        key=f"f{job.public_id}.{number}",
        backend_id=one.backend_id,
        state=one.state,
        nodelist=compress(one.nodes),
        log_path=one.log_path[:500],
        promised_at=one.started_at,
        confirmed_at=one.started_at,
        ended_at=job.ended_at if one.state in FINAL_STATES else None,
        exit_code=one.exit_code,
        signal=one.signal,
    )


def _build_foreign_allocations(one: ForeignJob, attempt: Attempt, names: dict[str, int]) -> list[Allocation]:
    here = [names[name] for name in one.nodes if name in names] if one.state in LIVE_STATES else []
    return [Allocation(attempt=attempt, node_id=node, gpu=None, held_at=one.started_at) for node in here]


@transaction.atomic
def start_foreign_job(job: Job, one: ForeignJob, *, author: Author) -> Attempt:
    """Its cluster started it. What became of it since is the next news."""
    running = {**vars(one), "state": State.RUNNING, "ended_at": None}
    attempt = _build_foreign_attempt(ForeignJob(**running), job, job.attempts.count() + 1)
    attempt.save()
    names = dict(Node.objects.filter(cluster=job.cluster_id, name__in=one.nodes).values_list("name", "pk"))
    Allocation.objects.bulk_create(_build_foreign_allocations(ForeignJob(**running), attempt, names))
    began, nodes = one.started_at, max(len(one.nodes), 1)
    job_actions.change_state(
        job, State.RUNNING, author=author, why="", attempt=attempt, started_at=began, nodes=nodes, reason=""
    )
    return attempt


@transaction.atomic
def cancel_foreign_job(job: Job, *, author: Author, why: str = "") -> None:
    """Cancel a job of another Acme installation on its cluster; the next looks at the cluster show its end."""
    job = Job.objects.select_for_update(of=("self",)).select_related("cluster").get(pk=job.pk)
    if not job.installation or job.state in FINAL_STATES:
        raise state_changed_error(job, "cancel needs a job of another installation that has not ended")
    if job.cluster.mode != ClusterMode.DRIVE:
        raise JobStateChanged(f"{job} is on {job.cluster}, which Acme does not drive; cancel it there")
    backend_id = job.foreign_id.partition("@")[0]
    Deed.objects.create(cluster=job.cluster, kind=ClusterCommandKind.CANCEL_ID, reason=backend_id)
    journal.job_event("job.cancel_asked", author, job, why=why).save()
    publish_job_change(job)


@transaction.atomic
def adopt_foreign_job(job: Job, *, author: Author, why: str = "") -> None:
    """Make a running job of another installation one of ours. Its command is not known here, so it cannot be requeued.

    The next look at the cluster fills in which GPUs it holds (`sync`).
    """
    attempt = Attempt.objects.select_for_update().filter(job=job, ended_at__isnull=True).first()
    job = Job.objects.select_for_update(of=("self",)).get(pk=job.pk)
    if not job.installation or attempt is None:
        raise state_changed_error(job, "adopt needs a running job of another installation")
    Attempt.objects.filter(pk=attempt.pk).update(key=local_attempt_key(job.foreign_key))
    Job.objects.filter(pk=job.pk).update(foreign_id="", requeue_limit=0)
    journal.job_event("job.adopted", author, job, attempt=attempt, why=why, detail={"key": job.foreign_key}).save()
    job.refresh_from_db()
    publish_job_change(job)


def local_attempt_key(foreign_key: str) -> str:
    """Under which key an attempt of that name is kept here: without the installation, if it is this one."""
    installation, _, key = foreign_key.rpartition(":")
    return key if installation == Installation.current_id() else foreign_key


def withdraw_foreign_job(job: Job, why: str, *, now: datetime, author: Author) -> None:
    """It left its cluster's queue without having run."""
    with transaction.atomic():
        job_actions.change_state(job, State.CANCELLED, author=author, why=why, ended_at=now)
