"""The only code that changes channels and notices."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.core.validators import EmailValidator
from django.db import IntegrityError, transaction
from django.db.models import Case, F, Q, SmallIntegerField, When

from acmeweb.common import outbound_http
from acmeweb.common.errors import InvalidField, InvalidInput
from acmeweb.common.special_addresses import Network
from failures.models import Channel, Notice
from jobs.actions import journal
from jobs.actions.journal import Author

LEASE = timedelta(seconds=60)
MIN_MESSAGE_INTERVAL = timedelta(seconds=30)  # between two messages about one incident, to combine bursts
MAX_SEND_FAILURES = 10
MAX_RETRY_DELAY = timedelta(minutes=30)
FAILING_CHANNEL_PERIOD = timedelta(hours=1)  # how long a channel counts as failing after Acme gave up a message


def add_channel(
    kind: str,
    target: str,
    *,
    author: Author,
    team_id: int | None = None,
    scope: str = "",
    min_gpu_hours: float = 0,
    allowed: tuple[Network, ...] = (),
) -> Channel:
    """Add a channel. Raises InvalidField. A webhook gets a secret, with which its receiver verifies messages."""
    _validate_target(kind, target, allowed)
    columns = {"team_id": team_id, "kind": kind, "target": target, "scope": scope, "min_gpu_hours": min_gpu_hours}
    secret = secrets.token_urlsafe(32) if kind == Channel.Kind.WEBHOOK else ""
    try:
        with transaction.atomic():
            row = Channel.objects.create(**columns, secret=secret, created_by=author.by)
            journal.new_event("channel.added", author, why=str(row), detail={"channel": row.pk}).save()
    except IntegrityError:
        raise InvalidField("target", "already has a channel") from None
    return row


def _validate_target(kind: str, target: str, allowed: tuple[Network, ...]) -> None:
    if kind == Channel.Kind.EMAIL:
        try:
            EmailValidator()(target)
        except ValidationError:
            raise InvalidField("target", "is not an e-mail address") from None
        return
    try:
        outbound_http.check_url(target, allowed)
    except InvalidInput as error:
        raise InvalidField("target", str(error)) from None


@transaction.atomic
def remove_channel(row: Channel, *, author: Author) -> None:
    """Delete the channel and its notices."""
    journal.new_event("channel.removed", author, why=str(row), detail={"channel": row.pk}).save()
    row.delete()


@transaction.atomic
def switch_channel(row: Channel, is_enabled: bool, *, author: Author) -> None:
    """Switch a channel on or off. A channel that is off keeps its filters."""
    if Channel.objects.filter(pk=row.pk, is_enabled=not is_enabled).update(is_enabled=is_enabled):
        what = "channel.switched-on" if is_enabled else "channel.switched-off"
        journal.new_event(what, author, why=str(row), detail={"channel": row.pk}).save()
    row.is_enabled = is_enabled


@transaction.atomic
def change_channel_rules(row: Channel, *, scope: str, min_gpu_hours: float, author: Author) -> bool:
    """Change the filters of a channel. False if nothing changed. The address of a channel cannot be changed."""
    rules = {"scope": scope, "min_gpu_hours": min_gpu_hours}
    before = {name: getattr(row, name) for name in rules}
    if before == rules or not Channel.objects.filter(pk=row.pk, **before).update(**rules):
        return False
    detail = {"channel": row.pk, "from": before, "to": rules}
    journal.new_event("channel.changed", author, why=str(row), detail=detail).save()
    row.refresh_from_db()
    return True


def request_notice(channel_id: int, incident_id: int, digest: str, now: datetime) -> bool:
    """Request a message with this content hash. It is due at once, or MIN_MESSAGE_INTERVAL after the last one."""
    row, is_new = Notice.objects.get_or_create(
        channel_id=channel_id, incident_id=incident_id, defaults={"wanted": digest, "due_at": now}
    )
    if is_new or row.wanted == digest:
        return is_new
    due_at = max(now, row.sent_at + MIN_MESSAGE_INTERVAL) if row.sent_at else now
    fields = {"wanted": digest, "due_at": due_at, "given_up_at": None, "failures": 0}
    return Notice.objects.filter(pk=row.pk, wanted=row.wanted).update(**fields) == 1


def failing_channels(now: datetime) -> set[int]:
    """Ids of the channels whose last messages could not be delivered."""
    rows = Notice.objects.exclude(last_error="").exclude(wanted=F("sent"))
    late = Q(given_up_at=None) | Q(given_up_at__gt=now - FAILING_CHANNEL_PERIOD)
    return set(rows.filter(late).values_list("channel", flat=True).distinct().order_by())


def claim(now: datetime, *, deprioritized: Collection[int] = (), excluded: Collection[int] = ()) -> Notice | None:
    """Claim the next message and the time of its channel. Channels take turns: the one that was called longest ago is
    next, with the message that is due longest. Channels in `deprioritized` come after all others."""
    place = Case(When(channel__in=deprioritized, then=1), default=0, output_field=SmallIntegerField())
    order = (*((place,) if deprioritized else ()), F("channel__called_at").asc(nulls_first=True), "due_at", "pk")
    with transaction.atomic():
        due = Notice.objects.open().filter(due_at__lte=now, channel__is_enabled=True).exclude(channel__in=excluded)
        row = due.order_by(*order).select_for_update(skip_locked=True, of=("self",)).first()
        if row is None:
            return None
        Notice.objects.filter(pk=row.pk).update(tries=F("tries") + 1, due_at=now + LEASE)
        Channel.objects.filter(pk=row.channel_id).update(called_at=now)
    return Notice.objects.select_related("channel__team", "incident__cluster").get(pk=row.pk)


def mark_sent(row: Notice, digest: str, now: datetime) -> None:
    Notice.objects.filter(pk=row.pk, tries=row.tries).update(
        sent=digest, sent_at=now, update=F("update") + 1, failures=0, last_error=""
    )


def mark_failed(row: Notice, why: str, now: datetime) -> None:
    """Schedule a retry with exponential backoff, and give up after MAX_SEND_FAILURES errors."""
    wait = min(timedelta(seconds=5) * 2 ** min(row.failures, 12), MAX_RETRY_DELAY)
    over = now if row.failures + 1 >= MAX_SEND_FAILURES else None
    Notice.objects.filter(pk=row.pk, tries=row.tries).update(
        failures=row.failures + 1, last_error=why[:500], due_at=now + wait, given_up_at=over
    )
