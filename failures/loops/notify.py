"""Notify: sends one message per incident and channel, and an update whenever the incident changes.

Eligible rows     Incidents that changed within the last hour, for each channel whose team they affect (or of every
                  team) and whose filters they match; then messages that are due. Channels take turns: the one that
                  was called longest ago is next, with the message that is due longest.
What a turn does  Stores a hash of the message to send, claims one message at a time (counted, with a lease), sends it
                  outside a transaction, and stores the hash as sent. Failing channels come last, and a channel that
                  fails is skipped for the rest of the turn, so that it does not delay the others by more than the
                  deadline of one call.
Failure story     After a kill between sending and storing, the message is sent again with the same id and number, so
                  that receivers can detect the duplicate. An unreachable receiver is retried ten times with increasing
                  delays; one that is called when the run reaches its time limit has failed too. Two workers never send
                  one message: it is skipped while locked and due later once claimed. A second run sends nothing,
                  because the hashes are equal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q, QuerySet

from acmeweb.common.errors import TimeLimitExceeded
from failures.actions import notices as notice_actions
from failures.models import Channel, Decision, Incident, Notice
from failures.notices import delivery, messages
from failures.notices.messages import IncidentMessage
from failures.recovery.decisions import decision_summary
from jobs.models import Job, clock

log = logging.getLogger(__name__)

CHANGE_WINDOW, INCIDENT_WINDOW = timedelta(hours=1), timedelta(days=1)
MAX_INCIDENTS = 500
TIME_BUDGET = timedelta(seconds=20)

SendFunction = Callable[[Notice, IncidentMessage], None]


def notify_once(now: datetime, send: SendFunction | None = None) -> int:
    """Send the messages that are due. Returns how many were sent."""
    _request_notices(now)
    done, at, failed = 0, now, set[int]()
    troubled = notice_actions.failing_channels(now)
    while (
        at - now < TIME_BUDGET
        and (row := notice_actions.claim(at, deprioritized=troubled, excluded=failed)) is not None
    ):
        if _send_notice(row, at, _deliver_notice if send is None else send):
            done += 1
        else:
            failed.add(row.channel_id)
        at = max(clock.now(), at)
    return done


def _request_notices(now: datetime) -> None:
    """Requests messages for changed incidents. Two queries per channel, one per changed incident."""
    digests: dict[tuple[int, int | None], str] = {}
    for channel in Channel.objects.filter(is_enabled=True):
        recent = channel.notices.filter(incident__last_symptom_at__gte=now - INCIDENT_WINDOW)
        known = dict(recent.values_list("incident", "wanted"))
        for incident in _channel_incidents(channel, now):
            for_whom = incident.pk, channel.team_id
            if for_whom not in digests:
                digests[for_whom] = _message_hash(incident, channel.team_id)
            digest = digests[for_whom]
            if digest and known.get(incident.pk) != digest:
                notice_actions.request_notice(channel.pk, incident.pk, digest, now)


def _message_hash(incident: Incident, team_id: int | None) -> str:
    """The hash of the current message; empty after an error, so that other incidents are still sent."""
    try:
        return build_message(incident, team_id).digest
    except Exception:
        log.exception("The message for %s could not be built", incident)
        return ""


def _channel_incidents(channel: Channel, now: datetime) -> Iterable[Incident]:
    """Incidents for the channel that changed within the window and since the channel was added."""
    since = max(now - CHANGE_WINDOW, channel.created_at)
    changed = Q(last_symptom_at__gte=since) | Q(acknowledged_at__gte=since) | Q(resolved_at__gte=since)
    decided = Decision.objects.filter(Q(at__gte=since) | Q(answered_at__gte=since) | Q(ended_at__gte=since))
    rows = Incident.objects.filter(last_symptom_at__gte=now - INCIDENT_WINDOW)
    rows = rows.filter(changed | Q(pk__in=decided.values("incident")), gpu_hours_lost__gte=channel.min_gpu_hours)
    if channel.scope:
        rows = rows.filter(scope=channel.scope)
    if channel.team_id:
        rows = rows.affecting_jobs(Job.objects.filter(team=channel.team_id))
    return _with_message_relations(rows).order_by("pk")[:MAX_INCIDENTS]


def _with_message_relations(rows: QuerySet[Incident]) -> QuerySet[Incident]:
    return rows.select_related("cluster").prefetch_related("nodes")


def build_message(incident: Incident, team_id: int | None) -> IncidentMessage:
    """The message about an incident. For a team it contains only decisions about jobs of that team."""
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
        decision_state=newest.state if newest else "",
        url=f"{settings.ACME_URL.rstrip('/')}/failures/{incident.pk}/" if settings.ACME_URL else "",
    )


def _send_notice(row: Notice, now: datetime, send: SendFunction) -> bool:
    """Send one message. Errors are logged and the message is retried, so that other receivers are not affected."""
    try:
        incident = _with_message_relations(Incident.objects.all()).get(pk=row.incident_id)
        message = build_message(incident, row.channel.team_id)
        send(row, message)
    except TimeLimitExceeded:
        notice_actions.mark_failed(row, "The receiver did not respond before the time limit of the loop.", now)
        raise
    except Exception as error:
        is_ours = not isinstance(error, delivery.DELIVERY_ERRORS)
        log.warning("The notice %s was not sent: %s", row, error, exc_info=is_ours)
        notice_actions.mark_failed(row, f"{type(error).__name__}: {error}", now)
        return False
    notice_actions.mark_sent(row, message.digest, now)
    return True


def _deliver_notice(row: Notice, message: IncidentMessage) -> None:
    delivery.send(row.channel, message, update=row.update, delivery=f"{row.pk}-{row.update}")
