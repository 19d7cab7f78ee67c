"""Which running attempts are monitored for hangs and loss spikes. Read-only."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from jobs.core.attempt_end import RECOVERY_LABEL, TRAINING_KINDS
from jobs.core.lifecycle import State
from jobs.models import Attempt, ClusterMode, ProgressSource


def running_trainings() -> QuerySet[Attempt]:
    """Running training attempts. Suspended jobs are excluded: they complete no steps but do not hang."""
    training = Q(job__kind__in=[str(kind) for kind in TRAINING_KINDS]) | ~Q(job__checkpoint_dir="")
    is_training = training | Q(job__labels__contains={RECOVERY_LABEL: "on"})
    rows = Attempt.objects.filter(
        is_training, ended_at__isnull=True, confirmed_at__isnull=False, job__state=State.RUNNING
    )
    return rows.select_related("job__cluster").defer("job__command")


def recoverable_trainings() -> QuerySet[Attempt]:
    """Running trainings that recovery may restart and that have no diagnosis yet."""
    ours = running_trainings().filter(job__cluster__mode=ClusterMode.DRIVE, job__foreign_id="")
    rows = ours.filter(stop_state="", diagnosis=None, job__requeue_limit__gt=0)
    return rows.exclude(job__labels__contains={RECOVERY_LABEL: "off"})


def with_reports(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    rows = attempts.filter(latest_progress__step__isnull=False, latest_progress__source=ProgressSource.REPORTS)
    return rows.select_related("latest_progress")


def without_reports(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    """Attempts that report no steps."""
    return attempts.filter(Q(latest_progress__step__isnull=True) | ~Q(latest_progress__source=ProgressSource.REPORTS))
