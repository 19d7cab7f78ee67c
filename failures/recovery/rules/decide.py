"""The recovery decision for one failure, with arguments for and against. Pure: the same facts give the same answer.

The table in `remedies` lists what helps. This module selects the column of the table, the checkpoint and the nodes;
`limits` decides whether the action runs automatically. An attempt without known progress does not count against the
retry limit (`jobs.core.retry_budget`); the rate limit and the circuit breaker stop a restart loop in that case.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from failures.diagnosis.labels import UNKNOWN
from failures.diagnosis.values import FailureCategory, RestartAdvice
from failures.recovery.rules import resizing
from failures.recovery.rules.limits import DecisionDraft, mode_limits
from failures.recovery.rules.remedies import (
    ACTION_TERMS,
    CORDON_ACTIONS,
    REMEDIES,
    RESTART_ACTIONS,
    RecoveryAction,
    Remedy,
)
from failures.recovery.rules.values import (
    FailureFacts,
    FailureHistory,
    PastAction,
    RecoveryDecision,
    RecoveryPolicy,
    SavedCheckpoint,
)
from jobs.core.retry_budget import PastAttempt, crash_loop_reason

CORRUPT_CHECKPOINT_CAUSE = "CheckpointCorrupt"
SAME_OUTAGE_WITHIN = timedelta(minutes=10)
MAY_HAVE_PROGRESSED_AFTER = timedelta(hours=1)  # an attempt that reported no step


def decide(facts: FailureFacts, history: FailureHistory, policy: RecoveryPolicy, now: datetime) -> RecoveryDecision:
    _require_timezone(facts.at, now)
    action, why = _choose_action(facts, history, REMEDIES.get(facts.cause, REMEDIES["Unknown"]))
    change = resizing.propose_changes(facts.cause, facts.request) if action is RecoveryAction.RESIZE else ()
    base, lack = _choose_checkpoint(action, facts, history) if action in RESTART_ACTIONS or change else (None, "")
    if lack:
        action, why = RecoveryAction.STOP, lack
    drain, test, exemptions = _nodes_to_drain_and_test(action, facts, history)
    case = DecisionDraft(
        action=action, facts=facts, history=history, policy=policy, base=base, drain=drain, now=now, change=change
    )
    limits = mode_limits(case)
    mode = min((policy.mode(facts.team, action), *(mode for mode, _ in limits)), key=lambda mode: mode.rank)
    pro, con = _pros_and_cons(case)
    return RecoveryDecision(
        action=action, mode=mode, why=why, pro=pro, con=(*con, *exemptions), limits=limits, drain=drain, test=test,
        checkpoint=base, skip=_steps_to_skip(action, facts, policy, base), undo=ACTION_TERMS[action].undo,
        not_before=_earliest_start(action, facts, history, policy, now),
        expires_at=facts.at + ACTION_TERMS[action].expires, consumes_retry=history.step is not None, change=change,
    )  # fmt: skip


def _require_timezone(*moments: datetime) -> None:
    if any(moment.tzinfo is None for moment in moments):
        raise ValueError("at, now: the time has no time zone")


# --- which action


def _choose_action(facts: FailureFacts, history: FailureHistory, remedy: Remedy) -> tuple[RecoveryAction, str]:
    """The action from the matching column of the table, or STOP where a restart is ruled out; and the reason."""
    if facts.category is FailureCategory.SCRIPT:
        return RecoveryAction.STOP, f"{remedy.why}; change the program before you run it again"
    first = remedy.named if facts.named_nodes else remedy.unnamed
    action = remedy.again if _repeated_without_progress(facts, history) else first
    if action is RecoveryAction.ELSEWHERE and not facts.named_nodes:
        action = RecoveryAction.TEST  # the bad node is unknown, so test all of them
    if facts.is_service_outage and action in RESTART_ACTIONS:
        action = RecoveryAction.WAIT  # leaving a node out does not bring the service back
    if action in RESTART_ACTIONS and facts.restart_helps is RestartAdvice.NO and action is not RecoveryAction.ROLL_BACK:
        return RecoveryAction.STOP, "the error in the log is expected to repeat after a restart"
    # Failures during an outage are not a crash loop: the job never ran far enough to fail by itself
    if action in RESTART_ACTIONS - {RecoveryAction.WAIT} and (loop := crash_loop_reason(history.tries)):
        return RecoveryAction.STOP, loop
    return action, remedy.why


def _repeated_without_progress(facts: FailureFacts, history: FailureHistory) -> bool:
    """Whether the last attempt with known progress ended with the same cause and this one made no further progress.

    If no step of this attempt is known, it counts as one without progress if it ended soon, and the attempt directly
    before it ended with the same cause.
    """
    *before, last = history.tries or (PastAttempt(cause=""),)
    cause = last.cause if facts.cause == UNKNOWN else facts.cause  # an unknown cause counts by the exit code
    if last.step is None:
        ended_soon = last.ran is not None and last.ran < MAY_HAVE_PROGRESSED_AFTER
        return ended_soon and bool(before) and before[-1].cause == cause
    measured = [attempt for attempt in before if attempt.step is not None]
    if not measured:
        return False
    furthest = max(attempt.step or 0 for attempt in measured)
    return measured[-1].cause == cause and last.step <= furthest


# --- from where


def _choose_checkpoint(
    action: RecoveryAction, facts: FailureFacts, history: FailureHistory
) -> tuple[SavedCheckpoint | None, str]:
    """The checkpoint to start from. Where one is required and none is usable: None and the reason."""
    usable = [checkpoint for checkpoint in facts.checkpoints if checkpoint.is_usable]
    if action is RecoveryAction.ROLL_BACK:
        bound = _rollback_bound(facts, history)
        # If it is unknown which checkpoint is bad, only a verified one is safe
        usable = [
            checkpoint for checkpoint in usable if (checkpoint.whole if bound is None else checkpoint.step < bound)
        ]
        if not usable:
            return None, "the job must go back to a step before the problem, and no earlier checkpoint can be trusted"
    # After a rollback, checkpoints of later steps still exist but are abandoned: the save order counts before the step
    return max(usable, key=lambda checkpoint: (checkpoint.order, checkpoint.step, checkpoint.path), default=None), ""


def _rollback_bound(facts: FailureFacts, history: FailureHistory) -> int | None:
    """The step that the checkpoint must precede: the problem, and every checkpoint already tried in this incident."""
    steps = [
        action.checkpoint
        for action in history.done
        if action.action is RecoveryAction.ROLL_BACK and action.job == facts.job and action.incident == facts.incident
    ]
    bad_step = facts.started_from if facts.cause == CORRUPT_CHECKPOINT_CAUSE else facts.spike_at
    if bad_step is None and facts.cause != CORRUPT_CHECKPOINT_CAUSE:
        bad_step = history.step
    return min((step for step in (*steps, bad_step) if step is not None), default=None)


def _steps_to_skip(
    action: RecoveryAction, facts: FailureFacts, policy: RecoveryPolicy, base: SavedCheckpoint | None
) -> tuple[int, int] | None:
    """First and last step whose data are skipped. None unless a loss spike points to the data."""
    if action is not RecoveryAction.ROLL_BACK or facts.spike_at is None or base is None:
        return None
    return max(base.step + 1, facts.spike_at - policy.skip_before), facts.spike_at + policy.skip_after


def _nodes_to_drain_and_test(
    action: RecoveryAction, facts: FailureFacts, history: FailureHistory
) -> tuple[frozenset[str], frozenset[str], tuple[str, ...]]:
    """Nodes to drain, nodes to test, and sentences about named nodes that are not drained.

    Anybody can write anything into the log of a job. So a node that only the job names is tested; it stays closed only
    if it fails the test.
    """
    if action not in CORDON_ACTIONS:
        return frozenset(), frozenset(), ()
    test = facts.named_nodes or (facts.nodes if action is RecoveryAction.TEST else frozenset())
    exempt = {
        override.subject: override for override in history.overrides if not override.lifted and override.subject in test
    }
    sentences = [
        f"{name} stays in service by decision of {exempt[name].by} ({exempt[name].why})." for name in sorted(exempt)
    ]
    if unconfirmed := facts.named_nodes - facts.confirmed_nodes - set(exempt):
        sentences.append(_unconfirmed_argument(facts, len(unconfirmed)))
    return facts.confirmed_nodes - set(exempt), test - set(exempt), tuple(sentences)


def _unconfirmed_argument(facts: FailureFacts, count: int) -> str:
    source = "reports name" if facts.anomaly else "log names"
    nodes = "the node is tested before it is" if count == 1 else f"the {count} nodes are tested before they are"
    return f"Only the job's {source} a hardware fault; {nodes} drained."


# --- when


def _earliest_start(
    action: RecoveryAction, facts: FailureFacts, history: FailureHistory, policy: RecoveryPolicy, now: datetime
) -> datetime:
    """When the job may start again. Jobs of one outage share a wait; each further wait is twice as long."""
    if action is not RecoveryAction.WAIT:
        return now
    waits = _previous_wait_ends(facts, history)
    running = max(waits, default=now)
    wait: timedelta = policy.first_wait * 2 ** min(len(waits), 16)
    return running if running > now else now + min(wait, policy.longest_wait)


def _previous_wait_ends(facts: FailureFacts, history: FailureHistory) -> set[datetime]:
    """The ends of all waits for this outage: those of its incident, and those after which this job failed again soon.

    The second group is needed because a wait may be longer than an incident stays open.
    """
    waited = [wait for wait in history.done if wait.action is RecoveryAction.WAIT and wait.until]
    ends = {wait.until for wait in waited if wait.until and _is_same_outage(wait, facts)}
    since = facts.at
    for wait in sorted((wait for wait in waited if wait.job == facts.job), key=lambda wait: wait.at, reverse=True):
        if wait.until is None or since - wait.until >= SAME_OUTAGE_WITHIN:
            break
        ends.add(wait.until)
        since = wait.at
    return ends


def _is_same_outage(done: PastAction, facts: FailureFacts) -> bool:
    return done.incident == facts.incident if facts.incident else done.job == facts.job


# --- for and against


RESTART_ARGUMENTS = {
    RestartAdvice.YES: "A restart helps against this cause.",
    RestartAdvice.NO: "A restart does not help against this cause.",
}


def _pros_and_cons(case: DecisionDraft) -> tuple[tuple[str, ...], tuple[str, ...]]:
    action, facts = case.action, case.facts
    pro, con = list[str](), list[str]()
    if facts.anomaly:
        pro.append(facts.anomaly)
    else:
        (pro if facts.confidence >= case.policy.sure else con).append(_diagnosis_argument(facts))
    if facts.named_nodes:
        pro.append(f"The evidence names {', '.join(sorted(facts.named_nodes))}.")
    pro += [row.sentence for row in facts.evidence if row.node in facts.confirmed_nodes]
    if strangers := facts.suspects - facts.nodes:
        con.append(f"It also names {', '.join(sorted(strangers))}, but the job did not run there.")
    if facts.alike:
        pro.append(f"{facts.alike} other {'job' if facts.alike == 1 else 'jobs'} failed with the same cause.")
    if facts.restart_helps is not RestartAdvice.UNKNOWN and facts.job:
        (pro if (facts.restart_helps is RestartAdvice.YES) == (action in RESTART_ACTIONS) else con).append(
            RESTART_ARGUMENTS[facts.restart_helps]
        )
    pro += [change.sentence for change in case.change]
    if case.restarts and facts.job:
        _add_restart_arguments(pro, con, facts, case.history, case.base)
    return tuple(pro), tuple(con)


def _diagnosis_argument(facts: FailureFacts) -> str:
    if not facts.confidence:
        return "The cause is unknown."
    return f"The diagnosis is {facts.cause}, {facts.confidence:.0%} confidence."


def _add_restart_arguments(
    pro: list[str], con: list[str], facts: FailureFacts, history: FailureHistory, base: SavedCheckpoint | None
) -> None:
    step = history.step
    if base is not None:
        known = {True: "It is complete", None: "It is not verified"}[base.whole]
        pro.append(f"A checkpoint of step {base.step} is available: {base.path}. {known}.")
        if step is not None and step > base.step:
            con.append(f"{step - base.step} steps since then are lost.")
    else:
        con.append("No checkpoint is known: the job starts from the beginning.")
    if _repeated_without_progress(facts, history):
        without = "ended soon" if step is None else "made no further progress"
        con.append(f"The previous attempt failed with the same cause, and this one {without}.")
    if step is None:
        con.append(f"{_unknown_progress(history)}, so this failure does not count against the retry limit.")


def _unknown_progress(history: FailureHistory) -> str:
    logged = history.tries[-1].logged_step if history.tries else None
    return "Its progress is unknown" if logged is None else f"Step {logged} is known only from its log"
