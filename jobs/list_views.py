"""The list of jobs: filters in the address, arrays folded, a table for spreadsheets, one verb on many."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from django.contrib import messages
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from jobs import clock, folding, forms, job_filters, many, saved_views, view_actions
from jobs.display_text import cleaned
from jobs.job_filters import Asked
from jobs.journal import Author
from jobs.lifecycle import JOB_STATES, Kind
from jobs.many import MOST_VERBS, Outcome
from jobs.models import Cluster, Job, Role, Team
from jobs.pages import PLACE, Address, answer, refused, said
from jobs.rights import Caller
from jobs.spec import BadSpec
from jobs.verbs import PRIORITY, VERBS, Wish
from jobs.wishes import want_turn

PAGE = 50
CHUNK = 1000


# --- the table


@require_safe
def jobs(request: HttpRequest) -> HttpResponse:
    address, caller = Address(request.GET), Caller(user=request.user)
    asked, before = job_filters.asked(address), address.read("before", PLACE)
    views = cache(lambda: list(view_actions.known_to(caller)))
    if not request.GET and "HX-Request" not in request.headers and (first := saved_views.first_of(views())):
        return redirect(saved_views.address(first))
    found = job_filters.found(request.user, asked)
    # One row more than is shown says whether there is a next page; counting a million rows would not be worth it
    rows = _rows(found, asked, before)
    tasks = {} if _is_flat(asked) else folding.tasks(found, rows[:PAGE])
    for job in rows:
        job.tasks = tasks.get(job.array_id)
    teams = cache(lambda: list(Team.objects.where(request.user).distinct()))
    context = {
        "now": clock.now(),
        "rows": rows[:PAGE],
        "older": urlencode(asked.kept | {"before": rows[PAGE - 1].pk}) if len(rows) > PAGE else "",
        "newest": urlencode(asked.kept) if before is not None else "",
        "is_first": before is None,
        "asked": asked.filters,
        "mine": asked.mine,
        "kept": asked.kept,
        "here": request.get_full_path(),
        "everyone_url": asked.url(mine=None),
        "mine_url": asked.url(mine="1"),
        "fold_url": "" if asked.filters["array"] else asked.url(fold=None if asked.unfolded else "0"),
        "unfolded": asked.unfolded,
        "csv_url": f"{reverse('jobs-csv')}{asked.url(fold=None)}",
        "state_groups": [name for name in job_filters.STATE_GROUPS if name.islower()],
        "states": list(JOB_STATES),
        "kinds": list(Kind),
        "teams": teams,
        "clusters": cache(lambda: list(Cluster.objects.all())),
        "may_act": lambda: any(caller.has(Role.RESEARCHER, team.pk) for team in teams()),
        "verbs": VERBS.values(),
        "selects": True,
        "views": cache(lambda: saved_views.shelf(caller, views(), teams(), urlencode(asked.kept))),
    }
    return answer(request, "jobs/jobs.html", context, {"jobs": "jobs/_jobs.html"}, address.wrong)


def _is_flat(asked: Asked) -> bool:
    return asked.unfolded or bool(asked.filters["array"])


def _rows(found: QuerySet[Job], asked: Asked, before: int | None) -> list[Job]:
    if not _is_flat(asked):
        return folding.page(found.in_rows(), before, PAGE)
    rest = found if before is None else found.filter(pk__lt=before)
    return list(rest.in_rows().order_by("-pk")[: PAGE + 1])


@require_POST
def save_view(request: HttpRequest) -> HttpResponse:
    return saved_views.save(request, Address(request.POST))


# --- for spreadsheets

COLUMNS = (
    *("JobID", "Name", "User", "Team", "Kind", "Cluster", "State", "Submit", "Start", "End", "ElapsedS"),
    *("Nodes", "GPUs", "Priority", "Reason", "ExitCode", "NodeList"),
)


@require_safe
def as_csv(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """All that the filters find, however many, a thousand at a time and never all in memory."""
    address = Address(request.GET)
    asked = job_filters.asked(address)
    if address.wrong:
        return refused(address.wrong)
    clusters = dict(Cluster.objects.values_list("pk", "name"))
    pieces = _pieces(job_filters.found(request.user, asked).in_rows(), clusters)
    chunks = _threaded(pieces) if isinstance(request, ASGIRequest) else pieces
    response = StreamingHttpResponse(chunks, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="jobs.csv"'
    return response


def _pieces(found: QuerySet[Job], clusters: Mapping[int, str]) -> Iterator[str]:
    """Each chunk begins where the one before it ended: no cursor and no transaction stays open while somebody reads."""
    now, last = clock.now(), None
    yield _written([COLUMNS])
    while rows := list((found if last is None else found.filter(pk__lt=last)).order_by("-pk")[:CHUNK]):
        last = rows[-1].pk
        yield _written([_cells(job, clusters.get(job.cluster_id, ""), now) for job in rows])


async def _threaded(pieces: Iterator[str]) -> AsyncIterator[str]:
    while piece := await asyncio.to_thread(_next, pieces):
        yield piece


def _next(pieces: Iterator[str]) -> str:
    try:
        return next(pieces, "")
    finally:
        connections.close_all()  # of this thread; the next piece may come from another, or never be asked for


def _cells(job: Job, cluster: str, now: Any) -> list[Any]:
    elapsed = job.elapsed(now)
    exit_code = "" if job.exit_code is None and job.signal is None else f"{job.exit_code or 0}:{job.signal or 0}"
    moments = (job.submitted_at, job.started_at, job.ended_at)
    return [
        *(job.public_id, _plain(job.name), _plain(job.owner_name), job.team.name, job.kind),
        *(cluster, job.state),
        *(one.isoformat(timespec="seconds") if one else "" for one in moments),
        "" if elapsed is None else int(elapsed.total_seconds()),
        *(job.nodes, job.gpus, job.priority, job.reason, exit_code, getattr(job, "nodelist", "")),
    ]


def _plain(text: str) -> str:
    """What a spreadsheet would take for a formula is text there too, and no terminal obeys a name."""
    text = cleaned(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _written(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()


# --- one verb on many


@require_POST
def on_many(request: HttpRequest) -> HttpResponse:
    """First what would become of each, rehearsed and rolled back; with `confirm` it is done, and told job by job."""
    verb = VERBS.get(request.POST.get("verb", ""))
    if verb is None:
        raise Http404("no such verb")
    address, caller = Address(request.POST), Caller(user=request.user)
    asked = job_filters.asked(address)
    back = reverse("jobs") + asked.url()
    if address.wrong:
        # Without that filter it would be done to more jobs than were meant
        messages.error(request, f"Nothing was changed: {address.wrong[0]}.")
        return redirect(back)
    named = " ".join([*request.POST.getlist("id"), request.POST.get("ids", "")])
    ids = named.replace("\x00", " ").split()[: MOST_VERBS + 1]
    everything = request.POST.get("all") == "1"
    rows = job_filters.found(request.user, asked) if everything else many.called(caller.jobs(), ids)
    jobs = many.in_turn(rows.select_related("user", "team", "cluster"))
    if not jobs:
        messages.warning(request, "No job was chosen: tick some, or all that the filters find.")
        return redirect(back)
    done = request.POST.get("confirm") == "1"
    try:
        outcomes = _tried(request, verb, jobs[:MOST_VERBS], caller, dry=not done)
    except BadSpec as bad:
        messages.error(request, f"Nothing was changed: {bad}.")
        return redirect(back)
    context = {
        "now": clock.now(),
        "verb": verb,
        "done": done,
        "outcomes": sorted(outcomes, key=lambda one: not one.error),
        "good": sum(not one.error for one in outcomes),
        "more": len(jobs) > MOST_VERBS,
        "most": MOST_VERBS,
        "why": request.POST.get("why", ""),
        "priority": request.POST.get("priority", ""),
        "back": back,
        "kept": asked.kept,
    }
    return render(request, "jobs/many.html", context)


def _tried(request: HttpRequest, verb: Any, jobs: Sequence[Job], caller: Caller, *, dry: bool) -> list[Outcome]:
    priority = PRIORITY("priority", forms.whole(request.POST.get("priority", ""))) if verb.takes_priority else 0
    why = said(request)
    wish = Wish(author=Author.of(request), why=why, priority=priority)
    outcomes = [many.tried(verb, job, wish, caller, dry=dry) for job in jobs]
    if not dry:
        for cluster in {one.job.cluster_id for one in outcomes if not one.error}:
            want_turn(cluster)
    return outcomes
