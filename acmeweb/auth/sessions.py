"""Sessions that end after a time without activity (ACME_SESSION_IDLE_HOURS).

Activity is a page that a user opens, or a form. What an open page fetches by itself does not count, otherwise it would
never end. The expiry moves forward at most `RENEWALS` times per idle time, so that most requests write nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends import db
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone

RENEWALS = 24
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class SessionStore(db.SessionStore):
    """Remembers when the session that was loaded expires."""

    expires_at: datetime | None = None

    def _get_session_from_db(self) -> Any:
        row = super()._get_session_from_db()
        self.expires_at = row.expire_date if row else None
        return row


class IdleTimeoutMiddleware(SessionMiddleware):
    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if _is_activity(request) and is_renewal_due(request.session.expires_at, timezone.now()):  # type: ignore[attr-defined]
            request.session.modified = True  # saves it with a new expiry
        return super().process_response(request, response)


def _is_activity(request: HttpRequest) -> bool:
    """Whether a user did something, as opposed to a script or a fragment that refreshes."""
    if request.method not in SAFE_METHODS:
        return True
    return "text/html" in request.headers.get("Accept", "") and "HX-Request" not in request.headers


def is_renewal_due(expires_at: datetime | None, now: datetime) -> bool:
    idle = timedelta(seconds=settings.SESSION_COOKIE_AGE)
    return expires_at is not None and expires_at < now + idle - idle / RENEWALS
