"""Send the queued commands to the cluster.

Eligible rows     Open commands that are due, the oldest first. A claim moves the due time ahead, so no other worker
                  claims them.
What a turn does  Submits jobs (many at once), then signals, requests stacks, cancels, drains, resumes, tests and powers
                  nodes down and up. Jobs wait for nodes that wake up, where the cluster does not do that itself. A job
                  that has saved its requested checkpoint is cancelled without waiting for the end of its grace time.
                  An attempt whose job runs again elsewhere is evicted; while the cluster refuses that, it is asked
                  again every 30 s.
                  A preemption at a checkpoint that is too old by now is withdrawn instead of sent.
                  Records each outcome, or the time of the next try.
Failure story     A try is counted before it is made. Killed between sending a command and recording the outcome: the
                  next claim sees a second try, and looks up the result of the first one before it submits again. A
                  lost response is handled the same way. Commands claimed by a dead worker are released as soon as the
                  next worker has the cluster's lease (`claims.release_claims`). A worker that was suspended past its
                  claim cannot record an outcome: the number of tries is the fencing token.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from jobs.actions import nodes as node_actions
from jobs.actions import stop
from jobs.actions.journal import SCHEDULER
from jobs.actions.nodes import NodeTestResult
from jobs.actions.one_row import skip_row_on_error
from jobs.core.lifecycle import NodeFlag, State
from jobs.core.preemption_contract import CHECKPOINT_ANSWER_TIME
from jobs.core.slurm_notation import parse_signal
from jobs.models import Allocation, Attempt, Cluster, ClusterCommand, ClusterCommandKind, ClusterMode
from scheduling.backends.base import Backend, ClusterUnreachable, EvictionRefused, OutcomeUnknown, RequestRejected
from scheduling.loops import node_tests
from scheduling.loops.commands.claims import claim, postpone_command, settle_command
from scheduling.loops.commands.submit import submit_attempts
from scheduling.models import NodeSleep

MAX_CLAIMS_PER_TURN = 8  # leaves time for the other steps of the turn
NODE_TEST_RETRY_INTERVAL = timedelta(seconds=2)
CANCEL_RETRY_INTERVAL = timedelta(seconds=30)
WAKE_RETRY_INTERVAL = timedelta(seconds=2)
MAX_WAKE_DELAY = timedelta(minutes=10)
JOB_BOOT_DELAY = timedelta(seconds=10)  # within which a cluster that powers its nodes boots them for a submitted job
ENDS_JOB = (State.CANCELLED, State.TIMEOUT, State.DEADLINE)  # stops after which the job does not run again
MAX_STACK_REQUEST_AGE = timedelta(seconds=30)


def send_commands_once(cluster: Cluster, backend: Backend, now: datetime, looked_at: datetime | None = None) -> int:
    """Send due commands, the oldest first. Return how many were settled. `looked_at`: see `submit`."""
    if cluster.mode != ClusterMode.DRIVE:
        return 0
    settled = 0
    stop.end_grace_after_checkpoint(cluster, now)
    stop.withdraw_late_preemptions(cluster, now, author=SCHEDULER)
    for _ in range(MAX_CLAIMS_PER_TURN):
        if not (commands := claim(cluster, now)):
            break
        settled += submit_attempts(
            [command for command in commands if command.kind == ClusterCommandKind.SUBMIT], backend, now, looked_at
        )
        settled += sum(
            _send_isolated(command, backend, now) for command in commands if command.kind != ClusterCommandKind.SUBMIT
        )
    return settled


def _send_isolated(command: ClusterCommand, backend: Backend, now: datetime) -> bool:
    try:
        with skip_row_on_error(command):
            return _send_or_record_refusal(command, backend, now)
    except OutcomeUnknown as doubt:
        postpone_command(command, now, f"in doubt: {doubt}")
    except ClusterUnreachable as error:
        postpone_command(command, now, str(error), sent_nothing=True)
        raise  # the other commands would fail too
    return False


def _send_or_record_refusal(command: ClusterCommand, backend: Backend, now: datetime) -> bool:
    try:
        return _deliver(command, backend, now)
    except RequestRejected as refusal:
        return _record_refusal(command, str(refusal), now)


def _deliver(command: ClusterCommand, backend: Backend, now: datetime) -> bool:
    match command.kind:
        case ClusterCommandKind.CANCEL:
            return _cancel(command, backend, now)
        case ClusterCommandKind.CANCEL_ID:
            backend.cancel(command.reason)
        case ClusterCommandKind.SIGNAL:
            return _signal(command, backend, now)
        case ClusterCommandKind.STACKS:
            return _send_stack_signal(command, backend, now)
        case ClusterCommandKind.TEST:
            return _step_node_test(command, backend, now)
        case ClusterCommandKind.DRAIN:
            backend.drain(command.node.name, command.reason)
        case ClusterCommandKind.RESUME:
            backend.resume(command.node.name)
        case ClusterCommandKind.SLEEP:
            backend.power_down(command.node.name)
        case ClusterCommandKind.WAKE:
            return _wake(command, backend, now)
    return settle_command(command, now, "done")


def _cancel(command: ClusterCommand, backend: Backend, now: datetime) -> bool:
    """Cancel the attempt. The command stays open until the attempt has ended, and is repeated, because a signal may be
    lost."""
    attempt = command.attempt
    if attempt.ended_at:
        return settle_command(command, now, "ended")
    if attempt.backend_id:
        postpone_command(command, now, _stop(attempt, backend), CANCEL_RETRY_INTERVAL)
    else:
        postpone_command(command, now, "waiting for the response to its submission", timedelta(seconds=1))
    return False


def _stop(attempt: Attempt, backend: Backend) -> str:
    """Cancel the attempt, or evict it if its job runs again later. Return what happened."""
    if attempt.stop_state in ENDS_JOB:
        backend.cancel(attempt.backend_id)
        return "signalled"
    try:
        backend.evict(attempt.backend_id)
    except EvictionRefused as refusal:
        return f"not evicted: {refusal}"
    return "signalled"


def _wake(command: ClusterCommand, backend: Backend, now: datetime) -> bool:
    """Wake the node up. While it falls asleep, wait: some clusters drop the request then.

    A node that boots for a job does not boot a second time: Slurm would wait for that boot in vain and set the node
    down. A look before the request cannot exclude this, because the boot may begin in between.
    """
    falls_asleep = {NodeFlag.POWER_DOWN, NodeFlag.POWERING_DOWN}.intersection(command.node.flags)
    if falls_asleep and now - command.created_at < MAX_WAKE_DELAY:
        postpone_command(command, now, "the node is still falling asleep", WAKE_RETRY_INTERVAL, sent_nothing=True)
        return False
    if backend.traits.powers_nodes and _is_booted_by_job(command, now):
        postpone_command(command, now, "the cluster boots the node for its job", WAKE_RETRY_INTERVAL, sent_nothing=True)
        return False
    backend.power_up(command.node.name)
    return settle_command(command, now, "done")


def _is_booted_by_job(command: ClusterCommand, now: datetime) -> bool:
    """Whether the cluster should begin to boot the node for a job that was submitted to it just now."""
    if NodeFlag.POWERED_DOWN not in command.node.flags:
        return False
    is_new = NodeSleep.objects.filter(node=command.node_id, closed_at=None, wake_requested_at__gt=now - JOB_BOOT_DELAY)
    return is_new.exists() and Allocation.objects.live().filter(node=command.node_id, attempt__stop_state="").exists()


def _signal(command: ClusterCommand, backend: Backend, now: datetime) -> bool:
    """Request a checkpoint. Repeating it is harmless; if it is too late, the job is stopped without a checkpoint, or
    goes on if it was only asked for one."""
    attempt, ask = command.attempt, parse_signal(command.reason)
    if attempt.ended_at or not (attempt.stop_state or attempt.checkpoint_asked_at):
        return settle_command(command, now, "no longer needed")
    unsent_stops = ClusterCommand.objects.open().filter(attempt=attempt, kind=ClusterCommandKind.CANCEL, tries=0)
    is_old = now - command.created_at > CHECKPOINT_ANSWER_TIME
    if not unsent_stops.exists() if attempt.stop_state else is_old:
        return settle_command(command, now, "too late")
    backend.signal(attempt.backend_id, ask.signal, shell=ask.shell)
    return settle_command(command, now, "signalled")


def _send_stack_signal(command: ClusterCommand, backend: Backend, now: datetime) -> bool:
    """Request stack dumps. Repeating it only adds lines to the log. Late requests are dropped, because recovery has
    continued without them."""
    attempt, ask = command.attempt, parse_signal(command.reason)
    if attempt.ended_at or attempt.stop_state or not attempt.backend_id:
        return settle_command(command, now, "no longer needed")
    if now - command.created_at > MAX_STACK_REQUEST_AGE:
        return settle_command(command, now, "too late")
    backend.signal(attempt.backend_id, ask.signal, shell=ask.shell)
    return settle_command(command, now, "signalled")


def _step_node_test(command: ClusterCommand, backend: Backend, now: datetime) -> bool:
    """Run the next step of a node test. The command stays open until the test has a result."""
    result = node_tests.step_node_test(command, backend, now)
    if isinstance(result, str):
        postpone_command(command, now, result, NODE_TEST_RETRY_INTERVAL)
        return False
    return _record_node_test(command, result, now)


def _record_node_test(command: ClusterCommand, outcome: NodeTestResult, now: datetime) -> bool:
    with transaction.atomic():
        settled = settle_command(command, now, outcome.sentence)
        if settled:
            node_actions.record_node_test(command.node, command, outcome, author=SCHEDULER)
    return settled


def _record_refusal(command: ClusterCommand, why: str, now: datetime) -> bool:
    if command.kind == ClusterCommandKind.TEST:
        return _record_node_test(command, NodeTestResult(passed=False, why=f"the cluster rejected it: {why}"), now)
    return settle_command(command, now, f"refused: {why}")
