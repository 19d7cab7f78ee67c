"""Team settings: teams, their members and roles. `jobs.models.permissions` defines what each role may do."""

from __future__ import annotations

from dataclasses import dataclass
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

from acmeweb.common.errors import InvalidField, NotAllowed, StateConflict
from jobs.actions import teams as team_actions
from jobs.actions.journal import Author
from jobs.models import Event, Membership, Team, TeamRole, clock

MAX_CHANGES_SHOWN = 30
ADD_TEAM_PERMISSION = "jobs.add_team"
NO_ROLE = "none"


class TeamForm(forms.ModelForm):
    class Meta:
        model = Team
        fields: tuple[str, ...] = ("name", "title")

    def clean_title(self) -> str:
        return printable_text(self.cleaned_data["title"])


class TitleForm(TeamForm):
    class Meta(TeamForm.Meta):
        fields = ("title",)


class RoleForm(forms.Form):
    user = forms.CharField(label="User name", max_length=150)
    role = forms.ChoiceField(choices=[*TeamRole.choices, (NO_ROLE, "remove from team")], initial=TeamRole.RESEARCHER)
    why = forms.CharField(label="Reason", max_length=1000, required=False)

    def clean_user(self) -> Any:
        name = self.cleaned_data["user"]
        user = get_user_model().objects.filter(username=name.replace("\x00", "")).first()
        if user is None:
            raise ValidationError(f"User {name[:50]!r} not found. Users must have signed in once.")
        return user

    def clean(self) -> dict[str, Any]:
        member = self.cleaned_data.get("user")
        if member and not member.is_active and self.new_role():
            raise ValidationError({"user": f"{member} is deactivated. You can only remove this user from the team."})
        return self.cleaned_data

    def new_role(self) -> TeamRole | None:
        """The role to set; None removes the user from the team."""
        role = self.cleaned_data.get("role", NO_ROLE)
        return None if role == NO_ROLE else TeamRole(role)


def printable_text(text: str) -> str:
    if not text.isprintable():
        raise ValidationError("The title contains a control character.")
    return text


@require_safe
def settings_page(request: HttpRequest) -> HttpResponse:
    return redirect("teams")


# --- teams


@require_safe
def team_list_page(request: HttpRequest) -> HttpResponse:
    return _render_teams(request, TeamForm())


@dataclass(frozen=True, kw_only=True)
class TeamRow:
    team: Team
    role: str
    quotas_text: str


def _quotas_text(team: Team) -> str:
    """The quotas in one line: `8 on seren for evaluation, 16 h100 on kalos`."""
    quotas = [(quota, f" for {quota.kind}" if quota.kind else "") for quota in team.quotas.all()]
    return ", ".join(
        f"{quota.gpus} {quota.gpu_model}".rstrip() + f" on {quota.cluster}{kind}" for quota, kind in quotas
    )


def _render_teams(request: HttpRequest, form: TeamForm, status: int = 200) -> HttpResponse:
    rows = Team.objects.where(request.user).annotate(members_total=Count("memberships", distinct=True))
    own = dict(Membership.objects.filter(user=request.user).values_list("team_id", "role"))
    context = {
        "now": clock.now(),
        "rows": [
            TeamRow(team=team, role=own.get(team.pk, ""), quotas_text=_quotas_text(team))
            for team in rows.prefetch_related("quotas__cluster")
        ],
        "form": form if request.user.has_perm(ADD_TEAM_PERMISSION) else None,
    }
    return render(request, "settings/teams.html", context, status=status)


@require_POST
@permission_required(ADD_TEAM_PERMISSION, raise_exception=True)
def add_team(request: HttpRequest) -> HttpResponse:
    form = TeamForm(request.POST)
    if not form.is_valid():
        return _render_teams(request, form, status=422)
    try:
        team = team_actions.create_team(first=request.user, author=Author.of(request), **form.cleaned_data)
    except StateConflict as error:
        messages.error(request, f"Nothing was changed: {error}.")
        return redirect("teams")
    messages.success(request, f"Team {team} created. You are its administrator.")
    return redirect("team", team.name)


# --- one team


@require_safe
def team_page(request: HttpRequest, name: str) -> HttpResponse:
    return _render_team(request, _visible_team(request, name), RoleForm())


def _visible_team(request: HttpRequest, name: str) -> Team:
    return get_object_or_404(Team.objects.where(request.user).distinct(), name=name)


def _is_team_admin(request: HttpRequest, row: Team) -> bool:
    return Team.objects.where(request.user, TeamRole.ADMIN).filter(pk=row.pk).exists()


def team_change_text(event: Event) -> str:
    detail = event.detail
    if event.type == "team.role_changed":
        return f"{detail.get('user')}: {detail.get('from') or 'no role'} → {detail.get('to') or 'no role'}"
    if event.type == "team.title_changed":
        return f"title: {detail.get('from') or 'none'} → {detail.get('to') or 'none'}"
    return "created the team"


def _render_team(request: HttpRequest, row: Team, form: RoleForm, status: int = 200) -> HttpResponse:
    administers = _is_team_admin(request, row)
    changes = Event.objects.filter(type__startswith="team.", detail__team=row.name).order_by("-id")
    context = {
        "now": clock.now(),
        "team": row,
        "members": list(row.memberships.select_related("user").order_by("user__username")),
        "quotas": list(row.quotas.select_related("cluster")),
        "roles": [*TeamRole.choices, (NO_ROLE, "remove from team")],
        "administers": administers,
        "form": form if administers else None,
        "title_form": TitleForm(instance=row) if administers else None,
        "changes": [(event, team_change_text(event)) for event in changes[:MAX_CHANGES_SHOWN]] if administers else [],
    }
    return render(request, "settings/team.html", context, status=status)


@require_POST
def set_role(request: HttpRequest, name: str) -> HttpResponse:
    row, form = _visible_team(request, name), RoleForm(request.POST)
    if not _is_team_admin(request, row):
        messages.error(request, "Not allowed: this needs the role admin in this team.")
        return redirect("team", row.name)
    if not form.is_valid():
        return _render_team(request, row, form, status=422)
    member, role = form.cleaned_data["user"], form.new_role()
    try:
        why = form.cleaned_data["why"]
        team_actions.set_team_role(row, member, role, by=request.user, author=Author.of(request), why=why)
    except (NotAllowed, StateConflict) as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, f"{member} is {f'now {role} in' if role else 'no longer a member of'} team {row}.")
    return redirect("team", row.name) if Team.objects.where(request.user).filter(pk=row.pk) else redirect("teams")


@require_POST
def change_team_title(request: HttpRequest, name: str) -> HttpResponse:
    row = get_object_or_404(Team.objects.where(request.user, TeamRole.ADMIN).distinct(), name=name)
    form = TitleForm(request.POST, instance=row)
    try:
        if not form.is_valid():
            raise InvalidField("title", form.errors["title"][0].rstrip("."))
        team_actions.set_team_title(row, form.cleaned_data["title"], author=Author.of(request))
    except (InvalidField, StateConflict) as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, "Title changed.")
    return redirect("team", row.name)
