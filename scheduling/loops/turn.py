"""One turn of a cluster's loop: tell it what was decided, look at it, decide, tell it.

Who is eligible   a cluster whose lease is free; any worker may run any turn, woken by beat or by a wish.
What a turn does  `maintain_once` closes and opens the nodes of maintenances,
                  `deliver_once` carries out due deeds, `sync_once` takes over what the cluster reports,
                  `worlds_once` makes the next step of tests of nodes in pairs,
                  `drain_once` sends away who must leave a node,
                  `limits_once` ends who is over his time,
                  `schedule_once` promises GPUs to waiting jobs or tells them why they wait, `deliver_once` again.
                  A cluster that does not answer in time is left alone for a while (`circuit_breaker`).
Failure story     Killed while holding the lease: its database session is gone, so the next tick takes the lease over,
                  and with it the deeds that were in the dead worker's hands. A machine that lost its network says
                  nothing; there the lease runs out. Asleep past the lease: each promise checks the term in its own
                  transaction and fails; the deeds in its hands are left to it until their claim runs out. Cluster
                  away: nothing is known, so nothing is decided; its name and since when are shown. An error of ours:
                  the turn ends, the cluster's page says which, and the next turn tries again. Killed anywhere
                  else: see the three modules, each step is repeatable.

No transaction is open while a cluster is called or a policy thinks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from celery.exceptions import SoftTimeLimitExceeded
from django.db import Error
from django.db.models.functions import Coalesce, Now

from acmeweb import live
from jobs import clock, tally
from jobs.models import Cluster
from scheduling import circuit_breaker, connections
from scheduling.backends.base import Backend, BackendError
from scheduling.circuit_breaker import LATE_S, PROBE_S, Admission, Guarded
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import POLICIES, BadSettings, Policy, configured
from scheduling.engine.settings import Missing
from scheduling.loops import deeds
from scheduling.loops.deliver import deliver_once
from scheduling.loops.drain import drain_once
from scheduling.loops.limits import limits_once
from scheduling.loops.maintain import maintain_once
from scheduling.loops.rows import TurnOver
from scheduling.loops.schedule import schedule_once
from scheduling.loops.sync import sync_once
from scheduling.loops.worlds import worlds_once
from scheduling.models import Endpoint, Lease

log = logging.getLogger(__name__)

LEASE = timedelta(seconds=30)
TURNS_IN_A_ROW = 20


class Misconfigured(Exception):
    """The cluster's row asks for something that is not there; its page says what."""


class LeaseLost(TurnOver):
    """Somebody else runs this cluster's loop by now: stop deciding."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """The lease of this turn."""

    name: str
    term: int

    def check(self) -> None:
        if not Lease.still_held(self.name, self.term):
            raise LeaseLost(f"{self.name}: term {self.term} is over")

    def renew(self) -> None:
        if not Lease.renew(self.name, self.term, LEASE):
            raise LeaseLost(f"{self.name}: term {self.term} is over")


Connect = Callable[[Cluster], Backend]
Ping = Callable[[Cluster, float], None]


def turns(
    cluster_id: int,
    holder: str,
    connect: Connect,
    ping: Ping = connections.ping,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Turns until nobody wants another; 0 when another worker is at it. Bursts of wishes merge into one turn.

    `ping` tries, within so many seconds, a cluster that did not answer in time before.
    """
    name = f"cluster:{cluster_id}"
    taken = Lease.take(name, holder, LEASE)
    if taken is None:
        return 0
    lease = Held(name=name, term=taken.term)
    try:
        if taken.alone:
            deeds.free(cluster_id, clock.now())
        for done in range(1, TURNS_IN_A_ROW + 1):
            began = clock.now()
            cluster = Cluster.objects.get(pk=cluster_id)
            if not _is_admitted(cluster, ping, monotonic):
                return done - 1
            turn_once(cluster, connect, lease, began)
            if not Cluster.objects.filter(pk=cluster_id, wanted_at__gt=began).exists():
                return done
        return TURNS_IN_A_ROW
    except LeaseLost as lost:
        log.warning("%s", lost)
        return 0
    finally:
        Lease.give_back(name, taken.term)


def _is_admitted(cluster: Cluster, ping: Ping, monotonic: Callable[[], float]) -> bool:
    """A cluster that did not answer in time is asked for a ping first, when its time has come.

    A ping that fails at once is no timeout: the turn then goes on, and says what is wrong.
    """
    admission = circuit_breaker.admission(cluster, Endpoint.CONTROL)
    if admission != Admission.TRY:
        return admission == Admission.FREE
    began = monotonic()
    try:
        ping(cluster, PROBE_S)
    except BackendError as error:
        if monotonic() - began <= LATE_S:
            return True
        circuit_breaker.note_timeout(cluster, Endpoint.CONTROL, str(error))
        _note_trouble(cluster, str(error))
        return False
    return True


def turn_once(cluster: Cluster, connect: Connect, lease: Held, now: datetime) -> None:
    guarded: Guarded | None = None
    try:
        maintain_once(cluster, now)
        policy = _policy(cluster)
        guarded = Guarded(connect(cluster))
        _act(cluster, policy, cast(Backend, guarded), lease, now)
        _clear_trouble(cluster)
    except (BackendError, Misconfigured, Missing) as error:
        _note_trouble(cluster, str(error))
    except TurnOver:
        raise
    except SoftTimeLimitExceeded:
        _note_failure(cluster, "it took too long and was stopped")
        raise
    except Exception as error:
        _note_failure(cluster, f"{type(error).__name__}: {error}")
        raise
    finally:
        _settle_circuit(cluster, guarded)


def _act(cluster: Cluster, policy: Policy, backend: Backend, lease: Held, now: datetime) -> None:
    deliver_once(cluster, backend, now)
    lease.renew()
    looked_at = clock.now()
    sync_once(cluster, backend, looked_at)
    lease.renew()
    worlds_once(cluster, backend, clock.now())
    left = drain_once(cluster, clock.now()) + limits_once(cluster, clock.now())
    with tally.timed("schedule_cycle", cluster.name):
        started = schedule_once(cluster, policy, clock.now(), lease.check)
    if left + started:
        lease.renew()
        deliver_once(cluster, backend, clock.now(), looked_at)


def _settle_circuit(cluster: Cluster, guarded: Guarded | None) -> None:
    """The database may be what failed; then the next turn finds out again."""
    with suppress(Error):
        if guarded is not None and guarded.late:
            circuit_breaker.note_timeout(cluster, Endpoint.CONTROL, guarded.late)
        elif guarded is not None:
            circuit_breaker.note_answer(cluster, Endpoint.CONTROL)


def _policy(cluster: Cluster) -> Policy:
    if cluster.policy not in POLICIES:
        raise Misconfigured(f"policy: {cluster.policy!r} is none of {', '.join(POLICIES)}")
    if cluster.placement not in PLACEMENTS:
        raise Misconfigured(f"placement: {cluster.placement!r} is none of {', '.join(PLACEMENTS)}")
    try:
        return configured(cluster.policy, cluster.policy_settings)
    except BadSettings as error:
        raise Misconfigured(f"policy_settings: {error}") from None


def _note_failure(cluster: Cluster, why: str) -> None:
    """An error of ours. Where the database is what failed, it cannot be written down."""
    with suppress(Error):
        _note_trouble(cluster, f"The scheduling turn failed: {why}"[:2000])


def _note_trouble(cluster: Cluster, trouble: str) -> None:
    columns = {"trouble": trouble, "trouble_since": Coalesce("trouble_since", Now())}
    if Cluster.objects.filter(pk=cluster.pk).exclude(trouble=trouble).update(**columns):
        log.warning("cluster %s: %s", cluster, trouble)
        live.changed("nodes")


def _clear_trouble(cluster: Cluster) -> None:
    if cluster.trouble:
        Cluster.objects.filter(pk=cluster.pk).update(trouble="", trouble_since=None)
        live.changed("nodes")
