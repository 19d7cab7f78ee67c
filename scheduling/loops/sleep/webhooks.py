"""Call the site's webhook for nodes that are to be turned off or on.

Eligible rows     Sleeps that were requested, and wake-ups, on clusters with a webhook that has not accepted their last
                  change yet; the oldest first. On Kubernetes only after the node was closed for pods.
What a turn does  Posts one signed message per node, up to a number and a time, and records its acceptance or the
                  error and the time of the next try. The answer says nothing about the node: whether it sleeps or is
                  awake is what the cluster reports.
Failure story     Killed between the call and the record: the webhook is called again with the same delivery id. The
                  change was replaced meanwhile, as by a job that needs the node: the record is not written, and the
                  new change is called next. The receiver does not answer: it is called again every half minute, and
                  a node that is not awake in time is an incident.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.utils.crypto import salted_hmac

from acmeweb.common import outbound_http
from failures.notices.messages import webhook_signature
from jobs.models import Cluster, ClusterCommand, ClusterCommandKind
from scheduling.models import NodeSleep, NodeSleepState

RETRY_INTERVAL = timedelta(seconds=30)
MAX_CALLS = 50
MAX_TURN_S = 20.0
VERBS = {NodeSleepState.REQUESTED: "sleep", NodeSleepState.WAKING: "wake"}


def sleep_webhook_secret(cluster: Cluster) -> str:
    """The key of the signatures. It follows from the secret key of the server, so nothing is stored."""
    return salted_hmac("acme.sleep-webhook", cluster.name, algorithm="sha256").hexdigest()


def call_sleep_webhooks_once(now: datetime, monotonic: Callable[[], float] = time.monotonic) -> int:
    """Return how many calls were accepted."""
    due = NodeSleep.objects.open().filter(state__in=VERBS, called_at=None, call_due_at__lte=now)
    rows = due.exclude(cluster__sleep_webhook="").select_related("node", "cluster").order_by("call_due_at", "pk")
    began, accepted = monotonic(), 0
    for sleep in rows[:MAX_CALLS]:
        if monotonic() - began > MAX_TURN_S:
            break
        if not _is_prepared(sleep):
            continue
        error = _call(sleep, now)
        accepted += not error
        columns = {"call_due_at": now + RETRY_INTERVAL} if error else {"called_at": now}
        unchanged = NodeSleep.objects.filter(pk=sleep.pk, state=sleep.state, called_at=None)
        unchanged.update(last_error=error, **columns)
    return accepted


def _is_prepared(sleep: NodeSleep) -> bool:
    """Whether the cluster has accepted the command. A node must not be turned off while pods may be placed there."""
    kind = ClusterCommandKind.SLEEP if sleep.state == NodeSleepState.REQUESTED else ClusterCommandKind.WAKE
    return not ClusterCommand.objects.open().filter(node=sleep.node_id, kind=kind).exists()


def _call(sleep: NodeSleep, now: datetime) -> str:
    """Return the error; empty if the message was accepted."""
    verb, cluster = VERBS[NodeSleepState(sleep.state)], sleep.cluster
    message = {"action": verb, "cluster": cluster.name, "node": sleep.node.name, "id": f"{verb}-{sleep.pk}"}
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
