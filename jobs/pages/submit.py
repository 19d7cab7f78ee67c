"""The submit form, filled in from an earlier job or from the URL, and the form's request.

The preview beside the form comes from `scheduling.pages.submit_preview`.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions.job_verbs import CHANGEABLE_FIELDS, replace_waiting_job
from jobs.actions.journal import Author
from jobs.actions.submissions import answer_deadline
from jobs.actions.submit import SubmissionGroup, submit_in_transaction
from jobs.actions.waiting.limits import refuse_too_many_waiting
from jobs.actions.wake import request_turn
from jobs.core import masking
from jobs.core import spec as job_spec
from jobs.models import Job, Node, clock
from jobs.pages.jobs import visible_job
from jobs.queries.earlier_requests import earlier_requests
from jobs.web import job_forms


@require_http_methods(["GET", "HEAD", "POST"])
def submit(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        form = job_forms.SubmitForm(user=request.user, initial=_initial_values(request))
        response = render(request, "jobs/submit.html", form_context(request, form))
        # The environment of an earlier job beside text from the URL: their compressed size could reveal the environment
        response.may_compress = "from" not in request.GET  # type: ignore[attr-defined]
        return response
    form = job_forms.SubmitForm(request.POST, user=request.user)
    if form.is_valid() and (rows := _submit_form(request, form)):
        return redirect("job", rows[0].public_id)
    return render(request, "jobs/submit.html", form_context(request, form) | {"refused": True}, status=422)


@require_POST
def resubmit_changed(request: HttpRequest, public_id: str) -> HttpResponse:
    """Cancel a waiting job and submit it again with the posted fields changed."""
    row = visible_job(request, public_id)
    changes = {name: request.POST[name] for name in CHANGEABLE_FIELDS if name in request.POST}
    try:
        changed = job_spec.parse(job_forms.resubmission_request(row, changes), Node.objects.shape(row.cluster))
        copy = replace_waiting_job(row, changed, changes, author=Author.of(request))
    except InvalidField as bad:
        messages.error(request, f"Nothing was changed: {bad}.")
    except StateConflict as error:
        messages.error(request, f"Conflict, nothing was changed: {error}.")
    else:
        request_turn(row.cluster_id)
        messages.success(request, f"Resubmitted as job {copy.public_id}. Job {public_id} was cancelled.")
        return redirect("job", copy.public_id)
    return redirect("job", public_id)


def form_context(request: HttpRequest, form: job_forms.SubmitForm) -> dict[str, Any]:
    may_submit = form.fields["team"].queryset.exists()
    return {"form": form, "may_submit": may_submit, "earlier": earlier_requests(request.user) if may_submit else ()}


def _initial_values(request: HttpRequest) -> dict[str, Any]:
    """The values of job `?from=`, changed by the fields in the URL."""
    changes = job_forms.values_from_url(request.GET)
    if not (source := request.GET.get("from")):
        return changes
    row = visible_job(request, source[:24])
    own = row.user_id == request.user.pk
    if not own and _has_secrets(row):
        messages.info(request, "Secret values were left out because only the owner can see them. Enter your own.")
    return job_forms.resubmit_values(row, changes, secrets=own)


def _has_secrets(row: Job) -> bool:
    texts = any(masking.mask_text(text) != text for text in (row.command, row.comment))
    return texts or any(masking.mask_secrets(values) != values for values in (row.environment, row.labels))


def _submit_form(request: HttpRequest, form: job_forms.SubmitForm) -> list[Job]:
    values, spec = form.cleaned_data, form.spec
    if spec is None:
        return []
    try:
        spec, deadline = answer_deadline(spec, team=values["team"], cluster=values["cluster"], user_id=request.user.pk)
        with transaction.atomic():
            group = SubmissionGroup(
                specs=[spec], cluster=values["cluster"], team=values["team"], author=Author.of(request)
            )
            refuse_too_many_waiting(group)
            [rows] = submit_in_transaction([group], clock.now())
    except InvalidField as bad:
        form.refuse(bad)
        return []
    request_turn(values["cluster"].pk)
    what = f"{len(rows)} tasks" if len(rows) > 1 else "job"
    messages.success(request, f"Submitted as {what} {rows[0].array_id or rows[0].public_id}.")
    if deadline and deadline.warning:
        messages.warning(request, deadline.warning)
    return rows
