"""The map: every GPU of a cluster as a cell, and the same as a table."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils.cache import patch_cache_control
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from jobs import clock, mapping
from jobs.mapping import Known, Reading, Spot
from jobs.models import Allocation, Cluster, Job, Node, Resolution, Sample
from jobs.pages import answer, cluster_asked

FRESH = timedelta(minutes=1)  # older readings say nothing of now; four samples come in that time


@require_safe
def map_page(request: HttpRequest) -> HttpResponse:
    clusters, cluster = cluster_asked(request)
    context = {
        "now": clock.now(),
        "clusters": clusters,
        "cluster": cluster,
        "racks": cache(lambda: _racks(cluster)),
    }
    return answer(request, "jobs/map.html", context, {"racks": "jobs/_racks.html"})


def _racks(cluster: Cluster | None) -> list[mapping.Rack]:
    return mapping.racks(_spots(cluster), Allocation.objects.held_per_node()) if cluster else []


@require_safe
@gzip_page
def map_data(request: HttpRequest, cluster: str) -> HttpResponse:
    """Five queries, whatever the size. Compressed here: it holds nothing that a guess could be tried against."""
    row = get_object_or_404(Cluster, name=cluster)
    now = clock.now()
    drawn = mapping.drawn(_spots(row), _holders(row), _known(request, row), _readings(row, now))
    response = JsonResponse({"at": int(now.timestamp()), **drawn}, json_dumps_params={"separators": (",", ":")})
    patch_cache_control(response, private=True, no_store=True)
    return response


def _spots(cluster: Cluster) -> list[Spot]:
    columns = ("name", "rack", "leaf", "gpus", "state", "flags", "drain_asked", "foreign_gpus")
    return [_spot(node) for node in Node.objects.filter(cluster=cluster, gpus__gt=0).only(*columns)]


def _spot(node: Node) -> Spot:
    badge = node.badge
    return Spot(
        id=node.pk,
        name=node.name,
        rack=node.rack,
        leaf=node.leaf,
        gpus=node.gpus,
        word=badge.label,
        tone=badge.tone,
        takes_work=node.takes_work,
        foreign=node.foreign_gpus,
    )


def _holders(cluster: Cluster) -> Any:
    live = Allocation.objects.live().filter(node__cluster=cluster, gpu__isnull=False).order_by()
    return live.values_list("node_id", "gpu", "attempt__job_id")


def _known(request: HttpRequest, cluster: Cluster) -> dict[int, Known]:
    rows = Job.objects.visible_to(request.user).live().filter(cluster=cluster).order_by("team__name", "pk")
    columns = ("pk", "public_id", "name", "team__name")
    return {pk: Known(public_id=public, name=name, team=team) for pk, public, name, team in rows.values_list(*columns)}


def _readings(cluster: Cluster, now: datetime) -> dict[int, Reading]:
    rows = Sample.objects.filter(resolution=Resolution.RAW, at__gt=now - FRESH, node__cluster=cluster)
    newest = rows.order_by("node_id", "-at").distinct("node_id")
    return {node: (util, hot) for node, util, hot in newest.values_list("node_id", "gpu_util", "gpu_temperature_c")}
