"""The account page: the user's roles, tokens, and the tokens of teams that the user administers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from acmeweb.common.errors import StateConflict
from jobs.actions import tokens as token_actions
from jobs.actions.journal import Author
from jobs.models import Membership, Team, TeamRole, Token, clock
from jobs.web.token_forms import OwnTokenForm

MAX_TOKENS_SHOWN = 100
UNLIMITED_LIFETIME_NOTE = (
    "This token was created before the site limited token lifetimes. Revoke it and create one that expires."
)


@require_http_methods(["GET", "HEAD", "POST"])
def account_page(request: HttpRequest) -> HttpResponse:
    form = OwnTokenForm(request.POST or None, asker=request.user)
    if request.method == "POST" and form.is_valid():
        token, secret = token_actions.create_token(user=request.user, author=Author.of(request), **form.token_values())
        # The secret is only in this response. A flash message would store it in a cookie or a database row
        response = render(request, "account/made.html", {"token": token, "secret": secret})
        response["Cache-Control"] = "no-store"
        return response
    return render(request, "account/account.html", _page_context(request, form), status=422 if form.errors else 200)


def _page_context(request: HttpRequest, form: OwnTokenForm) -> dict[str, Any]:
    rows = _revocable_tokens(request.user).select_related("user", "team")
    now = clock.now()
    return {
        "now": now,
        "form": form,
        "own": _token_rows(rows.filter(user=request.user), now),
        "of_teams": _token_rows(rows.exclude(user=request.user), now),
        "roles": Membership.objects.filter(user=request.user).select_related("team"),
        "old_token_title": UNLIMITED_LIFETIME_NOTE if token_actions.max_token_lifetime() is not None else "",
        "has_password": request.user.has_usable_password(),
    }


def _token_rows(rows: QuerySet[Token], now: datetime) -> list[Token]:
    tokens = list(rows[:MAX_TOKENS_SHOWN])
    for token in tokens:
        token.is_expired = token.expires_at is not None and token.expires_at <= now
    return tokens


def _revocable_tokens(user: Any) -> QuerySet[Token]:
    """The user's own tokens, and all tokens bound to teams that the user administers."""
    administered = Team.objects.where(user, TeamRole.ADMIN).values("pk")
    return Token.objects.filter(Q(user=user) | Q(team__in=administered), revoked_at__isnull=True)


@require_POST
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    token = get_object_or_404(_revocable_tokens(request.user), pk=pk)
    try:
        token_actions.revoke(token, author=Author.of(request))
    except StateConflict as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, f"{token} is revoked. Programs that use it are rejected from now on.")
    return redirect("account")
