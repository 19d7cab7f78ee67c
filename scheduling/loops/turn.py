"""One turn of a cluster's loop: tell it what was decided, look at it, decide, tell it.

Who is eligible   a cluster whose lease is free; any worker may run any turn, woken by beat or by a wish.
What a turn does  `maintain_once` closes and opens the nodes of maintenances,
                  `deliver_once` carries out due deeds, `sync_once` takes over what the cluster reports,
                  `worlds_once` makes the next step of tests of nodes in pairs,
                  `drain_once` sends away who must leave a node,
                  `limits_once` ends who is over his time,
                  `schedule_once` promises GPUs to waiting jobs or tells them why they wait, `deliver_once` again.
Failure story     Killed while holding the lease: its database session is gone, so the next tick takes the lease over,
                  and with it the deeds that were in the dead worker's hands. A machine that lost its network says
                  nothing; there the lease runs out. Asleep past the lease: each promise checks the term in its own
                  transaction and fails; the deeds in its hands are left to it until their claim runs out. Cluster
                  away: nothing is known, so nothing is decided; its name and since when are shown. Killed anywhere
                  else: see the three modules, each step is repeatable.

No transaction is open while a cluster is called or a policy thinks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from acmeweb import live
from jobs import clock, tally
from jobs.models import Cluster
from scheduling.backends.base import Backend, BackendError
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
from scheduling.models import Lease

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


def turns(cluster_id: int, holder: str, connect: Callable[[Cluster], Backend]) -> int:
    """Turns until nobody wants another; 0 when another worker is at it. Bursts of wishes merge into one turn."""
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
            turn_once(Cluster.objects.get(pk=cluster_id), connect, lease, began)
            if not Cluster.objects.filter(pk=cluster_id, wanted_at__gt=began).exists():
                return done
        return TURNS_IN_A_ROW
    except LeaseLost as lost:
        log.warning("%s", lost)
        return 0
    finally:
        Lease.give_back(name, taken.term)


def turn_once(cluster: Cluster, connect: Callable[[Cluster], Backend], lease: Held, now: datetime) -> None:
    try:
        maintain_once(cluster, now)
        policy, backend = _policy(cluster), connect(cluster)
        deliver_once(cluster, backend, now)
        lease.renew()
        sync_once(cluster, backend, clock.now())
        lease.renew()
        worlds_once(cluster, backend, clock.now())
        left = drain_once(cluster, clock.now()) + limits_once(cluster, clock.now())
        with tally.timed("schedule_cycle", cluster.name):
            started = schedule_once(cluster, policy, clock.now(), lease.check)
        if left + started:
            lease.renew()
            deliver_once(cluster, backend, clock.now())
    except (BackendError, Misconfigured, Missing) as error:
        _note_trouble(cluster, str(error))


def _policy(cluster: Cluster) -> Policy:
    if cluster.policy not in POLICIES:
        raise Misconfigured(f"policy: {cluster.policy!r} is none of {', '.join(POLICIES)}")
    if cluster.placement not in PLACEMENTS:
        raise Misconfigured(f"placement: {cluster.placement!r} is none of {', '.join(PLACEMENTS)}")
    try:
        return configured(cluster.policy, cluster.policy_settings)
    except BadSettings as error:
        raise Misconfigured(f"policy_settings: {error}") from None


def _note_trouble(cluster: Cluster, trouble: str) -> None:
    if Cluster.objects.filter(pk=cluster.pk).exclude(trouble=trouble).update(trouble=trouble):
        log.warning("cluster %s: %s", cluster, trouble)
        live.changed("nodes")
