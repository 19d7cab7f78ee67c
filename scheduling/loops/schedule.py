"""Schedule: start the jobs that fit, and record why the others wait.

Eligible rows     Waiting jobs, in the order of the cluster's policy.
What a turn does  New jobs get their predicted run time. Jobs that fit become CONFIGURING: their GPUs are allocated and
                  commands for the cluster are queued, up to a hundred jobs per transaction. The others get their wait
                  reason. Jobs to preempt are asked for a checkpoint and then cancelled by commands; a later turn
                  allocates the freed GPUs. A job that is preempted only at checkpoints is asked for one and stopped by
                  a later turn, when it has saved. Nodes that sleep wake up for the jobs that were allocated
                  on them. Jobs whose dependency can never be met fail.
Failure story     Killed between two transactions: the remaining jobs wait for the next turn. Two schedulers at once:
                  each transaction checks the term of the lease, and a constraint prevents two allocations of one GPU.
                  After such a conflict the jobs of the transaction are started one by one, so only the conflicting
                  one is skipped. Contracts (`jobs.core.preemption_contract`): each preemption reads the contract's
                  facts again under the lock, so a snapshot that is old stops nobody it may not stop. Killed between a
                  request for a checkpoint and the preemption: the request is in the attempt's row, and any later turn
                  that finds the checkpoint new preempts the job. Run twice: an open request is not repeated. Late: a
                  checkpoint that is too old by then is not used, the job is asked for another one; a stop that was
                  recorded but not sent in time is withdrawn (`stop.withdraw_late_preemptions`). The job that needed
                  the GPUs was cancelled meanwhile: the checkpoint was saved for nothing, and nobody is stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from django.db import DatabaseError, transaction

from jobs.actions import jobs as job_actions
from jobs.actions.jobs import WaitReason
from jobs.actions.journal import SCHEDULER
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.promise import JobPlacement, NodeGpus, allocate_jobs
from jobs.core.lifecycle import State
from jobs.models import Cluster, ClusterMode, HoldKind, Job
from scheduling.actions.history import predict_new_jobs
from scheduling.engine.cluster import ClusterSnapshot, StartDecision, StopDecision, TurnDecisions, WaitDecision
from scheduling.engine.policies import LivePolicy
from scheduling.power.actions import sleeps as node_sleeps
from scheduling.queries import snapshot

log = logging.getLogger(__name__)

STARTS_PER_TRANSACTION = 100  # locks its jobs and nodes for tens of milliseconds
MAX_CHANGED_ROWS = 1000


def schedule_once(cluster: Cluster, policy: LivePolicy, now: datetime, fence: Callable[[], None]) -> int:
    """Start jobs, preempt jobs, and record wait reasons. Return how many starts and preemptions were queued."""
    if cluster.mode == ClusterMode.OBSERVE or not Job.objects.waiting().filter(cluster=cluster).exists():
        return 0
    for job, why in snapshot.unsatisfiable_dependencies(cluster):
        with skip_row_on_error(job):
            job_actions.fail_unstartable_job(job, why, now=now, author=SCHEDULER)
    picture = predict_new_jobs(cluster, snapshot.take_snapshot(cluster, now))
    if not picture.waiting:
        return 0
    decided = policy(picture)
    answers = changed_wait_reasons(picture, decided.waits)
    job_actions.store_wait_reasons(
        [WaitReason(wait.job_id, wait.reason, wait.why, wait.power_budgets) for wait in answers]
    )
    if cluster.mode == ClusterMode.ADVISE:
        return _advise(decided)
    names = {node.id: node.name for node in picture.nodes}
    promised = 0
    for decisions, act in ((decided.stops, job_actions.preempt), (decided.asks, job_actions.ask_for_checkpoint)):
        for stop in decisions:
            with skip_row_on_error(f"job {stop.job_id}"):
                promised += _act_on_victim(stop, act, fence)
    for group in _start_batches(decided.starts):
        promised += _allocate_starts(cluster, group, names, fence, now)
    return promised


def _advise(decided: TurnDecisions) -> int:
    """Record what Acme would do in mode drive. Nothing is started or stopped."""
    reasons = [WaitReason(start.job_id, "None", f"Acme would start it now: {start.why}") for start in decided.starts]
    victims: dict[int, list[int]] = {}
    for stop in decided.stops:
        victims.setdefault(stop.for_job, []).append(stop.job_id)
    names = dict(Job.objects.filter(pk__in=[stop.job_id for stop in decided.stops]).values_list("pk", "public_id"))
    reasons += [
        WaitReason(job, "Resources", f"Acme would preempt {', '.join(names[victim] for victim in jobs)} to start it.")
        for job, jobs in victims.items()
        if job
    ]
    job_actions.store_wait_reasons(reasons)
    return 0


def _act_on_victim(stop: StopDecision, act: Callable[..., None], fence: Callable[[], None]) -> bool:
    """Preempt the job or ask it for a checkpoint, unless the job that needs its GPUs no longer waits: user actions
    take precedence."""
    with transaction.atomic():
        fence()
        waits = Job.objects.filter(pk=stop.for_job, state=State.PENDING, hold=HoldKind.NONE).first()
        if stop.for_job and waits is None:
            return False
        victim = Job.objects.select_related("cluster").get(pk=stop.job_id)
        act(victim, author=SCHEDULER, why=stop.why, for_job=waits.public_id if waits else "")
    return True


def _allocate_starts(
    cluster: Cluster,
    starts: Sequence[StartDecision],
    names: Mapping[int, str],
    fence: Callable[[], None],
    now: datetime,
) -> int:
    """Allocate all starts in one transaction. If that fails, allocate each start in its own."""
    placements = [
        JobPlacement(
            job_id=start.job_id,
            places=[
                NodeGpus(node_id=node, name=names[node], gpus=gpus, gpu_milli=start.gpu_milli)
                for node, gpus in start.places.items()
            ],
            why=start.why,
            slowdown=start.slowdown,
        )
        for start in starts
    ]
    try:
        with transaction.atomic():
            fence()
            logs = {"new_log_path": cluster.new_log_path, "copies_logs": cluster.copies_logs}
            promised = allocate_jobs(placements, author=SCHEDULER, **logs)
            if promised.attempts:
                started = [plan for plan in placements if plan.job_id not in promised.skip_reasons]
                used = {place.node_id for plan in started for place in plan.places}
                node_sleeps.wake_for_jobs(used, author=SCHEDULER, now=now)
    except DatabaseError as error:
        if len(starts) > 1:
            return sum(_allocate_starts(cluster, [start], names, fence, now) for start in starts)
        log.info("job %s was skipped; retrying in the next turn: %s", starts[0].job_id, error)
        return 0
    for why in promised.skip_reasons.values():
        log.info("%s; retrying in the next turn", why)
    return len(promised.attempts)


def _start_batches(starts: Sequence[StartDecision]) -> Iterator[Sequence[StartDecision]]:
    for first in range(0, len(starts), STARTS_PER_TRANSACTION):
        yield starts[first : first + STARTS_PER_TRANSACTION]


def changed_wait_reasons(
    picture: ClusterSnapshot, waits: Iterable[WaitDecision], most: int = MAX_CHANGED_ROWS
) -> list[WaitDecision]:
    """The decisions to write: those that differ from the stored rows, at most about twice `most`.

    When one GPU comes free, the sentence of every waiting job changes, and rewriting ten thousand rows takes longer
    than the rest of the turn. So a turn writes first the rows whose reason changed, in queue order; of those with other
    numbers in the sentence only, a rotating share. In a queue of ten thousand, a sentence in a list may be about ten
    seconds old. The page of a single job computes its answer on request.
    """
    stored = {job.id: (job.reason, job.why, job.power_budgets) for job in picture.waiting}
    changed = [wait for wait in waits if stored[wait.job_id] != (wait.reason, wait.why, wait.power_budgets)]
    if len(changed) <= most:
        return changed
    new_reasons = [wait for wait in changed if stored[wait.job_id][0] != wait.reason]
    new_sentences = [wait for wait in changed if stored[wait.job_id][0] == wait.reason]
    return new_reasons[:most] + _rotating_share(new_sentences, most, picture.now)


def _rotating_share(waits: list[WaitDecision], most: int, now: datetime) -> list[WaitDecision]:
    """The part to write in this second. Each decision is selected once in as many seconds as there are shares."""
    shares = -(-len(waits) // most)
    return [wait for wait in waits if (wait.job_id + int(now.timestamp())) % shares == 0] if shares else []
