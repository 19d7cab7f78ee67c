"""The home page, and the health checks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
from acmeweb.pages.health import shared_health
from acmeweb.pages.home_campaigns import running_campaigns
from acmeweb.pages.home_trainings import running_trainings
from acmeweb.pages.key_figures import incident_figure, shared_figures
from acmeweb.pages.start import start_roles
from acmeweb.updates import fragment_cache
from jobs.models import Cluster, Job, clock
from jobs.models.permissions import Caller
from jobs.queries.cluster_summary import cluster_summaries
from jobs.web.page import PageQuery, render_page

log = logging.getLogger(__name__)

# --- health checks


@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    """Liveness: the process answers. It checks nothing else, or a slow database would restart every process."""
    return JsonResponse({"status": "ok"})


@login_not_required
def readyz(request: HttpRequest) -> HttpResponse:
    """Readiness: whether this process can serve. The reason for a failure is logged, not shown to callers.

    `?verbose` adds the names of loops that are late. They do not make a web process unready: it serves what is known.
    """
    try:
        ready = _is_migrated() and _valkey_answers()
        health = shared_health.get() if ready and "verbose" in request.GET else None
    except (Error, redis.RedisError) as error:
        log.warning("Not ready: %s", error)
        ready, health = False, None
    loops = {"loops": health.status, "late": sorted({row.loop.name for row in health.late})} if health else {}
    answer = {"status": "ok" if ready else "unavailable", **loops}
    return JsonResponse(answer, status=200 if ready else 503)


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

MAX_JOBS_SHOWN = 10  # of each list: pending, running, finished


@require_safe
def home_page(request: HttpRequest) -> HttpResponse:
    """Show key figures and exceptions first, then the clusters, the trainings and the queue. Job names only if the
    viewer may see the job."""
    now, caller, query = clock.now(), Caller(user=request.user), PageQuery(request.GET)
    shows_all = query.choice_value("attention", ("all",)) == "all"
    clusters = cache(lambda: cluster_summaries(now))
    context = {
        "now": now,
        "key_figures": cache(lambda: shared_figures(clusters(), now)),
        "incident_figure": cache(lambda: incident_figure(caller, now)),
        "attention": cache(lambda: attention_items(caller, now, shows_all=shows_all)),
        "clusters": clusters,
        "has_many_clusters": cache(lambda: Cluster.objects.count() > 1),
        "shared_at": cache(lambda: fragment_cache.cache_key("queue", "nodes")),
        "selects": False,
        "start_roles": start_roles(request),
        "queue": cache(lambda: _home_queue(caller)),
        "trainings": cache(lambda: running_trainings(caller.jobs(), now)),
        "campaigns": cache(lambda: running_campaigns(caller)),
    }
    fragments = {part: f"_{part}.html" for part in ("exceptions", "queue", "trainings", "campaigns")}
    fragments["key-figures"] = "_key_figures_and_capacity.html"
    return render_page(request, "home.html", context, fragments, query.wrong)


@dataclass(frozen=True, kw_only=True)
class HomeQueue:
    waiting: list[Job]
    running: list[Job]
    finished: list[Job]
    is_cut: bool


def _home_queue(caller: Caller) -> HomeQueue:
    """Return the first pending, the newest running and the last finished jobs. The ids are selected list by list, then
    what the rows show in one query for all of them."""
    visible = caller.jobs()
    waiting = list(visible.waiting().in_queue_order().values_list("pk", flat=True)[: MAX_JOBS_SHOWN + 1])
    by_start = F("started_at").desc(nulls_first=True)
    running = list(visible.live().order_by(by_start, "-pk").values_list("pk", flat=True)[: MAX_JOBS_SHOWN + 1])
    finished = list(visible.latest_ended().values_list("pk", flat=True)[:MAX_JOBS_SHOWN])
    shown = [*waiting[:MAX_JOBS_SHOWN], *running[:MAX_JOBS_SHOWN], *finished]
    rows = Job.objects.filter(pk__in=shown).with_list_columns().in_bulk()

    def listed(ids: Sequence[int]) -> list[Job]:
        return [rows[pk] for pk in ids if pk in rows]  # a job may have been deleted since

    return HomeQueue(
        waiting=listed(waiting),
        running=listed(running),
        finished=listed(finished),
        is_cut=max(len(waiting), len(running)) > MAX_JOBS_SHOWN,
    )


@login_not_required
def favicon(request: HttpRequest) -> HttpResponse:
    """Redirect to the icon. Browsers request this path on pages that name no icon, such as the admin's."""
    return redirect(static("icon.svg"))
