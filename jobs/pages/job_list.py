"""The job list: filters in the URL, folded arrays, CSV export and bulk actions."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from acmeweb.common.errors import InvalidField
from jobs.actions import saved_views as saved_view_actions
from jobs.actions.bulk import apply
from jobs.actions.bulk.apply import MAX_BULK_JOBS
from jobs.actions.bulk.background import MAX_BACKGROUND_JOBS, start_bulk_action
from jobs.actions.job_verbs import JOB_ACTIONS, JobAction, JobActionRequest, read_priority
from jobs.actions.journal import Author
from jobs.core.display_text import strip_control_characters
from jobs.core.lifecycle import JOB_STATES, JobKind
from jobs.models import BulkAction, Cluster, Job, Team, TeamRole, clock
from jobs.models.permissions import Caller
from jobs.pages import saved_views
from jobs.queries import job_arrays, loss_lines
from jobs.queries.job_order import DEFAULT_JOB_SORT, JobOrder
from jobs.rest.streaming import is_asgi, read_in_threads
from jobs.web import job_filters, job_forms
from jobs.web.job_filters import JobListFilters
from jobs.web.list_table import TableColumn, TableSpec, largest_first, read_table
from jobs.web.page import POSITION_READER, PageQuery, bad_request, posted_text, render_page

PAGE_SIZE = 50
CSV_CHUNK_ROWS = 1000
MAX_CURSOR_LENGTH = 1500  # a name of 120 characters, escaped and encoded

JOB_TABLE = TableSpec(
    name="jobs",
    page="jobs",
    default_sort=DEFAULT_JOB_SORT,
    columns=(
        largest_first("id", "JobID", "c-id", title="In the order of submission", is_fixed=True),
        TableColumn(name="name", label="Name", css="c-name", sortable=True, is_fixed=True),
        TableColumn(name="user", label="User", css="c-user"),
        TableColumn(name="team", label="Team", css="c-team"),
        TableColumn(name="cluster", label="Cluster", css="c-team", is_default=False),
        TableColumn(name="kind", label="Kind", css="c-kind"),
        TableColumn(name="state", label="ST", css="c-st", is_fixed=True),
        TableColumn(name="time", label="Time", css="c-time num"),
        TableColumn(name="nodes", label="Nodes", css="c-n num"),
        largest_first("gpus", "GPUs", "c-n num"),
        largest_first("priority", "Priority", "c-prio num", is_default=False),
        TableColumn(name="loss", label="Loss", css="c-loss", title="Loss of running trainings"),
        largest_first("submitted", "Submitted", "c-when", is_default=False),
        largest_first("started", "Started", "c-when", is_default=False),
        largest_first("ended", "Ended", "c-when", is_default=False),
        TableColumn(name="place", label="Nodelist(Reason)", css="c-place"),
    ),
)


# --- the table


@require_safe
def job_list_page(request: HttpRequest) -> HttpResponse:
    address, caller = PageQuery(request.GET), Caller(user=request.user)
    selection = job_filters.read_job_filters(address)
    order = JobOrder(selection.sort)
    before = _read_position(address, order)
    views = cache(lambda: list(saved_view_actions.views_of_caller(caller)))
    if not request.GET and "HX-Request" not in request.headers and (first := saved_views.default_view(views())):
        return redirect(saved_views.view_url(first))
    matches = job_filters.filtered_jobs(request.user, selection)
    # Fetches one extra row to know whether there is a next page: counting a million rows would be too slow
    rows = _page_rows(matches, selection, order, before)
    table = read_table(request, address, JOB_TABLE, selection.filter_params)
    lines = loss_lines.loss_lines_of_jobs(rows[:PAGE_SIZE]) if table.shows["loss"] else {}
    tasks = {} if _is_unfolded(selection) else job_arrays.array_tasks(matches, rows[:PAGE_SIZE])
    for job in rows:
        job.tasks = tasks.get(job.array_id)
        job.loss_line = lines.get(job.pk, "")
    teams = cache(lambda: list(Team.objects.where(request.user).distinct()))
    context = {
        "now": clock.now(),
        "rows": rows[:PAGE_SIZE],
        "table": table,
        "older": _next_page(selection, order, rows),
        "newest": urlencode(selection.params) if before is not None else "",
        "is_first": before is None,
        "filters": selection.filters,
        "mine": selection.mine,
        "filter_params": selection.params,
        "here": request.get_full_path(),
        "everyone_url": selection.url(mine=None),
        "mine_url": selection.url(mine="1"),
        "fold_url": "" if selection.filters["array"] else selection.url(fold=None if selection.unfolded else "0"),
        "unfolded": selection.unfolded,
        "csv_url": f"{reverse('jobs-csv')}{selection.url(fold=None)}",
        "state_groups": [name for name in job_filters.STATE_GROUPS if name.islower()],
        "states": list(JOB_STATES),
        "kinds": list(JobKind),
        "teams": teams,
        "clusters": cache(lambda: list(Cluster.objects.all())),
        "may_act": lambda: any(caller.has(TeamRole.RESEARCHER, team.pk) for team in teams()),
        "verbs": JOB_ACTIONS.values(),
        "selects": True,
        "views": cache(lambda: saved_views.saved_view_menu(caller, views(), teams(), urlencode(selection.params))),
    }
    return render_page(request, "jobs/jobs.html", context, {"jobs": "jobs/_jobs.html"}, address.wrong)


def _next_page(selection: JobListFilters, order: JobOrder, rows: Sequence[Job]) -> str:
    """The query string of the next page, or "" if these rows are the last."""
    more = len(rows) > PAGE_SIZE
    return urlencode(selection.params | {"before": order.cursor(rows[PAGE_SIZE - 1])}) if more else ""


def _is_unfolded(selection: JobListFilters) -> bool:
    return selection.unfolded or bool(selection.filters["array"])


def _read_position(address: PageQuery, order: JobOrder) -> list[Any] | None:
    """The position of the last job of the page before, or None on the first page."""
    if order.sort == DEFAULT_JOB_SORT:
        before = address.read("before", POSITION_READER)
        return None if before is None else [before]
    return address.read("before", order.place, most=MAX_CURSOR_LENGTH)


def _page_rows(
    matches: QuerySet[Job], selection: JobListFilters, order: JobOrder, before: list[Any] | None
) -> list[Job]:
    """Up to PAGE_SIZE + 1 rows after the position."""
    if not _is_unfolded(selection):
        return job_arrays.folded_job_page(matches.with_list_columns(), order, before, PAGE_SIZE)
    return order.rows_after(matches.with_list_columns(), before, PAGE_SIZE + 1)


@require_POST
def save_view(request: HttpRequest) -> HttpResponse:
    return saved_views.save_from_list(request, PageQuery(request.POST))


# --- CSV export

CSV_COLUMNS = (
    *("JobID", "Name", "User", "Team", "Kind", "Cluster", "State", "Submit", "Start", "End", "ElapsedS"),
    *("Nodes", "GPUs", "Priority", "Reason", "ExitCode", "NodeList", "Cause"),
)


@require_safe
def export_csv(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Stream all jobs that match the filters as CSV, in the order of the list and in chunks of constant size."""
    address = PageQuery(request.GET)
    selection = job_filters.read_job_filters(address)
    if address.wrong:
        return bad_request(address.wrong)
    clusters = dict(Cluster.objects.values_list("pk", "name"))
    matches = job_filters.filtered_jobs(request.user, selection).with_list_columns()
    pieces = _csv_chunks(matches, JobOrder(selection.sort), clusters)
    chunks = read_in_threads(pieces) if is_asgi(request) else pieces
    response = StreamingHttpResponse(chunks, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="jobs.csv"'
    return response


def _csv_chunks(jobs: QuerySet[Job], order: JobOrder, clusters: Mapping[int, str]) -> Iterator[str]:
    """CSV text in chunks. Each chunk is a query of its own, so a slow client keeps no cursor or transaction open."""
    now, place = clock.now(), None
    yield _format_csv([CSV_COLUMNS])
    while rows := order.rows_after(jobs, place, CSV_CHUNK_ROWS):
        place = order.position(rows[-1])
        yield _format_csv([_csv_row(job, clusters.get(job.cluster_id, ""), now) for job in rows])


def _csv_row(job: Job, cluster: str, now: Any) -> list[Any]:
    elapsed = job.elapsed(now)
    exit_code = "" if job.exit_code is None and job.signal is None else f"{job.exit_code or 0}:{job.signal or 0}"
    moments = (job.submitted_at, job.started_at, job.ended_at)
    return [
        *(job.public_id, _safe_csv_cell(job.name), _safe_csv_cell(job.owner_name), job.team.name, job.kind),
        *(cluster, job.state),
        *(moment.isoformat(timespec="seconds") if moment else "" for moment in moments),
        "" if elapsed is None else int(elapsed.total_seconds()),
        *(job.nodes, job.gpus, job.priority, job.reason, exit_code, getattr(job, "nodelist", "")),
        getattr(job, "cause", ""),
    ]


def _safe_csv_cell(text: str) -> str:
    """The text without control characters, quoted if a spreadsheet would run it as a formula."""
    text = strip_control_characters(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _format_csv(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()


# --- bulk actions


@require_POST
def bulk_job_action(request: HttpRequest, most: int = MAX_BULK_JOBS) -> HttpResponse:
    """Preview an action on many jobs by rolling it back; with `confirm`, perform it. Shows the result per job, or the
    progress if there are more than `most`."""
    verb = JOB_ACTIONS.get(request.POST.get("verb", ""))
    if verb is None:
        raise Http404("unknown verb")
    address, caller = PageQuery(request.POST), Caller(user=request.user)
    selection = job_filters.read_job_filters(address)
    back = reverse("jobs") + selection.url()
    if address.wrong:
        # Ignoring the invalid filter would apply the action to more jobs than intended
        return _refused(request, f"Nothing was changed: {address.wrong[0]}.", back)
    id_text = " ".join([*request.POST.getlist("id"), request.POST.get("ids", "")])
    ids = id_text.replace("\x00", " ").split()[: most + 1]
    use_filters = request.POST.get("all") == "1"
    matches = job_filters.filtered_jobs(request.user, selection)
    rows = matches.filter(verb.changeable) if use_filters else apply.jobs_by_id(caller.jobs(), ids, verb)
    keys = apply.oldest_keys(rows, MAX_BACKGROUND_JOBS)
    if not keys:
        messages.warning(request, "No jobs selected.")
        return redirect(back)
    if len(keys) > MAX_BACKGROUND_JOBS:
        return _refused(request, f"Nothing was changed: more than {MAX_BACKGROUND_JOBS} jobs match.", back)
    done = request.POST.get("confirm") == "1"
    try:
        action = _read_action_request(request, verb)
    except InvalidField as bad:
        return _refused(request, f"Nothing was changed: {bad}.", back)
    if done and len(keys) > most:
        return _start_in_background(verb, keys, action, caller)
    outcomes = apply.apply_to_jobs(verb, keys[:most], action, caller, dry=not done)
    is_long = len(keys) > most
    context = {
        "now": clock.now(),
        "verb": verb,
        "done": done,
        "outcomes": sorted(outcomes, key=lambda outcome: not outcome.error),
        "good": sum(not outcome.error for outcome in outcomes),
        "matched": len(keys),
        "is_long": is_long,
        # A long selection is made again when it is confirmed, a short one is what was shown
        "all": is_long and use_filters,
        "ids": ids if is_long else [outcome.job.public_id for outcome in outcomes if not outcome.error],
        "why": request.POST.get("why", ""),
        "priority": request.POST.get("priority", ""),
        "back": back,
        "filter_params": selection.params,
    }
    return render(request, "jobs/many.html", context)


def _refused(request: HttpRequest, sentence: str, back: str) -> HttpResponse:
    messages.error(request, sentence)
    return redirect(back)


def _read_action_request(request: HttpRequest, verb: JobAction) -> JobActionRequest:
    priority = (
        read_priority("priority", job_forms.number_or_text(request.POST.get("priority", "")))
        if verb.takes_priority
        else 0
    )
    return JobActionRequest(author=Author.of(request), why=posted_text(request), priority=priority)


@transaction.atomic
def _start_in_background(
    verb: JobAction, keys: Sequence[int], action: JobActionRequest, caller: Caller
) -> HttpResponse:
    return redirect("jobs-action", start_bulk_action(verb, keys, action, caller).pk)


@require_safe
def bulk_action_page(request: HttpRequest, number: int) -> HttpResponse:
    """The progress of an action of this user on many jobs."""
    row = BulkAction.objects.filter(user=request.user, pk=number).first()
    if row is None:
        raise Http404("action not found")
    context = {"row": row, "verb": JOB_ACTIONS[row.action]}
    return render_page(request, "jobs/bulk_action.html", context, {"bulk-action": "jobs/_bulk_action.html"})
