"""What needs attention on the page Now: one row per exception, grouped by the action that it needs.

Rows are ranked by the number of GPUs at stake, and only the first ones are shown at once. Jobs that are held for the
same reason share a row, as do nodes that are unavailable for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from django.db.models import Count, F, Max, Min, Q, Sum
from django.template.defaultfilters import pluralize
from django.urls import reverse

from failures.incidents.grouping import IncidentScope
from failures.models import Decision, Incident, IncidentState
from failures.models import permissions as failure_permissions
from failures.models.diagnosis import category_badge
from failures.recovery import decisions
from jobs.core.lifecycle import StateBadge
from jobs.models import Cluster, ClusterCommand, Job, Node
from jobs.models.permissions import Caller
from scheduling.models import NodeSleep, NodeSleepState, PowerBudget, PowerCapMode
from scheduling.power.reads.caps import cap_obstacle, cap_status

MAX_ROWS_SHOWN = 5
CAPPED_BADGE = StateBadge(label="CAPPED", code="CAPPED", tone="warn", icon="▾")
FAILED_CAP_BADGE = StateBadge(label="NOT CAPPED", code="NOCAP", tone="bad", icon="⚡")
MAX_ROWS_PER_KIND = 20
MAX_ERROR_SHOWN = 300  # characters
MAX_ROWS_READ = 200  # before equal rows are merged
# Program failures are excluded: their authors see them on the page of the job
PLATFORM_SCOPES = (IncidentScope.NODE, IncidentScope.SERVICE)
# Rows with the most GPUs are read first, so that a limit cuts only what is at the end
GPUS_OF_JOB = (F("nodes") * F("gpus_per_node")).desc()
GPUS_OF_ATTEMPT = (F("attempt__job__nodes") * F("attempt__job__gpus_per_node")).desc(nulls_last=True)


@dataclass(frozen=True, kw_only=True)
class AttentionRow:
    """One exception. The page shows `since` and `until` as relative times."""

    id: str
    action: str
    badge: StateBadge
    name: str
    text: str
    url: str = ""
    detail: str = ""
    gpus: float = 0
    since: datetime | None = None
    until: datetime | None = None  # the time left to answer
    decision: Decision | None = None  # can be answered in place
    outcome_job: Job | None = None  # its outcome can be recorded in place


@dataclass(frozen=True, kw_only=True)
class AttentionGroup:
    action: str
    rows: Sequence[AttentionRow]


@dataclass(frozen=True, kw_only=True)
class AttentionItems:
    rows: Sequence[AttentionRow]  # ranked
    shows_all: bool = False

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def groups(self) -> list[AttentionGroup]:
        return _group_by_action(self.rows if self.shows_all else self.rows[:MAX_ROWS_SHOWN])

    @property
    def other_count(self) -> int:
        """How many rows are shown only on request."""
        return len(self.rows[MAX_ROWS_SHOWN:])


def _group_by_action(rows: Iterable[AttentionRow]) -> list[AttentionGroup]:
    """The groups in the order of their first rows."""
    groups: dict[str, list[AttentionRow]] = {}
    for row in rows:
        groups.setdefault(row.action, []).append(row)
    return [AttentionGroup(action=action, rows=members) for action, members in groups.items()]


def attention_items(caller: Caller, now: datetime, *, shows_all: bool = False) -> AttentionItems:
    """Collect what needs attention. Usually most lists are empty, so a cheap `exists` precedes the long queries."""
    visible = caller.jobs()
    rows = [
        *_cluster_rows(now),
        *_proposal_rows(caller, now),
        *_sleep_rows(),
        *_power_cap_rows(now),
        *_incident_rows(caller),
        *_unknown_outcome_rows(visible),
        *_hanging_stop_rows(visible),
        *_node_rows(),
        *_held_job_rows(visible),
    ]
    return AttentionItems(rows=sorted(rows, key=lambda row: -row.gpus), shows_all=shows_all)


# --- clusters


def _cluster_rows(now: datetime) -> Iterator[AttentionRow]:
    rows = [row for row in Cluster.objects.all() if row.is_silent(now) or row.is_failing(now) or row.unreadable_count]
    gpus = _gpus_by_cluster() if rows else {}
    for row in rows:
        if problem := cluster_problem(row, now):
            yield replace(problem, gpus=gpus.get(row.pk, 0))
        if row.unreadable_count:
            yield AttentionRow(
                id=f"unreadable-{row.pk}",
                action="Check the cluster",
                badge=StateBadge(label="UNREADABLE", code="UNREAD", tone="warn", icon="?"),
                name=row.name,
                url=f"{reverse('queue')}?cluster={row.name}",
                text=row.unreadable_text,
            )


def cluster_problem(row: Cluster, now: datetime) -> AttentionRow | None:
    """A cluster that does not answer, or whose scheduling fails."""
    error = f"{row.last_error}" if row.last_error else ""
    common: dict[str, Any] = {
        "id": f"silent-{row.pk}",
        "action": "Check the cluster",
        "name": row.name,
        "url": f"{reverse('queue')}?cluster={row.name}",
        "detail": error,
    }
    if row.is_silent(now):
        text = "is not responding; its data is from" if row.last_contact_at else "has never responded"
        badge = StateBadge(label="STALE", code="STALE", tone="bad", icon="⚡")
        return AttentionRow(badge=badge, text=text, since=row.last_contact_at, **common)
    if row.is_failing(now):
        badge = StateBadge(label="FAILING", code="FAIL", tone="bad", icon="⚡")
        text = "responds, but scheduling has failed since"
        return AttentionRow(badge=badge, text=text, since=row.error_since, **common)
    return None


def _gpus_by_cluster() -> dict[int, int]:
    return dict(Node.objects.order_by().values_list("cluster").annotate(Sum("gpus")))


# --- failures


def _proposal_rows(caller: Caller, now: datetime) -> Iterator[AttentionRow]:
    """What recovery would do after an approval."""
    if not Decision.objects.awaiting_approval(now).exists():
        return
    rows = failure_permissions.visible_decisions(caller).awaiting_approval(now)
    rows = rows.select_related("attempt__job__team", "anomaly__node").order_by(GPUS_OF_ATTEMPT, "expires_at", "pk")
    for decision in rows[:MAX_ROWS_PER_KIND]:
        job = decision.attempt.job if decision.attempt else None
        team = f" · {job.team.name}" if job else ""
        yield AttentionRow(
            id=f"proposed-{decision.pk}",
            action="Approve or decline",
            badge=decision.badge,
            name=job.name if job else str(decision.subject),
            url=reverse("incident", args=[decision.incident_id]),
            text=decisions.decision_summary(decision),
            detail=f"Incident {decision.incident_id}{team}",
            gpus=job.gpus if job else decision.anomaly.node.gpus,
            until=decision.expires_at,
            decision=decision if failure_permissions.may_decide_on(caller, decision) else None,
        )


def _sleep_rows() -> Iterator[AttentionRow]:
    """Clusters with nodes that would sleep after an approval."""
    proposed = NodeSleep.objects.open().filter(state=NodeSleepState.PROPOSED).order_by()
    counts = proposed.values("cluster", "cluster__name")
    for row in counts.annotate(nodes=Count("pk"), gpus=Sum("node__gpus"), since=Min("created_at")):
        name = row["cluster__name"]
        yield AttentionRow(
            id=f"sleep-{row['cluster']}",
            action="Approve or decline",
            badge=StateBadge(label="PROPOSED", code="PROPOSED", tone="warn", icon="☾"),
            name=name,
            url=reverse("sleeping-nodes", args=[name]),
            text=f"{row['nodes']} node{pluralize(row['nodes'])} would sleep",
            gpus=row["gpus"],
            since=row["since"],
        )


def _power_cap_rows(now: datetime) -> Iterator[AttentionRow]:
    """Power budgets for which clocks are capped, or cannot be."""
    rows = PowerBudget.objects.filter(Q(mode=PowerCapMode.ACT, level__gt=0) | ~Q(command_error=""))
    for budget in rows.select_related("cluster").order_by("pk"):
        problem = budget.command_error or (cap_obstacle(budget.cluster) if budget.is_acting else "")
        yield AttentionRow(
            id=f"power-{budget.pk}",
            action="Check the power",
            badge=FAILED_CAP_BADGE if problem else CAPPED_BADGE,
            name=budget.cluster.name,
            url=f"{reverse('queue')}?cluster={budget.cluster.name}",
            text=f"{budget.title}: {cap_status(budget, now)}",
            detail=problem[:MAX_ERROR_SHOWN] or "Capped",
            since=None if problem else budget.level_since,
        )


def _incident_rows(caller: Caller) -> Iterator[AttentionRow]:
    """The open incidents of nodes and services that no user has acknowledged."""
    unacknowledged = {"state": IncidentState.OPEN, "scope__in": PLATFORM_SCOPES}
    # Checked for all teams first, because the query with permissions is the slowest
    if not Incident.objects.filter(**unacknowledged).exists():
        return
    rows = failure_permissions.visible_incidents(caller).filter(**unacknowledged).select_related("cluster")
    rows = rows.annotate(gpus_at_stake=Max("diagnoses__gpus"))
    rows = rows.order_by(F("gpus_at_stake").desc(nulls_last=True), "-pk")
    for incident in rows[:MAX_ROWS_PER_KIND]:
        yield AttentionRow(
            id=f"incident-{incident.pk}",
            action="Investigate and acknowledge",
            badge=category_badge(incident.root_cause, incident.category),
            name=f"Incident {incident.pk}",
            url=reverse("incident", args=[incident.pk]),
            text=f"{incident_summary(incident)} · unacknowledged",
            detail=f"{incident.cluster}, first seen",
            gpus=incident.gpus_at_stake or 0,
            since=incident.first_symptom_at,
        )


def incident_summary(incident: Incident) -> str:
    node = f"{incident.subject}: " if incident.scope == IncidentScope.NODE else ""
    if incident.attempts:
        return f"{node}{incident.attempts} failed attempt{pluralize(incident.attempts)}"
    return f"{node}{incident.root_cause}, no failed attempts yet"


# --- jobs


def _job_row(job: Job, *, action: str, text: str, **fields: Any) -> AttentionRow:
    foreign = " (submitted outside of Acme)" if job.is_foreign else ""
    return AttentionRow(
        action=action,
        badge=job.badge,
        name=job.name,
        url=reverse("job", args=[job.public_id]),
        text=text,
        detail=f"{job.public_id}, {job.owner_name}{foreign} in {job.team.name}",
        gpus=job.gpus,
        **fields,
    )


def _unknown_outcome_rows(visible: Any) -> Iterator[AttentionRow]:
    rows = visible.with_unknown_outcome().order_by(GPUS_OF_JOB, "-pk")
    if rows.exists():
        text = "The cluster no longer knows how this job ended. It may have succeeded, so it is not restarted."
        for job in rows.with_list_columns()[:MAX_ROWS_PER_KIND]:
            yield _job_row(job, id=f"unknown-{job.public_id}", action="Record the outcome", text=text, outcome_job=job)


def _hanging_stop_rows(visible: Any) -> Iterator[AttentionRow]:
    rows = visible.hanging(ClusterCommand.objects.hanging()).with_list_columns().order_by(GPUS_OF_JOB, "-pk")
    text = "Cancelling failed repeatedly, and the job still holds its GPUs. Check its nodes."
    for job in rows[:MAX_ROWS_PER_KIND]:
        yield _job_row(job, id=f"hanging-{job.public_id}", action="Free the GPUs", text=text)


def _held_job_rows(visible: Any) -> Iterator[AttentionRow]:
    """Jobs that are held after a failure. Jobs that are held for the same reason share a row."""
    rows = visible.on_requeue_hold().order_by(GPUS_OF_JOB, "-pk")
    if not rows.exists():
        return
    jobs = sorted(rows.with_list_columns()[:MAX_ROWS_READ], key=lambda job: job.why)
    for why, members in groupby(jobs, key=lambda job: job.why):
        job, *others = members
        row = _job_row(job, id=f"held-{job.public_id}", action="Correct and release", text=why)
        if others:
            gpus = sum(one.gpus for one in (job, *others))
            name = f"{job.name} and {len(others)} more"
            url = f"{reverse('jobs')}?state=PENDING"
            row = replace(row, name=name, url=url, gpus=gpus, detail=f"{len(others) + 1} jobs")
        yield row


# --- nodes


def _node_rows() -> Iterator[AttentionRow]:
    """Unavailable nodes, except those of a planned maintenance. Nodes with the same reason share a row."""
    rows = Node.objects.not_usable().filter(maintenance=None)
    if not rows.exists():
        return
    nodes = sorted(rows.select_related("cluster").order_by("-since")[:MAX_ROWS_READ], key=_node_group)
    for _, members in groupby(nodes, key=_node_group):
        node, *others = members
        author = f"by {node.reason_by}, " if node.reason_by else ""
        gpus = sum(one.gpus for one in (node, *others))
        yield AttentionRow(
            id=f"problem-{node.pk}",
            action="Repair and return to service",
            badge=node.badge,
            name=f"{node.name} and {len(others)} more" if others else node.name,
            url=f"{reverse('nodes')}?state=closed" if others else reverse("node", args=[node.cluster.name, node.name]),
            text=node.reason or "no reason",
            detail=f"{gpus} GPUs of {node.cluster}, {author}".rstrip(", ") + ",",
            gpus=gpus,
            since=node.reason_at if node.reason_by else node.since,
        )


def _node_group(node: Node) -> tuple[int, str, str]:
    return node.cluster_id, node.reason, node.badge.label
