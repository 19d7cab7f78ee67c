"""Records logins, failed logins and logouts as Events. Django's signals cover every page that has a login.

Attempts beyond the limits of `login_limits` are not recorded, because anybody could fill the table with them.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import signals

from acmeweb.auth.login_limits import retry_after_seconds
from jobs.actions import audit
from jobs.actions.journal import Author


def connect() -> None:
    signals.user_logged_in.connect(_record_login, dispatch_uid="record login")
    signals.user_logged_out.connect(_record_logout, dispatch_uid="record logout")
    signals.user_login_failed.connect(_record_failed_login, dispatch_uid="record failed login")


def record_refused_sign_in(request: Any, name: str, why: str) -> None:
    """Record that a user whom the provider identified may not sign in."""
    audit.record_failed_login(name, why, request_id=request.acme_id, source=_source(request))


def _record_login(request: Any, user: Any, **_: Any) -> None:
    if _is_of_client(request):
        audit.record_login(Author.from_user(user, request.acme_id, _source(request)))


def _record_logout(request: Any, user: Any, **_: Any) -> None:
    # Without a user the session had ended before
    if _is_of_client(request) and user is not None:
        audit.record_logout(Author.from_user(user, request.acme_id, _source(request)))


def _record_failed_login(credentials: dict[str, Any], request: Any = None, **_: Any) -> None:
    if _is_of_client(request) and not retry_after_seconds(request):
        name = str(credentials.get("username", ""))
        audit.record_failed_login(name, "Wrong password.", request_id=request.acme_id, source=_source(request))


def _is_of_client(request: Any) -> bool:
    """Whether the request passed the middleware. Scripts also call Django's login, with an empty request."""
    return hasattr(request, "acme_id")


def _source(request: Any) -> str | None:
    return request.META.get("REMOTE_ADDR") or None
