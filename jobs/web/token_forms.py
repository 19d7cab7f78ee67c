"""Asking for a token: nobody gives one more than they have."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from jobs.actions.tokens import max_token_lifetime, max_token_scope
from jobs.models import Team, Token, TokenScope, clock

TOKEN_LIFETIMES = {"7": "7 days", "30": "30 days", "90": "90 days", "365": "a year", "": "until it is revoked"}
MAX_NETWORKS = 20


def allowed_lifetimes() -> list[tuple[str, str]]:
    """The choices within ACME_TOKEN_MAX_DAYS; the limit itself stands for those beyond it."""
    most = max_token_lifetime()
    if most is None:
        return list(TOKEN_LIFETIMES.items())
    within = [(days, label) for days, label in TOKEN_LIFETIMES.items() if days and int(days) <= most.days]
    limit = str(most.days)
    return within if limit in dict(within) else [*within, (limit, f"{limit} days, the longest allowed")]


def normalize_network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text.strip()))
    except ValueError as error:
        raise ValidationError(f"{text[:50]!r} is no network such as 10.0.0.0/8 or 2001:db8::/32: {error}") from error


class TokenRightsForm(forms.ModelForm):
    """What any form that makes a token checks."""

    asker: Any

    def clean_networks(self) -> list[str]:
        return [normalize_network(text) for text in self.cleaned_data["networks"]]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        scope = cleaned.get("scope")
        if scope and not max_token_scope(self.asker, cleaned.get("team")).covers(TokenScope(scope)):
            raise ValidationError({"scope": "A token cannot do more than you may do yourself."})
        return cleaned


class OwnTokenForm(TokenRightsForm):
    lives = forms.ChoiceField(label="Valid for", choices=list(TOKEN_LIFETIMES.items()), initial="90", required=False)

    class Meta:
        model = Token
        fields = ("name", "scope", "team", "networks")
        labels = {"name": "What it is for"}

    def __init__(self, *args: Any, asker: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asker = asker
        self.fields["team"].queryset = Team.objects.where(asker).distinct()
        self.fields["team"].empty_label = "all my teams"
        self.fields["lives"].choices = allowed_lifetimes()
        widest = max_token_scope(asker, None)
        self.fields["scope"].choices = [(one, TokenScope(one).label) for one in TokenScope.values if widest.covers(one)]

    def clean_name(self) -> str:
        name = self.cleaned_data["name"]
        if not name.isprintable():
            raise ValidationError("It contains a control character.")
        return name

    def clean_networks(self) -> list[str]:
        found = super().clean_networks()
        if len(found) > MAX_NETWORKS:
            raise ValidationError(f"These are {len(found)} networks, more than the {MAX_NETWORKS} allowed.")
        return found

    def wanted(self) -> dict[str, Any]:
        lives = self.cleaned_data["lives"] or (
            "" if max_token_lifetime() is None else self.fields["lives"].choices[-1][0]
        )
        expires_at = clock.now() + timedelta(days=int(lives)) if lives else None
        return {name: self.cleaned_data[name] for name in self.Meta.fields} | {"expires_at": expires_at}
