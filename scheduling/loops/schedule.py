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

from jobs.actions import jobs as job_actions
from jobs.actions.journal import SCHEDULER
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.promise import JobPlacement, NodeGpus, allocate_jobs
from jobs.core.lifecycle import State
from jobs.models import Cluster, ClusterMode, HoldKind, Job
from scheduling.core.changed_wait_reasons import changed_wait_reasons
from scheduling.engine.cluster import StartDecision, StopDecision, TurnDecisions
from scheduling.engine.policies import LivePolicy
from scheduling.queries import snapshot

log = logging.getLogger(__name__)

STARTS_PER_TRANSACTION = 100  # holds its jobs and nodes locked for some tens of milliseconds


def schedule_once(cluster: Cluster, policy: LivePolicy, now: datetime, fence: Callable[[], None]) -> int:
    """Promise what fits, ask who must give way, tell the rest why they wait. Return how many deeds that left."""
    if cluster.mode == ClusterMode.OBSERVE:
        return 0
    for job, why in snapshot.unsatisfiable_dependencies(cluster):
        with skip_row_on_error(job):
            job_actions.fail_unstartable_job(job, why, now=now, author=SCHEDULER)
    picture = snapshot.take_snapshot(cluster, now)
    if not picture.waiting:
        return 0
    decided = policy(picture)
    answers = changed_wait_reasons(picture, decided.waits)
    job_actions.store_wait_reasons([(wait.job_id, wait.reason, wait.why) for wait in answers])
    if cluster.mode == ClusterMode.ADVISE:
        return _advise(decided)
    names = {node.id: node.name for node in picture.nodes}
    promised = 0
    for stop in decided.stops:
        with skip_row_on_error(f"job {stop.job_id}"):
            promised += _preempt(stop, fence)
    for group in _start_batches(decided.starts):
        promised += _allocate_starts(cluster, group, names, fence)
    return promised


def _advise(decided: TurnDecisions) -> int:
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
    job_actions.store_wait_reasons(said)
    return 0


def _preempt(stop: StopDecision, fence: Callable[[], None]) -> bool:
    """Not for a job that needs the room no more: what people did since the look counts."""
    with transaction.atomic():
        fence()
        waits = Job.objects.filter(pk=stop.for_job, state=State.PENDING, hold=HoldKind.NONE).first()
        if stop.for_job and waits is None:
            return False
        victim = Job.objects.select_related("cluster").get(pk=stop.job_id)
        job_actions.preempt(victim, author=SCHEDULER, why=stop.why, for_job=waits.public_id if waits else "")
    return True


def _allocate_starts(
    cluster: Cluster, starts: Sequence[StartDecision], names: Mapping[int, str], fence: Callable[[], None]
) -> int:
    """All in one transaction; where that fails for one of them, each in its own."""
    wanted = [
        JobPlacement(
            job_id=start.job_id,
            places=[NodeGpus(node_id=node, name=names[node], gpus=gpus) for node, gpus in start.places.items()],
            why=start.why,
        )
        for start in starts
    ]
    try:
        with transaction.atomic():
            fence()
            promised = allocate_jobs(wanted, author=SCHEDULER, log_root=cluster.log_root)
    except DatabaseError as error:
        if len(starts) > 1:
            return sum(_allocate_starts(cluster, [start], names, fence) for start in starts)
        log.info("job %s was skipped, the next turn retries it: %s", starts[0].job_id, error)
        return 0
    for why in promised.left.values():
        log.info("%s; next turn looks again", why)
    return len(promised.kept)


def _start_batches(starts: Sequence[StartDecision]) -> Iterator[Sequence[StartDecision]]:
    for first in range(0, len(starts), STARTS_PER_TRANSACTION):
        yield starts[first : first + STARTS_PER_TRANSACTION]
