"""Schedule: promise GPUs to what fits, and tell the rest why they wait.

Who is eligible   waiting jobs, in the order of the cluster's policy.
What a turn does  jobs that fit become CONFIGURING, their GPUs are taken and deeds say that the cluster must be told,
                  up to a hundred in one transaction; the others get their reason. Who must give way is asked for a
                  checkpoint and stopped by deeds of its own; the room is promised by the turn that finds it free.
                  Jobs whose dependency can never come true fail.
Failure story     Killed between two transactions: the rest waits for the next turn. Two schedulers at once: the lease's
                  term is checked in each transaction, and the database refuses a second holder of a GPU; the promises
                  of that transaction are then made one by one, so that only the one in conflict is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from django.db import DatabaseError, transaction

from jobs import actions
from jobs.journal import SCHEDULER
from jobs.lifecycle import State
from jobs.models import Cluster, Hold, Job, Mode
from jobs.promise_actions import Place, Promise, promise_all
from scheduling import snapshot
from scheduling.answers import worth_writing
from scheduling.engine.cluster import Decisions, Start, Stop
from scheduling.engine.policies import Policy
from scheduling.loops.rows import one_row

log = logging.getLogger(__name__)

PROMISES_AT_ONCE = 100  # holds its jobs and nodes locked for some tens of milliseconds


def schedule_once(cluster: Cluster, policy: Policy, now: datetime, fence: Callable[[], None]) -> int:
    """Promise what fits, ask who must give way, tell the rest why they wait. Return how many deeds that left."""
    if cluster.mode == Mode.OBSERVE:
        return 0
    for job, why in snapshot.never_met(cluster):
        with one_row(job):
            actions.give_up(job, why, now=now, author=SCHEDULER)
    picture = snapshot.of(cluster, now)
    if not picture.waiting:
        return 0
    decided = policy(picture)
    answers = worth_writing(picture, decided.waits)
    actions.explain_waits([(wait.job_id, wait.reason, wait.why) for wait in answers])
    if cluster.mode == Mode.ADVISE:
        return _advise(decided)
    names = {node.id: node.name for node in picture.nodes}
    promised = 0
    for stop in decided.stops:
        with one_row(f"job {stop.job_id}"):
            promised += _preempt(stop, fence)
    for group in _groups(decided.starts):
        promised += _promise(cluster, group, names, fence)
    return promised


def _advise(decided: Decisions) -> int:
    """Say what would be done; do nothing."""
    said = [(s.job_id, "None", f"Acme would start it now: {s.why}") for s in decided.starts]
    victims: dict[int, list[int]] = {}
    for stop in decided.stops:
        victims.setdefault(stop.for_job, []).append(stop.job_id)
    names = dict(Job.objects.filter(pk__in=[s.job_id for s in decided.stops]).values_list("pk", "public_id"))
    said += [
        (job, "Resources", f"Acme would stop {', '.join(names[victim] for victim in those)} to make room for it.")
        for job, those in victims.items()
        if job
    ]
    actions.explain_waits(said)
    return 0


def _preempt(stop: Stop, fence: Callable[[], None]) -> bool:
    """Not for a job that needs the room no more: what people did since the look counts."""
    with transaction.atomic():
        fence()
        waits = Job.objects.filter(pk=stop.for_job, state=State.PENDING, hold=Hold.NONE).first()
        if stop.for_job and waits is None:
            return False
        victim = Job.objects.select_related("cluster").get(pk=stop.job_id)
        actions.preempt(victim, author=SCHEDULER, why=stop.why, for_job=waits.public_id if waits else "")
    return True


def _promise(cluster: Cluster, starts: Sequence[Start], names: Mapping[int, str], fence: Callable[[], None]) -> int:
    """All in one transaction; where that fails for one of them, each in its own."""
    wanted = [
        Promise(
            job_id=start.job_id,
            places=[Place(node_id=node, name=names[node], gpus=gpus) for node, gpus in start.places.items()],
            why=start.why,
        )
        for start in starts
    ]
    try:
        with transaction.atomic():
            fence()
            promised = promise_all(wanted, author=SCHEDULER, log_root=cluster.log_root)
    except DatabaseError as error:
        if len(starts) > 1:
            return sum(_promise(cluster, [start], names, fence) for start in starts)
        log.info("job %s was left for the next turn: %s", starts[0].job_id, error)
        return 0
    for why in promised.left.values():
        log.info("%s; next turn looks again", why)
    return len(promised.kept)


def _groups(starts: Sequence[Start]) -> Iterator[Sequence[Start]]:
    for first in range(0, len(starts), PROMISES_AT_ONCE):
        yield starts[first : first + PROMISES_AT_ONCE]
