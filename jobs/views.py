"""The pages of jobs. A view loads rows and hands them to a template; what may change is a verb in actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.cache import patch_cache_control
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from jobs import actions, clock, forms, log_reading, logs, masking, progress_views, saving, timeline
from jobs.actions import JobError
from jobs.display_text import cleaned, shown
from jobs.hostlist import compress
from jobs.journal import Author
from jobs.lifecycle import Forbidden, State
from jobs.models import Attempt, Job, Role, Team
from jobs.pages import MOST_EVENTS, Address, answer, digits, refused, said
from jobs.rights import Caller
from jobs.spec import BadSpec, refuse_priority
from jobs.verbs import PRIORITY, VERBS, NotAllowed, Wish, carry_out, lacks_outcome, verbs_for
from jobs.wishes import want_turn

# --- one job


@require_safe
def job(request: HttpRequest, public_id: str) -> HttpResponse:
    row = _visible(request, public_id)
    now = clock.now()
    attempts = list(row.attempts.all())
    verbs = verbs_for(row, Caller(user=request.user))
    context = {
        "now": now,
        "job": row,
        "topic": topic_of(row),
        "waits": row.state == State.PENDING,
        "attempts": [(attempt, _bar(row, attempt, now)) for attempt in attempts],
        "progress": cache(lambda: progress_views.panel(row, attempts[-1] if attempts else None)),
        "places": cache(lambda: _places(attempts[-1]) if attempts else []),
        "dependencies": cache(lambda: list(row.dependencies.select_related("on"))),
        "events": cache(lambda: list(row.events.order_by("-id")[:MOST_EVENTS])),
        "verbs": verbs,
        "lacks_outcome": lacks_outcome(row) and bool(verbs),
        "saving": cache(lambda: saving.advice_of(row, attempts, now)),
        "environment": _cleaned(masking.masked(row.environment)),
        "command": shown(row.command),
        "comment": shown(row.comment),
        "labels": cache(lambda: _cleaned(masking.masked(row.labels))),
        **_log(row, attempts[-1] if attempts else None),
    }
    fragments = {part: f"jobs/_{part}.html" for part in ("job", "events", "progress")}
    return answer(request, "jobs/job.html", context, fragments)


def _cleaned(values: dict[str, str]) -> dict[str, str]:
    return {name: cleaned(value) for name, value in values.items()}


def topic_of(row: Job) -> str:
    return f"job:{row.public_id}"


def _visible(request: HttpRequest, public_id: str) -> Job:
    """Somebody else's job is as good as not there: its very existence is the team's business."""
    rows = Job.objects.visible_to(request.user).select_related("user", "team", "cluster")
    return get_object_or_404(rows, public_id=public_id)


def _bar(row: Job, attempt: Attempt, now: datetime) -> list[timeline.Span]:
    pieces = [
        timeline.Piece(
            name="getting ready",
            tone="starting",
            begin=attempt.promised_at,
            end=attempt.confirmed_at or attempt.ended_at,
        )
    ]
    if attempt.confirmed_at:
        badge = attempt.badge
        pieces.append(
            timeline.Piece(name=badge.label, tone=badge.tone, begin=attempt.confirmed_at, end=attempt.ended_at)
        )
    return timeline.spans(pieces, row.submitted_at, row.ended_at or now)


@dataclass(frozen=True, kw_only=True)
class Held:
    """Nodes on which an attempt holds the same GPUs."""

    nodelist: str
    names: list[str]
    gpus: str


def _places(attempt: Attempt) -> list[Held]:
    held: dict[str, list[int]] = {}
    for name, gpu in attempt.allocations.order_by("node__name", "gpu").values_list("node__name", "gpu"):
        held.setdefault(name, []).extend([] if gpu is None else [gpu])
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, gpus in held.items():
        alike.setdefault(tuple(gpus), []).append(name)
    return [
        Held(nodelist=compress(names), names=names if len(names) <= 8 else [], gpus=gpu_text(gpus))
        for gpus, names in alike.items()
    ]


def gpu_text(gpus: Iterable[int]) -> str:
    """0,1,2,3,6 as `0-3,6`."""
    written = compress(str(gpu) for gpu in gpus)
    return written.strip("[]") or "no GPU"


# --- its log


@require_safe
def log(request: HttpRequest, public_id: str) -> HttpResponse:
    row = _visible(request, public_id)
    attempt = _attempt(request, row)
    context = {"now": clock.now(), "job": row, "topic": topic_of(row), **_log(row, attempt)}
    if attempt and "attempt" in request.GET:
        context["log_url"] += f"?attempt={attempt.number}"
    address = Address(request.GET)
    asked, line = _reading(address), address.read("line", IN_LOG)
    if attempt and context["tail"] and asked:
        context |= asked | _read(row, attempt, asked)
        return answer(request, "jobs/reading.html", context, wrong=address.wrong)
    if attempt and context["tail"] and line is not None:
        context["window"] = logs.window(row.cluster.log_root, attempt.log_path, line)
    return answer(request, "jobs/log.html", context, {"log": "jobs/_log.html"}, address.wrong)


IN_LOG, RANK = digits(15), digits(6)  # a byte or a line of it


def _reading(address: Address) -> dict[str, Any]:
    """A place in the log, words to look for, or a rank; empty for its end."""
    at, rank, find = address.read("at", IN_LOG), address.read("rank", RANK), address.text("find")
    return {} if at is None and rank is None and not find else {"at": at or 0, "find": find, "rank": rank}


def _read(row: Job, attempt: Attempt, asked: dict[str, Any]) -> dict[str, Any]:
    where = (row.cluster.log_root, attempt.log_path)
    if not asked["find"] and asked["rank"] is None:
        return {"part": log_reading.part(*where, asked["at"])}
    rank = asked["rank"]
    wanted = log_reading.words(asked["find"]) if rank is None else log_reading.rank(rank)
    return {"hits": log_reading.search(*where, wanted, asked["at"])}


def _attempt(request: HttpRequest, row: Job) -> Attempt | None:
    """The one asked for by its number, or the newest."""
    number = request.GET.get("attempt", "")
    if not number:
        return row.attempts.order_by("-number").first()
    if not number.isdecimal() or len(number) > 5:
        raise Http404("no such attempt")
    return get_object_or_404(row.attempts, number=int(number))


def _log(row: Job, attempt: Attempt | None) -> dict[str, Any]:
    tail, why = None, "It has not started yet."
    if attempt:
        try:
            tail = log_reading.before(row.cluster.log_root, attempt.log_path)
        except logs.NoLog as nothing:
            why = str(nothing)
    grows = bool(attempt and not attempt.ended_at)
    return {"attempt": attempt, "tail": tail, "no_log": why, "grows": grows, "log_url": reverse("log", args=[row])}


@require_safe
def log_lines(request: HttpRequest, public_id: str) -> HttpResponse:
    """A piece for a page that shows the log: from a byte on, up to one, or its end. Not compressed: a job's words stand
    beside those of others."""
    row = _visible(request, public_id)
    attempt = _attempt(request, row)
    if attempt is None:
        raise Http404("it has not started yet")
    address = Address(request.GET)
    asked = {name: address.read(name, IN_LOG) for name in ("at", "before")}
    if address.wrong:
        return refused(address.wrong)
    where = (row.cluster.log_root, attempt.log_path)
    try:
        at = asked["at"]
        part = log_reading.before(*where, asked["before"]) if at is None else log_reading.part(*where, at)
    except logs.StorageSilent:
        raise  # answered with 503, by acmeweb.broken
    except logs.NoLog as nothing:
        raise Http404(str(nothing)) from None
    told = {name: getattr(part, name) for name in ("lines", "start", "stop", "size", "whole")}
    response = JsonResponse(told, json_dumps_params={"separators": (",", ":"), "ensure_ascii": False})
    patch_cache_control(response, private=True, no_store=True)
    return response


@require_safe
def log_raw(request: HttpRequest, public_id: str) -> HttpResponse | StreamingHttpResponse:
    """The file as it is, as a download: a browser must never take what a job printed for a page of ours."""
    row = _visible(request, public_id)
    attempt = _attempt(request, row)
    if attempt is None:
        raise Http404("it has not started yet")
    try:
        stream = logs.Stream(row.cluster.log_root, attempt.log_path)
    except logs.StorageSilent:
        raise
    except logs.NoLog as nothing:
        raise Http404(str(nothing)) from None
    response = StreamingHttpResponse(stream, content_type="text/plain; charset=utf-8")
    response["Content-Length"] = str(stream.size)
    response["Content-Disposition"] = f'attachment; filename="{attempt.key}.log"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


# --- what people do to a job


@require_POST
def job_verb(request: HttpRequest, public_id: str, name: str) -> HttpResponse:
    verb = VERBS.get(name)
    row = _visible(request, public_id)
    if verb is None:
        raise Http404("no such verb")
    why = said(request)
    try:
        priority = PRIORITY("priority", forms.whole(request.POST.get("priority", ""))) if verb.takes_priority else 0
        wish = Wish(author=Author.of(request), why=why, priority=priority)
        carry_out(verb, row, wish, Caller(user=request.user))
    except NotAllowed as refusal:
        messages.error(request, f"Not allowed: {refusal}")
    except BadSpec as bad:
        messages.error(request, f"Nothing was changed: {bad}.")
    except (JobError, Forbidden) as error:
        messages.error(request, f"Conflict, nothing was changed: {error}.")
    else:
        want_turn(row.cluster_id)
        # A job that runs is stopped by its cluster; we have only asked
        messages.success(request, f"{verb.label}: {'asked.' if row.is_live else 'done.'}")
    return redirect("job", public_id)


@require_http_methods(["GET", "HEAD", "POST"])
def submit(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        form = forms.SubmitForm(user=request.user, **_again(request))
        return render(request, "jobs/submit.html", _form_page(form))
    form = forms.SubmitForm(request.POST, user=request.user)
    if form.is_valid() and (rows := _submit(request, form)):
        return redirect("job", rows[0].public_id)
    return render(request, "jobs/submit.html", _form_page(form), status=422)


def _form_page(form: forms.SubmitForm) -> dict[str, Any]:
    return {"form": form, "may_submit": form.fields["team"].queryset.exists()}


def _again(request: HttpRequest) -> dict[str, Any]:
    """`?from=<job>`: edit and resubmit."""
    if not (source := request.GET.get("from")):
        return {}
    row = _visible(request, source[:24])
    own = row.user_id == request.user.pk
    if not own and _holds_secrets(row):
        messages.info(request, "Secret values were left out: only the owner's form carries them. Put yours in.")
    return {"initial": forms.again(row, secrets=own)}


def _holds_secrets(row: Job) -> bool:
    texts = any(masking.masked_text(text) != text for text in (row.command, row.comment))
    return texts or any(masking.masked(values) != values for values in (row.environment, row.labels))


def _submit(request: HttpRequest, form: forms.SubmitForm) -> list[Job]:
    values, spec = form.cleaned_data, form.spec
    if spec is None:
        return []
    operates = Team.objects.where(request.user, Role.OPERATOR).filter(pk=values["team"].pk).exists()
    try:
        refuse_priority(spec.priority, operates)
        rows = actions.submit(
            [spec], cluster=values["cluster"], team=values["team"], author=Author.of(request), now=clock.now()
        )
    except BadSpec as bad:
        form.refuse(bad)
        return []
    want_turn(values["cluster"].pk)
    what = f"{len(rows)} tasks" if len(rows) > 1 else "job"
    messages.success(request, f"Submitted as {what} {rows[0].array_id or rows[0].public_id}.")
    return rows
