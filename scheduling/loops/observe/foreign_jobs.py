"""Follow foreign jobs: jobs on the cluster that this installation did not submit.

Eligible rows     Jobs reported by the cluster that this installation did not submit, the oldest first, up to
                  `MAX_NEW_JOBS` new ones per turn, and unfinished foreign jobs in the database. They include jobs of
                  other Acme installations, and jobs of this one that are missing in its database.
What a turn does  Imports new jobs with their current state and follows the others. Sends nothing to the cluster.
Failure story     Each turn compares all jobs. New jobs are imported in one transaction, and a constraint prevents
                  duplicates; each other change is one guarded action. The identity of a job is its id and its
                  submission time, because a controller that lost its state reuses ids. The report may be older than
                  what another process has recorded: for `MAX_REPORT_AGE` after a change, a waiting job that the report
                  lacks, and a running one that it shows as waiting, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import FilteredRelation, Q

from jobs.actions import foreign_jobs
from jobs.actions import jobs as job_actions
from jobs.actions.journal import SYNC
from jobs.actions.one_row import skip_row_on_error
from jobs.core.backend_job import BackendJob
from jobs.core.lifecycle import FINAL_STATES, LIVE_STATES, State
from jobs.models import Attempt, Cluster, Event, Job
from scheduling.backends.base import ClusterListing
from scheduling.loops.observe.attempt_changes import apply_observations
from scheduling.loops.observe.observations import ATTEMPT_FACT_COLUMNS, AttemptFacts, observed_changes

MAX_NEW_JOBS = 500
CHANGES = ("job.discovered", "job.started", "job.state_changed")
MAX_REPORT_AGE = timedelta(seconds=90)  # of a cache of a Kubernetes cluster that is behind: more than any seen


def sync_foreign_jobs_once(
    cluster: Cluster, jobs: ClusterListing[BackendJob], now: datetime, *, most_new: int = MAX_NEW_JOBS
) -> int:
    """Import at most `most_new` foreign jobs, and follow the others. Return how many were new or changed."""
    seen = {job.foreign_id: job for job in jobs}
    known = {
        name: attempt
        for name, attempt in _known_attempts(cluster).items()
        if name in seen or not _may_be_hidden(jobs, name)
    }
    changed = {name for name, attempt in known.items() if _has_changed(attempt, seen.get(name), now)}
    rows = {job.foreign_id: job for job in _unfinished_jobs(cluster, changed)}
    live = Attempt.objects.live().filter(job__in=rows.values()).select_related("job")
    attempts = {attempt.job_id: attempt for attempt in live}
    moved = 0
    for name, job in rows.items():
        with skip_row_on_error(job):
            moved += _follow(job, attempts.get(job.pk), seen.get(name), now)
    new = {name: job for name, job in seen.items() if name not in known}
    return moved + _adopt_new_jobs(cluster, new, now, most_new)


def _may_be_hidden(jobs: ClusterListing[BackendJob], name: str) -> bool:
    return jobs.hides_job(name.rpartition("@")[0], "")


def _known_attempts(cluster: Cluster) -> dict[str, AttemptFacts | None]:
    """Return the unfinished foreign jobs with the facts of their attempts. They are read as plain columns, because an
    observed cluster may have thousands."""
    live = FilteredRelation("attempts", condition=Q(attempts__ended_at__isnull=True))
    unfinished = Job.objects.filter(cluster=cluster).exclude(foreign_id="").unfinished().annotate(live=live)
    rows = unfinished.order_by("id").values_list(
        "foreign_id", "live", *(f"live__{column}" for column in ATTEMPT_FACT_COLUMNS)
    )
    return {name: AttemptFacts(*known) if attempt else None for name, attempt, *known in rows}


def _has_changed(attempt: AttemptFacts | None, seen: BackendJob | None, now: datetime) -> bool:
    waits_there = seen is not None and seen.state == State.PENDING
    if attempt is None:
        return not waits_there
    return waits_there or bool(observed_changes(attempt, seen, now))


def _unfinished_jobs(cluster: Cluster, names: Iterable[str]) -> Iterable[Job]:
    foreign = Job.objects.filter(cluster=cluster, foreign_id__in=names).unfinished()
    return foreign.select_related("cluster").defer("command", "environment").order_by("id")


def _follow(job: Job, attempt: Attempt | None, seen: BackendJob | None, now: datetime) -> bool:
    if attempt is None:
        return _follow_waiting_job(job, seen, now)
    if seen and seen.state == State.PENDING:
        if _has_changed_lately(job, now):
            return False
        job_actions.record_cluster_requeue(attempt, now=now, author=SYNC)
        return True
    return apply_observations(attempt, seen, True, now)


def _follow_waiting_job(job: Job, seen: BackendJob | None, now: datetime) -> bool:
    if seen is None:
        if _has_changed_lately(job, now):
            return False
        foreign_jobs.withdraw_foreign_job(job, "The cluster no longer knows the job.", now=now, author=SYNC)
        return True
    if seen.has_run and seen.state in LIVE_STATES | FINAL_STATES:
        attempt = foreign_jobs.start_foreign_job(job, seen, author=SYNC)
        apply_observations(attempt, seen, True, now)
        return True
    if seen.state in FINAL_STATES:
        foreign_jobs.withdraw_foreign_job(job, f"The cluster reports {seen.state}.", now=now, author=SYNC)
    return seen.state in FINAL_STATES


def _has_changed_lately(job: Job, now: datetime) -> bool:
    changes = Event.objects.filter(job=job, type__in=CHANGES, at__gt=now - MAX_REPORT_AGE)
    return changes.exists()


def _adopt_new_jobs(cluster: Cluster, seen: dict[str, BackendJob], now: datetime, most: int) -> int:
    known = set(Job.objects.filter(cluster=cluster, foreign_id__in=seen).values_list("foreign_id", flat=True))
    new = sorted((name for name in seen if name not in known), key=lambda name: _import_order(seen[name]))
    new = new[:most]
    if not new:
        return 0
    with skip_row_on_error(f"new jobs of {cluster}"):
        return foreign_jobs.import_foreign_jobs(cluster, [seen[name] for name in new], now=now, author=SYNC)
    return 0


def _import_order(job: BackendJob) -> tuple[float, str]:
    """Jobs are imported in the order of their submission, those without a time first."""
    return (job.submitted_at.timestamp() if job.submitted_at else 0.0, job.backend_id)
