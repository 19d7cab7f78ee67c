"""Settings of notifications: who is told of which incidents, a test that explains, and what was told last."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from failures import notice_actions, rights, sending
from failures.grouping import Scope
from failures.models import Channel, Notice
from jobs import clock
from jobs.journal import Author
from jobs.models import Event, Role, Team
from jobs.rights import Caller
from jobs.settings_views import plain
from jobs.spec import BadSpec

MOST_TOLD, MOST_CHANGES = 10, 20
REACHES = {
    "": "all incidents",
    Scope.NODE: "sick nodes only",
    Scope.SERVICE: "services and the fabric only",
    Scope.JOB: "programs only",
}
KINDS = {
    Channel.Kind.EMAIL: "e-mail",
    Channel.Kind.WEBHOOK: "webhook, signed",
    Channel.Kind.SLACK: "Slack or Mattermost",
}
EVERYBODY = "every team"


class RulesForm(forms.Form):
    scope = forms.ChoiceField(label="Told of", choices=list(REACHES.items()), required=False)
    least_gpu_hours = forms.FloatField(
        label="From", min_value=0, max_value=10**9, initial=0, required=False, help_text="GPU-hours that it has cost."
    )

    def rules(self) -> dict[str, Any]:
        found = self.cleaned_data
        return {"scope": found["scope"], "least_gpu_hours": found["least_gpu_hours"] or 0.0}


class ChannelForm(RulesForm):
    team = forms.ModelChoiceField(queryset=Team.objects.none(), required=False, help_text="Incidents of its jobs.")
    kind = forms.ChoiceField(choices=list(KINDS.items()))
    target = forms.CharField(
        label="Address", max_length=500, help_text="A mail address, or the https:// address that is called."
    )
    field_order = ("team", "kind", "target", "scope", "least_gpu_hours")

    def __init__(self, caller: Caller, *given: Any) -> None:
        super().__init__(*given)
        team: Any = self.fields["team"]
        team.queryset = Team.objects.all() if _keeps_all(caller) else caller.teams(Role.ADMIN)
        team.required = not _keeps_all(caller)
        team.empty_label = EVERYBODY if _keeps_all(caller) else None

    def clean_target(self) -> str:
        return plain(self.cleaned_data["target"].strip())


def _keeps_all(caller: Caller) -> bool:
    return bool(caller.operates or caller.everywhere)


def kept(caller: Caller) -> QuerySet[Channel]:
    """Addresses may hold a secret, so they are for those who keep the team."""
    rows = Channel.objects.select_related("team")
    return rows if _keeps_all(caller) else rows.filter(team__in=caller.teams(Role.ADMIN))


@require_safe
def channels(request: HttpRequest) -> HttpResponse:
    caller = rights.of_user(request.user)
    return _list(request, caller, ChannelForm(caller))


def _list(request: HttpRequest, caller: Caller, form: ChannelForm) -> HttpResponse:
    rows = list(kept(caller).order_by("team__name", "pk"))
    newest = Notice.objects.filter(channel__in=rows).order_by("channel_id", "-pk").distinct("channel_id")
    last = {notice.channel_id: notice for notice in newest}
    context = {
        "now": clock.now(),
        "rows": [
            (row, KINDS.get(row.kind, row.kind), REACHES.get(row.scope, row.scope), last.get(row.pk)) for row in rows
        ],
        "keeps": _keeps_all(caller) or caller.teams(Role.ADMIN).exists(),
        "form": form,
    }
    return render(request, "settings/channels.html", context, status=422 if form.errors else 200)


@require_POST
def add(request: HttpRequest) -> HttpResponse:
    caller = rights.of_user(request.user)
    form = ChannelForm(caller, request.POST)
    if not form.is_valid():
        return _list(request, caller, form)
    asked, team = form.cleaned_data, form.cleaned_data["team"]
    try:
        row = notice_actions.add_channel(
            asked["kind"], asked["target"], author=Author.of(request), team_id=team.pk if team else None,
            allowed=settings.ACME_WEBHOOK_NETWORKS, **form.rules(),
        )  # fmt: skip
    except BadSpec as error:
        form.add_error("target", f"It {error.why}.")
        return _list(request, caller, form)
    messages.success(request, "It is told of what happens from now on. Send it a test.")
    if row.secret:
        messages.warning(request, f"Its secret, shown this once: {row.secret}")
    return redirect("channel", row.pk)


@require_safe
def channel(request: HttpRequest, number: int) -> HttpResponse:
    return _page(request, _kept(request, number))


def _kept(request: HttpRequest, number: int) -> Channel:
    return get_object_or_404(kept(rights.of_user(request.user)), pk=number)


def _page(
    request: HttpRequest, row: Channel, tried: sending.Tried | None = None, form: RulesForm | None = None
) -> HttpResponse:
    told = Event.objects.filter(what__startswith="channel.", detail__channel=row.pk).order_by("-id")
    context = {
        "now": clock.now(),
        "channel": row,
        "kind": KINDS.get(row.kind, row.kind),
        "tried": tried,
        "form": form or RulesForm(initial={"scope": row.scope, "least_gpu_hours": row.least_gpu_hours}),
        "notices": list(row.notices.select_related("incident").order_by("-pk")[:MOST_TOLD]),
        "events": list(told[:MOST_CHANGES]),
    }
    return render(request, "settings/channel.html", context, status=422 if form else 200)


@require_POST
def verb(request: HttpRequest, number: int, verb: str) -> HttpResponse:
    row, author = _kept(request, number), Author.of(request)
    match verb:
        case "test":
            return _page(request, row, tried=sending.trial(row))
        case "on" | "off":
            notice_actions.switch_channel(row, verb == "on", author=author)
            messages.success(request, f"It is {verb}.")
        case "remove":
            notice_actions.remove_channel(row, author=author)
            messages.success(request, "Nobody is told there any more.")
            return redirect("channels")
        case "rules":
            form = RulesForm(request.POST)
            if not form.is_valid():
                return _page(request, row, form=form)
            changed = notice_actions.change_rules(row, author=author, **form.rules())
            messages.success(request, "Its rules are changed." if changed else "Nothing was changed.")
        case _:
            raise Http404
    return redirect("channel", row.pk)
