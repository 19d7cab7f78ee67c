"""Find the outcomes of attempts that the cluster no longer knows.

Eligible rows     Unfinished attempts that are missing in complete responses of the cluster (`missing_since`), and
                  attempts whose submission may have been accepted without a response; the longest missing first. Once
                  a minute also jobs with unknown outcome, for a day, because an unreachable source may have returned.
What a turn does  Reads accounting, the attempt record and the log (`outcome_evidence`), and ends the attempt with the
                  outcome they show. If they show nothing, the job waits for a user (OUTCOME_UNKNOWN). A
                  submission that left no trace is repeated.
Failure story     Each result is written by one guarded action: an attempt that the cluster shows again meanwhile has
                  another `missing_since` and is not changed. Killed anywhere or run twice: the next turn continues.
                  The loop runs beside the turns, because log storage that hangs must not delay job starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from jobs.actions import jobs as job_actions
from jobs.actions import outcomes as outcome_actions
from jobs.actions.journal import SYNC
from jobs.actions.one_row import skip_row_on_error
from jobs.core.attempt_end import AttemptEnd
from jobs.core.backend_job import BackendJob
from jobs.core.lifecycle import State
from jobs.logs.job_log import LogReadError
from jobs.models import Attempt, Cluster, ClusterCommand, ClusterCommandKind, Job
from scheduling.backends.base import AccountingUnavailable, Backend, BackendError
from scheduling.clusters import circuit_breaker
from scheduling.loops.observe.attempt_records import is_log_root_readable, read_attempt_files
from scheduling.loops.observe.outcome_evidence import (
    KnownEnd,
    MissingAttempt,
    NeverStarted,
    OutcomeEvidence,
    UnknownOutcome,
    find_outcome,
)
from scheduling.models import ClusterEndpoint

log = logging.getLogger(__name__)

MAX_ATTEMPTS_PER_TURN = 200
UNKNOWN_LOOK_BACK = timedelta(days=1)


def find_outcomes_once(cluster: Cluster, backend: Backend, now: datetime, *, again: bool = False) -> int:
    """Return how many attempts were settled. `again`: search for unknown outcomes too."""
    missing = list(_missing_attempts(cluster))
    unknown = list(_unknown_attempts(cluster, now)) if again else []
    if not missing and not unknown:
        return 0
    sources = OutcomeSources(
        accounting=AccountingLookup(backend, [*missing, *unknown]),
        state_in_log=backend.traits.state_in_log,
        log_root_works=is_log_root_readable(cluster),
    )
    moved = 0
    for attempt in missing:
        with skip_row_on_error(attempt):
            moved += _settle_missing(attempt, sources, now)
    for attempt in unknown:
        with skip_row_on_error(attempt):
            moved += _settle_unknown(attempt, sources, now)
    return moved


def find_cluster_outcomes_once(
    cluster: Cluster, now: datetime, *, connect: Callable[[Cluster], Backend], again: bool = False
) -> int:
    """The same over a new connection, unless the cluster does not respond; turns report that on its page."""
    if circuit_breaker.is_open(cluster, ClusterEndpoint.CONTROL):
        return 0
    try:
        return find_outcomes_once(cluster, connect(cluster), now, again=again)
    except BackendError as error:
        log.info("outcomes of cluster %s cannot be searched now: %s", cluster, error)
        return 0


def clusters_with_missing_attempts() -> list[int]:
    """Return the ids of clusters with missing attempts."""
    missing = Attempt.objects.live().filter(missing_since__isnull=False)
    return sorted(set(missing.order_by().values_list("job__cluster", flat=True)))


def clusters_with_unknown_outcomes() -> list[int]:
    """Return the ids of clusters with jobs whose outcome is unknown."""
    return sorted(set(Job.objects.with_unknown_outcome().order_by().values_list("cluster", flat=True)))


def _missing_attempts(cluster: Cluster) -> Iterable[Attempt]:
    rows = Attempt.objects.live().filter(job__cluster=cluster, missing_since__isnull=False)
    return rows.select_related("job__cluster").order_by("missing_since", "id")[:MAX_ATTEMPTS_PER_TURN]


def _unknown_attempts(cluster: Cluster, now: datetime) -> Iterable[Attempt]:
    jobs = cluster.jobs.with_unknown_outcome().values("pk")
    rows = Attempt.objects.filter(job__in=jobs, state=State.UNKNOWN, ended_at__gt=now - UNKNOWN_LOOK_BACK)
    return rows.select_related("job__cluster").order_by("-id")[:MAX_ATTEMPTS_PER_TURN]


def _settle_missing(attempt: Attempt, sources: OutcomeSources, now: datetime) -> bool:
    since = attempt.missing_since
    assert since is not None
    match find_outcome(_missing_attempt_facts(attempt, since), _collect_evidence(attempt, sources), now):
        case KnownEnd(ended, started_at, backend_id):
            job_actions.finish_missing(attempt, ended, started_at, backend_id, missing_since=since, author=SYNC)
        case NeverStarted():
            _handle_never_started(attempt, since, now)
        case UnknownOutcome(why):
            outcome_actions.mark_outcome_unknown(attempt, why, missing_since=since, author=SYNC)
        case _:
            return False
    return True


def _settle_unknown(attempt: Attempt, sources: OutcomeSources, now: datetime) -> bool:
    assert attempt.ended_at is not None
    match find_outcome(_missing_attempt_facts(attempt, attempt.ended_at), _collect_evidence(attempt, sources), now):
        case KnownEnd(ended):
            outcome_actions.record_late_end(attempt, ended, author=SYNC)
            return True
    return False


def _handle_never_started(attempt: Attempt, since: datetime, now: datetime) -> None:
    """Repeat a submission without a response; requeue a job that the cluster accepted and lost."""
    if attempt.backend_id:
        ended = AttemptEnd(state=State.NODE_FAIL, at=now, reason="The cluster lost the job before it started.")
        job_actions.finish_missing(attempt, ended, None, missing_since=since, author=SYNC)
        return
    with transaction.atomic():
        Attempt.objects.live().filter(pk=attempt.pk, missing_since=since).update(missing_since=None)
        for command in (
            ClusterCommand.objects.open().filter(attempt=attempt, kind=ClusterCommandKind.SUBMIT).select_for_update()
        ):
            ClusterCommand.objects.filter(pk=command.pk).update(
                tries_without_effect=command.tries, due_at=min(command.due_at, now)
            )


def _missing_attempt_facts(attempt: Attempt, missing_since: datetime) -> MissingAttempt:
    return MissingAttempt(
        key=_accounting_key(attempt),
        backend_id=attempt.backend_id,
        confirmed=attempt.confirmed_at is not None,
        promised_at=attempt.promised_at,
        missing_since=missing_since,
        has_log=bool(attempt.log_path) and not attempt.job.cluster.copies_logs,
    )


def _accounting_key(attempt: Attempt) -> str:
    """Return the attempt's key in accounting, without the installation."""
    key = attempt.job.foreign_key if attempt.job.is_foreign else attempt.key
    return key.rpartition(":")[2]


# --- evidence


class AccountingLookup:
    """Looks up attempts in the accounting of one cluster, with as few requests as possible."""

    def __init__(self, backend: Backend, missing: Sequence[Attempt]) -> None:
        self._backend = backend
        self._since = min((attempt.promised_at for attempt in missing if not attempt.backend_id), default=None)
        self._listed: Sequence[BackendJob] | None = None
        self.exists, self.away = True, False

    def of(self, attempt: Attempt) -> Sequence[BackendJob] | None:
        if not self.exists or self.away:
            return None
        try:
            return self._backend.accounting_jobs(attempt.backend_id) if attempt.backend_id else self._list_accounted()
        except AccountingUnavailable:
            self.exists = False
        except BackendError:
            self.away = True
        return None

    def _list_accounted(self) -> Sequence[BackendJob]:
        if self._listed is None and self._since is not None:
            self._listed = self._backend.accounting_jobs_since(self._since - timedelta(minutes=10))
        return self._listed or ()


@dataclass(frozen=True, kw_only=True)
class OutcomeSources:
    """The sources of outcomes of one cluster."""

    accounting: AccountingLookup
    state_in_log: Callable[[str], State | None]
    log_root_works: bool


def _collect_evidence(attempt: Attempt, sources: OutcomeSources) -> OutcomeEvidence:
    accounted = sources.accounting.of(attempt)
    away = ["accounting"] if sources.accounting.away else []
    if not attempt.log_path:
        return OutcomeEvidence(accounted=accounted, away=tuple(away))
    try:
        files = read_attempt_files(attempt)
    except LogReadError:
        return OutcomeEvidence(accounted=accounted, away=(*away, "log storage"))
    exists = True if files.log_exists else False if sources.log_root_works else None
    return OutcomeEvidence(
        accounted=accounted,
        record=files.record,
        log_exists=exists,
        log_state=sources.state_in_log(files.log_tail),
        away=tuple(away),
    )
