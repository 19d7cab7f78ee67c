"""The failure pages: the list of incidents with statistics, one incident, one diagnosis, and a pasted log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from acmeweb.common.errors import InvalidField, StateConflict
from failures.actions import incidents as incident_actions
from failures.diagnosis import engine
from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.incidents.grouping import IncidentScope
from failures.models import Diagnosis, Incident, IncidentState, ModelOpinion
from failures.models import permissions as failure_permissions
from failures.models.diagnosis import category_badge
from failures.models.incident import IncidentQuerySet
from failures.pages import anomalies, forms, incident_tables, stacks
from failures.pages.incident_tables import INCIDENT_TABLE, PROGRAM_TABLE
from failures.queries import failure_statistics, incident_story, pasted_log, program_errors, similar_failures
from failures.queries.program_errors import ProgramErrorGroup
from failures.recovery import decisions
from failures.recovery import pages as recovery_pages
from jobs.actions.journal import Author
from jobs.core.lifecycle import FAILURE_STATES
from jobs.models import Cluster, Job, clock
from jobs.models.permissions import Caller
from jobs.queries import keyset
from jobs.web.list_table import ListTable, read_table
from jobs.web.page import PageQuery, posted_text, read_cluster_name, render_page

PAGE_SIZE = 25
MAX_BARS = 10

# --- the list of incidents, and the statistics of a period

STATE_FILTERS: dict[str, tuple[str, ...]] = {
    "unresolved": (IncidentState.OPEN, IncidentState.ACKNOWLEDGED),
    "undecided": tuple(IncidentState.values),
    "open": (IncidentState.OPEN,),
    "acknowledged": (IncidentState.ACKNOWLEDGED,),
    "resolved": (IncidentState.RESOLVED,),
    "all": tuple(IncidentState.values),
}
STATE_LABELS = {"undecided": "needs approval"}
REACH_FILTERS: dict[str, Callable[[IncidentQuerySet], IncidentQuerySet]] = {
    "platform": IncidentQuerySet.of_platform,
    "programs": IncidentQuerySet.of_programs,
    "everything": IncidentQuerySet.all,
}
REACH_LABELS = {"platform": "platform problems", "programs": "program errors"}
PERIOD_LABELS = {"1": "24 hours", "7": "7 days", "30": "30 days", "90": "90 days", "365": "a year"}


@require_safe
def incident_list(request: HttpRequest) -> HttpResponse:
    caller, now = failure_permissions.caller_of_user(request.user), clock.now()
    address = PageQuery(request.GET)
    days = {name: address.read(name, forms.parse_day) for name in ("from", "to")}
    filters = _list_filters(address, caller) | {name: f"{day:%Y-%m-%d}" if day else "" for name, day in days.items()}
    since, until = _filter_period(address, days, filters["days"], now)
    spec = PROGRAM_TABLE if filters["reach"] == "programs" else INCIDENT_TABLE
    table = read_table(request, address, spec, _params(filters))
    ordered = {**filters, **table.sort_param}
    before = incident_tables.read_position(address, table.sort) if spec is INCIDENT_TABLE else None
    figures = cache(lambda: _failure_figures(filters, since, until, caller))
    context = {
        "now": now,
        "filters": filters,
        "table": table,
        "columns_url": reverse(f"{table.spec.name}-columns"),
        "incidents": cache(lambda: _incident_page(caller, filters, table, before, now)),
        "program_errors": cache(lambda: _program_errors(caller, filters, since, until, table.sort)),
        "shows_program_errors": filters["reach"] == "programs",
        "states": [_filter_choice("state", name, ordered, STATE_LABELS.get(name, name)) for name in STATE_FILTERS],
        "reaches": [_filter_choice("reach", name, filters, REACH_LABELS.get(name, name)) for name in REACH_FILTERS],
        "periods": [_filter_choice("days", days, ordered, label) for days, label in PERIOD_LABELS.items()],
        "views": [_filter_choice("by", name, ordered) for name in failure_statistics.GROUPINGS],
        "clusters": cache(lambda: list(Cluster.objects.all())),
        "figures": figures,
        "since": since,
        "until": until,
        "is_first": before is None,
        "here": request.get_full_path(),
        "csv_url": _statistics_csv_url(filters, since, until),
    }
    fragments = {"incidents": "failures/_incidents.html", "figures": "failures/_figures.html"}
    return render_page(request, "failures/failures.html", context, fragments, address.wrong)


def _list_filters(address: PageQuery, caller: Caller) -> dict[str, str]:
    state = address.choice_value("state", list(STATE_FILTERS), "unresolved")
    operates = caller.acts_for_all_teams
    known: dict[str, tuple[Sequence[str], str]] = {
        # Proposals concern jobs, and other users see only the incidents of their own jobs
        "reach": (list(REACH_FILTERS), "platform" if operates and state != "undecided" else "everything"),
        "days": (list(PERIOD_LABELS), "30"),
        "by": (failure_statistics.GROUPINGS, "cause"),
    }
    filters = {name: address.choice_value(name, choices, usual) for name, (choices, usual) in known.items()}
    return {"state": state} | filters | {"cluster": address.read("cluster", read_cluster_name, "")}


def _filter_period(
    address: PageQuery, named: Mapping[str, datetime | None], days: str, now: datetime
) -> tuple[datetime, datetime]:
    """Start and end of the period. The dates `from` and `to` take precedence over the last N days."""
    since, until = named["from"], named["to"]
    end, last = min(until + timedelta(days=1), now) if until else now, min(until or now, now)
    if since and since >= end:
        address.wrong.append(InvalidField("from", f"{since:%Y-%m-%d} is after the end of the period, {last:%Y-%m-%d}"))
        since = None
    return since or end - timedelta(days=int(days)), end


@dataclass(frozen=True, kw_only=True)
class IncidentFilterChoice:
    name: str
    url: str
    is_enabled: bool


def _filter_choice(field: str, value: str, filters: Mapping[str, str], label: str = "") -> IncidentFilterChoice:
    parameters = {name: text for name, text in filters.items() if text}
    if field == "days":
        parameters = {name: text for name, text in parameters.items() if name not in ("from", "to")}
    is_enabled = filters[field] == value and not (field == "days" and (filters["from"] or filters["to"]))
    return IncidentFilterChoice(
        name=label or value, url="?" + urlencode(parameters | {field: value}), is_enabled=is_enabled
    )


def _program_errors(
    caller: Caller, filters: Mapping[str, str], since: datetime, until: datetime, sort: str
) -> list[ProgramErrorGroup]:
    rows = failure_permissions.visible_incidents(caller)
    return program_errors.group_by_signature(_of_cluster(rows, filters), since, until, sort)


def _of_cluster(rows: IncidentQuerySet, filters: Mapping[str, str]) -> IncidentQuerySet:
    return rows.filter(cluster__name=filters["cluster"]) if filters["cluster"] else rows


EMPTY_LIST_TEXTS = {
    "unresolved": "✓ No unresolved incidents of the platform. Failures appear here within seconds.",
    "undecided": "✓ No decisions to approve.",
}


@dataclass(frozen=True, kw_only=True)
class IncidentPage:
    rows: list[Incident]
    older: str
    newest: str
    empty_text: str


def _params(filters: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in filters.items() if text}


def _incident_page(
    caller: Caller, filters: Mapping[str, str], table: ListTable, before: list[Any] | None, now: datetime
) -> IncidentPage:
    rows = REACH_FILTERS[filters["reach"]](failure_permissions.visible_incidents(caller))
    rows = rows.filter(state__in=STATE_FILTERS[filters["state"]])
    if filters["state"] == "undecided":
        rows = rows.filter(
            pk__in=failure_permissions.visible_decisions(caller).awaiting_approval(now).values("incident")
        )
    rows = _of_cluster(rows, filters).select_related("cluster").prefetch_related("nodes")
    page_rows = keyset.rows_after(rows, incident_tables.sort_keys(table.sort), before, PAGE_SIZE + 1)
    job_names = dict(
        caller.jobs().filter(public_id__in=[row.subject for row in page_rows]).values_list("public_id", "name")
    )
    for row in page_rows:
        row.look = category_badge(row.root_cause, row.category)
        row.job_name = job_names.get(row.subject, "")
    parameters = _params(filters) | table.sort_param
    more = len(page_rows) > PAGE_SIZE
    return IncidentPage(
        rows=page_rows[:PAGE_SIZE],
        older=urlencode(parameters | {"before": incident_tables.cursor(page_rows[PAGE_SIZE - 1], table.sort)})
        if more
        else "",
        newest=urlencode(parameters),
        empty_text=_empty_list_text(filters),
    )


def _empty_list_text(filters: Mapping[str, str]) -> str:
    if filters["reach"] != "programs" and (text := EMPTY_LIST_TEXTS.get(filters["state"])):
        return text
    return "No incidents match these filters."


@dataclass(frozen=True, kw_only=True)
class ParetoBar:
    """One bar of the Pareto chart. Shares are percentages of all GPU-hours."""

    name: str
    look: Any
    hours: float
    share: float
    up_to: float


@dataclass(frozen=True, kw_only=True)
class FailureFigures:
    table: failure_statistics.FailureTable
    by: str
    bars: list[ParetoBar]
    nodes: list[failure_statistics.FailureRow]
    most_of_a_node: int

    @property
    def is_by_node(self) -> bool:
        return self.by == "node"

    @property
    def group_label(self) -> str:
        """The heading of the column before the group's name; empty if the groups have no such column."""
        return {"node": "Cluster", "cause": "Category"}.get(self.by, "")


def _failure_figures(filters: Mapping[str, str], since: datetime, until: datetime, caller: Caller) -> FailureFigures:
    teams = failure_permissions.counted_team_ids(caller)
    causes = failure_statistics.failure_table("cause", since, until, teams)
    nodes = sorted(failure_statistics.failure_table("node", since, until, teams).rows, key=lambda row: -row.num)[
        :MAX_BARS
    ]
    by = filters["by"]
    table = causes if by == "cause" else failure_statistics.failure_table(by, since, until, teams)
    most = max((row.num for row in nodes), default=1)
    return FailureFigures(table=table, by=by, bars=_pareto_bars(causes), nodes=nodes, most_of_a_node=most)


def _pareto_bars(causes: failure_statistics.FailureTable) -> list[ParetoBar]:
    bars, up_to = [], 0.0
    for row in causes.rows[:MAX_BARS]:
        up_to += row.gpu_time_share_pct
        bars.append(
            ParetoBar(
                name=row.reason,
                look=category_badge(row.reason, row.category),
                hours=row.gpu_hours,
                share=row.gpu_time_share_pct,
                up_to=min(100.0, up_to),
            )
        )
    return bars


def _statistics_csv_url(filters: Mapping[str, str], since: datetime, until: datetime) -> str:
    parameters = {"by": filters["by"], "from": since.isoformat(), "to": until.isoformat(), "format": "csv"}
    return f"/api/v1/failures/statistics/?{urlencode(parameters)}"


# --- one incident


@require_safe
def incident_detail(request: HttpRequest, number: int) -> HttpResponse:
    caller, now = failure_permissions.caller_of_user(request.user), clock.now()
    row = _get_incident(caller, number)
    diagnoses = list(
        failure_permissions.visible_diagnoses(caller)
        .filter(incident=row)
        .select_related("attempt__job__team", "attempt__job__user", "reviewed_by")
        .defer("bundle")
        .order_by("failed_at", "pk")[:100]
    )
    leading = next((item for item in diagnoses if item.pk == row.lead_id), diagnoses[0] if diagnoses else None)
    may_handle = failure_permissions.may_handle_incident(caller, row)
    has_failed = bool(diagnoses) or row.attempts > 0
    found_anomalies = anomalies.incident_anomalies(row)
    is_early = bool(found_anomalies) and not has_failed
    context = {
        "now": now,
        "incident": row,
        "look": category_badge(row.root_cause, row.category),
        "topic": f"incident:{row.pk}",
        "subject": _incident_subject(row, [item.attempt.job for item in diagnoses]),
        "has_failed": has_failed,
        "recommended_action": "" if is_early else _recommended_action(row),
        "no_diagnosis_text": NO_LOG_TEXT if is_early else HIDDEN_LOG_TEXT,
        "moments": cache(lambda: incident_story.incident_timeline(row, diagnoses)),
        "seen": diagnoses,
        "hidden": max(0, row.attempts - len(diagnoses)),
        "may_resolve": may_handle and row.state != IncidentState.RESOLVED,
        "may_acknowledge": may_handle and row.state == IncidentState.OPEN,
        "anomalies": found_anomalies,
        "dumps": cache(lambda: stacks.incident_stacks(row, caller)),
        "recovery": cache(lambda: recovery_pages.incident_decisions(row, caller)),
        **(_diagnosis_context(leading, caller) if leading else {}),
    }
    return render_page(request, "failures/incident.html", context, {"incident": "failures/_incident.html"})


NO_LOG_TEXT = "No attempt has failed yet, so there is no log to diagnose."
HIDDEN_LOG_TEXT = "Only members of the teams of the failed jobs can see their logs."


def _incident_subject(row: Incident, jobs: Sequence[Job]) -> str:
    """What the incident concerns: the name of a visible job, or a node; empty for a service."""
    if row.scope == IncidentScope.SERVICE:
        return ""
    return next((job.name for job in jobs if job.public_id == row.subject), "") or row.subject


def _recommended_action(row: Incident) -> str:
    label = LABELS.get(row.root_cause)
    return label.action if label else ""


def _get_incident(caller: Caller, number: int) -> Incident:
    rows = failure_permissions.visible_incidents(caller).select_related("cluster").prefetch_related("nodes__cluster")
    return get_object_or_404(rows, pk=number)


INCIDENT_VERBS: dict[str, Callable[..., None]] = {
    "acknowledge": incident_actions.acknowledge,
    "resolve": incident_actions.resolve,
}


@require_POST
def incident_verb(request: HttpRequest, number: int, verb: str) -> HttpResponse:
    if verb not in INCIDENT_VERBS:
        raise Http404("Unknown action.")
    caller = failure_permissions.caller_of_user(request.user)
    row = _get_incident(caller, number)
    if not failure_permissions.may_handle_incident(caller, row):
        messages.error(request, "Not allowed. Operators and the owners of the failed jobs can do this.")
        return redirect("incident", number)
    row = Incident.objects.select_related("lead__attempt__job").get(pk=row.pk)
    try:
        INCIDENT_VERBS[verb](row, author=Author.of(request), now=clock.now(), why=posted_text(request))
    except StateConflict as conflict:
        messages.error(request, f"Nothing was changed: {conflict}.")
    else:
        messages.success(request, f"Incident {number}: {verb}d.")
    return redirect("incident", number)


# --- why one job failed


@require_safe
def job_diagnosis(request: HttpRequest, public_id: str) -> HttpResponse:
    job = get_object_or_404(Job.objects.visible_to(request.user), public_id=public_id)
    context = diagnosis_panel(request, job) | {"now": clock.now()}
    return render_page(request, "failures/job.html", context, {"diagnosis": "failures/_diagnosis.html"})


def diagnosis_panel(request: HttpRequest, job: Job) -> dict[str, Any]:
    """The context of the diagnosis panel: the newest failed attempt. The caller has checked access to the job."""
    rows = Diagnosis.objects.filter(attempt__job=job).select_related("attempt", "reviewed_by").defer("bundle")
    newest = rows.order_by("-attempt__number").first()
    context = {"job": job, "topic": f"job:{job.public_id}", "url": reverse("job-diagnosis", args=[job.public_id])}
    if newest is None:
        return context | {"diagnosis": None}
    newest.attempt.job = job
    return context | _diagnosis_context(newest, failure_permissions.caller_of_user(request.user))


def failure_cause(job: Job) -> dict[str, Any]:
    """The context of the line in a failed job's banner that names the cause; empty if there is no diagnosis yet."""
    if job.state not in FAILURE_STATES:
        return {}
    rows = Diagnosis.objects.filter(attempt__job=job, judged_at__isnull=False).select_related("attempt").defer("bundle")
    newest = rows.order_by("-attempt__number").first()
    if newest is None:
        return {}
    log_url = f"{reverse('log', args=[job.public_id])}?attempt={newest.attempt.number}"
    evidence = next((line for line in newest.evidence if line.get("line")), None)
    return {
        "diagnosis": newest,
        "evidence": evidence,
        "evidence_url": f"{log_url}&line={evidence['line']}#L{evidence['line']}" if evidence else "",
        "diagnosis_url": reverse("job-diagnosis", args=[job.public_id]),
    }


def _diagnosis_context(row: Diagnosis, caller: Caller) -> dict[str, Any]:
    job = row.attempt.job
    others = [alternative for alternative in row.alternatives if alternative["root_cause"] != row.root_cause]
    return {
        "diagnosis": row,
        "job": job,
        "verdict": row,
        "verdict_look": row.badge,
        "log_url": f"{reverse('log', args=[job.public_id])}?attempt={row.attempt.number}",
        "may_review": row.judged_at is not None and caller.may_change(job),
        "others": others,
        "alike": cache(lambda: similar_failures.similar_confirmed_cases(row, caller)),
        "opinion": ModelOpinion.objects.filter(diagnosis=row).first(),
        "labels": [name for name in LABELS if name != row.root_cause],
    }


@require_POST
def review_diagnosis(request: HttpRequest, attempt: str) -> HttpResponse:
    """Confirm or correct the diagnosis of an attempt."""
    caller = failure_permissions.caller_of_user(request.user)
    rows = failure_permissions.visible_diagnoses(caller).select_related("attempt__job").defer("bundle")
    row = get_object_or_404(rows, attempt__key=attempt)
    cause, note = request.POST.get("root_cause", ""), posted_text(request, "note")
    if not caller.may_change(row.attempt.job):
        messages.error(
            request, "Not allowed. The owner of the job and the operators of its team can review a diagnosis."
        )
    elif cause not in LABELS:
        messages.error(request, "Nothing was changed. Select a root cause from the list.")
    else:
        _apply_review(request, row, cause, note)
    number = request.POST.get("incident", "")
    if number.isdecimal() and str(row.incident_id) == number:
        return redirect("incident", row.incident_id)
    return redirect("job", row.attempt.job.public_id)


def _apply_review(request: HttpRequest, row: Diagnosis, cause: str, note: str) -> None:
    try:
        decisions.correct_diagnosis(
            row, cause, author=Author.of(request), now=clock.now(), note=note.replace("\x00", "")
        )
    except StateConflict as conflict:
        messages.error(request, f"Nothing was changed: {conflict}.")
    else:
        messages.success(request, f"{row.attempt}: diagnosis {row.review} as {row.root_cause}.")


# --- a pasted log

PASTE_TITLES = {NONE: "No failure found", UNKNOWN: "Cause not found in this text"}


@require_http_methods(["GET", "HEAD", "POST"])
def paste_log(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return render(request, "failures/paste.html", {"form": forms.PasteForm()})
    form = forms.PasteForm(request.POST, request.FILES)
    if not pasted_log.may_paste(request):
        form.add_error(None, "Too many logs in one minute. Wait a moment and try again.")
    if not form.is_valid():
        return render(request, "failures/paste.html", {"form": form}, status=422)
    result = engine.diagnose_text(form.log(), form.ending())
    verdict = incident_actions.sanitize_for_storage(asdict(result))
    context = {
        "form": form,
        "verdict": verdict,
        "verdict_title": PASTE_TITLES.get(result.root_cause, "Why it failed"),
        "verdict_look": category_badge(result.root_cause, result.category),
        "percent": round(result.confidence * 100),
    }
    return render(request, "failures/paste.html", context)
