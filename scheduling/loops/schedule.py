"""Schedule: promise GPUs to what fits, and tell the rest why they wait.

Who is eligible   waiting jobs, in the order of the cluster's policy.
What a turn does  a job that fits becomes CONFIGURING, its GPUs are taken and a deed says that the cluster must be told,
                  all in one transaction; the others get their reason. Who must give way is asked for a checkpoint and
                  stopped by deeds of its own; the room is promised by the turn that finds it free. Jobs whose
                  dependency can never come true fail.
Failure story     Killed between two promises: the rest waits for the next turn. Two schedulers at once: the lease's
                  term is checked in the transaction of each promise, and the database refuses a second holder of a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from django.db import IntegrityError, transaction

from jobs import actions
from jobs.actions import Place
from jobs.journal import SCHEDULER
from jobs.lifecycle import State
from jobs.models import Cluster, Hold, Job, Mode
from scheduling import snapshot
from scheduling.engine.cluster import Decisions, Start, Stop
from scheduling.engine.policies import Policy
from scheduling.loops.rows import one_row

log = logging.getLogger(__name__)


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
    actions.explain_waits([(wait.job_id, wait.reason, wait.why) for wait in decided.waits])
    if cluster.mode == Mode.ADVISE:
        return _advise(decided)
    names = {node.id: node.name for node in picture.nodes}
    promised = 0
    for stop in decided.stops:
        with one_row(f"job {stop.job_id}"):
            promised += _preempt(stop, fence)
    for start in decided.starts:
        with one_row(f"job {start.job_id}"):
            promised += _promise(cluster, start, names, fence)
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


def _promise(cluster: Cluster, start: Start, names: dict[int, str], fence: Callable[[], None]) -> bool:
    places = [Place(node_id=node, name=names[node], gpus=gpus) for node, gpus in start.places.items()]
    try:
        with transaction.atomic():
            fence()
            job = Job.objects.select_for_update().get(pk=start.job_id)
            log_path = f"{cluster.log_root}/{job.public_id}-{job.attempts.count() + 1}.log" if cluster.log_root else ""
            actions.promise(job, places, author=SCHEDULER, why=start.why, log_path=log_path)
    except IntegrityError:
        log.info("job %s: somebody else took a GPU of its place; next turn looks again", start.job_id)
        return False
    return True
