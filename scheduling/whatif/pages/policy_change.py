"""The page that changes a cluster's scheduling policy: settings, their effect on today's queue, confirmation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions.journal import Author
from jobs.core.gpu_shares import gpu_number
from jobs.core.lifecycle import JobKind
from jobs.models import Cluster, clock
from jobs.models.permissions import Caller
from jobs.templatetags.acme import age
from jobs.web.form_fields import choices_of
from scheduling.actions import policies as policy_actions
from scheduling.core.policy_choice import SETTING_LABELS, PolicyChoice, full_settings
from scheduling.core.policy_texts import PLACEMENT_GROUPS, POLICY_GROUPS, grouped_choices
from scheduling.engine.cluster import WaitingJob
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.engine.policies.acme import ORDER_RULES
from scheduling.engine.settings import AcmeSettings
from scheduling.queries.policy_choices import checked_differences, current_policy_choice
from scheduling.queries.submission_preview import PreviewThrottle
from scheduling.whatif.comparison.queue_changes import JobChange, QueueChanges
from scheduling.whatif.pages.replay_form import replay_link
from scheduling.whatif.reads.policy_preview import PolicyPreview, preview_policy
from scheduling.whatif.replay.policies import RESEARCH_POLICIES

MAX_JOBS_SHOWN = 25
OPERATE_PERMISSION = "jobs.operate_cluster"


class PolicyForm(forms.Form):
    policy = forms.ChoiceField(
        choices=grouped_choices(LIVE_POLICIES, POLICY_GROUPS),
        help_text="Takes effect in the next scheduling turn. Running jobs are not affected.",
    )
    placement = forms.ChoiceField(
        choices=grouped_choices(PLACEMENTS, PLACEMENT_GROUPS), help_text="Selects the nodes of a job."
    )
    order = forms.ChoiceField(
        label=SETTING_LABELS["order"].capitalize(),
        choices=choices_of(ORDER_RULES),
        help_text="Order of jobs with the same priority under acme.",
    )
    backfill = forms.ChoiceField(
        label=SETTING_LABELS["backfill"].capitalize(),
        choices=choices_of(("easy", "conservative")),
        help_text="easy reserves a start for the first waiting job, conservative for every waiting job.",
    )
    aging_s = forms.FloatField(
        label="Maximum overtaking, seconds", help_text="Jobs submitted this much later never start first."
    )
    class_s = forms.FloatField(
        label="Seconds per priority point", help_text="Queue wait that is worth one priority point."
    )
    reserve = forms.MultipleChoiceField(
        label="Reserved quota kinds",
        choices=choices_of(kind.value for kind in JobKind),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Unused quota for these kinds is lent only to preemptible jobs.",
    )
    why = forms.CharField(label="Reason", max_length=1000, help_text="Shown in the change history.")

    @staticmethod
    def initial_values(choice: PolicyChoice) -> dict[str, Any]:
        """Return the form values of a choice. Unreadable settings are shown as the defaults."""
        try:
            settings = full_settings(choice) if choice.is_acme else AcmeSettings()
        except InvalidField:
            settings = AcmeSettings()
        values = {name: getattr(settings, name) for name in ("order", "backfill", "aging_s", "class_s")}
        return values | {
            "policy": choice.policy,
            "placement": choice.placement,
            "reserve": sorted(settings.reserve),
        }

    def choice(self) -> PolicyChoice:
        """Return the choice of a valid form. Only acme has settings."""
        data = self.cleaned_data
        settings = {}
        if data["policy"] == "acme":
            settings = {name: data[name] for name in ("order", "backfill", "aging_s", "class_s", "reserve")}
        return PolicyChoice(policy=data["policy"], placement=data["placement"], settings=settings)


@require_http_methods(["GET", "HEAD", "POST"])
@permission_required(OPERATE_PERMISSION, raise_exception=True)
def policy(request: HttpRequest, cluster: str) -> HttpResponse:
    """Show the changes to the policy and what they do to the queue, then apply them once the user has confirmed."""
    row = get_object_or_404(Cluster, name=cluster)
    current = current_policy_choice(row)
    form = PolicyForm(request.POST or None, initial=PolicyForm.initial_values(current))
    context: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        try:
            if request.POST.get("confirm") == current.mark:
                return _apply_policy(request, row, form, current)
            context = _preview_context(request, row, form.choice(), current)
            if request.POST.get("confirm"):
                messages.warning(request, f"The policy of {row} was changed in the meantime. Review the changes again.")
        except InvalidField as error:
            form.add_error(error.field if error.field in form.fields else None, error.why)
        except StateConflict as error:
            messages.error(request, str(error))
    context |= {
        "now": clock.now(),
        "cluster": row,
        "form": form,
        "mark": current.mark,
        "refusals": _refusals(form),
        "replay_only": list(RESEARCH_POLICIES),
        "replay_only_url": replay_link(row.name, [current.policy, *RESEARCH_POLICIES]),
    }
    return render(request, "scheduling/policy.html", context, status=400 if form.errors else 200)


def _apply_policy(request: HttpRequest, row: Cluster, form: PolicyForm, current: PolicyChoice) -> HttpResponse:
    why = form.cleaned_data["why"]
    changes = policy_actions.set_policy_choice(row, form.choice(), before=current, author=Author.of(request), why=why)
    count = f"{len(changes)} setting{'' if len(changes) == 1 else 's'}"
    messages.success(request, f"{count} of {row} changed. Takes effect in the next scheduling turn.")
    return redirect(f"{reverse('queue')}?cluster={row.name}")


def _refusals(form: PolicyForm) -> list[str]:
    """Why the chosen policy cannot be saved, for the place where its effect would be."""
    policy_fields = [name for name in (*form.fields, "__all__") if name != "why"]
    return [f"{form[name].label}: {why}" if name in form.fields else str(why)
            for name in policy_fields for why in form.errors.get(name, ())]  # fmt: skip


# --- the effect on the queue


@dataclass(frozen=True, kw_only=True)
class ChangedJob:
    """A row of the table. `job` is None if the user may not see the job."""

    change: JobChange
    job: WaitingJob | None
    gpus: float

    @property
    def places_text(self) -> str:
        moved = self.change.places_up
        return f"▲ {moved}" if moved > 0 else f"▼ {-moved}" if moved else ""

    @property
    def shift_text(self) -> str:
        shift = self.change.shift
        if shift is None or self.change.start_trend == "same":
            return ""
        return f"{age(abs(shift))} {self.change.start_trend}"

    @property
    def trend(self) -> str:
        return {"earlier": "better", "later": "worse"}.get(self.change.start_trend, "same")


def _preview_context(request: HttpRequest, row: Cluster, choice: PolicyChoice, current: PolicyChoice) -> dict[str, Any]:
    throttle = PreviewThrottle()
    context: dict[str, Any] = {
        "differences": checked_differences(row, choice),
        "replay_url": replay_link(row.name, [choice.policy, current.policy], choice),
    }
    if not context["differences"]:
        return context
    if not throttle.allow_request(request, None):
        return context | {"pause_s": throttle.wait()}
    preview = preview_policy(row, choice)
    rows = _changed_jobs(preview, Caller(user=request.user).visible_team_names())
    return context | {
        "preview": preview,
        "facts": _facts(preview.queue),
        "rows": rows[:MAX_JOBS_SHOWN],
        "more": max(0, len(rows) - MAX_JOBS_SHOWN),
    }


def _changed_jobs(preview: PolicyPreview, teams: Collection[str] | None) -> list[ChangedJob]:
    jobs = {job.id: job for job in preview.picture.waiting}
    return [
        ChangedJob(
            change=change,
            job=jobs[change.job_id] if teams is None or jobs[change.job_id].team in teams else None,
            gpus=gpu_number(jobs[change.job_id].need.charged_milli),
        )
        for change in preview.queue.changed
    ]


def _facts(queue: QueueChanges) -> list[tuple[str, str]]:
    """The summary as pairs of a name and a text."""
    order = (
        f"{queue.up:,} of {len(queue.jobs):,} jobs move up, {queue.down:,} move down,"
        f" {queue.same_place:,} keep their place"
    )
    facts = [("order", order), ("start in the next turn", f"{queue.starts_before} → {queue.starts_after} jobs")]
    if queue.has_estimates:
        trends = queue.start_trends
        facts.append(
            (
                "likely starts",
                f"{trends['earlier']} earlier, {trends['later']} later, {trends['same']} within a minute of before",
            )
        )
    if queue.median_wait_before is not None and queue.median_wait_after is not None:
        waits = _wait_text(queue.median_wait_before), _wait_text(queue.median_wait_after)
        facts.append(("median wait from now", " → ".join(waits)))
    return facts


def _wait_text(wait: timedelta) -> str:
    return age(wait) if wait else "0s"
