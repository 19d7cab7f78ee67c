"""The last errors of nodes and GPUs, by which the map colors them. Visible to every user, like the pages of nodes."""

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
    """JSON rows of node, GPU (-1 for the whole node), time and text."""
    row = get_object_or_404(Cluster, name=cluster)
    now = clock.now()
    query = PageQuery(request.GET)
    at = query.read("at", datetime_reader_since(map_rows.map_history_start(row, now), now), now)
    if query.wrong:
        return bad_request(query.wrong)
    names = dict(Node.objects.filter(cluster=row).values_list("pk", "name"))
    errors = [
        [names[error.node], WHOLE_NODE if error.gpu is None else error.gpu, int(error.at.timestamp()), error.words]
        for error in last_errors(row, at, map_rows.gpus_with_xid(row, at))
        if error.node in names
    ]
    response = JsonResponse({"at": int(at.timestamp()), "errors": errors}, json_dumps_params={"separators": (",", ":")})
    patch_cache_control(response, private=True, no_store=True)
    return response
