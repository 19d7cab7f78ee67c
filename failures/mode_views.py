"""Settings of recovery: how far it may go by itself, by team and action, and who said so."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from failures import reserve, rights
from failures.recovery.remedies import CORDONING, Action
from jobs import clock, recovery_actions
from jobs.journal import Author
from jobs.models import Cluster, Event, RecoveryMode, Role, Team
from jobs.rights import Caller

MOST_CHANGES = 20
ACTIONS = [("", "every action"), *((one.value, one.value) for one in Action if one is not Action.NOTHING)]


class ModeForm(forms.Form):
    team = forms.ModelChoiceField(queryset=Team.objects.none(), required=False)
    cluster = forms.ModelChoiceField(queryset=Cluster.objects.all(), required=False, empty_label="every cluster")
    action = forms.ChoiceField(choices=ACTIONS, required=False)
    mode = forms.ChoiceField(choices=RecoveryMode.Reach.choices, initial=RecoveryMode.Reach.PROPOSE)

    def __init__(self, caller: Caller, *given: Any) -> None:
        super().__init__(*given)
        team: Any = self.fields["team"]
        team.queryset = Team.objects.all() if _says_for_all(caller) else caller.teams(Role.ADMIN)
        team.required = not _says_for_all(caller)
        team.empty_label = "every team" if _says_for_all(caller) else None


def _says_for_all(caller: Caller) -> bool:
    return bool(caller.operates or caller.everywhere)


def _may_say(caller: Caller, row: RecoveryMode) -> bool:
    """A team's administrators for their team, operators for everybody."""
    return _says_for_all(caller) or (row.team_id is not None and caller.has(Role.ADMIN, row.team_id))


@require_safe
def modes(request: HttpRequest) -> HttpResponse:
    caller = rights.of_user(request.user)
    return _page(request, caller, ModeForm(caller))


def _page(request: HttpRequest, caller: Caller, form: ModeForm) -> HttpResponse:
    rows = list(
        RecoveryMode.objects.select_related("team", "cluster").order_by("team__name", "cluster__name", "action")
    )
    told = Event.objects.filter(what="recovery.mode").order_by("-id")
    context = {
        "now": clock.now(),
        "rows": [(row, _may_say(caller, row), row.action in CORDONING) for row in rows],
        "reaches": [(str(one), str(one)) for one in RecoveryMode.Reach.values],
        "form": form if _says_for_all(caller) or caller.teams(Role.ADMIN).exists() else None,
        "events": list(told[:MOST_CHANGES]),
        "reserves": reserve.reserves(clock.now()),
        "confidence": f"{reserve.CONFIDENCE:.0%}",
        "window": reserve.WINDOW.days,
    }
    return render(request, "settings/recovery.html", context, status=422 if form.errors else 200)


def _counts(row: RecoveryMode) -> str:
    said = f"{row}. It counts from the next decision on."
    return said[:1].upper() + said[1:]  # names of teams and clusters stay as they are written


@require_POST
def set_mode(request: HttpRequest) -> HttpResponse:
    caller = rights.of_user(request.user)
    form = ModeForm(caller, request.POST)
    if not form.is_valid():
        return _page(request, caller, form)
    asked = form.cleaned_data
    row = recovery_actions.set_mode(
        asked["mode"],
        author=Author.of(request),
        team_id=asked["team"].pk if asked["team"] else None,
        cluster_id=asked["cluster"].pk if asked["cluster"] else None,
        action=asked["action"],
    )
    messages.success(request, _counts(row))
    return redirect("recovery-modes")


@require_POST
def change(request: HttpRequest, number: int) -> HttpResponse:
    """Another word for a row that is there; `none` takes it away."""
    caller = rights.of_user(request.user)
    row = get_object_or_404(RecoveryMode.objects.select_related("team", "cluster"), pk=number)
    if not _may_say(caller, row):
        raise PermissionDenied
    said = request.POST.get("mode", "")
    if said == "none":
        recovery_actions.unset_mode(row, author=Author.of(request))
        messages.success(request, "What is said more generally counts again.")
    elif said in RecoveryMode.Reach.values:
        where = {"team_id": row.team_id, "cluster_id": row.cluster_id, "action": row.action}
        changed = recovery_actions.set_mode(said, author=Author.of(request), **where)
        messages.success(request, _counts(changed))
    else:
        messages.error(request, "Nothing was changed: a mode is observe, propose or act.")
    return redirect("recovery-modes")
