"""The home page, and the health checks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
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

from acmeweb.pages.attention import attention_items
from acmeweb.pages.home_campaigns import running_campaigns
from acmeweb.pages.home_trainings import running_trainings
from acmeweb.pages.start import start_roles
from acmeweb.updates import fragment_cache
from jobs.models import Job, clock
from jobs.models.permissions import Caller
from jobs.queries.cluster_summary import cluster_summaries
from jobs.web.page import render_page
from scheduling.pages.demo import history_state

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

MAX_QUEUE_ROWS = 30
MAX_RECENT_JOBS = 10


@require_safe
def home_page(request: HttpRequest) -> HttpResponse:
    """Show exceptions first, then the clusters, then the queue. Job names only if the viewer may see the job."""
    now, caller = clock.now(), Caller(user=request.user)
    context = {
        "now": now,
        "demo_history": history_state,
        "attention": cache(lambda: attention_items(caller, now)),
        "clusters": cache(lambda: cluster_summaries(now)),
        "shared_at": cache(lambda: fragment_cache.cache_key("queue", "nodes")),
        "selects": False,
        "start_roles": start_roles(request),
        "queue": cache(lambda: _home_queue(caller)),
        "trainings": cache(lambda: running_trainings(caller.jobs(), now)),
        "campaigns": cache(lambda: running_campaigns(caller)),
    }
    fragments = {part: f"_{part}.html" for part in ("exceptions", "capacity", "queue", "trainings", "campaigns")}
    return render_page(request, "home.html", context, fragments)


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
