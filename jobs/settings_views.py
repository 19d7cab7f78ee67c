"""Settings of people: teams, who is in them with which role. What a role may do is in `rights`."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth import get_user_model
from django.contrib.auth.decorators import permission_required
from django.core.exceptions import ValidationError
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from jobs import clock, team_actions
from jobs.journal import Author
from jobs.models import Event, Membership, Role, Team
from jobs.team_actions import TeamError

MOST_CHANGES = 30
MAY_ADD = "jobs.add_team"
GONE = "none"


class TeamForm(forms.ModelForm):
    class Meta:
        model = Team
        fields: tuple[str, ...] = ("name", "title")

    def clean_title(self) -> str:
        return plain(self.cleaned_data["title"])


class TitleForm(TeamForm):
    class Meta(TeamForm.Meta):
        fields = ("title",)


class RoleForm(forms.Form):
    user = forms.CharField(label="User name", max_length=150)
    role = forms.ChoiceField(choices=[*Role.choices, (GONE, "no role any more")], initial=Role.RESEARCHER)
    why = forms.CharField(label="Why", max_length=1000, required=False)

    def clean_user(self) -> Any:
        name = self.cleaned_data["user"]
        found = get_user_model().objects.filter(username=name.replace("\x00", "")).first()
        if found is None:
            raise ValidationError(f"Nobody here is called {name[:50]!r}; they must have signed in once.")
        return found

    def clean(self) -> dict[str, Any]:
        member = self.cleaned_data.get("user")
        if member and not member.is_active and self.wanted():
            raise ValidationError({"user": f"{member} has left; a role can only be taken away."})
        return self.cleaned_data

    def wanted(self) -> Role | None:
        role = self.cleaned_data.get("role", GONE)
        return None if role == GONE else Role(role)


def plain(text: str) -> str:
    if not text.isprintable():
        raise ValidationError("It contains a control character.")
    return text


@require_safe
def settings_page(request: HttpRequest) -> HttpResponse:
    return redirect("teams")


# --- teams


@require_safe
def teams(request: HttpRequest) -> HttpResponse:
    return _teams(request, TeamForm())


def _teams(request: HttpRequest, form: TeamForm, status: int = 200) -> HttpResponse:
    rows = Team.objects.where(request.user).annotate(members_total=Count("memberships", distinct=True))
    own = dict(Membership.objects.filter(user=request.user).values_list("team_id", "role"))
    context = {
        "now": clock.now(),
        "rows": [(team, own.get(team.pk, "")) for team in rows.prefetch_related("quotas__cluster")],
        "form": form if request.user.has_perm(MAY_ADD) else None,
    }
    return render(request, "settings/teams.html", context, status=status)


@require_POST
@permission_required(MAY_ADD, raise_exception=True)
def add_team(request: HttpRequest) -> HttpResponse:
    form = TeamForm(request.POST)
    if not form.is_valid():
        return _teams(request, form, status=422)
    try:
        team = team_actions.make(first=request.user, author=Author.of(request), **form.cleaned_data)
    except TeamError as error:
        messages.error(request, f"Nothing was changed: {error}.")
        return redirect("teams")
    messages.success(request, f"Team {team} is made, and you administer it.")
    return redirect("team", team.name)


# --- one team


@require_safe
def team(request: HttpRequest, name: str) -> HttpResponse:
    return _team(request, _visible(request, name), RoleForm())


def _visible(request: HttpRequest, name: str) -> Team:
    return get_object_or_404(Team.objects.where(request.user).distinct(), name=name)


def _administers(request: HttpRequest, row: Team) -> bool:
    return Team.objects.where(request.user, Role.ADMIN).filter(pk=row.pk).exists()


def _team(request: HttpRequest, row: Team, form: RoleForm, status: int = 200) -> HttpResponse:
    administers = _administers(request, row)
    told = Event.objects.filter(what__startswith="team.", detail__team=row.name).order_by("-id")
    context = {
        "now": clock.now(),
        "team": row,
        "members": list(row.memberships.select_related("user").order_by("user__username")),
        "quotas": list(row.quotas.select_related("cluster")),
        "roles": [*Role.choices, (GONE, "no role any more")],
        "administers": administers,
        "form": form if administers else None,
        "title_form": TitleForm(instance=row) if administers else None,
        "events": list(told[:MOST_CHANGES]) if administers else [],
    }
    return render(request, "settings/team.html", context, status=status)


@require_POST
def set_role(request: HttpRequest, name: str) -> HttpResponse:
    row, form = _visible(request, name), RoleForm(request.POST)
    if not _administers(request, row):
        messages.error(request, "Not allowed: this needs the role admin in the team.")
        return redirect("team", row.name)
    if not form.is_valid():
        return _team(request, row, form, status=422)
    member, role = form.cleaned_data["user"], form.wanted()
    try:
        why = form.cleaned_data["why"]
        team_actions.set_role(row, member, role, by=request.user, author=Author.of(request), why=why)
    except TeamError as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, f"{member} {f'is {role} in' if role else 'has no role any more in'} {row}.")
    return redirect("team", row.name) if Team.objects.where(request.user).filter(pk=row.pk) else redirect("teams")


@require_POST
def retitle(request: HttpRequest, name: str) -> HttpResponse:
    row = get_object_or_404(Team.objects.where(request.user, Role.ADMIN).distinct(), name=name)
    form = TitleForm(request.POST, instance=row)
    try:
        if not form.is_valid():
            raise TeamError(f"title: {form.errors['title'][0].rstrip('.')}")
        team_actions.retitle(row, form.cleaned_data["title"], author=Author.of(request))
    except TeamError as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, "The title is changed.")
    return redirect("team", row.name)
