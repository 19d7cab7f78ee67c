"""Notify: tell people of incidents: one message for each incident and channel, brought up to date when it moves.

Who is eligible   incidents that moved within the last hour, for each channel of a team that they touch (or of
                  everybody) whose rules they meet; then messages whose time has come, the longest due first.
What a turn does  writes down what is to be said, as a hash; claims one message at a time (counted, put ahead by a
                  lease), sends it without a transaction, notes what was said. Channels in trouble come last, and
                  one that fails is left alone for the rest of the turn: who hears nobody keeps nobody waiting.
Failure story     Killed between sending and the note, the same message is sent once more: it carries the same id and
                  number, by which a receiver knows it. A receiver that is away is asked again, later each time, ten
                  times. Two workers: a message is skipped while it is locked, and due later once claimed. Run twice:
                  what was said is what is to be said, so nothing is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db.models import Q, QuerySet

from failures.actions import notices as notice_actions
from failures.actions.decisions import decision_summary
from failures.models import Channel, Decision, Incident, Notice
from failures.notices import delivery, messages
from failures.notices.messages import IncidentMessage
from jobs.models import Job, clock

log = logging.getLogger(__name__)

CHANGE_WINDOW, INCIDENT_WINDOW = timedelta(hours=1), timedelta(days=1)
MAX_INCIDENTS = 500
TIME_BUDGET = timedelta(seconds=20)

SendFunction = Callable[[Notice, IncidentMessage], None]


def notify_once(now: datetime, send: SendFunction | None = None) -> int:
    """How many messages were sent."""
    _request_notices(now)
    done, at, failed = 0, now, set[int]()
    troubled = notice_actions.failing_channels(now)
    while at - now < TIME_BUDGET and (row := notice_actions.claim(at, last=troubled, but=failed)) is not None:
        if _send_notice(row, at, _deliver_notice if send is None else send):
            done += 1
        else:
            failed.add(row.channel_id)
        at = max(clock.now(), at)
    return done


def _request_notices(now: datetime) -> None:
    """Two statements for each channel, one for each incident that moved."""
    digests: dict[tuple[int, int | None], str] = {}
    for channel in Channel.objects.filter(is_on=True):
        known = dict(
            channel.notices.filter(incident__last_symptom_at__gte=now - INCIDENT_WINDOW).values_list(
                "incident", "wanted"
            )
        )
        for incident in _channel_incidents(channel, now):
            for_whom = incident.pk, channel.team_id
            if for_whom not in digests:
                digests[for_whom] = _message_hash(incident, channel.team_id)
            digest = digests[for_whom]
            if digest and known.get(incident.pk) != digest:
                notice_actions.request_notice(channel.pk, incident.pk, digest, now)


def _message_hash(incident: Incident, team_id: int | None) -> str:
    """Empty where nothing can be said of it, which must not keep the others from being told."""
    try:
        return build_message(incident, team_id).digest
    except SoftTimeLimitExceeded:
        raise
    except Exception:
        log.exception("nothing can be said of %s", incident)
        return ""


def _channel_incidents(channel: Channel, now: datetime) -> Iterable[Incident]:
    """Only what moved since the channel is there."""
    since = max(now - CHANGE_WINDOW, channel.created_at)
    moved = Q(last_symptom_at__gte=since) | Q(acknowledged_at__gte=since) | Q(resolved_at__gte=since)
    decided = Decision.objects.filter(Q(at__gte=since) | Q(said_at__gte=since) | Q(ended_at__gte=since))
    rows = Incident.objects.filter(last_symptom_at__gte=now - INCIDENT_WINDOW)
    rows = rows.filter(moved | Q(pk__in=decided.values("incident")), gpu_hours_lost__gte=channel.least_gpu_hours)
    if channel.scope:
        rows = rows.filter(scope=channel.scope)
    if channel.team_id:
        rows = rows.affecting_jobs(Job.objects.filter(team=channel.team_id))
    return _with_message_relations(rows).order_by("pk")[:MAX_INCIDENTS]


def _with_message_relations(rows: QuerySet[Incident]) -> QuerySet[Incident]:
    return rows.select_related("cluster").prefetch_related("nodes")


def build_message(incident: Incident, team_id: int | None) -> IncidentMessage:
    """A team is told what is decided about its own jobs; a channel without a team is the operators'."""
    decisions = Decision.objects.filter(incident=incident)
    if team_id is not None:
        decisions = decisions.filter(attempt__job__team=team_id)
    newest = decisions.select_related("attempt").order_by("-pk").first()
    return IncidentMessage(
        incident=incident.pk,
        state=incident.state,
        title=messages.single_line(incident.title),
        cluster=incident.cluster.name,
        attempts=incident.attempts,
        nodes=sorted(node.name for node in incident.nodes.all()),
        decision=messages.single_line(decision_summary(newest)) if newest else "",
        course=newest.course if newest else "",
        url=f"{settings.ACME_URL.rstrip('/')}/failures/{incident.pk}/" if settings.ACME_URL else "",
    )


def _send_notice(row: Notice, now: datetime, send: SendFunction) -> bool:
    """The row boundary: whatever one receiver does, the next one is told."""
    try:
        message = build_message(
            _with_message_relations(Incident.objects.all()).get(pk=row.incident_id), row.channel.team_id
        )
        send(row, message)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:
        is_ours = not isinstance(error, delivery.DELIVERY_ERRORS)
        log.warning("%s was not sent: %s", row, error, exc_info=is_ours)
        notice_actions.mark_failed(row, f"{type(error).__name__}: {error}", now)
        return False
    notice_actions.mark_sent(row, message.digest, now)
    return True


def _deliver_notice(row: Notice, message: IncidentMessage) -> None:
    delivery.send(row.channel, message, update=row.update, delivery=f"{row.pk}-{row.update}")
