"""What the map colours by age of the last error: as old as the map itself, and as public as the page of a node."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils.cache import patch_cache_control
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from failures.last_errors import last_errors
from jobs import clock, map_rows
from jobs.models import Cluster, Node
from jobs.pages import Address, moment_since, refused

OF_THE_NODE = -1


@require_safe
@gzip_page
def map_errors(request: HttpRequest, cluster: str) -> HttpResponse:
    """Rows of node, GPU (-1: the node as a whole), time and words."""
    row = get_object_or_404(Cluster, name=cluster)
    now = clock.now()
    asked = Address(request.GET)
    at = asked.read("at", moment_since(map_rows.begins(row, now), now), now)
    if asked.wrong:
        return refused(asked.wrong)
    names = dict(Node.objects.filter(cluster=row).values_list("pk", "name"))
    errors = [
        [names[one.node], OF_THE_NODE if one.gpu is None else one.gpu, int(one.at.timestamp()), one.words]
        for one in last_errors(row, at, map_rows.showing_xids(row, at))
        if one.node in names
    ]
    response = JsonResponse({"at": int(at.timestamp()), "errors": errors}, json_dumps_params={"separators": (",", ":")})
    patch_cache_control(response, private=True, no_store=True)
    return response
