"""Pages that belong to no app, and the two questions an orchestrator asks."""

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
from django.templatetags.static import static
from django.views.decorators.http import require_safe

from acmeweb import shared
from acmeweb.campaigns import under_way
from acmeweb.trainings import trainings
from failures import decision_actions, rights
from failures.grouping import Scope
from failures.models import Decision, Incident, Standing
from failures.models.diagnosis import look
from jobs import clock
from jobs.glances import glances
from jobs.models import Cluster, Deed, Job, Node
from jobs.pages import answer
from jobs.rights import Caller

log = logging.getLogger(__name__)

# --- the two questions of an orchestrator


@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers. Nothing else is asked, or a slow database would have every process restarted."""
    return JsonResponse({"status": "ok"})


@login_not_required
def readyz(request: HttpRequest) -> HttpResponse:
    """Whether this process can serve. What is wrong stands in the log; a stranger learns only that it is not."""
    try:
        ready = _migrated() and _valkey_answers()
    except (Error, redis.RedisError) as error:
        log.warning("not ready: %s", error)
        ready = False
    return JsonResponse({"status": "ok" if ready else "unavailable"}, status=200 if ready else 503)


_seen_migrated = False


def _migrated() -> bool:
    """Migrations do not become unapplied while a process runs, so a yes is remembered; the database is asked always."""
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

MOST_TROUBLE = 20
OF_THE_PLATFORM = (Scope.NODE, Scope.SERVICE)  # who wrote a program that fails sees that at his job
MOST_QUEUED = 30
MOST_RECENT = 10


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Exceptions first, then the clusters at a glance, then the queue. Names only of jobs that the viewer may see."""
    now, caller = clock.now(), Caller(user=request.user)
    context = {
        "now": now,
        "trouble": cache(lambda: _trouble(caller, now)),
        "clusters": cache(lambda: glances(now)),
        "shared_at": cache(lambda: shared.at("queue", "nodes")),
        "selects": False,
        "queue": cache(lambda: _queue(caller)),
        "trainings": cache(lambda: trainings(caller.jobs(), now)),
        "campaigns": cache(lambda: under_way(caller)),
    }
    fragments = {part: f"_{part}.html" for part in ("exceptions", "capacity", "queue", "trainings", "campaigns")}
    return answer(request, "home.html", context, fragments)


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What needs a person. Lists are cut; the counts are whole."""

    clusters: list[Cluster]
    unreadable: list[Cluster]
    proposals: list[Decision]
    more_proposals: bool
    incidents: list[Incident]
    more_incidents: bool
    nodes: list[Node]
    more_nodes: int
    held: list[Job]
    unknown: list[Job]  # nobody knows how their last attempts ended
    hanging: list[Job]

    def __bool__(self) -> bool:
        clusters, jobs = self.clusters or self.unreadable, self.held or self.unknown or self.hanging
        return bool(clusters or self.proposals or self.incidents or self.nodes or jobs)


def _trouble(caller: Caller, now: datetime) -> Trouble:
    """Most of it there is mostly none of; so it is asked first whether there is any, in a tenth of the words."""
    mine = caller.jobs()
    troubled = Node.objects.troubled().filter(maintenance=None)  # what was planned needs nobody
    nodes = list(troubled.select_related("cluster").order_by("-since")[: MOST_TROUBLE + 1]) if troubled.exists() else []
    held, unknown = mine.held_back().order_by("-pk"), mine.outcome_unknown().order_by("-pk")
    incidents, proposals = _untaken(caller), _proposals(caller, now)
    clusters = list(Cluster.objects.all())
    return Trouble(
        clusters=[_with_answers(row, now) for row in clusters if row.is_silent(now) or row.is_failing(now)],
        unreadable=[row for row in clusters if row.unreadable_count],
        proposals=proposals[:MOST_TROUBLE],
        more_proposals=len(proposals) > MOST_TROUBLE,
        incidents=incidents[:MOST_TROUBLE],
        more_incidents=len(incidents) > MOST_TROUBLE,
        nodes=nodes[:MOST_TROUBLE],
        more_nodes=troubled.count() - MOST_TROUBLE if len(nodes) > MOST_TROUBLE else 0,
        held=list(held.in_rows()[:MOST_TROUBLE]) if held.exists() else [],
        unknown=list(unknown.in_rows()[:MOST_TROUBLE]) if unknown.exists() else [],
        hanging=list(mine.hanging(Deed.objects.hanging()).in_rows().order_by("-pk")[:MOST_TROUBLE]),
    )


def _with_answers(row: Cluster, now: datetime) -> Cluster:
    row.answers = not row.is_silent(now)
    return row


def _proposals(caller: Caller, now: datetime) -> list[Decision]:
    """What recovery would do if somebody said yes; the first to expire first."""
    if not Decision.objects.waiting_for_a_yes(now).exists():
        return []
    rows = rights.decisions(caller).waiting_for_a_yes(now)
    rows = rows.select_related("attempt__job__team", "sign__node").order_by("expires_at", "pk")
    found = list(rows[: MOST_TROUBLE + 1])
    for decision in found:
        decision.sentence = decision_actions.sentence(decision)
    return found


def _untaken(caller: Caller) -> list[Incident]:
    """Incidents that nobody has taken on; those that somebody acknowledged are in good hands."""
    untaken = {"state": Standing.OPEN, "scope__in": OF_THE_PLATFORM}
    if not Incident.objects.filter(**untaken).exists():  # anybody's: whose they are is the longest question of all
        return []
    rows = rights.incidents(caller).filter(**untaken)
    found = list(rows.select_related("cluster").order_by("-pk")[: MOST_TROUBLE + 1])
    for incident in found:
        incident.look = look(incident.root_cause, incident.category)
    return found


@dataclass(frozen=True, kw_only=True)
class Queue:
    waiting: list[Job]
    running: list[Job]
    finished: list[Job]
    is_cut: bool

    @property
    def shown(self) -> int:
        return len(self.waiting) + len(self.running)


def _queue(caller: Caller) -> Queue:
    """Half of the rows for each; what one half leaves free goes to the other. Which jobs is asked list by list, what
    their rows show once for all of them."""
    visible, half = caller.jobs(), MOST_QUEUED // 2
    all_waiting = visible.waiting().in_queue_order().values_list("pk", flat=True)
    by_start = F("started_at").desc(nulls_first=True)
    all_running = visible.live().order_by(by_start, "-pk").values_list("pk", flat=True)
    # One row more than is shown says that there are more
    running = list(all_running[: half + 1])
    waiting = list(all_waiting[: MOST_QUEUED - min(half, len(running)) + 1])
    if len(waiting) < half < len(running):
        running = list(all_running[: MOST_QUEUED - len(waiting) + 1])
    shown = waiting[: MOST_QUEUED - min(half, len(running))]
    going = running[: MOST_QUEUED - len(shown)]
    finished = list(visible.finished_last().values_list("pk", flat=True)[:MOST_RECENT])
    rows = Job.objects.filter(pk__in=[*shown, *going, *finished]).in_rows().in_bulk()
    return Queue(
        waiting=[rows[pk] for pk in shown if pk in rows],  # it may have been deleted since
        running=[rows[pk] for pk in going if pk in rows],
        finished=[rows[pk] for pk in finished if pk in rows],
        is_cut=len(waiting) + len(running) > MOST_QUEUED,
    )


@login_not_required
def favicon(request: HttpRequest) -> HttpResponse:
    """Browsers ask for it on pages that name no icon, as the admin console's do."""
    return redirect(static("icon.svg"))
