"""Call the site's webhook of a cluster for nodes that are to be turned off or on.

Eligible rows     Sleeps that were requested, and wake-ups, of one cluster with a webhook that has not accepted their
                  last change yet; wake-ups first, then the oldest. On Kubernetes only after the node was closed for
                  pods.
What a turn does  Claims one row at a time (the next try is due half a minute later), posts one signed message, and
                  records its acceptance or the error. Ends after a number of calls, a time, or the first failure: a
                  receiver that does not answer is not waited for again. The answer says nothing about the node:
                  whether it sleeps or is awake is what the cluster reports.
Failure story     Killed during the call: the webhook is called again when the claim has expired, with the same
                  delivery id. The change was replaced meanwhile, as by a job that needs the node: the record is not
                  written, and the new change is called next. The receiver does not answer: it is called again every
                  half minute, and a node that is not awake in time is an incident. Two workers: a row that one has
                  claimed is not due for the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Case, QuerySet, When
from django.utils.crypto import salted_hmac

from acmeweb.common import outbound_http
from failures.notices.messages import webhook_signature
from jobs.models import Cluster, ClusterCommand, ClusterCommandKind
from scheduling.models import NodeSleep, NodeSleepState

RETRY_INTERVAL = timedelta(seconds=30)
MAX_CALLS = 50
MAX_TURN_S = 20.0
NO_ANSWER_YET = "The webhook has not answered yet."
VERBS = {NodeSleepState.REQUESTED: "sleep", NodeSleepState.WAKING: "wake"}


def sleep_webhook_secret(cluster: Cluster) -> str:
    """The key of the signatures. It follows from the secret key of the server, so nothing is stored."""
    return salted_hmac("acme.sleep-webhook", cluster.name, algorithm="sha256").hexdigest()


def clusters_with_due_webhooks(now: datetime) -> set[int]:
    """Return the ids of clusters with a change that is to be sent now. Each cluster has a row of the loop, so one whose
    webhook does not answer occupies one process and delays no other."""
    due = NodeSleep.objects.open().filter(state__in=VERBS, called_at=None, call_due_at__lte=now)
    return set(due.exclude(cluster__sleep_webhook="").values_list("cluster", flat=True))


def call_sleep_webhooks_once(cluster: Cluster, now: datetime, monotonic: Callable[[], float] = time.monotonic) -> int:
    """Return how many calls were accepted."""
    if not cluster.sleep_webhook:
        return 0
    due = NodeSleep.objects.open().filter(cluster=cluster, state__in=VERBS, called_at=None, call_due_at__lte=now)
    wake_ups_first = Case(When(state=NodeSleepState.WAKING, then=0), default=1)
    rows = due.select_related("node", "cluster").order_by(wake_ups_first, "call_due_at", "pk")[:MAX_CALLS]
    began, accepted = monotonic(), 0
    for sleep in rows:
        passed_s = monotonic() - began
        if passed_s > MAX_TURN_S:
            break
        at = now + timedelta(seconds=passed_s)
        if not _is_prepared(sleep) or not _claim(sleep, at):
            continue
        error = _call(sleep, at)
        _unchanged(sleep).update(last_error=error, called_at=None if error else at)
        if error:
            break
        accepted += 1
    return accepted


def _claim(sleep: NodeSleep, at: datetime) -> bool:
    """Postpone the next try before the call, so that a call that is killed counts as a failed one."""
    rows = _unchanged(sleep)
    sleep.call_due_at = at + RETRY_INTERVAL
    return rows.update(call_due_at=sleep.call_due_at, last_error=NO_ANSWER_YET) == 1


def _unchanged(sleep: NodeSleep) -> QuerySet[NodeSleep]:
    return NodeSleep.objects.filter(pk=sleep.pk, state=sleep.state, called_at=None, call_due_at=sleep.call_due_at)


def _is_prepared(sleep: NodeSleep) -> bool:
    """Whether the cluster has accepted the command. A node must not be turned off while pods may be placed there."""
    kind = ClusterCommandKind.SLEEP if sleep.state == NodeSleepState.REQUESTED else ClusterCommandKind.WAKE
    return not ClusterCommand.objects.open().filter(node=sleep.node_id, kind=kind).exists()


def _call(sleep: NodeSleep, now: datetime) -> str:
    """Return the error; empty if the message was accepted."""
    verb, cluster = VERBS[NodeSleepState(sleep.state)], sleep.cluster
    message = {"action": verb, "cluster": cluster.name, "node": sleep.node.name, "id": _delivery_id(sleep, verb)}
    body = json.dumps(message, sort_keys=True).encode()
    headers = {
        "Content-Type": "application/json",
        "Acme-Signature": webhook_signature(sleep_webhook_secret(cluster), body, int(now.timestamp())),
        "Acme-Delivery": message["id"],
    }
    try:
        status = outbound_http.post(cluster.sleep_webhook, body, headers, settings.ACME_WEBHOOK_NETWORKS)
    except outbound_http.CALL_ERRORS as error:
        return f"The webhook was not called: {str(error) or type(error).__name__}."[:500]
    return "" if status // 100 == 2 else f"The webhook returned HTTP status {status}."


def _delivery_id(sleep: NodeSleep, verb: str) -> str:
    """The same for each try of one change. A wake-up that is requested again is another change."""
    is_repeated = sleep.state == NodeSleepState.WAKING and sleep.wake_repeats
    return f"{verb}-{sleep.pk}-{sleep.wake_repeats}" if is_repeated else f"{verb}-{sleep.pk}"
