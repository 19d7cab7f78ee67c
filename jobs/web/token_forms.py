"""Forms that create tokens. A token never gets more access than the user who creates it."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from jobs.actions.tokens import max_token_lifetime, max_token_scope
from jobs.models import Team, Token, TokenScope, clock

TOKEN_LIFETIMES = {"7": "7 days", "30": "30 days", "90": "90 days", "365": "1 year", "": "until revoked"}
MAX_NETWORKS = 20


def allowed_lifetimes() -> list[tuple[str, str]]:
    """The choices within ACME_TOKEN_MAX_DAYS, and the limit itself in place of the longer ones."""
    most = max_token_lifetime()
    if most is None:
        return list(TOKEN_LIFETIMES.items())
    allowed = [(days, label) for days, label in TOKEN_LIFETIMES.items() if days and int(days) <= most.days]
    limit = str(most.days)
    return allowed if limit in dict(allowed) else [*allowed, (limit, f"{limit} days (maximum)")]


def normalize_network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text.strip()))
    except ValueError as error:
        raise ValidationError(
            f"{text[:50]!r} is not a network such as 10.0.0.0/8 or 2001:db8::/32: {error}."
        ) from error


class TokenRightsForm(forms.ModelForm):
    """Checks shared by all forms that create tokens."""

    asker: Any

    def clean_networks(self) -> list[str]:
        return [normalize_network(text) for text in self.cleaned_data["networks"]]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        scope = cleaned.get("scope")
        if scope and not max_token_scope(self.asker, cleaned.get("team")).covers(TokenScope(scope)):
            raise ValidationError({"scope": "A token cannot have more access than you have."})
        return cleaned


class OwnTokenForm(TokenRightsForm):
    lives = forms.ChoiceField(label="Lifetime", choices=list(TOKEN_LIFETIMES.items()), initial="90", required=False)

    class Meta:
        model = Token
        fields = ("name", "scope", "team", "networks")
        labels = {"name": "Purpose"}

    def __init__(self, *args: Any, asker: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asker = asker
        self.fields["team"].queryset = Team.objects.where(asker).distinct()
        self.fields["team"].empty_label = "all my teams"
        self.fields["lives"].choices = allowed_lifetimes()
        widest = max_token_scope(asker, None)
        scopes = [scope for scope in TokenScope.values if widest.covers(scope)]
        self.fields["scope"].choices = [(scope, TokenScope(scope).label) for scope in scopes]

    def clean_name(self) -> str:
        name = self.cleaned_data["name"]
        if not name.isprintable():
            raise ValidationError("The name contains a control character.")
        return name

    def clean_networks(self) -> list[str]:
        networks = super().clean_networks()
        if len(networks) > MAX_NETWORKS:
            raise ValidationError(f"Enter at most {MAX_NETWORKS} networks, not {len(networks)}.")
        return networks

    def token_values(self) -> dict[str, Any]:
        """The arguments for `create_token`."""
        lives = self.cleaned_data["lives"] or (
            "" if max_token_lifetime() is None else self.fields["lives"].choices[-1][0]
        )
        expires_at = clock.now() + timedelta(days=int(lives)) if lives else None
        return {name: self.cleaned_data[name] for name in self.Meta.fields} | {"expires_at": expires_at}
