"""What the map colours by age of the last error: as old as the map itself, and as public as the page of a node."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils.cache import patch_cache_control
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from failures.queries.last_errors import last_errors
from jobs.models import Cluster, Node, clock
from jobs.queries import map_rows
from jobs.web.page import PageQuery, bad_request, datetime_reader_since

WHOLE_NODE = -1


@require_safe
@gzip_page
def map_errors(request: HttpRequest, cluster: str) -> HttpResponse:
    """Rows of node, GPU (-1: the node as a whole), time and words."""
    row = get_object_or_404(Cluster, name=cluster)
    now = clock.now()
    asked = PageQuery(request.GET)
    at = asked.read("at", datetime_reader_since(map_rows.map_history_start(row, now), now), now)
    if asked.wrong:
        return bad_request(asked.wrong)
    names = dict(Node.objects.filter(cluster=row).values_list("pk", "name"))
    errors = [
        [names[one.node], WHOLE_NODE if one.gpu is None else one.gpu, int(one.at.timestamp()), one.words]
        for one in last_errors(row, at, map_rows.gpus_with_xid(row, at))
        if one.node in names
    ]
    response = JsonResponse({"at": int(at.timestamp()), "errors": errors}, json_dumps_params={"separators": (",", ":")})
    patch_cache_control(response, private=True, no_store=True)
    return response
