"""Writes the Events of logins and of changes in the admin console, with the address of the client.

An Event of the console does not refer to the row that was changed: the row could not be deleted later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.db import models

from jobs.actions import journal
from jobs.actions.journal import Author

MAX_NAME_LENGTH = 200


def record_admin_change(what: str, row: models.Model, author: Author, changes: Mapping[str, Any]) -> None:
    """Record that a row was added, changed or deleted, in the transaction of the change."""
    detail = {"model": row._meta.label_lower, "id": row.pk, "name": str(row)[:MAX_NAME_LENGTH], **changes}
    journal.new_event(f"admin.{what}", author, detail=detail).save()


def record_login(author: Author) -> None:
    journal.new_event("login.succeeded", author).save()


def record_logout(author: Author) -> None:
    journal.new_event("login.ended", author).save()


def record_password_change(author: Author) -> None:
    """Record that a user changed the own password. The console records changes by administrators."""
    journal.new_event("password.changed", author).save()


def record_failed_login(name: str, why: str, *, request_id: str, source: str | None) -> None:
    """Record a failed login. The name is recorded only if there is such a user: it could be a password that was typed
    into the wrong field."""
    known = get_user_model().objects.filter(username=name.replace("\x00", "")).exists()
    author = Author(by=name if known else "unknown user", request_id=request_id, source=source)
    journal.new_event("login.failed", author, why=why).save()
