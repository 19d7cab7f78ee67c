"""What the map shows of failures: the last errors of nodes and GPUs, and the events that its time slider marks.

Visible to every user, like the pages of nodes; incidents only to users who may see them.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils.cache import patch_cache_control
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from failures.models.permissions import caller_of_user
from failures.queries.last_errors import last_errors
from failures.queries.map_events import map_events
from jobs.core.charts.map_events import map_marks
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


@require_safe
@gzip_page
def map_event_marks(request: HttpRequest, cluster: str) -> HttpResponse:
    """JSON rows of start, end (0 for a moment), kind, number and text, oldest first."""
    row = get_object_or_404(Cluster, name=cluster)
    now = clock.now()
    events = map_events(row, caller_of_user(request.user), map_rows.map_history_start(row, now), now)
    marks = [
        [int(mark.at.timestamp()), int(mark.end.timestamp()) if mark.end else 0, mark.kind, len(mark.names), mark.text]
        for mark in map_marks(events)
    ]
    response = JsonResponse({"events": marks}, json_dumps_params={"separators": (",", ":")})
    patch_cache_control(response, private=True, no_store=True)
    return response
