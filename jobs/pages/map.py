"""The GPU map of a cluster and its table of racks, for now or for a past moment (`?at=`)."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from functools import cache

from django.db.models.expressions import RawSQL
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils.cache import patch_cache_control
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from jobs.core.charts import gpu_map
from jobs.core.charts.gpu_map import VisibleJob
from jobs.models import Allocation, Cluster, Job, clock
from jobs.queries import map_rows
from jobs.queries.map_rows import MapSnapshot
from jobs.web.page import PageQuery, bad_request, datetime_reader_since, render_page, requested_cluster


@require_safe
def map_page(request: HttpRequest) -> HttpResponse:
    address = PageQuery(request.GET)
    clusters, cluster = requested_cluster(address)
    now = clock.now()
    at = address.read("at", datetime_reader_since(map_rows.map_history_start(cluster, now), now)) if cluster else None
    context = {
        "now": now,
        "clusters": clusters,
        "cluster": cluster,
        "at": at,
        "begins": map_rows.map_history_start(cluster, now) if cluster else now,
        "racks": cache(lambda: _map_racks(cluster, at)),
    }
    return render_page(request, "jobs/map.html", context, {"racks": "jobs/_racks.html"}, address.wrong)


def _map_racks(cluster: Cluster | None, at: datetime | None) -> list[gpu_map.RackSummary]:
    if cluster is None:
        return []
    if at is None:
        return gpu_map.rack_summaries(map_rows.current_map_nodes(cluster), Allocation.objects.held_per_node())
    snapshot = map_rows.past_map(cluster, at)
    gpus_in_use = {(node, gpu) for node, gpu, _, _ in snapshot.holders}
    return gpu_map.rack_summaries(snapshot.spots, Counter(node for node, _ in gpus_in_use))


@require_safe
@gzip_page
def map_data_json(request: HttpRequest, cluster: str) -> HttpResponse:
    """The map's data, in a few queries whatever the cluster's size.

    Compression is safe here (BREACH): the response contains no secrets and no text that a requester can choose.
    """
    row = get_object_or_404(Cluster, name=cluster)
    now = clock.now()
    address = PageQuery(request.GET)
    at = address.read("at", datetime_reader_since(map_rows.map_history_start(row, now), now))
    if address.wrong:
        return bad_request(address.wrong)
    snapshot = map_rows.past_map(row, at) if at else map_rows.current_map(row)
    readings = map_rows.readings_at(row, at) if at else map_rows.readings(row, now)
    cells = gpu_map.gpu_map_payload(snapshot.spots, snapshot.holders, _visible_holders(request, snapshot), readings)
    payload = {"at": int((at or now).timestamp()), **cells}
    response = JsonResponse(payload, json_dumps_params={"separators": (",", ":")})
    patch_cache_control(response, private=True, no_store=True)
    return response


def _visible_holders(request: HttpRequest, snapshot: MapSnapshot) -> dict[int, VisibleJob]:
    """The jobs on the map that the user may see, by primary key."""
    holders = list({job for _, _, job, _ in snapshot.holders})
    # One array parameter: PostgreSQL parses ten thousand separate parameters more slowly than it runs the query
    jobs = Job.objects.visible_to(request.user).filter(pk__in=RawSQL("SELECT unnest(%s::bigint[])", [holders]))
    columns = ("pk", "public_id", "name", "team__name", "foreign_user", "user__username")
    return {
        pk: VisibleJob(public_id=public, name=name, team=team, user=foreign_user or user)
        for pk, public, name, team, foreign_user, user in jobs.order_by("team__name", "pk").values_list(*columns)
    }
