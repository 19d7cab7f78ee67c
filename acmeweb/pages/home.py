"""The home page, and the health checks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from functools import cache

import redis
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.template.defaultfilters import pluralize
from django.templatetags.static import static
from django.views.decorators.http import require_safe

from acmeweb.pages.home_campaigns import running_campaigns
from acmeweb.pages.home_trainings import running_trainings
from acmeweb.updates import fragment_cache
from failures.actions import decisions as decision_actions
from failures.incidents.grouping import IncidentScope
from failures.models import Decision, Incident, IncidentState
from failures.models import permissions as failure_permissions
from failures.models.diagnosis import category_badge
from jobs.core.lifecycle import StatusBadge
from jobs.models import Cluster, ClusterCommand, Job, Node, clock
from jobs.models.permissions import Caller
from jobs.queries.cluster_summary import cluster_summaries
from jobs.web.page import render_page

log = logging.getLogger(__name__)

# --- health checks


@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    """Liveness: the process answers. It checks nothing else, or a slow database would restart every process."""
    return JsonResponse({"status": "ok"})


@login_not_required
def readyz(request: HttpRequest) -> HttpResponse:
    """Readiness: whether this process can serve. The reason for a failure is logged, not shown to callers."""
    try:
        ready = _is_migrated() and _valkey_answers()
    except (Error, redis.RedisError) as error:
        log.warning("Not ready: %s", error)
        ready = False
    return JsonResponse({"status": "ok" if ready else "unavailable"}, status=200 if ready else 503)


_seen_migrated = False


def _is_migrated() -> bool:
    """Whether all migrations are applied. A positive result is cached; the database is queried every time."""
    global _seen_migrated
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    if not _seen_migrated:
        executor = MigrationExecutor(connection)
        _seen_migrated = not executor.migration_plan(executor.loader.graph.leaf_nodes())
    return _seen_migrated


def _valkey_answers() -> bool:
    if not settings.VALKEY_URL:
        return True
    with redis.Redis.from_url(settings.VALKEY_URL, socket_timeout=2, socket_connect_timeout=2) as client:
        return bool(client.ping())


# --- Now

MAX_EXCEPTIONS = 20
# Failures of programs are not among them: their authors see them on the page of the job
PLATFORM_SCOPES = (IncidentScope.NODE, IncidentScope.SERVICE)
MAX_QUEUE_ROWS = 30
MAX_RECENT_JOBS = 10


@require_safe
def home_page(request: HttpRequest) -> HttpResponse:
    """Show exceptions first, then the clusters, then the queue. Job names only if the viewer may see the job."""
    now, caller = clock.now(), Caller(user=request.user)
    context = {
        "now": now,
        "attention": cache(lambda: _attention_items(caller, now)),
        "clusters": cache(lambda: cluster_summaries(now)),
        "shared_at": cache(lambda: fragment_cache.cache_key("queue", "nodes")),
        "selects": False,
        "queue": cache(lambda: _home_queue(caller)),
        "trainings": cache(lambda: running_trainings(caller.jobs(), now)),
        "campaigns": cache(lambda: running_campaigns(caller)),
    }
    fragments = {part: f"_{part}.html" for part in ("exceptions", "capacity", "queue", "trainings", "campaigns")}
    return render_page(request, "home.html", context, fragments)


@dataclass(frozen=True, kw_only=True)
class ClusterTrouble:
    """A cluster that does not answer, or whose scheduling fails."""

    cluster: Cluster
    answers: bool

    @property
    def badge(self) -> StatusBadge:
        return StatusBadge(tone="bad", icon="⚡", label="FAILING" if self.answers else "STALE")

    @property
    def text(self) -> str:
        """The problem, up to the time since when it lasts."""
        if self.answers:
            return "responds, but scheduling has failed since"
        return "is not responding; its data is from" if self.since else "has never responded"

    @property
    def since(self) -> datetime | None:
        return self.cluster.error_since if self.answers else self.cluster.last_contact_at


def incident_summary(incident: Incident) -> str:
    node = f"{incident.subject}: " if incident.scope == IncidentScope.NODE else ""
    if incident.attempts:
        return f"{node}{incident.attempts} failed attempt{pluralize(incident.attempts)}"
    return f"{node}{incident.root_cause}, no failed attempts yet"


@dataclass(frozen=True, kw_only=True)
class AttentionItems:
    """What needs attention. Lists are truncated; counts are complete."""

    clusters: list[ClusterTrouble]
    unreadable: list[Cluster]
    proposals: list[Decision]
    more_proposals: bool
    incidents: list[Incident]
    more_incidents: bool
    nodes: list[Node]
    more_nodes: int
    held: list[Job]
    unknown: list[Job]  # the outcome of their last attempts is unknown
    hanging: list[Job]

    def __bool__(self) -> bool:
        clusters, jobs = self.clusters or self.unreadable, self.held or self.unknown or self.hanging
        return bool(clusters or self.proposals or self.incidents or self.nodes or jobs)


def _attention_items(caller: Caller, now: datetime) -> AttentionItems:
    """Collect what needs attention. Usually most lists are empty, so a cheap `exists` precedes the long queries."""
    visible = caller.jobs()
    troubled = Node.objects.not_usable().filter(maintenance=None)  # planned maintenance needs no attention
    nodes = (
        list(troubled.select_related("cluster").order_by("-since")[: MAX_EXCEPTIONS + 1]) if troubled.exists() else []
    )
    held, unknown = visible.on_requeue_hold().order_by("-pk"), visible.with_unknown_outcome().order_by("-pk")
    incidents, proposals = _unacknowledged_incidents(caller), _open_proposals(caller, now)
    clusters = list(Cluster.objects.all())
    return AttentionItems(
        clusters=[
            ClusterTrouble(cluster=row, answers=not row.is_silent(now))
            for row in clusters
            if row.is_silent(now) or row.is_failing(now)
        ],
        unreadable=[row for row in clusters if row.unreadable_count],
        proposals=proposals[:MAX_EXCEPTIONS],
        more_proposals=len(proposals) > MAX_EXCEPTIONS,
        incidents=incidents[:MAX_EXCEPTIONS],
        more_incidents=len(incidents) > MAX_EXCEPTIONS,
        nodes=nodes[:MAX_EXCEPTIONS],
        more_nodes=troubled.count() - MAX_EXCEPTIONS if len(nodes) > MAX_EXCEPTIONS else 0,
        held=list(held.with_list_columns()[:MAX_EXCEPTIONS]) if held.exists() else [],
        unknown=list(unknown.with_list_columns()[:MAX_EXCEPTIONS]) if unknown.exists() else [],
        hanging=list(
            visible.hanging(ClusterCommand.objects.hanging()).with_list_columns().order_by("-pk")[:MAX_EXCEPTIONS]
        ),
    )


def _open_proposals(caller: Caller, now: datetime) -> list[Decision]:
    """Return what recovery would do after an approval; the first to expire comes first."""
    if not Decision.objects.awaiting_approval(now).exists():
        return []
    rows = failure_permissions.visible_decisions(caller).awaiting_approval(now)
    rows = rows.select_related("attempt__job__team", "anomaly__node").order_by("expires_at", "pk")
    shown_rows = list(rows[: MAX_EXCEPTIONS + 1])
    for decision in shown_rows:
        decision.sentence = decision_actions.decision_summary(decision)
        decision.label = decision.attempt.job.name if decision.attempt else str(decision.subject)
    return shown_rows


def _unacknowledged_incidents(caller: Caller) -> list[Incident]:
    """Return the open incidents of nodes and services that no user has acknowledged."""
    unacknowledged = {"state": IncidentState.OPEN, "scope__in": PLATFORM_SCOPES}
    # Checked for all teams first, because the query with permissions is the slowest
    if not Incident.objects.filter(**unacknowledged).exists():
        return []
    rows = failure_permissions.visible_incidents(caller).filter(**unacknowledged)
    shown_rows = list(rows.select_related("cluster").order_by("-pk")[: MAX_EXCEPTIONS + 1])
    for incident in shown_rows:
        incident.look = category_badge(incident.root_cause, incident.category)
        incident.summary = incident_summary(incident)
    return shown_rows


@dataclass(frozen=True, kw_only=True)
class HomeQueue:
    waiting: list[Job]
    running: list[Job]
    finished: list[Job]
    is_cut: bool

    @property
    def row_count(self) -> int:
        return len(self.waiting) + len(self.running)


def _home_queue(caller: Caller) -> HomeQueue:
    """Return pending and running jobs, half of the rows each; unused rows of one half go to the other. The ids are
    selected list by list, then what the rows show in one query for all of them."""
    visible, half = caller.jobs(), MAX_QUEUE_ROWS // 2
    all_waiting = visible.waiting().in_queue_order().values_list("pk", flat=True)
    by_start = F("started_at").desc(nulls_first=True)
    all_running = visible.live().order_by(by_start, "-pk").values_list("pk", flat=True)
    # Fetch one row more than is shown, to know whether there are more
    running = list(all_running[: half + 1])
    waiting = list(all_waiting[: MAX_QUEUE_ROWS - min(half, len(running)) + 1])
    if len(waiting) < half < len(running):
        running = list(all_running[: MAX_QUEUE_ROWS - len(waiting) + 1])
    shown = waiting[: MAX_QUEUE_ROWS - min(half, len(running))]
    shown_running = running[: MAX_QUEUE_ROWS - len(shown)]
    finished = list(visible.latest_ended().values_list("pk", flat=True)[:MAX_RECENT_JOBS])
    rows = Job.objects.filter(pk__in=[*shown, *shown_running, *finished]).with_list_columns().in_bulk()
    return HomeQueue(
        waiting=[rows[pk] for pk in shown if pk in rows],  # a job may have been deleted since
        running=[rows[pk] for pk in shown_running if pk in rows],
        finished=[rows[pk] for pk in finished if pk in rows],
        is_cut=len(waiting) + len(running) > MAX_QUEUE_ROWS,
    )


@login_not_required
def favicon(request: HttpRequest) -> HttpResponse:
    """Redirect to the icon. Browsers request this path on pages that name no icon, such as the admin's."""
    return redirect(static("icon.svg"))
