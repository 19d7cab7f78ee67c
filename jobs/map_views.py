"""The map: every GPU of a cluster as a cell, and the same as a table; now, or at a moment that is over (`?at=`)."""

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

from jobs import clock, map_rows, mapping
from jobs.map_rows import Picture
from jobs.mapping import Known
from jobs.models import Allocation, Cluster, Job
from jobs.pages import Address, answer, cluster_asked, moment_since, refused


@require_safe
def map_page(request: HttpRequest) -> HttpResponse:
    asked = Address(request.GET)
    clusters, cluster = cluster_asked(asked)
    now = clock.now()
    at = asked.read("at", moment_since(map_rows.begins(cluster, now), now)) if cluster else None
    context = {
        "now": now,
        "clusters": clusters,
        "cluster": cluster,
        "at": at,
        "begins": map_rows.begins(cluster, now) if cluster else now,
        "racks": cache(lambda: _racks(cluster, at)),
    }
    return answer(request, "jobs/map.html", context, {"racks": "jobs/_racks.html"}, asked.wrong)


def _racks(cluster: Cluster | None, at: datetime | None) -> list[mapping.Rack]:
    if cluster is None:
        return []
    if at is None:
        return mapping.racks(map_rows.spots(cluster), Allocation.objects.held_per_node())
    then = map_rows.then(cluster, at)
    return mapping.racks(then.spots, Counter(node for node, _, _ in then.holders))


@require_safe
@gzip_page
def map_data(request: HttpRequest, cluster: str) -> HttpResponse:
    """A few queries, whatever the size. Compressed here: it holds nothing that a guess could be tried against."""
    row = get_object_or_404(Cluster, name=cluster)
    now = clock.now()
    asked = Address(request.GET)
    at = asked.read("at", moment_since(map_rows.begins(row, now), now))
    if asked.wrong:
        return refused(asked.wrong)
    picture = map_rows.then(row, at) if at else map_rows.now(row)
    readings = map_rows.readings_then(row, at) if at else map_rows.readings(row, now)
    drawn = mapping.drawn(picture.spots, picture.holders, _known(request, picture), readings)
    told = {"at": int((at or now).timestamp()), **drawn}
    response = JsonResponse(told, json_dumps_params={"separators": (",", ":")})
    patch_cache_control(response, private=True, no_store=True)
    return response


def _known(request: HttpRequest, picture: Picture) -> dict[int, Known]:
    """Of those who hold a GPU on it: many more jobs may be alive."""
    holders = list({job for _, _, job in picture.holders})
    # As one array: ten thousand parameters are a statement that takes longer to read than to answer
    rows = Job.objects.visible_to(request.user).filter(pk__in=RawSQL("SELECT unnest(%s::bigint[])", [holders]))
    found = rows.order_by("team__name", "pk").values_list("pk", "public_id", "name", "team__name")
    return {pk: Known(public_id=public, name=name, team=team) for pk, public, name, team in found}
