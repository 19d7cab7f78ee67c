"""Parts of forms that several pages share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms

from jobs.models import Team, TeamRole
from jobs.models.permissions import Caller

EVERY_TEAM_LABEL = "every team"


def time_input() -> forms.DateTimeInput:
    return forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")


def limit_to_administered_teams(team: Any, caller: Caller) -> None:
    """Offer the teams that the caller administers in this field; to those who act for all teams, also no team."""
    team.queryset = Team.objects.all() if caller.acts_for_all_teams else caller.teams(TeamRole.ADMIN)
    team.required = not caller.acts_for_all_teams
    team.empty_label = EVERY_TEAM_LABEL if caller.acts_for_all_teams else None


def choices_of(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return choices whose labels are their values."""
    return [(name, name) for name in names]
