"""Submit many attempts at once over several connections, and record the results in one transaction.

An earlier try may have been accepted although its response was lost, and the cluster may have run the job and forgotten
it since. So attempts from before this turn's sync are first looked up on the cluster by their keys, with one request.
If such an attempt is not found and may have been sent before, the loop `outcomes` checks accounting and the attempt
record, and either allows another submission or closes the attempt. If the worker is killed after the calls, the next
claim follows the same path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from jobs.actions import jobs as job_actions
from jobs.actions import progress, stack_requests, stop
from jobs.actions.journal import SCHEDULER, SYNC
from jobs.actions.one_row import skip_row_on_error
from jobs.core.backend_job import BackendJob
from jobs.core.checkpoint_interval import CHECKPOINT_TEMPLATE_VARIABLE, resume_variables
from jobs.core.gpu_shares import SHARD, shards_of_milli
from jobs.core.lifecycle import ASLEEP_NODE_FLAGS, NodeFlag
from jobs.models import Allocation, Attempt, ClusterCommand, Installation, Job
from scheduling.backends.attempt_record import RECORD_VARIABLE, record_directory
from scheduling.backends.base import (
    Backend,
    BackendError,
    OutcomeUnknown,
    PlacementRejected,
    RequestRejected,
    SubmitRequest,
)
from scheduling.loops.commands.claims import (
    may_have_been_sent,
    postpone_command,
    postpone_commands,
    settle_command,
    settle_commands,
)
from scheduling.loops.observe.observations import pick_job
from scheduling.models import NodeSleep

LOOKUP_TIMEOUT = timedelta(seconds=30)  # then the lookup is repeated; a finished lookup makes the command due earlier
WAKE_CHECK_INTERVAL = timedelta(seconds=2)
ASLEEP = [flag.value for flag in ASLEEP_NODE_FLAGS]
FALLS_ASLEEP = [NodeFlag.POWER_DOWN.value, NodeFlag.POWERING_DOWN.value]
FALLBACK_WORKDIR = "/tmp"  # Slurm requires a directory; this one exists on every node  # noqa: S108


def submit_attempts(
    commands: Sequence[ClusterCommand], backend: Backend, now: datetime, looked_at: datetime | None = None
) -> int:
    """Submit the attempts. Return how many commands were settled. Raises ClusterUnreachable, after recording results.

    `looked_at` is the time of this turn's sync with the cluster: attempts created since then are new.
    """
    settled, accepted, to_send = 0, {}, []
    known, hidden = _find_submitted(commands, backend, now, looked_at)
    unready = _attempts_on_unready_nodes(commands, backend) if commands else set()
    for command in commands:
        attempt = command.attempt
        if attempt.ended_at:
            settled += settle_command(command, now, "no longer needed")
        elif attempt.key in known:
            accepted[command] = known[attempt.key]
        elif attempt.key in hidden:
            postpone_command(command, now, "an unreadable row of the cluster may be this job")
        elif attempt.stop_state:
            with skip_row_on_error(command):
                settled += _withdraw(command, now)
        elif may_have_been_sent(command):
            with skip_row_on_error(command):
                _postpone_for_lookup(command, now)
        elif command.attempt_id in unready:
            postpone_command(command, now, "its nodes wake up", WAKE_CHECK_INTERVAL, sent_nothing=True)
        else:
            to_send.append(command)
    answers = backend.submit_all(_submissions([command.attempt for command in to_send]))
    failed: list[tuple[ClusterCommand, BackendError]] = []
    for command, answer in zip(to_send, answers, strict=True):
        if isinstance(answer, BackendError):
            failed.append((command, answer))
        else:
            accepted[command] = answer
    settled += _record_accepted(accepted, now)
    for command, error in failed:
        with skip_row_on_error(command):
            settled += _record_failure(command, error, now)
    _raise_if_unreachable([error for _, error in failed])
    return settled


def _raise_if_unreachable(errors: Sequence[BackendError]) -> None:
    """Raise the first error that would affect all other commands too."""
    for error in errors:
        if not isinstance(error, OutcomeUnknown | RequestRejected):
            raise error


def _attempts_on_unready_nodes(commands: Sequence[ClusterCommand], backend: Backend) -> set[int]:
    """Return the attempts that the cluster could not start yet, because their nodes sleep or fall asleep. A cluster
    that powers its nodes itself starts a job when the nodes have booted."""
    if backend.traits.powers_nodes:
        unready = Q(node__flags__overlap=FALLS_ASLEEP)
    else:
        unready = Q(node__flags__overlap=ASLEEP) | Q(node__in=NodeSleep.objects.active().values("node"))
    held = Allocation.objects.live().filter(unready, attempt__in=[command.attempt_id for command in commands])
    return set(held.values_list("attempt_id", flat=True))


def _postpone_for_lookup(command: ClusterCommand, now: datetime) -> None:
    job_actions.set_missing_since(command.attempt, command.attempt.missing_since or now)
    postpone_command(command, now, "in doubt: looking up the result of an earlier try", LOOKUP_TIMEOUT)


def _find_submitted(
    commands: Sequence[ClusterCommand], backend: Backend, now: datetime, looked_at: datetime | None
) -> tuple[Mapping[str, str], set[str]]:
    """Return the cluster's job id by key, and the keys that may be hidden in unreadable rows. If a key has several
    jobs, the one that ran or runs is returned."""
    keys = {
        command.attempt.key
        for command in commands
        if command.tries > 1 or not looked_at or command.created_at < looked_at
    }
    if not keys:
        return {}, set()
    installation = Installation.current_id()
    try:
        jobs = backend.jobs()
    except BackendError as error:
        postpone_commands(commands, now, str(error))
        raise
    ours: dict[str, list[BackendJob]] = defaultdict(list)
    for job in jobs:
        if job.key in keys and job.installation in ("", installation):
            ours[job.key].append(job)
    picked = [pick_job(candidates, "")[0] for candidates in ours.values()]
    return {job.key: job.backend_id for job in picked if job}, {key for key in keys if jobs.hides_job("", key)}


def _withdraw(command: ClusterCommand, now: datetime) -> bool:
    with transaction.atomic():
        job_actions.withdraw_attempt(command.attempt, now=now, author=SCHEDULER)
        return settle_command(command, now, "withdrawn before it was sent")


def _record_accepted(accepted: Mapping[ClusterCommand, str], now: datetime) -> int:
    with transaction.atomic():
        job_actions.record_backend_ids({command.attempt.pk: backend_id for command, backend_id in accepted.items()})
        return settle_commands({command: f"accepted as {backend_id}" for command, backend_id in accepted.items()}, now)


def _record_failure(command: ClusterCommand, error: BackendError, now: datetime) -> bool:
    if isinstance(error, RequestRejected):
        with transaction.atomic():
            about_place = isinstance(error, PlacementRejected)
            job_actions.record_submit_refusal(
                command.attempt, str(error), about_place=about_place, now=now, author=SYNC
            )
            return settle_command(command, now, f"refused: {error}")
    in_doubt = isinstance(error, OutcomeUnknown)
    postpone_command(command, now, f"in doubt: {error}" if in_doubt else str(error), sent_nothing=not in_doubt)
    return False


class AllocatedNode(NamedTuple):
    gpu_model: str
    shards_per_gpu: int
    share_gres: str


NO_NODE = AllocatedNode("", 0, SHARD)


def _submissions(attempts: Sequence[Attempt]) -> list[SubmitRequest]:
    placed: dict[int, dict[str, AllocatedNode]] = defaultdict(dict)
    rows = Allocation.objects.filter(attempt__in=attempts).order_by("node__name")
    for attempt, node, *hardware in rows.values_list(
        "attempt_id", "node__name", "node__gpu_model", "node__shards_per_gpu", "node__share_gres"
    ):
        placed[attempt][node] = AllocatedNode(*hardware)
    installation = Installation.current_id() if attempts else ""
    return [_submission(attempt, placed[attempt.pk], installation) for attempt in attempts]


def _submission(attempt: Attempt, nodes: Mapping[str, AllocatedNode], installation: str) -> SubmitRequest:
    """Return the request of one attempt."""
    job, hardware = attempt.job, next(iter(nodes.values()), NO_NODE)
    record = record_directory(attempt.log_path)
    return SubmitRequest(
        key=attempt.key,
        name=job.name,
        user=job.user.get_username(),
        account=job.team.name,
        script=job.command,
        workdir=job.workdir or FALLBACK_WORKDIR,
        environment={**job.environment, **_job_environment(attempt), **({RECORD_VARIABLE: record} if record else {})},
        nodes=tuple(nodes),
        gpus_per_node=job.gpus_per_node,
        gpu_shards=0 if job.mig_profile else shards_of_milli(job.gpu_milli, hardware.shards_per_gpu),
        share_gres=hardware.share_gres,
        mig_profile=job.mig_profile,
        gpu_model=hardware.gpu_model,  # the request may name several
        cpus_per_node=job.cpus_per_node,
        memory_per_node_mb=job.memory_per_node_mb,
        time_limit=job.time_limit,
        stdout=attempt.log_path,
        record=record,
        shell_signals=_signals_for_the_shell(attempt),
        image=job.image,
        wckey=job.wckey,
        mounts=tuple(job.mounts),
        checkpoint_signal=_checkpoint_signal(job),
        installation=installation,
    )


def _checkpoint_signal(job: Job) -> str:
    """Return the signal before a stop that the cluster decides itself, such as an eviction by its operators."""
    asked = stop.job_checkpoint_signal(job) if job.checkpoint_dir or job.checkpoint_signal else None
    return f"{asked.signal}@{int(asked.grace.total_seconds())}" if asked else ""


def _signals_for_the_shell(attempt: Attempt) -> tuple[str, ...]:
    """Return the signals that Acme may send to the batch shell only; the shell forwards them to the job's script."""
    asks = (stop.job_checkpoint_signal(attempt.job), stack_requests.attempt_stacks_signal(attempt))
    return tuple(ask.signal for ask in asks if ask and ask.shell)


def _job_environment(attempt: Attempt) -> dict[str, str]:
    """Return the environment variables that describe the job. Array tasks also get Slurm's variables of the index."""
    job, interval = attempt.job, attempt.job.checkpoint_interval
    variables = {
        "ACME_JOB_ID": job.public_id,
        "ACME_ATTEMPT": str(attempt.number),
        "ACME_KIND": job.kind,
        "ACME_CHECKPOINT_DIR": job.checkpoint_dir,
        "ACME_CHECKPOINT_INTERVAL_S": str(int(interval.total_seconds())) if interval else "",
        "ACME_URL": settings.ACME_URL,
        "ACME_PROGRESS_TOKEN": progress.run_token(attempt.key),
        "ACME_STACKS_SIGNAL": stacks.text if (stacks := stack_requests.attempt_stacks_signal(attempt)) else "",
    }
    variables |= resume_variables(job.resume, job.environment.get(CHECKPOINT_TEMPLATE_VARIABLE, ""))
    if job.array_index is not None:
        index = str(job.array_index)
        variables |= {"SLURM_ARRAY_JOB_ID": job.array_id, "SLURM_ARRAY_TASK_ID": index, "ACME_ARRAY_INDEX": index}
    return {name: value for name, value in variables.items() if value}
