"""Jobs that were submitted outside Acme: imported, followed, never changed.

They are stored like other jobs, so lists, statistics and diagnoses include them. Their allocations have no GPU indices,
because the GPUs of a foreign job may be ones that Acme had allocated. `Node.foreign_gpus` lists the GPUs they hold, and
the scheduler does not use those. Operators of the cluster may cancel or adopt jobs that another Acme installation
submitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection, transaction

from acmeweb.common import live
from acmeweb.common.errors import StateConflict
from jobs.actions import jobs as job_actions
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.stop import publish_job_change, state_changed_error
from jobs.core.backend_job import BackendJob
from jobs.core.display_text import single_line
from jobs.core.hostlist import compress
from jobs.core.lifecycle import FINAL_STATES, LIVE_STATES, State
from jobs.core.public_id import public_id
from jobs.models import (
    Allocation,
    Attempt,
    Cluster,
    ClusterCommand,
    ClusterCommandKind,
    ClusterMode,
    Installation,
    Job,
    Node,
    Team,
    bulk_copy,
)

FOREIGN_OWNER = "outside-acme"  # team and user of jobs whose account or user name does not exist in Acme
MAX_KEY_LENGTH = 32


@transaction.atomic
def import_foreign_jobs(cluster: Cluster, reported: Sequence[BackendJob], *, now: datetime, author: Author) -> int:
    """Create rows for these jobs in their present state. The database rejects a second import of a job, and nothing is
    written then."""
    users, teams = (
        _existing_users({report.user for report in reported}),
        _existing_teams({report.account for report in reported}),
    )
    jobs = [
        _build_foreign_job(
            report,
            cluster,
            users.get(report.user) or users[FOREIGN_OWNER],
            teams.get(report.account) or teams[FOREIGN_OWNER],
            key,
            now,
        )
        for report, key in zip(reported, _new_public_ids(len(reported), now), strict=True)
    ]
    bulk_copy.insert(jobs)
    pairs = list(zip(reported, jobs, strict=True))
    attempts = [_build_foreign_attempt(report, job, 1) for report, job in pairs if report.has_run]
    bulk_copy.insert(attempts)
    names = dict(Node.objects.filter(cluster=cluster).values_list("name", "pk"))
    running = zip((report for report in reported if report.has_run), attempts, strict=True)
    bulk_copy.insert(
        [allocation for report, attempt in running for allocation in _build_foreign_allocations(report, attempt, names)]
    )
    bulk_copy.insert([journal.job_event("job.discovered", author, job, to_state=job.state) for job in jobs])
    live.publish_on_commit("queue")
    return len(jobs)


def _new_public_ids(count: int, now: datetime) -> Iterable[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('jobs_public_id') FROM generate_series(1, %s)", [count])
        return [public_id(now, number) for (number,) in cursor.fetchall()]


def _existing_users(names: set[str]) -> dict[str, Any]:
    """Return existing accounts by name. No account is created for names that only the cluster reports."""
    users = get_user_model().objects
    unknown_user, is_new = users.get_or_create(username=FOREIGN_OWNER, defaults={"is_active": False})
    if is_new:
        # This account only owns rows; it must not be usable for a login
        unknown_user.set_unusable_password()
        unknown_user.save()
    return {FOREIGN_OWNER: unknown_user} | {user.get_username(): user for user in users.filter(username__in=names)}


def _existing_teams(names: set[str]) -> dict[str, Team]:
    unknown_team, _ = Team.objects.get_or_create(name=FOREIGN_OWNER)
    return {FOREIGN_OWNER: unknown_team} | {team.name: team for team in Team.objects.filter(name__in=names)}


def _build_foreign_job(reported: BackendJob, cluster: Cluster, user: Any, team: Team, name: str, now: datetime) -> Job:
    is_final, nodes = reported.state in FINAL_STATES, max(len(reported.nodes), 1)
    held = max((len(gpus) for gpus in reported.gpus.values()), default=0)
    return Job(
        public_id=name,
        cluster=cluster,
        team=team,
        user=user,
        foreign_id=reported.foreign_id,
        foreign_user=single_line(reported.user)[:64] or "unknown",
        foreign_key=single_line(_foreign_key(reported))[:48],
        name=single_line(reported.name)[:120] or "job",
        command="",
        nodes=nodes,
        gpus_per_node=held or reported.gpus_per_node,
        cpus_per_node=max(-(-reported.cpus // nodes), 1),
        memory_per_node_mb=reported.memory_per_node_mb,
        time_limit=reported.time_limit,
        state=reported.state,
        flags=[],
        reason="" if reported.state != State.PENDING else reported.reason[:40],
        why="" if reported.state != State.PENDING else "Waiting in the cluster's own queue.",
        submitted_at=reported.submitted_at or now,
        started_at=reported.started_at if reported.has_run else None,
        ended_at=(reported.ended_at or now) if is_final else None,
        exit_code=reported.exit_code,
        signal=reported.signal,
    )


def _foreign_key(reported: BackendJob) -> str:
    """Return the key in the job's comment. Users can write such comments themselves, so too long keys are ignored."""
    key = f"{reported.installation or 'unknown'}:{reported.key}" if reported.key else ""
    return key if len(key) <= MAX_KEY_LENGTH else ""


def _build_foreign_attempt(reported: BackendJob, job: Job, number: int) -> Attempt:
    return Attempt(
        job=job,
        number=number,
        # The prefix keeps the keys of foreign attempts apart from those of Acme's own attempts
        key=f"f{job.public_id}.{number}",
        backend_id=reported.backend_id,
        state=reported.state,
        nodelist=compress(reported.nodes),
        log_path=reported.stdout[:500],
        promised_at=reported.started_at,
        confirmed_at=reported.started_at,
        ended_at=job.ended_at if reported.state in FINAL_STATES else None,
        exit_code=reported.exit_code,
        signal=reported.signal,
    )


def _build_foreign_allocations(reported: BackendJob, attempt: Attempt, names: dict[str, int]) -> list[Allocation]:
    node_ids = [names[name] for name in reported.nodes if name in names] if reported.state in LIVE_STATES else []
    return [Allocation(attempt=attempt, node_id=node, gpu=None, held_at=reported.started_at) for node in node_ids]


@transaction.atomic
def start_foreign_job(job: Job, reported: BackendJob, *, author: Author) -> Attempt:
    """Record that the cluster started the job. Its state since then is recorded by the next observation."""
    # The job may have ended since. Record the start first, so that both transitions get an Event
    running = replace(reported, state=State.RUNNING, ended_at=None)
    attempt = _build_foreign_attempt(running, job, job.attempts.count() + 1)
    attempt.save()
    names = dict(Node.objects.filter(cluster=job.cluster_id, name__in=reported.nodes).values_list("name", "pk"))
    Allocation.objects.bulk_create(_build_foreign_allocations(running, attempt, names))
    started_at, nodes = reported.started_at, max(len(reported.nodes), 1)
    job_actions.change_state(
        job, State.RUNNING, author=author, why="", attempt=attempt, started_at=started_at, nodes=nodes, reason=""
    )
    return attempt


@transaction.atomic
def cancel_foreign_job(job: Job, *, author: Author, why: str = "") -> None:
    """Cancel a job of another Acme installation on its cluster. The next observation of the cluster records its end."""
    job = Job.objects.select_for_update(of=("self",)).select_related("cluster").get(pk=job.pk)
    if not job.installation or job.state in FINAL_STATES:
        raise state_changed_error(job, "cancel needs an unfinished job of another installation")
    if job.cluster.mode != ClusterMode.DRIVE:
        raise StateConflict(f"{job} is on {job.cluster}, which Acme does not drive; cancel it there")
    backend_id = job.foreign_id.rpartition("@")[0]
    ClusterCommand.objects.create(cluster=job.cluster, kind=ClusterCommandKind.CANCEL_ID, reason=backend_id)
    journal.job_event("job.cancel_requested", author, job, why=why).save()
    publish_job_change(job)


@transaction.atomic
def adopt_foreign_job(job: Job, *, author: Author, why: str = "") -> None:
    """Take over a running job of another installation. Its command is not known here, so it cannot be requeued.

    The next observation of the cluster records which GPUs it holds.
    """
    attempt = Attempt.objects.select_for_update().filter(job=job, ended_at__isnull=True).first()
    job = Job.objects.select_for_update(of=("self",)).get(pk=job.pk)
    if not job.installation or attempt is None:
        raise state_changed_error(job, "adopt needs a running job of another installation")
    Attempt.objects.filter(pk=attempt.pk).update(key=local_attempt_key(job.foreign_key))
    # Without foreign_id the job is treated as one of Acme's own
    Job.objects.filter(pk=job.pk).update(foreign_id="", requeue_limit=0)
    journal.job_event("job.adopted", author, job, attempt=attempt, why=why, detail={"key": job.foreign_key}).save()
    job.refresh_from_db()
    publish_job_change(job)


def local_attempt_key(foreign_key: str) -> str:
    """Return the key under which an attempt is stored here: without the installation if that is this one."""
    installation, _, key = foreign_key.rpartition(":")
    return key if installation == Installation.current_id() else foreign_key


def withdraw_foreign_job(job: Job, why: str, *, now: datetime, author: Author) -> None:
    """Record that the job left the queue of its cluster without having run."""
    with transaction.atomic():
        job_actions.change_state(job, State.CANCELLED, author=author, why=why, ended_at=now)
