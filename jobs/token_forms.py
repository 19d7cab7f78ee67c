"""Asking for a token: nobody gives one more than they have."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from jobs import clock
from jobs.models import Scope, Team, Token
from jobs.token_actions import max_life, widest_scope

LIVES = {"7": "7 days", "30": "30 days", "90": "90 days", "365": "a year", "": "until it is revoked"}
MOST_NETWORKS = 20


def allowed_lives() -> list[tuple[str, str]]:
    """The choices within ACME_TOKEN_MAX_DAYS; the limit itself stands for those beyond it."""
    most = max_life()
    if most is None:
        return list(LIVES.items())
    within = [(days, label) for days, label in LIVES.items() if days and int(days) <= most.days]
    limit = str(most.days)
    return within if limit in dict(within) else [*within, (limit, f"{limit} days, the longest allowed")]


def network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text.strip()))
    except ValueError as error:
        raise ValidationError(f"{text[:50]!r} is no network such as 10.0.0.0/8 or 2001:db8::/32: {error}") from error


class WithinOwnRights(forms.ModelForm):
    """What any form that makes a token checks."""

    asker: Any

    def clean_networks(self) -> list[str]:
        return [network(text) for text in self.cleaned_data["networks"]]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        scope = cleaned.get("scope")
        if scope and not widest_scope(self.asker, cleaned.get("team")).covers(Scope(scope)):
            raise ValidationError({"scope": "A token cannot do more than you may do yourself."})
        return cleaned


class OwnTokenForm(WithinOwnRights):
    lives = forms.ChoiceField(label="Valid for", choices=list(LIVES.items()), initial="90", required=False)

    class Meta:
        model = Token
        fields = ("name", "scope", "team", "networks")
        labels = {"name": "What it is for"}

    def __init__(self, *args: Any, asker: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asker = asker
        self.fields["team"].queryset = Team.objects.where(asker).distinct()
        self.fields["team"].empty_label = "all my teams"
        self.fields["lives"].choices = allowed_lives()
        widest = widest_scope(asker, None)
        self.fields["scope"].choices = [(one, Scope(one).label) for one in Scope.values if widest.covers(one)]

    def clean_name(self) -> str:
        name = self.cleaned_data["name"]
        if not name.isprintable():
            raise ValidationError("It contains a control character.")
        return name

    def clean_networks(self) -> list[str]:
        found = super().clean_networks()
        if len(found) > MOST_NETWORKS:
            raise ValidationError(f"These are {len(found)} networks, more than the {MOST_NETWORKS} allowed.")
        return found

    def wanted(self) -> dict[str, Any]:
        lives = self.cleaned_data["lives"] or ("" if max_life() is None else self.fields["lives"].choices[-1][0])
        expires_at = clock.now() + timedelta(days=int(lives)) if lives else None
        return {name: self.cleaned_data[name] for name in self.Meta.fields} | {"expires_at": expires_at}
