"""The preview beside the submit form: errors, likely start, quota, cost, and the commands that submit the same job.

A preview changes nothing. Its number per user and minute is limited, because each asks the scheduling engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from jobs.core.submit_commands import SbatchCommand, acme_command, curl_command, sbatch_command
from jobs.models import clock
from jobs.models.permissions import Caller
from jobs.pages.submit import form_context
from jobs.web.job_forms import SubmitForm, api_body, draft_form, link_to_form
from jobs.web.page import render_page
from scheduling.pages.why_waiting import BlockerText
from scheduling.queries.submission_preview import PreviewThrottle, preview_submission

MAX_BLOCKERS_SHOWN = 2


@require_POST
def preview_page(request: HttpRequest) -> HttpResponse:
    draft, has_command = draft_form(request.POST, request.user)
    context = {"now": clock.now(), **_preview_context(request, draft, has_command)}
    if "HX-Request" not in request.headers:
        form = draft if has_command else SubmitForm(request.POST, user=request.user)
        context |= form_context(request, form)
    return render_page(request, "jobs/submit.html", context, {"preview": "jobs/_preview.html"})


def _preview_context(request: HttpRequest, form: SubmitForm, has_command: bool) -> dict[str, Any]:
    throttle = PreviewThrottle()
    if not throttle.allow_request(request, None):
        return {"pause_s": throttle.wait()}
    if not form.is_valid() or form.spec is None:
        return {"is_checked": True, "field_errors": _field_errors(form)}
    values = form.cleaned_data
    preview = preview_submission(
        form.spec,
        team=values["team"],
        cluster=values["cluster"],
        user_id=request.user.pk,
        sees=Caller(user=request.user).visible_team_names(),
    )
    return {
        "is_checked": True,
        "preview": preview,
        "blockers": [BlockerText.of(blocker) for blocker in preview.start.blockers[:MAX_BLOCKERS_SHOWN]],
        "commands": _submit_commands(request, form) if has_command else None,
        "link": link_to_form(form) if has_command else "",
    }


@dataclass(frozen=True, kw_only=True)
class FieldError:
    """An error of a field of the form. `field` is empty if it concerns the whole form."""

    field: str
    label: str
    why: str


def _field_errors(form: SubmitForm) -> list[FieldError]:
    return [
        FieldError(field=name if name in form.fields else "", label=_label(form, name), why=str(why))
        for name, errors in form.errors.items()
        for why in errors
    ]


def _label(form: SubmitForm, name: str) -> str:
    return str(form[name].label) if name in form.fields else "Request"


@dataclass(frozen=True, kw_only=True)
class SubmitCommands:
    """The commands that submit the same job."""

    curl: str
    acme: str
    sbatch: SbatchCommand | None  # of Slurm clusters


def _submit_commands(request: HttpRequest, form: SubmitForm) -> SubmitCommands:
    assert form.spec is not None
    body = api_body(form.cleaned_data)
    return SubmitCommands(
        curl=curl_command(body, request.build_absolute_uri("/").rstrip("/")),
        acme=acme_command(body),
        sbatch=sbatch_command(body, form.spec) if form.cleaned_data["cluster"].kind.has_sbatch else None,
    )
