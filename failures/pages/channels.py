"""Settings of notifications: the channels and their filters, a test message, and the last notices."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.defaultfilters import floatformat
from django.views.decorators.http import require_POST, require_safe

from acmeweb.common.errors import InvalidField
from failures.actions import notices as notice_actions
from failures.incidents.grouping import IncidentScope
from failures.models import Channel, Notice
from failures.models import permissions as failure_permissions
from failures.notices import delivery
from jobs.actions.journal import Author
from jobs.core.lifecycle import StatusBadge
from jobs.models import Event, Team, TeamRole, clock
from jobs.models.permissions import Caller
from jobs.pages.settings import printable_text
from jobs.rest.throttle import is_within_limit
from jobs.web.form_fields import limit_to_administered_teams

MAX_NOTICES, MAX_CHANGES = 10, 20
MAX_TEST_MESSAGES = 5  # per minute for each user and each team: a test keeps a thread of the server for up to 10 s
SCOPE_LABELS = {
    "": "all incidents",
    IncidentScope.NODE: "faulty nodes only",
    IncidentScope.SERVICE: "network and services only",
    IncidentScope.JOB: "jobs only",
}
CHANNEL_KIND_LABELS = {
    Channel.Kind.EMAIL: "e-mail",
    Channel.Kind.WEBHOOK: "webhook, signed",
    Channel.Kind.SLACK: "Slack or Mattermost",
}


class ChannelRulesForm(forms.Form):
    scope = forms.ChoiceField(label="Incidents", choices=list(SCOPE_LABELS.items()), required=False)
    min_gpu_hours = forms.FloatField(
        label="Minimum cost",
        min_value=0,
        max_value=10**9,
        initial=0,
        required=False,
        help_text="Least GPU-hours lost in an incident before it is sent.",
    )

    def rules(self) -> dict[str, Any]:
        fields = self.cleaned_data
        return {"scope": fields["scope"], "min_gpu_hours": fields["min_gpu_hours"] or 0.0}


class ChannelForm(ChannelRulesForm):
    team = forms.ModelChoiceField(
        queryset=Team.objects.none(), required=False, help_text="Only incidents that affect jobs of this team are sent."
    )
    kind = forms.ChoiceField(choices=list(CHANNEL_KIND_LABELS.items()))
    target = forms.CharField(
        label="Address",
        max_length=500,
        help_text="An e-mail address, or the https:// URL of a webhook.",
    )
    field_order = ("team", "kind", "target", "scope", "min_gpu_hours")

    def __init__(self, caller: Caller, *arguments: Any) -> None:
        super().__init__(*arguments)
        limit_to_administered_teams(self.fields["team"], caller)

    def clean_target(self) -> str:
        return printable_text(self.cleaned_data["target"].strip())


def managed_channels(caller: Caller) -> QuerySet[Channel]:
    """The channels that the caller manages. Addresses may contain secrets, so other team members do not see them."""
    rows = Channel.objects.select_related("team")
    return rows if caller.acts_for_all_teams else rows.filter(team__in=caller.teams(TeamRole.ADMIN))


@dataclass(frozen=True, kw_only=True)
class ChannelRow:
    """A channel and its last notice, as the list shows them."""

    channel: Channel
    last: Notice | None

    @property
    def badge(self) -> StatusBadge:
        return channel_badge(self.channel)

    @property
    def kind(self) -> str:
        return CHANNEL_KIND_LABELS.get(self.channel.kind, self.channel.kind)

    @property
    def filter_text(self) -> str:
        scope, least = SCOPE_LABELS.get(self.channel.scope, self.channel.scope), self.channel.min_gpu_hours
        return f"{scope} from {floatformat(least, '-1')} GPU-hours" if least else scope

    @property
    def error(self) -> str:
        return self.last.last_error if self.last else ""

    @property
    def sent_at(self) -> datetime | None:
        return self.last.sent_at if self.last else None

    @property
    def unsent_text(self) -> str:
        """What the page says if the last message was neither sent nor failed."""
        return "sending" if self.last else "none"


def channel_badge(channel: Channel) -> StatusBadge:
    if channel.is_enabled:
        return StatusBadge(tone="good", icon="✓", label="on")
    return StatusBadge(tone="quiet", icon="–", label="off")


@require_safe
def channel_list(request: HttpRequest) -> HttpResponse:
    caller = failure_permissions.caller_of_user(request.user)
    return _render_channel_list(request, caller, ChannelForm(caller))


def _render_channel_list(request: HttpRequest, caller: Caller, form: ChannelForm) -> HttpResponse:
    rows = list(managed_channels(caller).order_by("team__name", "pk"))
    newest = Notice.objects.filter(channel__in=rows).order_by("channel_id", "-pk").distinct("channel_id")
    last = {notice.channel_id: notice for notice in newest}
    context = {
        "now": clock.now(),
        "rows": [ChannelRow(channel=row, last=last.get(row.pk)) for row in rows],
        "may_add": caller.acts_for_all_teams or caller.teams(TeamRole.ADMIN).exists(),
        "form": form,
    }
    return render(request, "settings/channels.html", context, status=422 if form.errors else 200)


@require_POST
def create_channel(request: HttpRequest) -> HttpResponse:
    caller = failure_permissions.caller_of_user(request.user)
    form = ChannelForm(caller, request.POST)
    if not form.is_valid():
        return _render_channel_list(request, caller, form)
    fields, team = form.cleaned_data, form.cleaned_data["team"]
    try:
        row = notice_actions.add_channel(
            fields["kind"], fields["target"], author=Author.of(request), team_id=team.pk if team else None,
            allowed=settings.ACME_WEBHOOK_NETWORKS, **form.rules(),
        )  # fmt: skip
    except InvalidField as error:
        form.add_error("target", f"The address {error.why}.")
        return _render_channel_list(request, caller, form)
    messages.success(request, "The channel receives incidents from now on. Send a test message.")
    if row.secret:
        messages.warning(request, f"Signing secret, shown only once: {row.secret}")
    return redirect("channel", row.pk)


@require_safe
def channel_detail(request: HttpRequest, number: int) -> HttpResponse:
    return _render_channel(request, _get_channel(request, number))


def _get_channel(request: HttpRequest, number: int) -> Channel:
    return get_object_or_404(managed_channels(failure_permissions.caller_of_user(request.user)), pk=number)


def _render_channel(
    request: HttpRequest,
    row: Channel,
    test_result: delivery.ChannelTestResult | None = None,
    form: ChannelRulesForm | None = None,
) -> HttpResponse:
    events = Event.objects.filter(type__startswith="channel.", detail__channel=row.pk).order_by("-id")
    context = {
        "now": clock.now(),
        "channel": row,
        "kind": CHANNEL_KIND_LABELS.get(row.kind, row.kind),
        "test_result": test_result,
        "form": form or ChannelRulesForm(initial={"scope": row.scope, "min_gpu_hours": row.min_gpu_hours}),
        "notices": list(row.notices.select_related("incident").order_by("-pk")[:MAX_NOTICES]),
        "events": list(events[:MAX_CHANGES]),
    }
    return render(request, "settings/channel.html", context, status=422 if form else 200)


def _send_test_message(request: HttpRequest, row: Channel) -> delivery.ChannelTestResult:
    for name, number in {"user": request.user.pk, "team": row.team_id}.items():
        if number and not is_within_limit(f"test-messages:{name}:{number}", MAX_TEST_MESSAGES):
            says = f"At most {MAX_TEST_MESSAGES} test messages are sent per {name} and minute."
            return delivery.ChannelTestResult(good=False, says=says, advice="Try again in a minute.")
    return delivery.send_test_message(row)


@require_POST
def channel_verb(request: HttpRequest, number: int, verb: str) -> HttpResponse:
    row, author = _get_channel(request, number), Author.of(request)
    match verb:
        case "test":
            return _render_channel(request, row, test_result=_send_test_message(request, row))
        case "on" | "off":
            notice_actions.switch_channel(row, verb == "on", author=author)
            messages.success(request, f"The channel is {verb}.")
        case "remove":
            notice_actions.remove_channel(row, author=author)
            messages.success(request, "The channel was removed.")
            return redirect("channels")
        case "rules":
            form = ChannelRulesForm(request.POST)
            if not form.is_valid():
                return _render_channel(request, row, form=form)
            changed = notice_actions.change_channel_rules(row, author=author, **form.rules())
            messages.success(request, "The filters were changed." if changed else "Nothing was changed.")
        case _:
            raise Http404
    return redirect("channel", row.pk)
