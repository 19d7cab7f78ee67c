"""Limits on password attempts, for every page that asks for a password.

Ten per user name and address, fifty per address, both within 15 minutes. An attempt is counted before the
password is checked, in one atomic statement, so parallel attempts cannot pass the limit together. A correct password
takes its own attempt back and nothing else: a user with an account cannot reset the count of their address. A user name
alone is never locked, because anyone could then lock a colleague out.

The counters are rows of PostgreSQL, which a login needs anyway (user, session): all web processes share them, and they
work when Valkey is unavailable. IPv6 clients count by their /64 network, which is what one subscriber gets.
"""

from __future__ import annotations

import hashlib
import ipaddress
from datetime import timedelta
from typing import Any

from django.contrib.auth import authenticate
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from django.http import HttpRequest

ATTEMPT_WINDOW = timedelta(minutes=15)
MAX_PER_NAME, MAX_PER_ADDRESS = 10, 50
TOO_MANY_MESSAGE = "Too many wrong passwords. Wait 15 minutes, then try again."

# Both statements lock the counters of an attempt in the order of their keys, so parallel attempts do not deadlock
COUNT_ATTEMPT_SQL = """
INSERT INTO jobs_loginattempts AS known (key, since, count) VALUES {rows}
ON CONFLICT (key) DO UPDATE SET
    count = CASE WHEN known.since <= clock_timestamp() - %s THEN 1 ELSE known.count + 1 END,
    since = CASE WHEN known.since <= clock_timestamp() - %s THEN clock_timestamp() ELSE known.since END
RETURNING key, count, ceil(extract(epoch FROM known.since + %s - clock_timestamp()))::int
"""
UNCOUNT_ATTEMPT_SQL = """
UPDATE jobs_loginattempts AS known SET count = known.count - 1 FROM (
    SELECT key FROM jobs_loginattempts WHERE key = ANY(%s) ORDER BY key COLLATE "C" FOR UPDATE
) AS locked WHERE known.key = locked.key AND known.count > 0
"""
# Each attempt deletes a few expired rows, more than it adds. Rows that another attempt has locked are skipped
DELETE_EXPIRED_SQL = """
DELETE FROM jobs_loginattempts WHERE key IN (
    SELECT key FROM jobs_loginattempts WHERE since <= clock_timestamp() - %s ORDER BY since LIMIT 20
    FOR UPDATE SKIP LOCKED
)
"""


class ThrottledBackend(ModelBackend):
    """The only authentication backend, so /login/, /admin/login/ and password changes share the limits."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **more: Any
    ) -> Any:
        if username is None or password is None:
            return None
        limits = attempt_limits(request, username)
        if wait_s := count_attempt(limits):
            if request is not None:
                request.login_wait_s = wait_s  # type: ignore[attr-defined]
            raise PermissionDenied(TOO_MANY_MESSAGE)
        user = super().authenticate(request, username, password, **more)
        if user is not None:
            uncount_attempt(limits)
        return user


def attempt_limits(request: HttpRequest | None, username: str) -> dict[str, int]:
    """Return the keys of the counters that an attempt belongs to, with their limits."""
    address = address_network(request.META.get("REMOTE_ADDR", "")) if request is not None else ""
    limits = {_counter_key("name", username.strip().lower(), address): MAX_PER_NAME}
    return limits | ({_counter_key("address", address): MAX_PER_ADDRESS} if address else {})


def address_network(address: str) -> str:
    """Return the /64 network of an IPv6 address; other texts are returned as they are."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address


def _counter_key(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode(errors="replace")).hexdigest()


def count_attempt(limits: dict[str, int]) -> int:
    """Count one attempt; return the seconds to wait, or 0 if the password may be checked."""
    rows = ", ".join(["(%s, clock_timestamp(), 1)"] * len(limits))
    with connection.cursor() as cursor:
        cursor.execute(DELETE_EXPIRED_SQL, [ATTEMPT_WINDOW])
        cursor.execute(
            COUNT_ATTEMPT_SQL.format(rows=rows), [*sorted(limits), ATTEMPT_WINDOW, ATTEMPT_WINDOW, ATTEMPT_WINDOW]
        )
        counters = cursor.fetchall()
    return max((max(1, wait_s) for key, count, wait_s in counters if count > limits[key]), default=0)


def uncount_attempt(limits: dict[str, int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(UNCOUNT_ATTEMPT_SQL, [list(limits)])


def retry_after_seconds(request: HttpRequest) -> int:
    """Return the seconds until the next attempt is allowed; 0 if this request was not throttled."""
    return getattr(request, "login_wait_s", 0)


class LoginForm(AuthenticationForm):
    """The login form, used on our page and mixed into the one of Django's admin."""

    def get_invalid_login_error(self) -> ValidationError:
        if retry_after_seconds(self.request):
            return ValidationError(TOO_MANY_MESSAGE, code="too_many")
        return super().get_invalid_login_error()


class OldPasswordForm(PasswordChangeForm):
    """Counts the old password like a login. Otherwise an open session could be used to guess without limit."""

    request: HttpRequest

    def clean_old_password(self) -> str:
        old = self.cleaned_data["old_password"]
        user = authenticate(self.request, username=self.user.get_username(), password=old)
        if user is None or user.pk != self.user.pk:
            wrong = TOO_MANY_MESSAGE if retry_after_seconds(self.request) else self.error_messages["password_incorrect"]
            raise ValidationError(wrong, code="password_incorrect")
        return str(old)
